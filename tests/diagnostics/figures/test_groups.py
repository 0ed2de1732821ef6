"""Which seeds a figure is drawn of, and what is said of those that are missing."""

from dataclasses import replace

import pytest

from ablate.config.errors import AblateError
from ablate.diagnostics.figures import groups
from ablate.diagnostics.figures.groups import find_groups
from ablate.sweeps.spec.sweep import Sweep


@pytest.fixture
def changed(swept, monkeypatch):
    """changed(arm, one function for each of its runs): have the sweep read with these runs of the arm."""

    def change(arm, *functions):
        runs = [function(run) for function, run in zip(functions, swept.confirmed[arm], strict=False)]
        record = replace(swept, confirmed={**swept.confirmed, arm: [run for run in runs if run is not None]})
        monkeypatch.setattr(groups, "read_sweep", lambda title, storage: record)
        return [run.params["seed"] for run in swept.confirmed[arm]]

    return change


def keep(run):
    return run


def test_all_seeds_of_all_arms(swept):
    sources = find_groups(["small"])
    assert [group.label for group in sources.groups] == ["pre", "post"]
    for group, runs in zip(sources.groups, swept.confirmed.values(), strict=True):
        assert group.models == {run.params["seed"]: run.run_id for run in runs}
    assert sources.notes == []


def test_a_diverged_seed_is_left_out_and_a_stuck_one_is_not(changed):
    seeds = changed(
        "pre", lambda run: replace(run, status="diverged"), lambda run: replace(run, metrics={"val/loss": 9.0})
    )
    sources = find_groups(["sweep:small/pre"])
    assert list(sources.groups[0].models) == seeds[1:]
    diverged, stuck = sources.notes
    assert diverged == f"small/pre: left out, as diverged: seed {seeds[0]}."
    assert stuck.endswith(f"token or class frequencies): seed {seeds[1]}.")


def test_an_unfinished_seed_is_missed(changed):
    changed("pre", keep, lambda run: replace(run, status="running", value=None))
    assert find_groups(["small"]).notes == ["small/pre: 1 of 2 seeds not ended. Continue the sweep."]


def test_an_unfinished_sweep_has_nothing_to_draw(changed):
    changed("pre")
    with pytest.raises(AblateError, match=r"(?s)sweep:small/pre has no model to draw\..*2 of 2 seeds not ended"):
        find_groups(["sweep:small/pre"])


@pytest.mark.parametrize("checkpoints", [True, False])
def test_checkpoints_that_were_not_kept_are_said(swept, monkeypatch, checkpoints):
    dropped = [run for runs in swept.confirmed.values() for run in runs][0]
    monkeypatch.setattr(groups, "has_checkpoint", lambda run_id: run_id != dropped.run_id)
    sources = find_groups(["small"], checkpoints=checkpoints)
    assert [len(group.models) for group in sources.groups] == ([1, 2] if checkpoints else [2, 2])
    if checkpoints:
        (note,) = sources.notes
        assert f"did not keep their checkpoints: seed {dropped.params['seed']}." in note
        assert "checkpoints: all" in note
        assert "--fresh" in note


def test_an_arm_without_any_checkpoint_is_refused(swept, monkeypatch):
    monkeypatch.setattr(groups, "has_checkpoint", lambda run_id: False)
    with pytest.raises(AblateError, match=r"(?s)small has no model to draw.*checkpoints: all"):
        find_groups(["small"])


def test_without_fresh_seeds_it_is_one_trial(swept, monkeypatch):
    run = next(iter(swept.confirmed.values()))[0]
    spec = Sweep.from_tree({"name": "small", "arms": {"pre": {"norm": "pre"}}, "search": {"optimizer.lr": [1e-2]}})
    record = replace(swept, spec=spec, trials={"pre": [replace(run, arm="pre", params={})]}, confirmed={})
    monkeypatch.setattr(groups, "read_sweep", lambda title, storage: record)
    sources = find_groups(["small"])
    assert list(sources.groups[0].models.values()) == [run.run_id]
    (note,) = sources.notes
    assert "no fresh seeds (confirm.seeds), so it is one trial" in note


def test_of_a_grid_each_arm_and_depth_is_drawn_at_its_best_point(swept):
    run = next(iter(swept.confirmed.values()))[0]
    tree = {
        "name": "deep",
        "arms": {"pre": {"norm": "pre"}},
        "search": {"model.layers": [2, 4], "optimizer.lr": [1e-3, 1e-2]},
        "confirm": {"at": "grid", "seeds": 2},
    }
    spec = Sweep.from_tree(tree)
    losses = dict(zip(spec.cells, (3.0, 2.0, 2.5, 2.6), strict=True))
    confirmed = {cell: [replace(run, arm=cell, value=loss)] for cell, loss in losses.items()}
    record = replace(swept, spec=spec, trials={cell: [] for cell in losses}, confirmed=confirmed, trivial_loss=None)
    best = {2: min(losses, key=losses.get)}
    best[4] = min((cell for cell in losses if "layers=4" in cell), key=losses.get)
    best[2] = min((cell for cell in losses if "layers=2" in cell), key=losses.get)
    assert groups.list_arms(record) == [best[2], best[4]]
