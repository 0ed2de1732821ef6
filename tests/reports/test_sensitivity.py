"""The learning-rate sensitivity, against integrals done by hand and by a fine sum."""

from dataclasses import replace

import numpy as np
import pytest
from run_table import by_arm, put

from ablate.reports.report import assemble
from ablate.reports.sensitivity import compute_mean_excess, compute_sensitivity, tabulate_sensitivities
from ablate.scheduler.storage import read_sweep


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(1e-3, 2.0), (1e-2, 1.0), (1e-1, 2.0)], 0.5),  # two triangles, each half of its decade
        ([(1e-2, 1.0), (1e-1, 2.0)], 0.25),  # nothing in the first decade, a triangle in the second
        ([(1e-2, 1.0)], 0.0),
        ([(1e-3, 3.0), (1e-2, 1.0), (1e-2, 2.0), (1e-1, 1.0)], 0.5),  # of two at one rate the lower
        ([(1e-4, 3.0), (1e-2, 1.0), (1e-1, 1.0)], 0.25),  # half of the slope lies outside: 1 falls to 0 over a decade
        ([(1e-5, 1.0), (1e-1, 3.0)], 0.5),  # the lowest loss is that within the range
    ],
)
def test_integrals_by_hand(points, expected):
    assert compute_mean_excess(points, 1e-3, 1e-1) == pytest.approx(expected)


def test_the_hull_leaves_out_what_lies_above_it():
    points = [(1e-3, 2.0), (10**-2.5, 1.9), (1e-2, 1.0), (1e-1, 2.0), (10**-1.5, 5.0)]
    assert compute_mean_excess(points, 1e-3, 1e-1, envelope=True) == pytest.approx(0.5)
    assert compute_mean_excess(points, 1e-3, 1e-1) > 0.5


def fine(rates, losses, cap):
    """By the rule of the middle on ten thousand pieces."""
    at = np.linspace(np.log(1e-4), np.log(1e-2), 20_001)[1::2]
    ys = np.interp(at, np.log(rates), np.minimum(losses, cap))
    return ys.mean() - min(losses)


def test_diverged_trials_count_with_the_initial_loss(full):
    pre, post = compute_sensitivity(full, "pre"), compute_sensitivity(full, "post")
    done = [(t.params["optimizer.lr"], t.value) for t in full.search("pre")]
    assert pre.value == pytest.approx(fine(*zip(*done, strict=True), 3.2), rel=1e-4)
    ends = [(t.params["optimizer.lr"], 3.2 if t.value is None else t.value) for t in full.search("post")]
    assert post.value == pytest.approx(fine(*zip(*ends, strict=True), 3.2), rel=1e-4)
    assert (post.n, post.diverged, post.pruned, post.low, post.high) == (8, 3, 0, 1e-4, 1e-2)
    assert not post.envelope


def test_a_loss_above_the_initial_one_counts_as_that(full):
    done = [(t.params["optimizer.lr"], t.value) for t in full.search("pre")]
    capped = compute_sensitivity(replace(full, initial_loss=1.9), "pre")
    assert capped.value == pytest.approx(fine(*zip(*done, strict=True), 1.9), rel=1e-4)


def test_where_more_is_searched_it_is_of_the_hull_and_pruned_trials_count_with_their_last(full):
    found = compute_sensitivity(full, "mix")
    assert (found.n, found.diverged, found.pruned, found.envelope) == (8, 1, 1, True)
    pruned = next(t for t in full.search("mix") if t.status == "pruned")
    lower = {**pruned.curve, 80: 1.72}
    trials = [replace(t, curve=lower) if t is pruned else t for t in full.search("mix")]
    assert compute_sensitivity(put(full, trials={**by_arm(full), "mix": trials}), "mix").value < found.value


def test_where_no_trial_trained_there_is_no_number_but_what_happened(full, tmp_path, without_figures):
    diverged = [t for t in full.search("post") if t.status == "diverged"]
    found = compute_sensitivity(put(full, trials={"post": diverged}), "post")
    assert (found.value, found.n, found.diverged, found.stuck) == (None, 3, 3, 0)
    losses = [t.value for t in full.search("pre")]
    stuck = put(full, trivial_loss=min(losses))  # all of them end at 98 % of it or above
    found = compute_sensitivity(stuck, "pre")
    assert (found.value, found.n, found.stuck, found.diverged) == (None, len(losses), len(losses), 0)
    (section,) = tabulate_sensitivities(assemble(stuck, tmp_path, draw=False).sensitivities)
    rows = {row[0]: row[1:] for row in section.table.rows}
    assert rows["pre"][:4] == ["-", str(len(losses)), "0", str(len(losses))]
    text = " ".join(section.sentences)
    assert "None for pre" in text
    assert "none of the trials trained, and then the losses say nothing of tuning" in text


def test_a_stuck_trial_is_counted_and_keeps_its_own_loss_as_the_definition_has_it(full, tmp_path, without_figures):
    losses = sorted(t.value for t in full.search("pre"))
    some = put(full, trivial_loss=(losses[-2] - 1e-6) / 0.98)
    found, whole = compute_sensitivity(some, "pre"), compute_sensitivity(full, "pre")
    assert (found.stuck, whole.stuck, found.value) == (sum(loss >= losses[-2] for loss in losses), 0, whole.value)
    (section,) = tabulate_sensitivities(assemble(some, tmp_path, draw=False).sensitivities)
    assert "A stuck trial, which ended without having learned, counts with its own loss." in section.sentences


def test_there_is_none_where_it_cannot_be_had(full, writer, spec):
    assert compute_sensitivity(replace(full, initial_loss=None), "pre") is None
    accuracy = full.spec.objective.model_copy(update={"metric": "val/accuracy", "direction": "maximize"})
    assert compute_sensitivity(replace(full, spec=full.spec.model_copy(update={"objective": accuracy})), "pre") is None
    assert compute_sensitivity(put(full, trials={**by_arm(full), "pre": full.search("pre")[:2]}), "pre") is None
    sweep = writer({**spec, "search": {"optimizer.weight_decay": [0.0, 0.1, 0.2]}})
    for decay in (0.0, 0.1, 0.2):
        sweep.add("pre", {"optimizer.weight_decay": decay}, 1.9)
    assert compute_sensitivity(replace(read_sweep("demo"), initial_loss=3.2), "pre") is None
