"""What the layers of fresh seeds do, against numbers by hand, and in a sweep that is trained and published."""

import json
import math
from dataclasses import replace

import numpy as np
import optuna
import pytest
from bundles.conftest import read_json, write_json
from run_table import by_arm, put
from scheduler.small import run_here
from scipy.stats import t as student

from ablate import tracking
from ablate.addons.bundles.publish import publish
from ablate.addons.bundles.verify import verify
from ablate.plots.marks import Line
from ablate.reports.layer_seeds import compare_layers, draw_layers_over_seeds, tabulate_layers
from ablate.reports.report import assemble
from ablate.sweeps.runs import FRESH
from ablate.sweeps.spec.sweep import Sweep
from benchmarks.simulation.sweeps import simulate

TRIVIAL = 3.3
SEEDS = range(1, 6)


def measure(arm, seed):
    """Six layers: two of each third. The last third of LNS loses less than that of Pre-LN; its variance is constant,
    where that of Pre-LN doubles from the middle on."""
    last, growth = {"pre": (0.5, 2.0), "lns": (0.1, 1.0)}[arm]
    increase = [3.0, 1.0, 0.2, 0.4, last + 0.01 * seed, last + 0.03 * seed]
    return {"loss_increase": increase, "variance": [1.0, 1.0, 1.0, 1.0, growth, growth]}


@pytest.fixture
def record():
    spec = Sweep.from_tree(
        {
            "name": "deep",
            "arms": {"pre": {"norm": "pre"}, "lns": {"norm": "lns"}},
            "confirm": {"at": "grid", "seeds": len(SEEDS)},
            "sampler": "grid",
        }
    )
    storage = optuna.storages.InMemoryStorage()
    whole = simulate(spec, lambda *_: 2.0, storage, trivial_loss=TRIVIAL)
    confirmed = {
        arm: [replace(run, layers=measure(arm, run.seed)) for run in runs] for arm, runs in by_arm(whole, FRESH).items()
    }
    return put(whole, confirmed=confirmed)


def find(known, column, arm, against):
    return next(one for one in known.differences if (one.column, one.arm, one.against) == (column, arm, against))


def test_thirds_and_pairs_by_hand(record):
    known = compare_layers(record)
    first, middle, last = known.numbers["loss_increase"]["pre"].thirds
    assert (first.mean, middle.mean) == (pytest.approx(2.0), pytest.approx(0.3))
    assert last.mean == pytest.approx(0.5 + 0.02 * 3)
    sd = 0.02 * math.sqrt(2.5)
    assert last.half_width == pytest.approx(student.ppf(0.975, 4) * sd / math.sqrt(5))
    assert len(known.differences) == 6  # two numbers: each arm with its middle, and LNS with Pre-LN
    own = find(known, "loss_increase", "pre", "its middle")
    assert own.estimate.mean == pytest.approx(0.56 - 0.3)
    # six share 5 %, of which a planned look spends 80 %
    assert own.estimate.half_width == pytest.approx(student.ppf(1 - 0.8 * 0.05 / 6 / 2, 4) * sd / math.sqrt(5))
    assert own.word == "higher"
    assert find(known, "loss_increase", "lns", "its middle").estimate.mean == pytest.approx(0.16 - 0.3)


def test_magnitudes_are_compared_by_their_ratio(record):
    runs = [
        replace(run, layers={"variance": [1, 1, 1, 1, 2 * 1.1**run.seed, 2 * 1.1**run.seed]})
        for run in record.fresh("pre")
    ]
    known = compare_layers(put(record, confirmed={**by_arm(record, FRESH), "pre": runs}))
    one = find(known, "variance", "pre", "its middle")
    assert one.is_ratio
    assert one.estimate.mean == pytest.approx(math.log(2 * 1.1**3))
    assert one.word == "higher"
    equal = find(known, "variance", "lns", "its middle")
    assert (equal.estimate.mean, equal.estimate.half_width, equal.word) == (0.0, None, "not shown")


def test_seeds_that_failed_and_numbers_that_are_not_known_are_left_out(record):
    runs = [
        replace(run, value=TRIVIAL, metrics={"val/loss": TRIVIAL}) if run.seed == 2 else run
        for run in record.fresh("lns")
    ]
    runs[0] = replace(runs[0], layers={**runs[0].layers, "variance": [None] * 6})
    known = compare_layers(put(record, confirmed={**by_arm(record, FRESH), "lns": runs}))
    assert [*known.numbers["loss_increase"]["lns"].seeds] == [1, 3, 4, 5]
    assert [*known.numbers["variance"]["lns"].seeds] == [3, 4, 5]
    assert find(known, "loss_increase", "lns", "pre").estimate.n == 4


def test_a_sweep_without_measurements_has_none(record):
    confirmed = {arm: [replace(run, layers={}) for run in runs] for arm, runs in by_arm(record, FRESH).items()}
    assert compare_layers(put(record, confirmed=confirmed)) is None


def test_the_report_has_tables_and_a_figure(record, tmp_path, without_figures):
    report = assemble(record, tmp_path, draw=False)
    *numbers, differences = tabulate_layers(report.layers)
    assert [section.title for section in numbers] == [
        "Layers of fresh seeds: increase of the loss without the layer (nats)",
        "Layers of fresh seeds: variance of the layer's output",
    ]
    assert len(differences.table.rows) == 6
    panel, _ = draw_layers_over_seeds(record, report.layers).panels
    lines = [mark.ys[4] for mark in panel.marks if isinstance(mark, Line)]
    assert lines == [pytest.approx(0.53), pytest.approx(0.13)]
    assert report.to_dict()["layers"]["differences"][0]["word"] == "higher"


def test_a_panel_with_negative_numbers_says_where_it_is_linear_and_names_ticks_apart_from_one_another(record):
    moved = {
        arm: [replace(run, layers={"loss_increase": [v - 0.3 for v in run.layers["loss_increase"]]}) for run in runs]
        for arm, runs in by_arm(record, FRESH).items()
    }
    record = put(record, confirmed=moved)
    (panel,) = draw_layers_over_seeds(record, compare_layers(record)).panels
    assert list(panel.y.ticks.values()) == ["-1", "-0.2", "0", "0.2", "1"]
    assert panel.title.endswith("(nats); linear within ±0.2")


def test_a_trained_sweep_keeps_what_its_runs_measured_and_publishes_it(tiny_settings, store, tmp_path):
    diagnose = {"what": ["pruning", "variance"], "interval": 20, "tokens": 64}
    trainer = {**tiny_settings["trainer"], "max_steps": 60, "val_check_interval": 60, "diagnose": diagnose}
    sweep = Sweep.from_tree(
        {
            "name": "deep",
            "experiment": {**tiny_settings, "model.hidden": 32, "optimizer": {"lr": 2e-2}, "trainer": trainer},
            "arms": {"pre": {"norm": "pre"}, "lns": {"norm": "lns"}},
            "sampler": "grid",
            "confirm": {"at": "grid", "seeds": 3},
        }
    )
    record = run_here(sweep)
    for runs in by_arm(record, FRESH).values():
        for run in runs:
            with open(tracking.client().download_artifacts(run.run_id, "layers/training.json")) as file:
                history = json.load(file)["history"]
            assert run.layers == {column: [*course.values()][-1] for column, course in history.items()}
    known = compare_layers(record)
    assert set(known.numbers) == {"loss_increase", "variance", "attention_variance", "mlp_variance"}
    folder = tmp_path / "bundle"
    bundle = publish(["deep"], folder).bundle
    assert bundle.sweeps[0].verdict.layers["differences"][0]["word"] == known.differences[0].word
    page = (folder / "index.md").read_text()
    assert "## Layers of fresh seeds: variance of the layer's output" in page
    assert (folder / "layers-seeds.png").exists()
    assert verify(folder, runs=0).holds
    values = read_json(folder)
    values["sweeps"][0]["verdict"]["layers"]["numbers"]["variance"]["lns"]["thirds"][2]["mean"] *= 1.01
    write_json(folder, values, seal=True)  # a forgery
    (damage,) = verify(folder, runs=0).damage
    assert "layers.numbers.variance.lns.thirds[2].mean" in damage


def test_layers_that_do_not_differ_are_rarely_said_to(record):
    times, wrong, generator = 400, 0, np.random.default_rng(0)
    for _ in range(times):
        confirmed = {}
        for arm, runs in by_arm(record, FRESH).items():
            drawn = np.exp(0.3 * generator.standard_normal((len(runs), 2, 6)))
            confirmed[arm] = [
                replace(run, layers={"loss_increase": rows[0].tolist(), "variance": rows[1].tolist()})
                for run, rows in zip(runs, drawn, strict=True)
            ]
        known = compare_layers(put(record, confirmed=confirmed))
        wrong += any(one.word != "not shown" for one in known.differences)
    assert wrong <= 30  # of 400 at 5 %, 31 or more come by chance once in 100 times
