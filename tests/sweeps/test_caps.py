"""The cap of a whole sweep, and the rule that ends searches early: simulated sweeps through the real engine."""

import math

import optuna
import pytest
import yaml

from ablate.cli import main
from ablate.config.errors import ConfigError
from ablate.reports.findings import list_cautions
from ablate.sweeps.caps import Amount, Ledger, Runs, open_ledger
from ablate.sweeps.dry_run import outline
from ablate.sweeps.search.plateau import bound_gain
from ablate.sweeps.spec.parts import Cap
from ablate.sweeps.spec.scale import scale_sweep
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.status import count_planned_runs, count_runs
from ablate.verdict.outcomes import TrialRecord
from benchmarks.simulation.losses import Valley
from benchmarks.simulation.sweeps import simulate

ARMS = {"a": {"norm": "pre"}, "b": {"norm": "post"}}


def spec_of(**more):
    return Sweep.from_tree(
        {
            "name": "capped",
            "arms": ARMS,
            "search": {"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True}},
            "sampler": "random",
            "confirm": {"seeds": 3, "candidates": 2, "selection_seeds": 1},
            **more,
        }
    )


def run(spec, objective=None):
    return simulate(spec, objective or Valley({"a": 2.0, "b": 2.1}), optuna.storages.InMemoryStorage())


ITEMS = 1  # of a simulated run, whose length the engine is not told


def record(status, items=1, seconds=None, gpus=0.0):
    return TrialRecord("a", 0, status, {}, None, {}, {}, items, seconds, None, "", costs={"gpus": gpus})


@pytest.mark.parametrize(
    ("more", "trials"),
    [
        (0, 1),
        (1, 1),  # both arms get one more, or none
        (2, 2),
        (9, 5),
        (10, 6),
        (99, 8),
    ],
)
def test_a_cap_gives_all_arms_as_many_trials_and_leaves_room_for_their_seeds(more, trials):
    """Two arms: one trial, two runs to choose by where there are two candidates, and three fresh seeds each."""
    least = 2 * (1 + 2 + 3)
    budget = {"trials": 8, "cap": {"tokens": (least + more) * spec_of().base("a").items}}
    plan = outline(spec_of(budget=budget))
    assert plan.count(f"{trials} trial{'s' if trials > 1 else ''} of") == 2, plan
    # as a simulated run counts for one token, and the limit that is checked before is for real ones
    spec = spec_of(budget={"trials": 8})
    spec = spec.model_copy(update={"budget": spec.budget.model_copy(update={"cap": Cap(tokens=least + more)})})
    swept = run(spec)
    assert [len(found) for found in swept.trials.values()] == [trials, trials]
    assert all(len(found) == 3 for found in swept.confirmed.values())
    spent = open_ledger(swept).spent.items
    assert spent == len(swept.list_runs())
    crossed = sum(len(runs.runs) for runs in swept.list_crossed())
    assert spent <= least + more or (trials == 1 and not crossed)
    done, total = count_runs(swept)
    assert done == total == len(swept.list_runs())
    assert count_planned_runs(swept) >= total
    cautions = list_cautions(swept)
    assert any("The sweep has a cap: " in text and "tokens left" in text for text in cautions)
    assert any("It leaves out" in text for text in cautions) == (count_planned_runs(swept) > total)


def test_further_seeds_are_run_for_all_arms_or_for_none():
    """Equal arms: each look is undecided, and seeds are added while the cap allows both."""
    confirm = {"seeds": {"min": 3, "max": 40}, "candidates": 1, "effect": 1e-9}
    spec = spec_of(budget={"trials": 2}, confirm=confirm)
    plain = 2 * (2 + 3)
    for more in (0, 1, 4, 5):
        cap = {"budget": spec.budget.model_copy(update={"cap": Cap(tokens=plain + more)})}
        swept = run(spec.model_copy(update=cap), Valley({"a": 2.0, "b": 2.0}))
        assert [len(found) for found in swept.confirmed.values()] == [3 + more // 2] * 2
        assert len(swept.list_runs()) <= plain + more


def test_a_cap_that_is_raised_continues():
    storage, objective = optuna.storages.InMemoryStorage(), Valley({"a": 2.0, "b": 2.1})
    plain = spec_of(budget={"trials": 6}, confirm={"seeds": 0})
    for tokens, trials in ((4, 2), (9, 4), (99, 6)):
        spec = plain.model_copy(update={"budget": plain.budget.model_copy(update={"cap": Cap(tokens=tokens)})})
        swept = simulate(spec, objective, storage)
        assert [len(found) for found in swept.trials.values()] == [trials, trials]


def test_what_a_ledger_counts():
    trials = [
        record("completed", 100, 3600.0, 2.0),
        record("diverged", 10, 360.0, 2.0),
        record("failed", 50, None),
        record("running", 0),
        record("interrupted", 30),
    ]
    ledger = Ledger(Cap(tokens=1000, hours=10, gpu_hours=10), [Runs("a", trials)], {"a": 100})
    assert ledger.spent == Amount(210.0, 7560.0, 15120.0)  # the running one counts as a whole one
    assert ledger.describe_left() == "790 of 1 k tokens, 7.9 of 10 hours, 5.8 of 10 GPU hours left"
    assert ledger.fits({"a": 2})
    assert not ledger.fits({"a": 3})  # of GPU hours
    unknown = Ledger(Cap(hours=1), [Runs("a", [])], {"a": 100})
    assert unknown.limit_rounds({"a": 0}, {"a": 9}, {"a": 0}) == 1  # nobody knows how long one takes
    both = Ledger(Cap(tokens=900, hours=1), [Runs("a", [])], {"a": 100})
    assert both.limit_rounds({"a": 0}, {"a": 9}, {"a": 0}) == 1  # nor here, however many tokens there are
    gpu = Ledger(Cap(gpu_hours=1), [Runs("a", [])], {"a": 100}, 900.0)
    assert gpu.limit_rounds({"a": 0}, {"a": 9}, {"a": 1}) == 3  # a run is planned on one GPU
    assert Ledger(Cap(hours=1), [Runs("a", [])], {"a": 100}, 900.0).limit_rounds({"a": 0}, {"a": 9}, {"a": 1}) == 3


def test_what_leaves_no_room_for_a_verdict_is_refused(tmp_path, capsys):
    items = spec_of().base("a").items
    with pytest.raises(ConfigError, match=rf"budget\.cap\.tokens: leaves no room for a verdict.* take {12 * items:,}"):
        spec_of(budget={"trials": 2, "cap": {"tokens": 12 * items - 1}})
    spec_of(budget={"trials": 2, "cap": {"tokens": 12 * items}})
    with pytest.raises(ConfigError, match=r"budget\.plateau\.trials: the rule would never be asked"):
        spec_of(budget={"trials": 8, "plateau": {"gain": 0.01}})
    file = tmp_path / "my.yaml"
    tree = {"name": "my", "arms": ARMS, "search": {"optimizer.lr": [1e-3]}, "budget": {"cap": {}}}
    file.write_text(yaml.safe_dump(tree))
    assert main(["sweep", str(file), "--dry-run"]) == 2
    assert "budget.cap: needs a limit: tokens, hours or gpu_hours" in capsys.readouterr().err


def test_a_scaled_sweep_scales_its_cap():
    spec = spec_of(budget={"trials": 4, "cap": {"tokens": 10**9, "hours": 8, "gpu_hours": 4}})
    cap = scale_sweep(spec, 0.5).budget.cap
    assert (cap.tokens, cap.hours, cap.gpu_hours) == (5 * 10**8, 4, 2)


# ------------------------------------------------------------------ the plateau


def test_a_search_ends_where_nothing_is_to_be_gained():
    """By the same rule for both arms; the count is kept, and another rule asks again."""
    plain = spec_of(budget={"trials": 30}, sampler={"kind": "tpe"}, confirm={"seeds": 0})
    rule = {"gain": 0.2, "trials": 8}
    spec = spec_of(budget={"trials": 30, "plateau": rule}, sampler={"kind": "tpe"}, confirm={"seeds": 0})
    storage, whole = optuna.storages.InMemoryStorage(), run(plain)
    swept = simulate(spec, Valley({"a": 2.0, "b": 2.1}), storage)
    counts = {arm: len(found) for arm, found in swept.trials.items()}
    assert all(8 <= count < 30 for count in counts.values())
    assert swept.plateaus == counts
    for arm, found in swept.trials.items():
        assert min(t.value for t in found) - min(t.value for t in whole.trials[arm]) < rule["gain"]
    assert any(f"a after {counts['a']} trials" in text for text in list_cautions(swept))
    assert simulate(spec, Valley({"a": 2.0, "b": 2.1}), storage).trials == swept.trials
    more = simulate(plain, Valley({"a": 2.0, "b": 2.1}), storage)
    assert [len(found) for found in more.trials.values()] == [30, 30]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_bound_is_above_what_is_left_to_gain_and_takes_diverged_trials(sign):
    study = optuna.create_study(
        direction="minimize" if sign == 1 else "maximize", sampler=optuna.samplers.RandomSampler(seed=0)
    )
    assert bound_gain(study, study.trials) == math.inf
    for _ in range(10):
        trial = study.ask({"lr": optuna.distributions.FloatDistribution(1e-4, 1e-1, log=True)})
        value = math.log10(trial.params["lr"] / 3e-3) ** 2 if trial.params["lr"] < 3e-2 else math.inf
        study.tell(trial, sign * value)
    assert math.isinf(study.trials[-1].value) or any(math.isinf(t.value) for t in study.trials)
    left = min(sign * t.value for t in study.trials)
    assert left <= bound_gain(study, study.trials) < 10
