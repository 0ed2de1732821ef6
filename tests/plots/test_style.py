"""Looks of arms in figures."""

from ablate.plots import style


def test_arms_look_different_and_keep_their_looks():
    looks = style.choose_looks(f"arm {i}" for i in range(20))
    assert len(set(looks.values())) == 20
    assert len({colour for colour, _ in list(looks.values())[:7]}) == 7


def test_a_logarithmic_axis_has_plain_numbers_where_they_fit():
    from matplotlib.figure import Figure

    axes = Figure().subplots(1, 2)
    for panel, high in zip(axes, (5e-4, 1.0), strict=True):
        panel.set_xscale("log")
        panel.set_xlim(1e-4, high)
        style.label_log_ticks(panel.xaxis)
        panel.figure.draw_without_rendering()
    few, many = ([[t.get_text() for t in panel.get_xticklabels(minor=m)] for m in (False, True)] for panel in axes)
    assert {"0.0001"} <= set(few[0])
    assert {"0.0002", "0.0003"} <= set(few[1])
    assert {"0.0001", "0.01", "1"} <= set(many[0])
    assert set(many[1]) == {""}


def test_a_long_subtitle_leaves_the_axes_their_width():
    def measure_width(subtitle):
        figure, axes = style.create_canvas("A title", subtitle)
        figure.draw_without_rendering()
        return axes.get_position().width

    assert measure_width("seeds and their intervals; " * 8) > 0.98 * measure_width("seeds")
