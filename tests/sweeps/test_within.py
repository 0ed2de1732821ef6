"""A factorial whose effects are compared within each level of one component, tested as it stands: what makes one
placement fail does nothing to another."""

import json
import math

import numpy as np
import optuna
import pytest
from run_table import by_arm

from ablate.config.errors import ConfigError
from ablate.reports.report import assemble
from ablate.reports.verdict_figures import draw_failures
from ablate.scheduler.dry_run import outline
from ablate.sweeps.comparison import compare_record, compare_record_effects
from ablate.sweeps.runs import FRESH
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.sweep import Sweep
from benchmarks.simulation.losses import draw_normal
from benchmarks.simulation.sweeps import simulate

COMPONENTS = {
    "norm": ["pre", "mix"],
    "std": {"setting": "init.embedding_std", "levels": {"small": 0.02, "large": 0.6}},
    "warmup": {"setting": "schedule.warmup_fraction", "levels": [0.1, 0.01]},
}
SEEDS = 12


def sweep(**more):
    tree = {"name": "t", "components": COMPONENTS, "design": "factorial", "within": "norm", "sampler": "grid"}
    return Sweep.from_tree({**tree, "confirm": {"at": "grid", "seeds": SEEDS, "effect": 0.05}, **more})


def end(arm, params, seed):
    """Mix-LN diverges with the large embedding on all seeds but one, and trains 0.1 better with the short warm-up."""
    if "norm=mix" in arm and "std=large" in arm and seed != 3:
        return math.nan
    return 2.0 - 0.1 * ("norm=mix" in arm and "warmup=0.01" in arm) + 0.01 * draw_normal(arm, seed)


@pytest.fixture(scope="module")
def record():
    return simulate(sweep(), end, optuna.storages.InMemoryStorage())


def test_the_effects_of_the_others_are_at_each_level():
    spec = sweep()
    at = [f"{name} at norm={norm}" for norm in ("pre", "mix") for name in ("std=large", "warmup=0.01")]
    assert list(spec.contrasts) == ["norm=mix", *at]
    cells = {name: f"norm=mix std={std} warmup={warmup}" for name, std, warmup in (
        ("--", "small", "0.1"), ("-+", "small", "0.01"), ("+-", "large", "0.1"), ("++", "large", "0.01"),
    )}  # fmt: skip
    contrast = spec.contrasts["std=large at norm=mix"]
    assert contrast.weights == {cells["--"]: -0.5, cells["-+"]: -0.5, cells["+-"]: 0.5, cells["++"]: 0.5}
    assert set(spec.contrasts["norm=mix"].weights.values()) == {-0.25, 0.25}
    assert len(spec.comparisons) == 5
    assert sweep(design="main-effects").contrasts == spec.contrasts
    assert Sweep.from_tree(spec.to_tree()).contrasts == spec.contrasts


def test_nothing_is_searched_and_every_cell_is_tested(record):
    assert not any(by_arm(record).values())
    assert {len(runs) for runs in by_arm(record, FRESH).values()} == {SEEDS}
    text = outline(sweep())
    assert "each arm as it stands on the fresh seeds 1 to 12: nothing is searched or chosen" in text
    assert "5 main effects; 5 comparisons in the file" in text


def test_a_factor_is_found_to_make_the_placement_fail_that_it_makes_fail(record):
    effects = compare_record_effects(record)
    assert {name: effect.kind for name, effect in effects.items()} == {
        "norm=mix": "fails more often",
        "std=large at norm=pre": "equivalent",
        "warmup=0.01 at norm=pre": "equivalent",
        "std=large at norm=mix": "fails more often",
        "warmup=0.01 at norm=mix": "cannot be stated",
    }
    failing = effects["std=large at norm=mix"].versus
    assert (failing.failed, failing.other_failed) == (2 * (SEEDS - 1), 0)
    assert failing.failure_p == pytest.approx(2 * 0.5 ** (SEEDS - 1))
    assert {effect.family for effect in effects.values()} == {7}  # five means, and two tests of failures


def test_the_report_tells_where_a_factor_matters(record, tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_STORE", str(tmp_path))
    made = assemble(record, tmp_path)
    assert "failures.png" in [path.name for path in made.figures]
    text = " ".join(made.table().split())
    assert "With norm=mix, std=large fails more often than std=small" in text
    assert "With norm=mix, the effect of warmup=0.01 cannot be stated" in text
    assert "On fresh seeds, each cell as it stands" in text
    assert "std=large against std=small at norm=mix" in made.summary
    plain = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert plain["design"]["within"] == "norm"
    assert plain["effects"]["std=large at norm=mix"]["contrast"]["where"] == "norm=mix"
    assert "Effects of the components" in made.page()


def test_the_figure_shows_the_share_of_each_cell(record):
    compared = compare_record(record)
    (panel,) = draw_failures(record, compared).panels
    assert list(panel.y.ticks.values()) == ["norm=pre", "norm=mix"]
    columns = [f"std={std}\nwarmup={warmup}" for std in ("small", "large") for warmup in ("0.1", "0.01")]
    assert list(panel.x.ticks.values()) == columns
    cells, *words = panel.marks
    np.testing.assert_allclose(cells.values, [[0, 0, 0, 0], [0, 0, 11 / 12, 11 / 12]])
    texts = [word.text for word in words]
    assert texts.count("11/12\n62 to 100 %") == 2  # Clopper and Pearson: 61.5 to 99.8
    assert texts.count("0/12\n0 to 22 %") == 6  # 1 - 0.05^(1/12)


def test_there_is_no_figure_of_failures_where_nothing_failed():
    fine = simulate(sweep(), lambda arm, params, seed: 2.0 + seed, optuna.storages.InMemoryStorage())
    assert draw_failures(fine, compare_record(fine)) is None


def test_published_figures_of_cells_that_stand_are_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_STORE", str(tmp_path))
    values = {"norm=pre std=small warmup=0.1": 2.0, "norm=mix std=large warmup=0.1": 7.2}
    quoted = simulate(
        sweep(published=[{"source": "a paper", "values": values}]), end, optuna.storages.InMemoryStorage()
    )
    (table,) = assemble(quoted, tmp_path).published
    assert {row.arm: row.published for row in table.rows} == values
    assert [row.failures.failed for row in table.rows] == [0, SEEDS - 1]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"within": "nrom"}, "within: is not a component. Accepted: norm, std, warmup. Did you mean norm?"),
        ({"components": {"norm": ["pre", "mix"]}}, "within: is the only component"),
        ({"design": "one-at-a-time"}, "within: needs design: factorial"),
        ({"components": None, "design": None, "arms": {"pre": {}}}, "within: needs components"),
        ({"search": {"optimizer.lr": [1e-3]}}, "Make the searched setting a component"),
    ],
)
def test_what_within_cannot_mean_is_told(more, message):
    with pytest.raises(ConfigError) as refused:
        sweep(**more)
    assert message in str(refused.value)


def test_the_command_line_sets_it_and_all_sizes_are_one_family(tmp_path):
    file = tmp_path / "sized.yaml"
    file.write_text(
        "name: sized\ncomponents: {norm: [pre, lns], init: [normal, scaled]}\ndesign: factorial\nsampler: grid\n"
        "confirm: {at: grid, seeds: 3}\nsizes: {s: {model.hidden: 64}, l: {model.hidden: 128}}\n"
    )
    assert [spec.family for spec in load_sweeps(file)] == [3, 3]
    assert [spec.family for spec in load_sweeps(file, {"within": "init"})] == [3, 3]  # init, and norm at its two levels
    assert [spec.family for spec in load_sweeps(file, {"within": "init", "design": "main-effects"})] == [3, 3]
    (small, _) = load_sweeps(file, {"within": "norm"})
    assert list(small.contrasts) == ["norm=lns", "init=scaled at norm=pre", "init=scaled at norm=lns"]
