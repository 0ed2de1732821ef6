"""Sweeps that test every point of a grid: through the engine, stopped and gone on with, and in the report."""

import math
from dataclasses import replace

import optuna
import pytest
from run_table import by_arm, put
from scheduler.small import run_sweep, spec_tree

from ablate import tracking
from ablate.config.errors import SweepError
from ablate.reports.report import assemble
from ablate.scheduler.donors import find_settled_run, resolve_run
from ablate.scheduler.status import read_statuses
from ablate.sweeps.comparison import compare_record
from ablate.sweeps.runs import FRESH
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.verdict_summary import summarise_verdict
from ablate.training.runs import measure_checkpoint
from ablate.verdict.comparison import compare
from benchmarks.simulation.losses import Valley
from benchmarks.simulation.sweeps import replay, simulate

ARMS = {"pre": {"norm": "pre"}, "post": {"norm": "post"}, "mix": {"norm": "mix"}}
LOW, HIGH = 3e-3, 2.5e-2
TRIVIAL = 3.3


def sweep(seeds=10, **parts):
    confirm = {"at": "grid", "seeds": seeds, **parts.pop("confirm", {})}
    tree = {"name": "points", "arms": ARMS, "search": {"optimizer.lr": [LOW, HIGH]}, "sampler": "grid"}
    return Sweep.from_tree({**tree, "confirm": confirm, **parts})


def end(arm, params, seed):
    """Post-LN is better at the low rate, and gets stuck at the high one."""
    if arm == "post" and params["optimizer.lr"] == HIGH:
        return TRIVIAL - 0.01
    return Valley({"pre": 2.0, "post": 1.9, "mix": 2.0}, own=0.01)(arm, params, seed)


@pytest.fixture(scope="module")
def record():
    return simulate(sweep(), end, optuna.storages.InMemoryStorage(), trivial_loss=TRIVIAL)


def test_every_point_is_trained_on_the_same_fresh_seeds_and_nothing_is_searched(record):
    assert list(by_arm(record)) == [f"{arm} lr={rate}" for rate in (LOW, HIGH) for arm in ARMS]
    assert not any(by_arm(record).values())
    assert {run.stage for run in record.runs} == {FRESH}
    for arm, runs in by_arm(record, FRESH).items():
        assert [run.seed for run in runs] == list(range(1, 11)), arm


def test_the_verdict_compares_arms_at_the_same_point_as_one_family(record):
    compared = compare_record(record)
    kinds = {arm: c.kind for arm, c in compared.items()}
    assert kinds == {
        "pre lr=0.003": "baseline", "post lr=0.003": "better", "mix lr=0.003": "undecided",
        "pre lr=0.025": "baseline", "post lr=0.025": "fails on all seeds", "mix lr=0.025": "undecided",
    }  # fmt: skip
    assert {c.family for c in compared.values()} == {4 + 1}  # four differences, and one test of failures that can tell
    versus = compared["post lr=0.025"].versus
    assert (versus.failed, versus.other_failed, versus.failure_side) == (10, 0, 1)
    assert versus.failure_p == pytest.approx(2 * 0.5**10)
    own = {arm: run for arm, run in compared.items() if "0.003" in arm}
    alone = compare({arm: _fresh(record, arm) for arm in own}, "pre lr=0.003", planned=10, others=3)
    assert alone["post lr=0.003"].versus == compared["post lr=0.003"].versus
    assert replay(sweep(), end, {}, trivial_loss=TRIVIAL) == compared


def _fresh(record, arm):
    from ablate.sweeps.comparison import collect_outcomes

    return collect_outcomes(record)[arm]


@pytest.mark.parametrize("stops", [1, 7, 30])
def test_a_sweep_that_is_stopped_ends_as_one_that_was_not(record, stops):
    storage = optuna.storages.InMemoryStorage()
    while len(simulate(sweep(), end, storage, stops, trivial_loss=TRIVIAL).runs) < 60:
        pass
    again = simulate(sweep(), end, storage, trivial_loss=TRIVIAL)
    assert compare_record(again) == compare_record(record)


def test_arms_and_points_take_turns():
    part = simulate(sweep(), end, optuna.storages.InMemoryStorage(), trials=9, trivial_loss=TRIVIAL)
    assert {len(runs) for runs in by_arm(part, FRESH).values()} == {1, 2}
    assert {c.kind for c in compare_record(part).values()} == {"baseline", "figures"}


def test_seeds_are_added_at_the_points_that_are_open():
    confirm = {"seeds": {"min": 3, "max": 6}, "effect": 0.05}

    def far(arm, params, seed):
        noise = 0.2 if params["optimizer.lr"] == HIGH else 1e-3
        return 2.0 - (arm == "post") + noise * math.sin(seed * {"pre": 1, "post": 2, "mix": 5}[arm])

    spec = sweep(confirm=confirm)
    found = simulate(spec, far, optuna.storages.InMemoryStorage(), trivial_loss=TRIVIAL)
    counts = {arm: len(runs) for arm, runs in by_arm(found, FRESH).items()}
    assert counts["pre lr=0.003"] == counts["mix lr=0.003"] == counts["post lr=0.003"] < counts["mix lr=0.025"] == 6
    assert counts["pre lr=0.025"] == 6
    assert compare_record(found) == replay(spec, far, {}, trivial_loss=TRIVIAL)


def test_the_report_shows_arms_at_points_and_says_in_one_sentence_what_was_found(record, tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_STORE", str(tmp_path))
    made = assemble(record, tmp_path)
    assert [path.name for path in made.figures] == ["grid.png", "verdict.png"]
    text = made.table()
    assert "Results on fresh seeds, each arm at each point of its grid" in text
    assert "best trial" not in text
    d = made.confirmed["post lr=0.003"].difference
    assert made.summary == (
        "Verdict. On 10 fresh seeds, with an error of at most 5 % for all 5 comparisons together: at lr=0.003 post "
        f"(mean {-d.mean:.2g} ± {d.half_width:.2g} nats) is better than pre on a typical seed, mix is inconclusive; at "
        "lr=0.025 post fails more often than pre, mix is inconclusive (failed seeds of 10: post 10)."
    )
    assert " ".join(text.split()).endswith(made.summary)
    plain = made.to_dict()
    assert plain["summary"] == made.summary
    assert plain["grid"]["post lr=0.025"]["point"] == {"optimizer.lr": HIGH}
    assert plain["grid"]["post lr=0.025"]["baseline"] == "pre lr=0.025"
    assert "At each" not in made.page()


def test_an_arm_without_its_point_stands_for_its_best(record):
    assert record.pick_point("post") == "post lr=0.003"  # at the other it failed
    assert record.pick_point("post lr=0.025") == "post lr=0.025"
    runs = {arm: [replace(t, run_id=f"{arm} {t.number}") for t in own] for arm, own in by_arm(record, FRESH).items()}
    found = find_settled_run("sweep:points/post", put(record, confirmed=runs), "post")
    assert found.startswith("post lr=0.003 ")
    with pytest.raises(SweepError, match=r"has the arms pre, post, mix, pre lr=0.003.*Did you mean post\?"):
        find_settled_run("sweep:points/pots", record, "pots")


def test_it_runs_with_workers_and_its_points_can_be_opened(store, tiny_settings):
    tree = spec_tree(tiny_settings, search={"optimizer.lr": [1e-3, 1e-2]}, sampler="grid", budget={})
    tree |= {"arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}}, "confirm": {"at": "grid", "seeds": 1}}
    spec = Sweep.from_tree(tree)
    found = run_sweep(spec, workers=2)
    assert list(by_arm(found, FRESH)) == list(spec.all_arms)
    assert [[t.status for t in runs] for runs in by_arm(found, FRESH).values()] == [["completed"]] * 4
    assert run_sweep(spec, workers=1) == found  # nothing is left to do
    for row in read_statuses("small"):
        assert (row["confirmed"], row["confirm_target"], row["target"], row["at_grid"]) == (1, 1, 0, True)
    for arm, run in found.parents.items():
        params = tracking.client().get_run(run).data.params
        assert (params["norm.kind"], float(params["optimizer.lr"])) == (arm.split()[0], float(arm.split("=")[1]))
    runs = {arm: found.fresh(arm)[0].run_id for arm in ("post lr=0.001", "post lr=0.01")}
    assert resolve_run("sweep:small/post lr=0.01") == runs["post lr=0.01"]
    assert resolve_run("sweep:small/post") in runs.values()
    assert all(measure_checkpoint(run) > 0 for run in runs.values())
    with pytest.raises(SweepError, match=r"confirm.at: grid -> best"):
        run_sweep(spec.without_grid(), workers=1)


def test_one_arm_is_compared_with_nothing_and_its_failures_are_told():
    alone = simulate(sweep(arms={"post": ARMS["post"]}), end, optuna.storages.InMemoryStorage(), trivial_loss=TRIVIAL)
    told = summarise_verdict(alone)
    assert "post lr=0.025 failed on 10 of 10" in told
    assert told.startswith("No verdict, as there is nothing to compare them with: post lr=0.003 failed on 0 of 10")


def test_the_frame_has_the_point_of_each_run(record):
    frame = record.frame()
    assert set(frame["optimizer.lr"]) == {LOW, HIGH}
    at_low = frame[frame["arm"] == f"pre lr={LOW}"]
    assert set(at_low["optimizer.lr"]) == {LOW}
