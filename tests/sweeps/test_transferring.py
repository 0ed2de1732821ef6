"""Sizes that take over settings from the smallest: what they train, what refuses it, and what a plan says of it."""

import json
import math
from dataclasses import replace
from functools import partial

import pytest
from optuna.storages import InMemoryStorage

from ablate import report
from ablate.addons.scaling.rungs import build_rungs
from ablate.cli import main
from ablate.config.errors import ConfigError, SweepError
from ablate.sweeps.dry_run import outline_all
from ablate.sweeps.preparation import list_differences
from ablate.sweeps.spec import audit
from ablate.sweeps.spec.files import add_earlier_sweeps, load_sweeps
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.storage import open_storage, read_sweep, storage_url
from ablate.sweeps.transferring import describe_check, judge, resolve, resolve_from
from benchmarks.simulation.losses import Valley
from benchmarks.simulation.sweeps import simulate

FILE = {
    "name": "toy",
    "experiment": {
        "data": {"kind": "topics", "seq_len": 16},
        "trainer": {"batch_size": 2, "max_steps": 2, "val_check_interval": 2, "val_samples": 8},
        "parametrization": {"kind": "mup", "base": {"hidden": 16, "layers": 2}},
    },
    "arms": {"pre": {"norm": "pre"}, "mix": {"norm": "mix", "search": {"norm.alpha": [0.25, 0.5]}}},
    "search": {"transfer": {"from": "a"}, "optimizer.lr": [1e-3, 2e-3, 4e-3]},
    "sampler": "grid",
    "confirm": {"seeds": 3, "effect": 0.03, "selection_seeds": 1},
    "sizes": {
        "c": {"model": {"hidden": 48, "layers": 2, "heads": 3, "mlp": 48}},
        "a": {"model": {"hidden": 16, "layers": 2, "heads": 1, "mlp": 48}},
        "b": {"model": {"hidden": 32, "layers": 2, "heads": 2, "mlp": 48}},
    },
}
BEST = {"a": 2e-3, "b": 2e-3, "c": 2e-3}


@pytest.fixture
def file(write_sweep):
    return partial(write_sweep, FILE)


def size_of(spec):
    return spec.name.removeprefix("toy-").removesuffix("-check")


def run_all(specs, best, fails=lambda size, lr: False, arms=("pre", "mix")):
    """Return name -> record of `specs`, simulated with the best rate of each size for `arms`, and 2e-3 for others."""
    records = {}
    for spec in specs:
        resolved = resolve_from(spec, records.__getitem__)

        def lose(name, params, seed, spec=resolved):
            arm, rate = name.split(" x")[0], params.get("optimizer.lr", spec.base(name).optimizer.lr)
            best_lr = best[size_of(spec)] if arm in arms else 2e-3
            valley = Valley({"pre": 2.0, "mix": 2.1}, best_lr=best_lr, shared=0.01, own=0.001)
            return math.inf if fails(size_of(spec), rate) else valley(arm, {"optimizer.lr": rate}, seed)

        records[spec.name] = simulate(resolved, lose, InMemoryStorage())
    return records


def test_fields_of_the_transfer_are_set_on_the_command_line(file):
    specs = load_sweeps(file(), {"search.transfer.at": "c", "search.transfer.seeds": 5, "search.optimizer.lr": [1, 2]})
    check = next(spec for spec in specs if spec.name.endswith("-check"))
    assert (check.name, check.transfer.seeds) == ("toy-c-check", 5)
    assert [*specs[0].search["optimizer.lr"]] == [1, 2]
    with pytest.raises(ConfigError, match=r"search\.transfer\.of"):
        load_sweeps(file(), {"search.transfer.of": 1})
    with pytest.raises(ConfigError):  # no transfer that it could be a field of
        load_sweeps(file(search={"optimizer.lr": [1e-3]}), {"search.transfer.seeds": 5})


def test_the_search_goes_first_then_the_spot_check_then_the_other_sizes(file):
    specs = load_sweeps(file())
    assert [spec.name for spec in specs] == ["toy-a", "toy-b-check", "toy-b", "toy-c"]
    assert specs[0] == load_sweeps(file(search={"optimizer.lr": [1e-3, 2e-3, 4e-3]}))[0]  # like any sweep
    assert [spec.name for spec in load_sweeps(file(), size="c")] == ["toy-c"]
    alone = load_sweeps(file(), size="c")
    assert [spec.name for spec in add_earlier_sweeps(file(), alone, {})] == ["toy-a", "toy-b-check", "toy-c"]
    assert [spec.name for spec in load_sweeps(file(), {"search.transfer": None})] == ["toy-a", "toy-b", "toy-c"]
    assert [spec.transfer for spec in load_sweeps(file(), {"search.transfer": None})] == [None] * 3


def test_settings_that_hold_are_taken_over_by_all_sizes_and_tested_on_fresh_seeds_alone(file):
    records = run_all(load_sweeps(file()), BEST)
    searched = records["toy-a"]
    check, last = records["toy-b-check"].spec, records["toy-c"].spec
    chosen = {arm: searched.settled(arm).params for arm in ("pre", "mix")}
    assert chosen["pre"] == {"optimizer.lr": 2e-3}
    assert set(chosen["mix"]) == {"optimizer.lr", "norm.alpha"}
    rates = {name: check.base(name).optimizer.lr for name in check.own_arms}
    assert rates == {f"{arm} x{f:g}": 2e-3 * f for arm in ("pre", "mix") for f in (0.5, 1, 2)}
    assert check.base("mix x2").norm.alpha == last.base("mix").norm.alpha == chosen["mix"]["norm.alpha"]
    assert all(spot.holds for spot in judge(records["toy-b-check"]))
    for name in ("toy-b", "toy-c"):
        record = records[name]
        assert record.spec.transfer.outcome == "holds"
        assert {arm: record.spec.base(arm).optimizer.lr for arm in ("pre", "mix")} == {"pre": 2e-3, "mix": 2e-3}
        assert {arm: len(runs) for arm, runs in record.confirmed.items()} == {"pre": 3, "mix": 3}
        assert not any(record.trials.values())
        assert audit.find_confounds(record.spec) == []
        tested = {run.params["seed"] for run in record.confirmed["pre"]}
        assert tested == {1, 2, 3} == {run.params["seed"] for run in searched.confirmed["pre"]}
        assert not tested & {run.params["seed"] for run in records["toy-b-check"].confirmed["pre x1"]}
        assert resolve_from(record.spec, records.__getitem__) is record.spec
    alpha = chosen["mix"]["norm.alpha"]
    told = f"the settings that toy-a chose for it (pre lr=0.002, mix lr=0.002 alpha={alpha})."
    assert told in records["toy-c"].spec.transfer.describe()


def test_the_spot_check_may_be_at_the_largest_size(file):
    search = {"transfer": {"from": "a", "at": "c", "seeds": 2}, "optimizer.lr": [1e-3, 2e-3, 4e-3]}
    specs = load_sweeps(file(search=search))
    assert [spec.name for spec in specs] == ["toy-a", "toy-c-check", "toy-b", "toy-c"]
    assert [spec.name for spec in add_earlier_sweeps(file(), load_sweeps(file(), size="b"), {})][-1] == "toy-b"
    records = run_all(specs, {**BEST, "c": 8e-3})
    assert records["toy-c-check"].spec.base("pre x1").model.hidden == 48
    assert {len(runs) for runs in records["toy-c-check"].confirmed.values()} == {2}
    assert records["toy-b"].spec.transfer.outcome == "searched"


@pytest.mark.parametrize("arm", ["pre", "mix"])
def test_a_better_neighbour_of_one_arm_has_every_arm_searched_everywhere(file, arm):
    specs = load_sweeps(file())
    records = run_all(specs, {**BEST, "b": 8e-3}, arms=[arm])
    spots = {spot.arm: spot for spot in judge(records["toy-b-check"])}
    assert {name: spot.holds for name, spot in spots.items()} == {"pre": arm != "pre", "mix": arm != "mix"}
    assert [neighbour.factor for neighbour in spots[arm].better] == [2.0]
    # by hand: 0.4 a squared decade; two doublings from the best, and then one
    gain = 0.4 * (math.log10(4) ** 2 - math.log10(2) ** 2)
    assert spots[arm].better[0].gain == pytest.approx(gain, abs=0.005)
    plain = load_sweeps(file(search={"optimizer.lr": [1e-3, 2e-3, 4e-3]}))
    for spec, expected in zip(specs[2:], plain[1:], strict=True):
        resolved = resolve_from(spec, records.__getitem__)
        assert resolved.transfer.outcome == "searched"
        told = (
            f"refused: in toy-b-check {arm} is better by {spots[arm].better[0].gain:.3f} at 2 times its learning rate."
        )
        assert resolved.transfer.describe().endswith(told)
        assert resolved.model_copy(update={"transfer": None}) == expected


def test_the_bound_is_the_smallest_difference_that_matters(file):
    effect = 0.4 * (math.log10(4) ** 2 - math.log10(2) ** 2)
    for factor, holds in ((0.8, False), (1.2, True)):
        specs = load_sweeps(file(confirm={**FILE["confirm"], "effect": effect * factor}))
        spots = judge(run_all(specs[:2], {**BEST, "b": 8e-3})["toy-b-check"])
        assert [spot.holds for spot in spots] == [holds] * 2


@pytest.mark.parametrize(
    ("failing", "holds"),
    [([4e-3], True), ([2e-3], False), ([2e-3, 4e-3], False), ([1e-3, 2e-3, 4e-3], False)],
)
def test_failures_at_the_next_size_refuse_settings_unless_only_their_neighbours_fail(file, failing, holds):
    records = run_all(
        load_sweeps(file()), BEST, lambda size, lr: size == "b" and any(map(math.isclose, failing, [lr] * 3))
    )
    assert [spot.holds for spot in judge(records["toy-b-check"])] == [holds] * 2
    assert records["toy-c"].spec.transfer.outcome == ("holds" if holds else "searched")


def test_an_arm_that_nothing_trains_is_searched_with_all_others(file):
    specs = load_sweeps(file())
    records = run_all(specs[:1], BEST)
    lost = replace(
        records["toy-a"], trials={**records["toy-a"].trials, "mix": []}, chosen={"pre": records["toy-a"].chosen["pre"]}
    )
    check = resolve_from(specs[1], {"toy-a": lost}.__getitem__)
    assert list(check.own_arms) == ["pre x0.5", "pre x1", "pre x2"]
    records = {"toy-a": lost, "toy-b-check": simulate(check, lambda arm, params, seed: 2.0, InMemoryStorage())}
    size = resolve_from(specs[2], records.__getitem__)
    assert size.transfer.outcome == "searched"
    assert size.transfer.describe().endswith("were refused: no trial of mix completed in toy-a.")
    told = "No trial of mix completed in toy-a: every arm is searched at every size."
    assert describe_check(records["toy-b-check"]) == told
    nothing = replace(lost, trials={"pre": [], "mix": []}, chosen={})
    with pytest.raises(SweepError, match="No trial of toy-a completed"):
        resolve_from(specs[1], {"toy-a": nothing}.__getitem__)


def test_a_reason_is_no_other_sweep(file):
    """Sizes that began before reasons were kept, or with more seeds of the check, go on."""
    specs = load_sweeps(file())
    records = run_all(specs, {**BEST, "b": 8e-3})
    now = records["toy-c"].spec
    before = now.model_copy(update={"transfer": now.transfer.model_copy(update={"reason": None})})
    assert now.transfer.reason
    assert list_differences(before, now) == []
    assert before.transfer.describe() == (
        "Every arm was searched here, as toy-b-check refused the settings that toy-a chose."
    )


def test_a_check_that_has_not_ended_decides_nothing(file):
    record = run_all(load_sweeps(file())[:2], BEST)["toy-b-check"]
    assert "all sizes take over" in describe_check(record)
    part = replace(record, confirmed={**record.confirmed, "pre x2": record.confirmed["pre x2"][:1]})
    assert describe_check(part) == "toy-b-check has ended 16 of 18 runs, and the other sizes wait for it."


def test_what_waits_says_for_what(file, store):
    specs = load_sweeps(file())
    with pytest.raises(SweepError, match="toy-b-check waits for toy-a, which has not begun"):
        resolve(specs[1], f"sqlite:///{store}/none.db")
    with pytest.raises(SweepError, match="takes over the settings of the size a, and so needs its whole file"):
        resolve(Sweep.load(file(), size="b"), f"sqlite:///{store}/none.db")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"search": {"transfer": {"from": "b"}, "optimizer.lr": [1e-3]}}, "from the smallest size, a"),
        ({"search": {"transfer": {"from": "aa"}, "optimizer.lr": [1e-3]}}, "Did you mean a"),
        ({"search": {"transfer": {"form": "a"}, "optimizer.lr": [1e-3]}}, "search.transfer.form"),
        ({"search": {"transfer": {"from": "a"}, "optimizer.weight_decay": [0.1]}}, "pre and mix have none"),
        ({"confirm": {"seeds": 3}}, "confirm.effect: is required with search.transfer"),
        ({"confirm": {"effect": 0.1}}, "confirm.seeds: is required with search.transfer"),
        ({"confirm": {"seeds": 3, "effect": 0.1, "at": "grid"}}, "chooses none that another size could take over"),
        ({"search": {"transfer": {"from": "a", "at": "a"}, "optimizer.lr": [1e-3]}}, "above a. Accepted: b, c"),
        ({"search": {"transfer": {"from": "a", "outcome": "holds"}, "optimizer.lr": [1e-3]}}, "is set when the"),
        ({"sizes": {}}, "this file has no sizes"),
        ({"sizes": {"a": FILE["sizes"]["a"]}}, "two sizes or more"),
        ({"sizes": {**FILE["sizes"], "b": {**FILE["sizes"]["b"], "search": {"optimizer.lr": [1e-3]}}}}, "that of b is"),
        ({"sizes": {**FILE["sizes"], "b": {**FILE["sizes"]["b"], "arms": {"pre": {"norm": "pre"}}}}}, "b has others"),
        ({"arms": {}, "design": "factorial", "components": {"norm": ["pre", "post"]}}, "this file has components"),
    ],
)  # fmt: skip
def test_mistakes_are_told_before_anything_runs(file, more, message):
    with pytest.raises(ConfigError) as told:
        load_sweeps(file(**more))
    assert message in str(told.value)


def test_a_plan_counts_the_tokens_with_the_transfer_and_without(file):
    plans = outline_all(load_sweeps(file()))
    assert len(plans) == 5
    run = 2 * 2 * 16  # updates, sequences and tokens of each
    tested, checked = 2 * 3 * run, 2 * 3 * 3 * run
    searched = (3 + 6 + 2 * 3) * run + tested  # trials of both arms, three candidates of each, fresh seeds
    assert "each of 2 arms at its settings, and at half and twice their learning rate, on 3 seeds: 18 runs" in plans[1]
    assert f"to do: {tested:,} tokens; if the spot check refuses" in plans[2]
    assert f"all are searched: {searched:,} tokens" in plans[3]
    total = searched + checked + 2 * tested
    assert plans[4].startswith(f"toy-a, toy-b and toy-c together, from their beginning: {total:,} tokens with the tr")
    assert f"{3 * searched:,} where every size is searched" in plans[4]
    assert f"refuses the settings: {3 * searched + checked:,}" in plans[4]
    assert "saves nothing" not in plans[4]
    dearer = outline_all(
        load_sweeps(file(search={"transfer": {"from": "a", "seeds": 30}, "optimizer.lr": [1e-3, 2e-3, 4e-3]}))
    )
    assert "So the transfer saves nothing here" in dearer[4]


def test_sizes_of_a_ladder_include_the_one_that_is_searched(file):
    with pytest.raises(ConfigError, match=r"no such size\. Accepted: b, c"):
        build_rungs(file(), ["b", "c"])
    assert [rung.size for rung in build_rungs(file(), ["a", "c"])] == ["a", "c"]


def test_a_ladder_says_what_was_taken_over(file, store, capsys):
    records = {}
    for spec in load_sweeps(file()):
        resolved = resolve_from(spec, records.__getitem__)
        records[spec.name] = simulate(resolved, lambda arm, params, seed: 2 + seed / 9999, open_storage(storage_url()))
    assert main(["ladder", str(file()), "--json"]) == 0  # nothing is left to train
    told = json.loads(capsys.readouterr().out)
    assert any(note.startswith("b and c: Nothing was searched here") for note in told["notes"])
    assert main(["ladder", str(file()), "--dry-run"]) == 0
    assert capsys.readouterr().out.count("to do: 0 trials, 0 tokens") == 4
    assert main(["sweep", str(file())]) == 0
    assert "all sizes take over the settings that toy-a chose" in " ".join(capsys.readouterr().out.split())
    assert [len(read_sweep(name).list_runs()) for name in records] == [len(r.list_runs()) for r in records.values()]
    assert main(["report", "toy-c"]) == 0
    assert "Nothing was searched here" in " ".join(capsys.readouterr().out.split())
    assert main(["report", "toy-b-check"]) == 0
    assert "not compared" in capsys.readouterr().out
    assert main(["status"]) == 0
    assert "A spot check of the settings that toy-a chose" in " ".join(capsys.readouterr().out.split())
    assert main(["sweep", str(file()), "--submit", "cluster=local"]) == 2
    assert "sizes that take over settings wait for the others" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("failing", "begun"),
    [
        ("toy-a", ["toy-a"]),
        ("toy-b-check", ["toy-a", "toy-b-check"]),
        ("toy-b", ["toy-a", "toy-b-check", "toy-b", "toy-c"]),
    ],
)
def test_what_waits_for_a_crashed_trial_does_not_begin(file, store, monkeypatch, failing, begun):
    names = []

    def run_one(spec, *rest):
        names.append(spec.name)
        return int(spec.name == failing)

    monkeypatch.setattr("ablate.cli.sweep._run_one", run_one)
    assert main(["sweep", str(file())]) == 1
    assert names == begun


def test_a_file_trains_and_a_refused_transfer_is_searched_everywhere(file, store, capsys):
    small = {
        "arms": {"pre": {"norm": "pre"}},
        "search": {"transfer": {"from": "a", "seeds": 2}, "optimizer.lr": [1e-3, 2e-3]},
        "confirm": {"seeds": 1, "effect": 9.0, "candidates": 1},
        "sizes": {name: FILE["sizes"][name] for name in "ab"},
    }
    assert main(["sweep", str(file(**small)), "--size", "b", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "toy-a runs first: toy-b-check and toy-b wait for its results." in told
    assert "sweep toy-b-check: a spot check at b" in told
    assert main(["sweep", str(file(**small))]) == 0  # two updates teach nothing, so that every seed is stuck
    told = " ".join(capsys.readouterr().out.split())
    assert "pre fails on all 2 seeds at its chosen settings" in told
    assert "every arm is searched at every size" in told
    check, size = read_sweep("toy-b-check"), read_sweep("toy-b")
    assert {name: len(runs) for name, runs in check.confirmed.items()} == dict.fromkeys(check.spec.own_arms, 2)
    assert list(check.spec.own_arms) == ["pre x0.5", "pre x1", "pre x2"]
    assert {arm: len(trials) for arm, trials in size.trials.items()} == {"pre": 2}
    reason = "in toy-b-check pre fails on all 2 seeds at its chosen settings."
    assert f"as the settings that toy-a chose were refused: {reason}" in report("toy-b").verdict


def test_a_transfer_that_is_switched_off_is_told_as_it_stands_in_the_file(file):
    specs = load_sweeps(file())
    before = run_all(specs, {**BEST, "b": 8e-3})["toy-c"].spec
    now = before.model_copy(update={"transfer": None})
    assert list_differences(before, now) == ["search.transfer.from: a -> (not set)"]
    assert list_differences(now, before) == ["search.transfer.from: (not set) -> a"]
