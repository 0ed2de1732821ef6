"""What is drawn of a figure, and how it is written."""

from xml.etree import ElementTree

import numpy as np
import pytest

from ablate.plots.drawing import draw, save, to_svg
from ablate.plots.figure import Axis, Bar, Entry, Figure, Panel, Part, plot
from ablate.plots.marks import Band, Bars, Cells, Interval, Line, Points, Span, Text
from ablate.plots.style import choose_looks

BLUE = "#0072B2"
SVG = "{http://www.w3.org/2000/svg}"


def one(*marks, entries=(), **axes):
    return plot("one", "A title", Panel(marks, **axes), entries=entries)


def test_arms_look_different_and_keep_their_looks():
    looks = choose_looks(f"arm {i}" for i in range(20))
    assert len(set(looks.values())) == 20
    assert len({colour for colour, _ in list(looks.values())[:7]}) == 7


def test_every_mark_is_drawn_and_the_same_figure_is_the_same_file(tmp_path):
    marks = [
        Points([1, 2], [3, 4], BLUE, hollow=True),
        Line([1, 2], [3, 4], BLUE, dash="--", marker="s"),
        Interval(1.5, 3.5, (3.2, 3.9), BLUE, upright=True),
        Band([1, 2], [3, 3], [4, 5], BLUE),
        Span(1.2, 1.4),
        Span(3, 3, upright=False, dash=":"),
        Text(0.1, 3, "words", of_axes="x"),
        Bars([1, 2], [3, 4], 0.3, BLUE),
    ]
    map_, course = (
        Cells(np.eye(2), extent=(0.5, 2.5, 0.5, 2.5)),
        Cells(np.eye(2) + 1, (1, 2), log=True, edges=[0, 2, 9]),
    )
    other = [Panel([map_], bar=Bar("share", (0, 1))), Panel([course]), Panel([Cells(np.zeros((2, 2, 3)))], bare=True)]
    figure = Figure(
        "all", "Title", [Part([Panel(marks)]), Part(other, title="maps")], "below it", entries=[Entry("a", BLUE)]
    )
    (tmp_path / "again").mkdir()
    for first, second in zip(save(figure, tmp_path), save(figure, tmp_path / "again"), strict=True):
        assert first.read_bytes() == second.read_bytes()
    assert {path.name for path in tmp_path.glob("all.*")} == {"all.png", "all.svg"}


def test_a_point_of_an_svg_has_its_title_and_a_name_is_no_markup_and_no_mathematics():
    name = "<b>_$x$"
    svg = to_svg(one(Points([1, 2], [1, 2], BLUE, titles=["first", name]), entries=[Entry(name, BLUE)]))
    root = ElementTree.fromstring(svg)
    assert [title.text for title in root.iter(f"{SVG}title")] == ["first", name]
    assert name in [text.text for text in root.iter(f"{SVG}text")]
    assert not any(far in svg.replace("http://www.w3.org/", "") for far in ("http", "<script", "<b>", "<style"))


def test_an_interval_that_ends_beyond_the_axis_has_an_arrow_there():
    inside, beyond = Interval(1, 0, (0.9, 1.1), BLUE), Interval(1, 0, (0.9, 9.0), BLUE)
    count = [len(draw(one(mark, x=Axis(limits=(0, 2))))[0].axes[0].lines) for mark in (inside, beyond)]
    assert count[1] == count[0] + 1


def list_ticks(limits):
    drawn, _ = draw(one(Points([], [], BLUE), x=Axis(log=True, limits=limits)))
    drawn.draw_without_rendering()
    return [[tick.get_text() for tick in drawn.axes[0].get_xticklabels(minor=minor)] for minor in (False, True)]


def test_a_logarithmic_axis_has_plain_numbers_where_they_fit():
    few, many = list_ticks((1e-4, 5e-4)), list_ticks((1e-4, 1.0))
    assert {"0.0001"} <= set(few[0])
    assert {"0.0002", "0.0003"} <= set(few[1])
    assert {"0.0001", "0.01", "1"} <= set(many[0])
    assert set(many[1]) == {""}


@pytest.mark.parametrize("subtitle", ["seeds", "seeds and their intervals; " * 8])
def test_a_heading_leaves_the_axes_their_width(subtitle):
    drawn, _ = draw(plot("one", "A title", Panel([Points([1], [1], BLUE)]), subtitle=subtitle))
    drawn.draw_without_rendering()
    box = drawn.axes[0].get_position()
    assert box.width > 0.85
    assert box.y1 < 0.93
