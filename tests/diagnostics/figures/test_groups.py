"""Which seeds a figure is drawn of, and what is said of those that are missing."""

from dataclasses import replace

import pytest

from ablate.config.errors import AblateError
from ablate.diagnostics.figures import groups
from ablate.diagnostics.figures.groups import find_groups


def test_all_seeds_of_all_arms(sweep, runs):
    sources = find_groups(["small"])
    assert {group.label: group.models for group in sources.groups} == {
        arm: {run.seed: run.run_id for run in trials} for arm, trials in runs.items()
    }
    assert sources.notes == []


def test_labels(sweep):
    def label(*names):
        return [group.label for group in find_groups(names).groups]

    assert label("sweep:small/post", "sweep:small/pre") == ["post", "pre"]
    assert label("Pre-LN=sweep:small/pre", "B=hf:some/model") == ["Pre-LN", "B"]
    assert label("sweep:small/pre", "A=sweep:small/pre") == ["pre", "A"]
    assert label("A=small", "timm:some/model") == ["A pre", "A post", "model"]


def test_the_name_that_the_user_gives_is_that_of_the_line(sweep):
    def line(*names):
        return [(group.arm, group.sweep) for group in find_groups(names).groups]

    assert line("small", "A=small") == [(arm, "small") for arm in ("pre", "post", "A pre", "A post")]
    assert line("Pre-LN=sweep:small/pre", "B=hf:some/model") == [("Pre-LN", "small"), ("B", "")]


def test_a_diverged_seed_is_left_out_and_a_stuck_one_is_not(sweep, runs):
    first, second = runs["pre"]
    sweep({"pre": [replace(first, status="diverged"), replace(second, metrics={"val/loss": 3.95})]})
    sources = find_groups(["sweep:small/pre"])
    assert sources.groups[0].models == {2: second.run_id}
    diverged, stuck = sources.notes
    assert diverged == "small/pre: left out, as diverged: seed 1."
    assert stuck == "small/pre: drawn, although stuck (no better than a predictor that ignores its inputs): seed 2."


def test_an_unfinished_seed_is_missed(sweep, runs):
    first, second = runs["pre"]
    sweep({**runs, "pre": [first, replace(second, status="running", value=None)]})
    sources = find_groups(["small"])
    assert [len(group.models) for group in sources.groups] == [1, 2]
    assert sources.notes == ["small/pre: 1 of 2 seeds not ended. Continue the sweep."]


def test_an_unfinished_sweep_has_nothing_to_draw(sweep):
    sweep({})
    with pytest.raises(AblateError, match=r"(?s)small has no model to draw\..*pre: 2 of 2 seeds.*post: 2 of 2 seeds"):
        find_groups(["small"])


@pytest.mark.parametrize("needed", [True, False])
def test_checkpoints_that_were_not_kept_are_said(sweep, runs, monkeypatch, needed):
    first, _ = runs["pre"]
    monkeypatch.setattr(groups, "has_checkpoint", lambda run_id: run_id != first.run_id)
    sources = find_groups(["small"], checkpoints=needed)
    assert [len(group.models) for group in sources.groups] == ([1, 2] if needed else [2, 2])
    text = "small/pre: left out, as the sweep did not keep their checkpoints: seed 1. Set checkpoints: all in its file"
    assert [note.startswith(text) for note in sources.notes] == ([True] if needed else [])


def test_an_arm_without_any_checkpoint_is_refused(sweep, runs, monkeypatch):
    monkeypatch.setattr(groups, "has_checkpoint", lambda run_id: run_id in {run.run_id for run in runs["post"]})
    with pytest.raises(AblateError, match=r"(?s)sweep:small/pre has no model to draw.*checkpoints: all"):
        find_groups(["sweep:small/pre", "sweep:small/post"])
    assert [group.label for group in find_groups(["small"]).groups] == ["post"]


def test_a_discarded_checkpoint_is_noticed(sweep, runs, store):  # a store without their folders
    with pytest.raises(AblateError, match="did not keep their checkpoints: seeds 1 and 2"):
        find_groups(["small"])


def test_without_fresh_seeds_it_is_one_trial(sweep, runs):
    sweep({}, {"name": "small", "arms": {"pre": {"norm": "pre"}}, "budget": {"trials": 1}})
    sources = find_groups(["small"])
    assert list(sources.groups[0].models.values()) == [runs["pre"][0].run_id]
    (note,) = sources.notes
    assert "no fresh seeds (confirm.seeds), so it is one trial, without an interval" in note


def test_of_a_grid_each_arm_and_depth_is_drawn_at_its_best_point(sweep, runs):
    tree = {
        "name": "small",
        "arms": {"pre": {"norm": "pre"}},
        "search": {"model.layers": [2, 4], "optimizer.lr": [1e-3, 1e-2]},
        "sampler": "grid",
        "confirm": {"at": "grid", "seeds": 2},
    }
    run = runs["pre"][0]
    losses = {(2, 1e-3): 3.0, (2, 1e-2): 2.0, (4, 1e-3): 2.5, (4, 1e-2): 2.6}
    cells = sweep({}, tree).spec.cells
    point = {name: (cell.point["model.layers"], cell.point["optimizer.lr"]) for name, cell in cells.items()}
    sweep({name: [replace(run, arm=name, value=losses[point[name]])] for name in cells}, tree)
    sources = find_groups(["small"])
    drawn = sources.groups
    assert [note for note in sources.notes if "best" in note] == [
        "pre layers=2 lr=0.01: at layers=2 lr=0.01, the best of its 2 points with 2 layers on these seeds.",
        "pre layers=4 lr=0.001: at layers=4 lr=0.001, the best of its 2 points with 4 layers on these seeds.",
    ]
    assert find_groups(["Mine=sweep:small/pre"]).notes[0] == (
        "Mine: at layers=2 lr=0.01, the best of its 4 points on these seeds."
    )
    assert [(group.arm, point[group.label]) for group in drawn] == [("pre", (2, 1e-2)), ("pre", (4, 1e-3))]
    named = find_groups([f"sweep:small/{group.label}" for group in drawn]).groups
    assert [group.label for group in named] == [group.label for group in drawn]
    assert not any(group.choice for group in named)
    assert [group.label for group in find_groups([f"sweep:small/{drawn[0].label}"]).groups] == ["pre"]
