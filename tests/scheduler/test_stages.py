"""Sweeps whose arms start from the best of other arms: what goes first, what is started from, and what is refused."""

import pytest
import torch
import yaml
from run_table import by_arm

from ablate.cli import main
from ablate.config.errors import ConfigError, SweepError
from ablate.experiment.parts import Lora
from ablate.scheduler.run import sweep
from ablate.scheduler.storage import open_storage, read_sweep, storage_url
from ablate.sweeps.spec.files import add_earlier_sweeps, load_sweeps, select_passed_on
from ablate.sweeps.spec.references import find_donor, list_earlier_sweeps
from ablate.sweeps.spec.sweep import Sweep
from ablate.training.checkpoints import hash_weights
from ablate.training.trained import open_trained
from benchmarks.simulation.sweeps import simulate

SMALL = {
    "model": {"kind": "llama", "hidden": 16, "layers": 2, "heads": 2, "mlp": 32},
    "data": {"kind": "topics", "seq_len": 16, "val_fraction": 0.0005},
    "trainer": {"max_steps": 4, "batch_size": 4, "val_check_interval": 2},
}
OUTSIDE = ["embedding", "head"]


def start(donor, copy=OUTSIDE):
    return {"warm_start": {"from": donor, "copy": copy, "freeze": OUTSIDE}}


FIRST = {
    "name": "first",
    "experiment": SMALL,
    "factor": "model",
    "arms": {"none": {"model.layers": 0}, "attn": {"model.layers": 1, "model.sublayers": "attn"}},
    "search": {"optimizer.lr": [1e-3, 1e-2]},
    "sampler": "grid",
}
SECOND = {
    "name": "second",
    "experiment": SMALL,
    "arms": {
        "reuse": start("sweep:/baseline"),
        "baseline": {},
        "none": start("sweep:first/none"),
        "attn": start("sweep:first/attn", [*OUTSIDE, "layers.0.attn"]),
    },
    "baseline": "baseline",
    "search": {"optimizer.lr": [1e-3, 1e-2]},
    "sampler": "grid",
    "confirm": {"seeds": 1, "candidates": 1},
}


@pytest.fixture
def files(tmp_path):
    """The second sweep's file, beside the first's and one that cannot be read."""
    (tmp_path / "a-broken.yaml").write_text("name: [")
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(FIRST))
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(SECOND))
    return tmp_path / "two.yaml"


@pytest.mark.addons
def test_the_earlier_sweep_goes_first_and_every_trial_names_what_it_started_from(store, files, capsys):
    assert main(["sweep", str(files)]) == 0
    assert "first runs first: second starts from its trials." in capsys.readouterr().out
    before, after = read_sweep("first"), read_sweep("second")
    best = {
        "none": before.best("none").run_id,
        "attn": before.best("attn").run_id,
        "reuse": after.best("baseline").run_id,
    }
    parts = {"none": OUTSIDE, "attn": OUTSIDE, "reuse": OUTSIDE}
    for arm, donor in best.items():
        given = open_trained(donor).state
        trial = after.best(arm)
        own = open_trained(trial.run_id)
        assert own.experiment.warm_start.donor == donor
        assert own.experiment.warm_start.sha256 == hash_weights(given)
        assert own.experiment.warm_start.copied[:2] == tuple(parts[arm])
        for name in ("embed_tokens.weight", "lm_head.weight"):
            assert torch.equal(own.state[name], given[name])
        (confirmed,) = after.fresh(arm)
        assert open_trained(confirmed.run_id).experiment.warm_start == own.experiment.warm_start
        assert trial.costs["flops_before"] == pytest.approx(own.experiment.warm_start.flops)
    assert after.best("baseline").costs["flops_before"] == 0
    # all of it again: nothing is left to do
    numbers = [trial.run_id for trials in by_arm(after).values() for trial in trials]
    assert main(["sweep", str(files)]) == 0
    again = read_sweep("second")
    assert [trial.run_id for trials in by_arm(again).values() for trial in trials] == numbers
    # a better donor that is found later changes nothing for those who have started
    assert main(["sweep", str(files.with_name("one.yaml")), "budget.trials=2"]) == 0
    assert (store / "runs" / best["none"] / "last.ckpt").exists()


@pytest.mark.addons
def test_without_its_file_a_missing_sweep_is_asked_for(store, files):
    files.with_name("one.yaml").unlink()
    with pytest.raises(
        SweepError, match=r"Trials start from sweep:first/attn, which does not exist yet. There is no sweep"
    ):
        sweep(add_earlier_sweeps(files, load_sweeps(files), {})[-1])


@pytest.mark.addons
def test_a_search_that_is_not_done_is_not_started_from(store, files):
    first, second = add_earlier_sweeps(files, load_sweeps(files), {})
    simulate(first, lambda arm, params, seed: 1.0, open_storage(storage_url()), trials=3)
    with pytest.raises(SweepError, match=r"no trial of the arm is completed|whose search has not ended"):
        sweep(second)


def test_an_arm_waits_for_the_arm_that_it_starts_from(store):
    """The engine without training: the arm that waits comes when the search of the other is done."""
    arms = {"reuse": start("sweep:/baseline"), "baseline": {}, "other": {"warm_start": {"freeze": ["head"]}}}
    spec = Sweep.from_tree({**SECOND, "arms": arms, "confirm": {"seeds": 0}})
    order = []
    simulate(spec, lambda arm, params, seed: order.append(arm) or 1.0, open_storage(storage_url()))
    assert sorted(order) == sorted(["baseline", "reuse", "other"] * 2)
    assert max(i for i, arm in enumerate(order) if arm == "baseline") < order.index("reuse")


def test_an_arm_that_waits_for_one_without_a_result_is_refused_in_words(store):
    arms = {"reuse": start("sweep:/baseline"), "baseline": {}}
    spec = Sweep.from_tree({**SECOND, "arms": arms})
    with pytest.raises(SweepError, match=r"reuse starts from the best trial of baseline, and no trial of that arm"):
        simulate(spec, lambda arm, params, seed: float("nan"), open_storage(storage_url()))


@pytest.mark.parametrize(
    ("arms", "text"),
    [
        ({"a": start("sweep:/b"), "b": {}, "c": start("sweep:/d")}, "the sweep has no arm d. Accepted: a, b."),
        ({"a": start("sweep:/b"), "b": start("sweep:second/a")}, "the arms a, b would wait for each other"),
        ({"a": start("sweep:/a"), "b": {}}, "the arms a would wait for each other"),
    ],
)
def test_arms_that_cannot_follow_each_other_are_refused(arms, text):
    with pytest.raises(ConfigError, match=text):
        Sweep.from_tree({**SECOND, "arms": arms, "baseline": None})


def test_sweeps_that_wait_for_each_other_are_refused(files):
    files.with_name("one.yaml").write_text(
        yaml.safe_dump({**FIRST, "arms": {"x": start("sweep:second/none"), "none": {}}, "factor": ()})
    )
    with pytest.raises(SweepError, match=r"would wait for each other"):
        add_earlier_sweeps(files, load_sweeps(files), {})


def test_scale_and_what_is_said_over_it_hold_for_both_stages(files):
    said = {"trainer.batch_size": 8, "name": "mine"}
    specs = load_sweeps(files, said, factor=0.5)
    first, second = add_earlier_sweeps(files, specs, said, factor=0.5)
    assert (first.name, second.name) == ("first-scale0.5", "mine-scale0.5")
    assert find_donor(second, "none") == ("first-scale0.5", "none")
    assert find_donor(second, "reuse") == ("", "baseline")
    for spec in (first, second):
        for arm in spec.all_arms:
            base = spec.base(arm)
            assert (base.trainer.max_steps, base.trainer.batch_size) == (2, 8)
            assert (base.warm_start is None) == (arm == "baseline" or spec is first)


def test_adapters_are_those_of_the_sweep_that_is_asked_for(files):
    """What they go on was trained with all of its weights, and begins without a donor."""
    alone = {"reuse": {"warm_start": {"from": "sweep:first/none", "copy": "all"}}}
    files.write_text(yaml.safe_dump({**SECOND, "arms": alone, "baseline": None, "factor": "warm_start"}))
    said = {"lora.alpha": 4.0, "search.lora.rank": [1, 2], "trainer.batch_size": 8}
    first, second = add_earlier_sweeps(files, load_sweeps(files, said), said)
    assert all(first.base(arm).lora is None for arm in first.all_arms)
    assert [first.base("none").trainer.batch_size, second.base("reuse").trainer.batch_size] == [8, 8]
    assert second.at("reuse", {"lora.rank": 2}).lora == Lora(rank=2, alpha=4.0)


def test_a_size_of_a_file_is_found_by_its_whole_name(tmp_path):
    sizes = {"s": {"model.hidden": 16}, "m": {"model.hidden": 32}}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump({**FIRST, "sizes": sizes}))
    arms = {"baseline": {}, "none": start("sweep:first-m/none"), "old": start("sweep:first-s@2/none")}
    (tmp_path / "two.yaml").write_text(yaml.safe_dump({**SECOND, "arms": arms}))
    specs = load_sweeps(tmp_path / "two.yaml")
    assert list_earlier_sweeps(specs[0]) == ["first-m"]  # a generation that is named is what it is
    found = add_earlier_sweeps(tmp_path / "two.yaml", specs, {})
    assert [spec.name for spec in found] == ["first-m", "second"]
    assert found[0].base("none").model.hidden == 32


WIKI = {"files": "wiki.txt"}


@pytest.mark.parametrize(
    ("setting", "passed"),
    [
        ({"trainer.max_steps": 3}, True),
        ({"experiment.trainer.max_steps": 3}, True),
        ({"data.seq_len": 32}, True),
        ({"name": "mine"}, False),
        ({"confirm.seeds": 2}, False),
        ({"search.optimizer.lr": [1e-3]}, False),
        ({"objective.metric": "val/loss"}, False),
        ({"budget.trials": 1}, False),
        ({"sampler": "random"}, False),
        ({"pruner": "median"}, False),
        ({"lora.rank": 2}, False),
        ({"search.lora.rank": [1]}, False),
        ({"warm_start.freeze": ["head"]}, False),
        ({"stages.policy.seed": 1}, False),
        ({"evaluation.shots": 1}, False),
        (
            {"data": {"kind": "text", "files": "a.txt", "val_sets": {"wiki": WIKI}}},
            {"data.kind": "text", "data.files": "a.txt"},
        ),
        (
            {"data": "text", "data.files": "a.txt", "data.val_sets.wiki.files": "wiki.txt"},
            {"data": "text", "data.files": "a.txt"},
        ),
    ],
)
def test_only_settings_of_the_experiment_are_passed_on_to_another_file(setting, passed, files):
    plain = {path.removeprefix("experiment."): value for path, value in setting.items()}
    assert select_passed_on(files, "first", setting) == (plain if passed is True else passed or {})


def test_what_the_earlier_file_has_itself_is_passed_on(files):
    evaluated = {"data": {"kind": "text", "files": "a", "val_sets": {"wiki": WIKI}}, "evaluation": {"shots": 0}}
    files.with_name("one.yaml").write_text(yaml.safe_dump({**FIRST, "experiment": {**SMALL, **evaluated}}))
    said = {"data.val_sets.wiki.files": "b", "data.val_sets.more.files": "c", "evaluation.shots": 1}
    assert select_passed_on(files, "first", said) == {"data.val_sets.wiki.files": "b", "evaluation.shots": 1}


@pytest.mark.addons
def test_the_plan_says_what_is_passed_on(store, files, capsys):
    words = ["trainer.max_steps=3", "confirm.seeds=2", "search.optimizer.lr=[1e-3]", "objective.metric=val/perplexity"]
    assert main(["sweep", str(files), "--dry-run", *words]) == 0
    first, second = capsys.readouterr().out.split("\nsweep second: ")
    assert first.startswith(
        "first runs first: second starts from its trials.\n  Passed on to it: trainer.max_steps=3\n"
        "  Not passed on: confirm.seeds, search.optimizer.lr and objective.metric\nsweep first: minimize val/loss\n"
    )
    assert "optimizer.lr [0.001, 0.01]" in first
    assert "fresh seeds" not in first
    assert "2 trials of 3 updates" in first
    assert second.startswith("minimize val/perplexity")
    assert "optimizer.lr [0.001]" in second
    assert "fresh seeds 1, 2" in second
