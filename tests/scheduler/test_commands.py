"""Sweeps over a command: the whole engine around a script without torch."""

import io
import math
import os
import random
import subprocess
import sys
from types import SimpleNamespace
from typing import ClassVar, Literal

import pytest
from rich.console import Console
from scheduler.small import run_here, run_sweep, table
from scipy import stats

import ablate
from ablate import tracking
from ablate.config.errors import ConfigError, SweepError
from ablate.experiment.trainable import ExternalExperiment, experiments
from ablate.reports.findings import list_cautions
from ablate.scheduler import dry_run, run
from ablate.sweeps.comparison import compare_record
from ablate.sweeps.runs import FRESH, SEARCH
from ablate.sweeps.spec.sweep import Sweep
from ablate.training import external
from ablate.training.procedures import Ended
from ablate.verdict.comparison import FreshOutcomes, compare
from ablate.verdict.outcomes import Outcome

SCRIPT = """
import json, math, os, random, signal, sys, time
lr, depth, seed = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
BEFORE
loss = (math.log10(lr) + 2) ** 2 - 0.5 * depth + random.Random(f"{depth} {seed}").gauss(0, 0.02) + 5
for step in (1, 2):
    print(json.dumps({"step": step, "loss": loss + 2 - step}))
"""
KILLS_ITS_WORKER = """
folder = os.path.dirname(os.path.abspath(__file__))
if seed == 2 and depth == 2 and not os.path.exists(folder + "/killed"):
    with open(folder + "/killed", "w") as file:
        file.write(str(os.getpid()))
    guard = open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()
    os.kill(int(guard[1]), signal.SIGKILL)
    time.sleep(60)
"""


def compute(lr, depth, seed):
    """The value of the script."""
    return (math.log10(lr) + 2) ** 2 - 0.5 * depth + random.Random(f"{depth} {seed}").gauss(0, 0.02) + 5


@pytest.fixture
def script(store, tmp_path):
    """script(name, before, **more): a sweep over a script, which does `before` first."""

    def build(name="script", before="", experiment=(), **more):
        file = tmp_path / f"{name}.py"
        file.write_text(SCRIPT.replace("BEFORE", before))
        line = f"{sys.executable} -I -S {file} {{lr}} {{depth}} {{seed}}"
        tree = {
            "name": name,
            "experiment": {"kind": "command", "run": line, **dict(experiment)},
            "arms": {"shallow": {"depth": 1}, "deep": {"depth": 2}},
            "search": {"lr": [0.003, 0.01, 0.04]},
            "sampler": "grid",
            "objective": {"metric": "loss", "direction": "minimize"},
            "confirm": {"seeds": 4, "candidates": 1},
            "challenge": {"trials": 0, "extend": 0},
        }
        return Sweep.from_tree({**tree, **more})

    return build


def test_a_sweep_by_two_workers_has_the_verdict_of_its_values(script):
    record = run_sweep(script())
    values = {
        arm: [compute(0.01, depth, seed) for seed in (1, 2, 3, 4)] for arm, depth in (("shallow", 1), ("deep", 2))
    }
    for arm, expected in values.items():
        assert record.settled(arm).params == {"lr": 0.01}
        assert [outcome.value for outcome in record.runs.outcomes(arm, FRESH).values()] == pytest.approx(expected)
    compared = compare_record(record)["deep"]
    outcomes = {arm: {i: Outcome("trained", v) for i, v in enumerate(own, 1)} for arm, own in values.items()}
    arms = {arm: FreshOutcomes(own, looks=record.looks.get(arm)) for arm, own in outcomes.items()}
    expected = compare(arms, "shallow", planned=4)["deep"]
    assert compared.kind == expected.kind == "better"
    assert compared.versus.difference == expected.versus.difference
    differences = [deep - shallow for deep, shallow in zip(values["deep"], values["shallow"], strict=True)]
    assert compared.versus.difference.mean == pytest.approx(sum(differences) / 4)
    assert compared.versus.difference.half_width >= stats.sem(differences) * stats.t.ppf(0.975, 3)  # for all looks
    trial = record.search("deep")[0]
    assert trial.curve == pytest.approx({1: trial.value + 1, 2: trial.value})
    text = str(ablate.report(record).document)
    assert "How the runs were made" in text
    assert "hardware, precision, code" not in text  # which nobody knows of a command
    assert not list_cautions(record)
    parent = tracking.client().get_run(record.parents["deep"])
    assert parent.data.params["depth"] == "2"


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="looks at /proc")
def test_a_killed_worker_changes_nothing_and_its_command_ends(script, tmp_path):
    record = run_sweep(script("killed", KILLS_ITS_WORKER))
    pid = int((tmp_path / "killed").read_text())
    assert not os.path.exists(f"/proc/{pid}")
    assert table(record) == table(run_here(script("undisturbed")))
    (again,) = [r for r in record.runs.select("deep", FRESH) if r.seed == 2]
    assert again.value == pytest.approx(compute(0.01, 2, 2))


FAILS_ONCE = """
marker = os.path.abspath(__file__) + str(depth)
if depth == 2 and lr == 0.003 and not os.path.exists(marker):
    open(marker, "w").close()
    sys.exit("out of luck")
"""


def test_a_crash_is_no_outcome_and_the_same_command_tries_again(script):
    spec = script("crash", FAILS_ONCE)
    (failed,) = run_here(spec).runs.select(status="failed")
    assert (failed.arm, failed.reason) == ("deep", "exit status 1: out of luck")
    (file,) = (tracking.store_path() / "failures").iterdir()
    assert "out of luck" in file.read_text()
    record = run_here(spec)
    assert not record.runs.select(status="failed")
    assert record.search("deep").finished == 3


ENDS = """
if seed in (1, 2) and depth == 2:
    print('{"loss": NaN}')
    sys.exit()
"""


def test_failures_by_divergence_and_by_the_trivial_value_are_outcomes(script):
    record = run_here(script("ends", ENDS, {"trivial": 5.0}, search={"lr": [0.001, 0.01]}))
    assert [one.ending for one in record.runs.outcomes("deep", FRESH).values()] == ["diverged"] * 2 + ["trained"] * 2
    stuck = [run for run in record.search("shallow") if record.is_stuck(run)]
    assert [run.params["lr"] for run in stuck] == [0.001]  # 5.5, and the other 4.5
    found = tracking.client().get_run(stuck[0].run_id)
    assert found.data.tags["ablate.outcome"] == "stuck"
    assert "it ends at a loss of 5.000 or more" in str(ablate.report(record).document)


def test_more_is_better_turns_the_trivial_value_around(script):
    objective = {"metric": "loss", "direction": "maximize"}
    record = run_here(script("more", "", {"trivial": 4.7}, search={"lr": [0.001, 0.01]}, objective=objective))
    assert record.settled("shallow").params == {"lr": 0.001}
    assert {run.params["lr"] for run in record.search("shallow") if record.is_stuck(run)} == {0.01}


def test_a_command_that_ignores_its_seed_is_told(script):
    record = run_here(script("deaf", "seed = 0 if depth == 2 else seed"))
    (told,) = list_cautions(record)
    assert told.startswith("The value is the same to the last digit on all seeds of deep (5 seeds)")
    assert told.endswith("Let {seed} or ABLATE_SEED reach whatever is random.")


def test_a_changed_script_is_not_continued(script):
    spec = script("edited")
    run_here(spec)
    script("edited", "pass")
    with pytest.raises(
        SweepError,
        match=r"edited was started with another sweep file, plugin, data or version of Ablate.*\n.*edited\.py",
    ):
        run_here(spec)


def test_a_second_sweep_of_the_program_has_seeds_of_its_own(script):
    first = script("one", search={"lr": [0.01]})
    run_here(first)
    second = first.model_copy(update={"name": "two"})
    assert "An earlier sweep of this storage, one@1, runs the same program" in dry_run.plan(second, 1, None)


def test_the_plan_says_what_is_known(script):
    plan = dry_run.plan(script("plan", experiment={"time_limit": 60.0, "steps": 2}), 2, None)
    assert "arm deep: 3 trials of " in plan
    assert "to step 2, at most 60 s each" in plan
    assert "to do: 14 trials" in plan
    assert "by the time limit" in plan
    assert "data" not in plan
    assert "tokens" not in plan
    assert "FLOPs" not in plan
    assert "the time of a run is not known" in dry_run.plan(script("other"), 2, None)
    assert "ABLATE_SEED" not in plan


@pytest.mark.parametrize(("env", "told"), [({}, True), ({"SEED": "{seed}"}, False)])
def test_the_plan_of_a_command_without_a_seed_says_so(script, env, told):
    spec = script("unseeded", experiment={"run": "ls {lr} {depth}", "env": env})
    assert ("it can know its seed by ABLATE_SEED alone" in dry_run.plan(spec, 1, None)) == told


def test_a_missing_program_is_refused_before_the_first_run(script):
    with pytest.raises(ConfigError, match=r"experiment\.run: there is no such program"):
        run_here(script("missing", experiment={"run": "no-such-program {lr} {depth} {seed}"}))


def test_what_a_sweep_shows_has_the_steps_of_the_command(script):
    output = io.StringIO()
    run.sweep(script("shown", experiment={"steps": 2}, search={"lr": [0.01]}), console=Console(file=output, width=200))
    assert "sweep shown: 2 arms, runs of " in output.getvalue()
    assert "completed, loss" in output.getvalue()
    assert "is made" not in output.getvalue()


def test_the_first_sweep_of_a_store_says_that_it_makes_a_database(script, tmp_path, monkeypatch):
    """Before the seconds that this takes, on a busy machine more than ten."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/new/mlflow.db")
    monkeypatch.setattr(run, "begin_session", lambda *given: sys.exit("prepared"))
    output = io.StringIO()
    with pytest.raises(SystemExit, match="prepared"):
        run.sweep(script("first"), console=Console(file=output, width=200))
    assert f"Making the database {tmp_path}/new/mlflow.db: this takes seconds." in output.getvalue()


def test_a_failed_run_is_shown_with_the_file_of_its_output(script):
    output = io.StringIO()
    spec = script("fails", "sys.exit(3)", search={"lr": [0.01]})
    run.sweep(spec, console=Console(file=output, width=400))
    assert "FAILED, exit status 3 (details: " in output.getvalue()


class Parabola(ExternalExperiment):
    """A kind of somebody else, in one class."""

    kind: Literal["parabola"] = "parabola"
    x: float = 0.0
    seed: int = 0
    plugins: tuple[str, ...] = ()
    driver: ClassVar[str] = "a_plugin"


class ParabolaDriver(external.Driver):
    def run(self, run):
        values = {"y": (run.experiment.x - 1) ** 2 + run.experiment.seed / 100}
        return Ended("completed", "", 1, values, {})


def test_a_kind_of_a_plugin_is_one_class_and_a_driver(store, registries, monkeypatch):
    experiments.register(Parabola)
    monkeypatch.setitem(sys.modules, "a_plugin", SimpleNamespace(DRIVER=ParabolaDriver()))
    spec = Sweep.from_tree(
        {
            "name": "parabola",
            "experiment": {"kind": "parabola"},
            "search": {"x": [0.0, 1.0, 3.0]},
            "sampler": "grid",
            "objective": {"metric": "y", "direction": "minimize"},
        }
    )
    record = run_here(spec)
    assert {run.params["x"]: run.value for run in record.runs.select(stage=SEARCH)} == {0.0: 1.0, 1.0: 0.0, 3.0: 4.0}


def test_a_worker_of_commands_imports_no_torch():
    code = (
        "import sys, ablate.scheduler.worker, ablate.scheduler.run, ablate.training.commands\n"
        "from ablate.experiment import CommandExperiment\n"
        "from ablate.scheduler.runners import load_runner\n"
        "load_runner(CommandExperiment).settle(1)\n"
        "sys.exit(' '.join({'torch', 'lightning', 'timm', 'datasets'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip() == ""
