"""The figure of a grid: one column, or one for each value of what is searched beside the learning rate."""

from optuna.storages import InMemoryStorage

from ablate.reports.charts.parameters import chart_grid
from ablate.reports.grid_figure import draw_grid, find_axis
from ablate.sweeps.comparison import compare_record
from benchmarks.simulation.sweeps import simulate

from .test_seed_sensitivity import RATES, WARMUPS, bend, sweep


def run(**parts):
    return simulate(sweep(**parts), bend, InMemoryStorage(), trivial_loss=3.3)


def test_a_second_parameter_gives_columns_with_its_own_cells():
    record = run()
    compared = compare_record(record)
    assert find_axis(record) == "optimizer.lr"
    panels = draw_grid(record, compared, "optimizer.lr").axes
    losses, failures = panels[::2], panels[1::2]
    assert len(losses) == len(failures) == len(WARMUPS)
    titles = [text.get_text() for panel in losses for text in panel.texts if text.get_text().startswith("warmup")]
    assert titles == ["warmup_fraction = 0", "warmup_fraction = 0.1"]
    for panel, warmup in zip(losses, WARMUPS, strict=True):
        means = {line.get_ydata()[0] for line in panel.lines if len(line.get_ydata()) == 1}
        cells = [name for name, cell in record.spec.cells.items() if cell.point["schedule.warmup_fraction"] == warmup]
        assert len(cells) == 2 * len(RATES)
        assert {compared[name].estimate.mean for name in cells} <= means
    assert chart_grid(record, compared) is None


def test_one_parameter_gives_one_column():
    record = run(warmups=())
    assert len(draw_grid(record, compare_record(record), "optimizer.lr").axes) == 2


def test_what_has_too_many_values_gives_no_figure():
    assert find_axis(run(warmups=[0.0, 0.01, 0.02, 0.05, 0.1])) is None
