"""Rows of figures that the small sweep does not have."""

from matplotlib.figure import Figure

from ablate.diagnostics.figures.averages import Numbers, average
from ablate.diagnostics.figures.rows import DepthLines, RemovalBars, choose_looks, state_seeds
from ablate.diagnostics.measures import Result, Spectral

ROW = DepthLines(Spectral, "title")


def numbers(arm, *seeds, column="spectral_norm"):
    results = {s: Result([{"layer": n, column: v} for n, v in enumerate(values, 1)]) for s, values in enumerate(seeds)}
    return Numbers(results, average(list(results.values())), arm)


def test_depth_is_a_line_for_each_arm():
    tables = {
        "pre 2": numbers("pre", [3.0, 1.0], [5.0, 1.0]),
        "pre 1": numbers("pre", [2.0]),
        "mix 2": numbers("mix", [9.0, 1.0]),
    }
    assert ROW.applies(tables)
    assert not ROW.applies({"pre 2": tables["pre 2"], "mix 2": tables["mix 2"]})
    figure = Figure()
    ROW.draw(figure, tables)
    pre, mix, *dots = figure.axes[0].lines
    assert (list(pre.get_xdata()), list(pre.get_ydata())) == ([1, 2], [2.0, 4.0])
    assert (list(mix.get_xdata()), list(mix.get_ydata())) == ([2], [9.0])
    assert [list(dot.get_ydata()) for dot in dots] == [[3.0], [5.0], [2.0], [9.0]]


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
