"""The interactive figures: they show what was measured, Plotly accepts them, and a browser draws them offline."""

import math
import shutil
from dataclasses import replace

import pytest
from run_table import by_arm, put

from ablate.reports.charts.arms import chart_arms
from ablate.reports.charts.chart import choose_range, find_ends
from ablate.reports.charts.curves import chart_curves, collect_bundles
from ablate.reports.charts.parameters import chart_panel, list_confirmed
from ablate.reports.figure_data import collect_panels
from ablate.reports.report import assemble
from ablate.sweeps.comparison import compare_record
from ablate.sweeps.runs import FRESH
from ablate.verdict.intervals import bound_mean

from .hand_built import STUCK, build_record

PRE = [2.10, 2.14, 2.11, 2.16, 2.12]
BETTER = [2.05, 2.10, 2.06, 2.12, 2.07]
WIDE = [0.02, 0.6, 0.1]  # the interval of its mean reaches below 0
BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
RECORDS = {
    "compared": build_record({"pre": PRE, "post": BETTER}, confirm={"seeds": 5, "effect": 0.05}),
    "failures": build_record({"pre": PRE, "post": [2.0, STUCK, None, 2.05, 2.01]}),
    "all failed": build_record({"pre": [None] * 3, "post": [STUCK] * 3}),
    "one arm": build_record({"pre": PRE}),
    "two seeds": build_record({"pre": PRE[:2], "post": BETTER[:2]}),
    "one seed": build_record({"pre": PRE[:1], "post": BETTER[:1]}, confirm={"seeds": 3}, looks=None),
    "wide": build_record({"pre": [0.5, 0.52, 0.51], "post": WIDE}),
    "crossed": build_record({"pre": PRE, "post": BETTER}, rates={"post": 1e-2}, crossed={"post": ("pre", PRE)}),
    "equal": build_record({"pre": [2.0] * 3, "post": [2.0] * 3}),
    "search alone": build_record({"pre": [], "post": []}, confirm={"seeds": 3}, looks=None, tried=3),
}


def list_charts(record):
    compared = compare_record(record)
    panels = [chart_panel(record, p, list(list_confirmed(compared, p))) for p in collect_panels(record)]
    return [chart for chart in (chart_arms(record, compared), *panels, chart_curves(record)) if chart]


@pytest.mark.parametrize("name", RECORDS)
def test_plotly_accepts_every_figure(name):
    import plotly.graph_objects as go

    charts = list_charts(RECORDS[name])
    assert charts
    for chart in charts:
        go.Figure(chart.to_plain())  # raises for what its schema does not know
        numbers = [v for trace in chart.traces for key in ("x", "y") for v in trace[key] if v is not None]
        assert all(map(math.isfinite, numbers))


def test_means_seeds_and_intervals_are_those_of_the_comparison():
    record = RECORDS["compared"]
    compared = compare_record(record)
    chart = chart_arms(record, compared)
    seeds = [t["x"] for t in chart.traces if len(t["x"]) > 1]
    assert seeds == [PRE, BETTER]
    means = {(t["xaxis"], t["y"][0]): t for t in chart.traces if "error_x" in t}
    for row, c in enumerate(compared.values()):
        assert means["x", row]["x"] == [c.estimate.mean]
        assert means["x", row]["error_x"]["array"] == pytest.approx([c.estimate.half_width])
    assert means["x2", 1]["x"] == [pytest.approx(-0.046)]
    assert "x3" not in {t["xaxis"] for t in chart.traces}  # no seed failed: no empty panel of failures
    (band,) = [shape for shape in chart.layout["shapes"] if shape["type"] == "rect"]
    assert (band["x0"], band["x1"]) == (-0.05, 0.05)


def test_an_interval_ends_where_the_metric_does_and_encloses_its_mean():
    record = RECORDS["wide"]
    own = compare_record(record)["post"].estimate
    assert own.interval[0] < 0
    chart = chart_arms(record, compare_record(record))
    (mean,) = [t for t in chart.traces if "error_x" in t and t["xaxis"] == "x" and t["y"] == [1]]
    assert mean["x"][0] - mean["error_x"]["arrayminus"][0] == pytest.approx(0.0)
    assert mean["error_x"]["array"] == pytest.approx([own.half_width])
    assert "[0, " in mean["text"][0]
    assert chart.layout["xaxis"]["range"][0] > -0.2
    assert find_ends(own, (0.0, math.inf)) == (0.0, own.interval[1])
    shown = chart.layout["xaxis2"]
    difference = compare_record(record)["post"].difference
    assert shown["range"][0] < difference.interval[0] < 0  # a difference may be below 0


def test_failed_seeds_have_a_panel_of_their_own():
    chart = chart_arms(RECORDS["failures"], compare_record(RECORDS["failures"]))
    (share,) = [t for t in chart.traces if t["xaxis"] == "x3" and t["y"] == [1]]
    assert share["x"] == [40.0]
    assert "2 of 5 seeds (1 diverged, 1 stuck" in share["text"][0]
    alone = chart_arms(RECORDS["all failed"], compare_record(RECORDS["all failed"]))
    assert {t["xaxis"] for t in alone.traces} == {"x"}
    assert alone.layout["xaxis"]["title"]["text"] == "failed (%)"
    nothing = build_record({"pre": ["running"], "post": ["running"]}, looks=None)
    assert chart_arms(nothing, compare_record(nothing)) is None


def test_an_axis_stays_near_the_data():
    low, high = choose_range([1.0, 1.1, 1.2], [(0.9, 1.3), (0.95, 1.25), (-30.0, 40.0)])
    assert 0.2 < low < 0.9
    assert 1.3 < high < 2.0
    assert choose_range([1.0, 1.1], [(0.0, 2.1)])[0] < 0  # the only interval is shown whole
    low, high = choose_range([2.0])
    assert low < 2.0 < high
    assert choose_range([2.0, 3.0]) == pytest.approx((1.94, 3.06))


def test_fresh_seeds_stand_over_the_search_at_the_chosen_rate(full):
    compared = compare_record(full)
    panel = next(p for p in collect_panels(full) if p.path == "optimizer.lr")
    chart = chart_panel(full, panel, list(list_confirmed(compared, panel)))
    means = {t["legendgroup"]: t for t in chart.traces if "error_y" in t}
    assert set(means) == {"pre", "post", "mix"}
    for arm, trace in means.items():
        assert trace["y"] == [compared[arm].estimate.mean]
        assert trace["x"][0] == pytest.approx(compared[arm].params["optimizer.lr"], rel=0.05)
        assert chart.layout["yaxis"]["range"][0] < trace["y"][0] < chart.layout["yaxis"]["range"][1]
    tried = next(t for t in chart.traces if t.get("name") == "post" and t["mode"] == "markers" and "error_y" not in t)
    assert sum(symbol.endswith("-open") for symbol in tried["marker"]["symbol"]) == 3  # diverged


def test_several_values_of_an_arm_are_joined(full):
    """As where every point of a grid is confirmed."""
    from ablate.reports.charts.parameters import Confirmed

    panel = next(p for p in collect_panels(full) if p.path == "optimizer.lr")
    points = [Confirmed("pre", x, bound_mean([2.0, 2.1, 2.05], 0.05), None) for x in (1e-2, 1e-3)]
    points.append(Confirmed("pre", 5e-2, None, compare_record(full)["post"].failures))
    chart = chart_panel(full, panel, points)
    (line,) = [t for t in chart.traces if "error_y" in t]
    assert line["mode"] == "lines+markers"
    assert line["x"] == [1e-3, 1e-2, 5e-2]
    assert "no seed trained" in line["text"][2]


def test_bands_are_from_the_lowest_to_the_highest_seed(full):
    def descend(run, end):
        return replace(run, curve={20: end + 1.0, 40: end})

    fresh = {
        arm: [descend(r, r.value if r.value is not None else 9.0) for r in runs]
        for arm, runs in by_arm(full, FRESH).items()
    }
    record = put(full, confirmed=fresh)
    bundle = collect_bundles(record)["post"]
    assert (len(bundle.trained), len(bundle.failed)) == (3, 2)
    assert bundle.find_band()[-1] == (40 * 1024, pytest.approx(6.5 / 3), 2.0, 2.4)
    chart = chart_curves(record)
    assert sum("fill" in t for t in chart.traces) == 3
    assert sum(t["line"].get("dash") == "dot" for t in chart.traces) == 2
    assert chart.layout["yaxis"]["range"][1] < 4.5  # those that failed are off the scale, not the scale's measure


@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (apt-get install chromium)")
def test_a_browser_draws_the_page_offline(made_of_full, tmp_path):
    from playwright.sync_api import sync_playwright

    file = tmp_path / "page.html"
    file.write_text(made_of_full.page(), encoding="utf-8")
    said, asked = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector("#arms .main-svg", timeout=60_000)
        page.wait_for_selector("#curves .main-svg", timeout=60_000)
        assert not page.locator("#parameter-alpha .main-svg").count()  # it is folded
        page.locator("summary", has_text="Search").click()
        page.wait_for_selector("#parameter-alpha .main-svg", timeout=60_000)
        for width in (1440, 800):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_function("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        plain = browser.new_context(java_script_enabled=False).new_page()
        plain.goto(file.as_uri())
        assert plain.locator("#arms ~ noscript img, figure img").count() >= 3
        browser.close()
    assert said == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in asked), asked


def test_a_report_without_figures_has_a_page_too(tmp_path):
    made = assemble(RECORDS["compared"], tmp_path / "figures", draw=False)
    assert made.figures == []
    assert not (tmp_path / "figures").exists()
    assert "<noscript>" not in made.page()
