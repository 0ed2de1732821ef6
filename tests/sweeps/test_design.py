"""Designs through the engine: searched, tested on the same seeds, stopped, continued, challenged and reported."""

import json
import multiprocessing
import os
import signal

import optuna
import pytest
from rich.console import Console
from run_table import by_arm
from scheduler.small import run_sweep, spec_tree

from ablate.cli.status import render
from ablate.reports.report import assemble
from ablate.scheduler.status import read_statuses
from ablate.scheduler.storage import open_storage, read_sweep, storage_url
from ablate.sweeps.comparison import compare_record, compare_record_effects, plan_record
from ablate.sweeps.plans import describe_power
from ablate.sweeps.records import list_rows
from ablate.sweeps.runs import CHALLENGE, FRESH
from ablate.sweeps.spec.scale import scale_sweep
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.stages import count_unassigned, describe_stages
from ablate.sweeps.verdict_summary import summarise_verdict
from benchmarks.simulation.losses import Valley, draw_normal
from benchmarks.simulation.sweeps import replay_design, simulate

FORK = multiprocessing.get_context("fork")
RATES = [1e-3, 3e-3, 1e-2]
COMPONENTS = {"norm": ["pre", "lns"], "final": {"setting": "norm.final_norm", "levels": [True, False]}}


def sweep(seeds=5, design="factorial", **more):
    confirm = {"seeds": seeds, "effect": 0.05, **more.pop("confirm", {})}
    tree = {"name": "t", "components": COMPONENTS, "design": design, "search": {"optimizer.lr": RATES}}
    return Sweep.from_tree({**tree, "sampler": "grid", "confirm": confirm, **more})


def end(arm, params, seed):
    """LNS is better, more so without a final norm."""
    lns, off = "norm=lns" in arm, "final=false" in arm
    return Valley({arm: 2.0 - 0.1 * lns - 0.1 * (lns and off)}, own=0.01)(arm, params, seed)


def list_points(spec):
    return {arm: [{"optimizer.lr": rate} for rate in RATES] for arm in spec.all_arms}


@pytest.fixture(scope="module")
def record():
    return simulate(sweep(), end, optuna.storages.InMemoryStorage())


def test_all_cells_are_searched_alike_and_tested_on_the_same_seeds(record):
    assert {len(trials) for trials in by_arm(record).values()} == {3}
    assert {tuple(run.seed for run in runs) for runs in by_arm(record, FRESH).values()} == {(1, 2, 3, 4, 5)}
    assert {c.kind for c in compare_record(record).values()} == {"cell"}
    effects = compare_record_effects(record)
    kinds = {name: effect.kind for name, effect in effects.items()}
    assert kinds == {"norm=lns": "better", "final=false": "better", "norm=lns x final=false": "better together"}
    assert {effect.family for effect in effects.values()} == {3}
    spec = sweep()
    assert replay_design(spec, end, list_points(spec)).effects == effects


@pytest.mark.parametrize("stops", [7])
def test_a_sweep_that_is_stopped_ends_as_one_that_was_not(record, stops):
    storage, ended, wanted = optuna.storages.InMemoryStorage(), -1, 4 * (3 + 6 + 5)
    while ended < wanted:
        part = simulate(sweep(), end, storage, stops)
        ended = sum(run.status == "completed" for run in part.runs)
        kinds = {effect.kind for effect in compare_record_effects(part).values()}
        assert kinds <= {"figures"} or ended == wanted
    again = simulate(sweep(), end, storage)
    assert compare_record_effects(again) == compare_record_effects(record)
    assert again.looks == record.looks


def test_the_other_designs_compare_arms_with_the_reference():
    storage = optuna.storages.InMemoryStorage()
    alone = simulate(sweep(design="one-at-a-time"), end, storage)
    compared = {arm: (c.kind, c.family) for arm, c in compare_record(alone).items()}
    assert {arm: kind for arm, (kind, _) in compared.items() if arm != "final=false"} == {
        "reference": "baseline", "norm=lns": "better",
    }  # fmt: skip
    assert {family for _, family in compared.values()} == {2}
    assert compare_record_effects(alone) == {}


def left_out(arm, params, seed):
    lns, off = "norm=lns" in arm or arm in ("full", "final=true"), arm in ("full", "norm=pre")
    return Valley({arm: 2.0 - 0.1 * lns - 0.1 * (lns and off)}, own=0.01)(arm, params, seed)


def test_leaving_one_out_is_told_against_the_full_recipe():
    record = simulate(sweep(design="leave-one-out"), left_out, optuna.storages.InMemoryStorage())
    assert {arm: c.kind for arm, c in compare_record(record).items()} == {
        "full": "baseline", "norm=pre": "worse", "final=true": "worse",
    }  # fmt: skip
    assert summarise_verdict(record).startswith("Verdict against full: norm=pre worse")


def lucky(arm, params, seed):
    """All cells are the same, but one was chosen at a worse rate, as it had good luck there in its search."""
    rate = params["optimizer.lr"]
    luck = arm == "norm=lns final=false" and rate == 1e-2 and (seed == 0 or seed >= 1000)
    return 2.0 + 0.3 * (rate == 1e-2) + 0.6 * (rate == 1e-3) - 0.5 * luck + 0.01 * draw_normal(arm, rate, seed)


def test_a_cell_that_is_behind_tries_other_settings():
    spec, storage = sweep(), optuna.storages.InMemoryStorage()
    record = simulate(spec, lucky, storage)
    assert record.find_settings("norm=lns final=false") == {"optimizer.lr": 1e-2}
    unchallenged = simulate(sweep(challenge={"trials": 0, "extend": 0}), lucky, optuna.storages.InMemoryStorage())
    assert compare_record_effects(unchallenged)["norm=lns"].versus.side == 1  # at its chosen settings it is worse
    effects = compare_record_effects(record)
    assert {effect.kind for effect in effects.values()} == {"undecided"}
    tried = record.runs.select(stage=CHALLENGE)
    assert tried.select("norm=lns final=false")
    assert replay_design(spec, lucky, list_points(spec)).effects == effects
    assert 0 < len(tried) <= count_unassigned(spec)["challenge"]
    rows = [row for row in list_rows(record) if row["phase"] == "challenge"]
    assert {row["components.norm"] for row in rows} <= {"pre", "lns"}


SHORT = sweep(seeds=3, confirm={"candidates": 1})  # 12 trials, 12 runs on fresh seeds, and tries


def work(url, calls):
    """The life of a process that kills itself when it is asked for a training after so many."""
    left = [calls]

    def train(arm, params, seed):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return lucky(arm, params, seed)

    simulate(SHORT, train, open_storage(url))


@pytest.mark.parametrize(
    "calls", [pytest.param(20, id="confirmation", marks=pytest.mark.chaos), pytest.param(25, id="challenge")]
)
def test_a_factorial_that_is_killed_goes_on_as_if_it_had_not_been(calls, tmp_path):
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    for limit in (calls, 1000):
        process = FORK.Process(target=work, args=(url, limit))
        process.start()
        process.join(120)
        assert process.exitcode == (-signal.SIGKILL if limit == calls else 0)
    found = read_sweep("t", url)
    plain = simulate(SHORT, lucky, optuna.storages.InMemoryStorage())
    assert compare_record_effects(found) == compare_record_effects(plain)
    assert found.looks == plain.looks
    tried = [{(run.arm, run.number, run.seed) for run in one.runs.select(stage=CHALLENGE)} for one in (found, plain)]
    assert tried[0] == tried[1]
    assert len(tried[0]) > 0


def test_seeds_are_added_to_all_cells_until_every_effect_is_decided():
    def noisy(arm, params, seed):
        return end(arm, params, seed) + (0.05 if "final=false" in arm else -0.05) * ((seed * 7) % 3 - 1)

    spec = sweep(seeds={"min": 3, "max": 6})
    record = simulate(spec, noisy, optuna.storages.InMemoryStorage())
    counts = {len(runs) for runs in by_arm(record, FRESH).values()}
    assert len(counts) == 1
    assert counts.pop() > 3
    assert len({record.looks[arm] for arm in record.looks}) == 1
    assert replay_design(spec, noisy, list_points(spec)).effects == compare_record_effects(record)
    assert set(plan_record(record).seeds.values()) == {len(record.fresh("norm=pre final=true"))}


def test_the_plan_says_what_the_seeds_show_of_effects():
    spec = sweep(seeds=8, confirm={"sd": 0.1, "sd_source": "a pilot"})
    main, conditions, failures, *warnings = describe_power(spec)
    assert "8 seeds, 2 main effects and 1 interactions; 3 comparisons in the file" in main
    at_a_scale, *others = describe_power(scale_sweep(spec, 0.5))
    assert "confirm.sd, 0.1, from a pilot, is of the full setting and does not hold at this scale" in at_a_scale
    assert not [line for line in others if "WARNING" in line]
    two = describe_power(
        sweep(8, "one-at-a-time", confirm={"sd": 0.1}, components={**COMPONENTS, "init": ["normal", "scaled"]})
    )
    one = float(two[0].partition("at least ")[2].partition(",")[0])  # of three comparisons, too
    assert f"main effects of at least {one / 2**0.5:.2g} and interactions of at least {one * 2**0.5:.2g}" in main
    assert "this holds if all cells train" in conditions
    assert "more of its cells must fail on 8 seeds, and fewer on none" in failures
    assert "WARNING: confirm.effect, 0.05, is less than these seeds can detect" in warnings[0]
    assert "one more at a time, at most 6, until each effect is shown" in " ".join(
        describe_stages(sweep({"min": 3, "max": 6}))
    )


def test_the_report_shows_effects_in_every_form(record, tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_STORE", str(tmp_path))
    made = assemble(record, tmp_path)
    assert [path.name for path in made.figures][:2] == ["effects.png", "verdict.png"]
    text = " ".join(made.table().split())
    assert "Effects of the components on fresh seeds (val/loss, lower is better)" in text
    assert "norm=lns is better than norm=pre on a typical seed; mean difference" in text
    assert text.endswith(made.summary)
    assert made.summary.startswith("Verdict. Main effects: better: norm=lns against norm=pre (-0.1")
    plain = json.loads(json.dumps(made.to_dict(), allow_nan=False))
    assert plain["design"]["cells"]["norm=lns final=true"] == {"norm": "lns", "final": "true"}
    effect = plain["effects"]["norm=lns x final=false"]
    assert effect["kind"] == "better together"
    assert effect["versus"]["interval"][1] < 0
    page = made.page()
    assert "Effects of the components" in page
    assert page.index("Effects of the components") < page.index('id="verdict"')
    columns = record.frame().columns
    assert {"components.norm", "components.final"} <= {*columns}


def test_status_tells_the_effects(store):
    simulate(sweep(confirm={"candidates": 1}, search={"optimizer.lr": [3e-3]}), end, open_storage(storage_url()))
    rows = read_statuses("t")
    assert rows[0]["effects"] == {
        "norm=lns": "better", "final=false": "better", "norm=lns x final=false": "better together",
    }  # fmt: skip
    console = Console(width=200)
    with console.capture() as capture:
        render(rows, console)
    assert "t: Verdict. Main effects: better: norm=lns against norm=pre" in capture.get()


def test_it_runs_with_workers(store, tiny_settings):
    tree = spec_tree(tiny_settings, sampler="grid", search={}, budget={}, confirm={"seeds": 1})
    del tree["arms"]
    spec = Sweep.from_tree({**tree, "components": {"norm": ["pre", "lns"]}, "design": "factorial"})
    found = run_sweep(spec, workers=2)
    assert [[run.status for run in runs] for runs in by_arm(found, FRESH).values()] == [["completed"]] * 2
    told = "No verdict yet on the effects: 2 of 2 runs on fresh seeds have ended, 2 of them failed."
    assert summarise_verdict(found) == told
    assert run_sweep(spec, workers=1) == found  # nothing is left to do
