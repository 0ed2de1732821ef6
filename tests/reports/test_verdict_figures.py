"""The figures of the verdict: every seed is on them, failed ones too, and what decides is beside what is claimed."""

import pytest

from ablate.reports.verdict_figures import caption_verdict, draw_confirmed, draw_verdict
from ablate.sweeps.comparison import compare_record

from .hand_built import STUCK, build_record

PRE = [2.10, 2.14, 2.11, 2.16, 2.12]
BETTER = [2.05, 2.10, 2.06, 2.12, 2.07]


def draw(record):
    compared = compare_record(record)
    figures = draw_confirmed(record, compared), draw_verdict(record, compared)
    for figure in figures:
        figure.canvas.draw()
    return figures


def list_marks(axes, filled):
    """Return the number of marks of single seeds."""
    lines = [line for line in axes.lines if line.get_linestyle() == "None" and line.get_marker() == "o"]
    hollow = [line.get_markerfacecolor() == "none" for line in lines]
    return sum(len(line.get_xdata()) for line, empty in zip(lines, hollow, strict=True) if empty != filled)


def list_labels(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def test_the_confirmed_figure_has_a_row_per_arm(full):
    axes, side = draw(full)[0].axes
    assert list_labels(axes) == ["pre (n = 5)", "post (n = 3)", "mix (n = 5)"]
    baseline = next(line for line in axes.lines if list(line.get_ydata()) == [0, 1])
    assert baseline.get_xdata()[0] == pytest.approx(2.126)
    texts = [text.get_text() for text in axes.texts]
    assert "9.000 ◇ →" in texts
    assert "2 failed" in texts
    assert axes.get_xlim()[1] < 4
    assert [text.get_text() for text in side.texts] == ["0 of 5", "2 of 5", "0 of 5"]


def test_every_seed_is_a_point_and_failed_ones_stand_at_the_bad_edge():
    record = build_record({"pre": PRE, "post": [2.0, STUCK, None, 2.05, 2.01]})
    axes = draw(record)[0].axes[0]
    assert (list_marks(axes, True), list_marks(axes, False)) == (5 + 3 + 1, 2)  # the mean of pre has the same mark
    (failed,) = [line for line in axes.lines if line.get_markerfacecolor() == "none" and len(line.get_xdata())]
    assert min(failed.get_xdata()) > 2.16
    objective = {"metric": "val/accuracy", "direction": "maximize"}
    turned = build_record({"pre": PRE, "post": [2.0, None, None]}, objective=objective, experiment={"model": "vit"})
    axes = draw(turned)[0].axes[0]
    (failed,) = [line for line in axes.lines if line.get_markerfacecolor() == "none" and len(line.get_xdata())]
    assert max(failed.get_xdata()) < 2.0


def test_where_nothing_trained_there_is_still_a_figure():
    confirmed, verdict = draw(build_record({"pre": [None] * 3, "post": [None] * 3}))
    assert list_labels(confirmed.axes[0]) == ["pre (n = 0)", "post (n = 0)"]
    assert "no seed on which both trained" in [text.get_text() for text in verdict.axes[0].texts]


def test_an_arm_without_seeds_is_told_why():
    def absent(values, promised):
        verdict = draw(build_record(values, promised=promised))[1]
        return [text.get_text() for text in verdict.axes[0].texts if text.get_text().startswith("no")]

    assert absent({"pre": PRE, "post": []}, {"post": None}) == ["no seed was run"]
    assert absent({"pre": [], "post": BETTER}, {"pre": None}) == ["no seed was run", "nothing to compare with"]
    assert absent({"pre": [None] * 5, "post": BETTER}, {}) == ["no seed trained", "no seed on which both trained"]


def test_the_verdict_is_told_beside_its_interval():
    confirm = {"seeds": 5, "effect": 0.02}
    values = {"pre": PRE, "post": [None] * 5, "mix": BETTER}
    record = build_record(values, confirm=confirm, promised={"post": 1.5})
    compared = compare_record(record)
    axes, side = draw_verdict(record, compared).axes
    assert list_labels(axes) == ["pre\nbaseline", "post\nfails on all seeds", "mix\nbetter"]
    assert [text.get_text() for text in side.texts] == ["0 of 5", "5 of 5", "0 of 5"]
    (band,) = axes.patches
    assert (band.get_x(), band.get_width()) == pytest.approx((-0.02, 0.04))
    caption = caption_verdict(record, compared)
    assert "joint error of 5 % over 2 comparisons together" in caption
    assert "smaller than confirm.effect (0.02)" in caption


def test_crossed_settings_stand_below_what_they_decide():
    crossed = {"post": ("pre", [2.04, 2.11, 2.07, 2.11, 2.08])}
    record = build_record({"pre": PRE, "post": BETTER}, rates={"post": 1e-2}, crossed=crossed)
    verdict = draw(record)[1]
    assert list_labels(verdict.axes[0])[1] == "post\ninconclusive,\nas settings differ"
    assert len(verdict.axes[0].containers) == 2
    assert "trained at the other's settings" in verdict.legends[0].get_texts()[0].get_text()


def test_two_seeds_have_no_interval():
    verdict = draw(build_record({"pre": PRE[:2], "post": BETTER[:2]}))[1]
    assert list_labels(verdict.axes[0])[1] == "post\nno verdict yet"
    assert not verdict.axes[0].containers[0].has_xerr
