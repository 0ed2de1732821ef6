"""Rows of figures that the small sweep does not have."""

import math

import pytest

from ablate.diagnostics.figures.rows import DepthLines, Numbers, RemovalBars, average, choose_looks, state_seeds
from ablate.diagnostics.measures import Result, Spectral

ROW = DepthLines(Spectral, "title")


def numbers(arm, *seeds, column="spectral_norm", sweep=""):
    results = {s: Result([{"layer": n, column: v} for n, v in enumerate(values, 1)]) for s, values in enumerate(seeds)}
    return Numbers(results, average(list(results.values())), arm, sweep)


def test_depth_is_a_line_for_each_arm():
    tables = {
        "pre 2": numbers("pre", [3.0, 1.0], [5.0, 1.0]),
        "pre 1": numbers("pre", [2.0]),
        "mix 2": numbers("mix", [9.0, 1.0]),
    }
    assert ROW.applies(tables)
    assert not ROW.applies({"pre 2": tables["pre 2"], "mix 2": tables["mix 2"]})
    pre, mix, *dots = ROW.draw(tables)[0].panels[0].marks
    assert (list(pre.xs), list(pre.ys)) == ([1, 2], [2.0, 4.0])
    assert (list(mix.xs), list(mix.ys)) == ([2], [9.0])
    assert [list(dot.ys) for dot in dots] == [[3.0], [5.0], [2.0], [9.0]]


def draw_lines(tables):
    """Name of a line -> its depths and numbers."""
    (panel,) = ROW.draw(tables)[0].panels
    lines = zip(panel.entries, panel.marks, strict=False)
    return {entry.label: list(zip(line.xs, line.ys, strict=True)) for entry, line in lines}


def of_sweeps(*words):
    """'SWEEP/ARM DEPTH' -> numbers, of which that of layer 1 is ten times the depth and the place among the words."""
    tables = {}
    for place, word in enumerate(words):
        name, depth = word.split()
        sweep, arm = name.split("/")
        tables[word] = numbers(arm, [10.0 * int(depth) + place] + [1.0] * (int(depth) - 1), sweep=sweep)
    return tables


def test_sweeps_of_one_depth_each_are_joined():
    tables = of_sweeps("shallow/pre 2", "shallow/mix 2", "deep/pre 4", "deep/mix 4")
    assert draw_lines(tables) == {"pre": [(2, 20), (4, 42)], "mix": [(2, 21), (4, 43)]}


def test_sweeps_that_share_a_depth_are_not_joined():
    tables = of_sweeps("a/pre 4", "a2/pre 4", "b/pre 8", "a2/pre 8", "a/mix 4", "b/mix 8")
    lines = {"a/pre": [(4, 40)], "a2/pre": [(4, 41), (8, 83)], "b/pre": [(8, 82)], "mix": [(4, 44), (8, 85)]}
    assert draw_lines(tables) == lines
    colours = {label: colour for label, (colour, _) in choose_looks(tables).items()}
    assert colours["a2/pre 4"] == colours["a2/pre 8"]
    assert colours["a/mix 4"] == colours["b/mix 8"]
    assert len(set(colours.values())) == 4


def test_an_arm_that_is_there_twice_at_a_depth_is_not_joined():
    tables = {"small lr": numbers("pre", [1.0], sweep="a"), "large lr": numbers("pre", [2.0], sweep="a")}
    assert draw_lines(tables) == {"small lr": [(1, 1.0)], "large lr": [(1, 2.0)]}


def test_arms_of_several_depths_have_a_colour_for_each_arm_and_a_marker_for_each_depth():
    tables = {f"{arm} {depth}": numbers(arm, [1.0] * depth) for arm in ("pre", "mix") for depth in (1, 2)}
    looks = choose_looks(tables)
    assert looks["pre 1"][0] == looks["pre 2"][0] != looks["mix 1"][0] == looks["mix 2"][0]
    assert looks["pre 1"][1] == looks["mix 1"][1] != looks["pre 2"][1] == looks["mix 2"][1]
    twice = choose_looks({"a/pre": numbers("pre", [1.0]), "b/pre": numbers("pre", [1.0]), "b/mix": tables["mix 1"]})
    assert len({colour for colour, _ in twice.values()}) == 3  # which one could not tell apart


def test_performance_is_the_scores_of_tasks_else_accuracy_else_loss():
    def columns(*names):
        rows = [{"layer": 1, **dict.fromkeys(names, 0.5)}]
        return list(RemovalBars().list_columns({"m": Numbers({None: Result(rows)}, Result(rows))}))

    assert columns("loss_increase") == ["loss_increase"]
    assert columns("loss_increase", "accuracy_change") == ["accuracy_change"]
    tasks = ["arc_easy/acc_norm_change", "mmlu/acc_change"]
    assert columns("loss_increase", *tasks) == tasks


def test_a_panel_says_how_many_seeds_and_the_widest_interval():
    two = numbers("pre", [1.0, 4.0], [1.0, 5.0])
    assert state_seeds("pre", two, "spectral_norm") == "pre, 2 seeds, ± 6.4 at most"  # 12.706 / 2
    assert state_seeds("pre", numbers("pre", [1.0]), "spectral_norm") == "pre, 1 seed"
    assert state_seeds("other", Numbers({None: two.mean}, two.mean)) == "other"


T = 4.302652729911275  # of Student's t with two degrees of freedom: exceeded in either direction with 5 %


def of(*values, **facts):
    return Result([{"layer": layer, "norm": v, "norm_error": 9.0} for layer, v in enumerate(values, 1)], facts)


def test_mean_and_interval_of_three_seeds():
    first, second = average([of(1.0, 5.0), of(2.0, 5.0), of(6.0, 5.0)]).rows
    sd = math.sqrt((4 + 1 + 9) / 2)
    assert first == pytest.approx({"layer": 1, "norm": 3.0, "norm_error": T * sd / math.sqrt(3)})
    assert second == {"layer": 2, "norm": 5.0}  # equal values do not show their variation


def test_a_row_is_identified_by_update_layer_and_distance():
    rows = [{"update": u, "layer": n, "norm": 10.0 * u + n} for u in (0, 4) for n in (1, 2)]
    shuffled = [{**row, "norm": row["norm"] + 2} for row in reversed(rows)]
    assert [row["norm"] for row in average([Result(rows), Result(shuffled)]).rows] == [2.0, 3.0, 42.0, 43.0]


def test_one_seed_has_no_interval_and_a_number_that_is_not_finite_no_mean():
    assert average([of(1.5)]).rows == [{"layer": 1, "norm": 1.5}]
    (row,) = average([of(1.0), of(math.inf)]).rows
    assert math.isnan(row["norm"])
    assert "norm_error" not in row


def test_matrices_are_averaged():
    assert average([of(1.0, matrices=[[[1.0]]]), of(1.0, matrices=[[[4.0]]])]).facts == {"matrices": [[[2.5]]]}
