"""Time and memory of `ablate status`, `ablate report` and of taking the next trial, over the number of trials.

    python benchmarks/scale.py                                              # SQLite, in a temporary folder
    python benchmarks/scale.py --storage postgresql://me@localhost/scratch  # an empty database
    python benchmarks/scale.py --storage journal:///shared/me/scratch --trials 100 1000

A storage is filled with sweeps of so many trials, as training leaves them. Each measurement is made in a process of its
own, after its imports: the time of the first call, how much memory it adds, and of calls that follow the median and the
quickest, by the clock and, since other work on the machine counts there, the median by the processor (CPU).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

RATES = (1e-4, 1e-1)
VALIDATIONS = 10  # of a trial


def build_spec(trials: int, arms: int, sampler: str) -> Any:
    """Return the sweep of so many trials in all, and room for more."""
    from ablate.sweeps.spec.sweep import Sweep

    return Sweep.from_tree(
        {
            "name": f"scale-{trials}",
            "arms": {f"arm{i}": {"norm": ("pre", "post")[i % 2], "experiment.seed": i} for i in range(arms)}
            if arms > 2
            else {"arm0": {"norm": "pre"}, "arm1": {"norm": "post"}},
            "search": {
                "optimizer.lr": {"low": RATES[0], "high": RATES[1], "log": True},
                "optimizer.weight_decay": {"low": 0.0, "high": 0.3},
            },
            "sampler": sampler,
            "budget": {"trials": trials // arms + 1000},  # so that a filled storage serves many calls
            "confirm": {"seeds": 4},
        }
    )


def fill(url: str, trials: int, arms: int) -> None:
    """Make a sweep whose searches have so many finished trials."""
    from ablate.scheduler.optuna_private import find_backend
    from ablate.scheduler.samplers import to_distributions
    from ablate.scheduler.storage import open_storage
    from ablate.scheduler.studies import create_study, name_study

    storage, spec, draw = open_storage(url), build_spec(trials, arms, "tpe"), random.Random(0)
    for arm in spec.all_arms:
        study = create_study(storage, name_study(spec.name, 1, arm), spec)
        distributions = to_distributions(spec.space(arm))
        made = [_build_trial(number, draw, distributions) for number in range(trials // arms)]
        if hasattr(find_backend(storage), "scoped_session"):
            _insert(find_backend(storage), study._study_id, made)
        else:
            for trial in made:
                storage.create_new_trial(study._study_id, trial)


def _build_trial(number: int, draw: random.Random, distributions: dict[str, Any]) -> Any:
    """Return a finished trial."""
    from optuna.trial import FrozenTrial, TrialState

    rate = RATES[0] * (RATES[1] / RATES[0]) ** draw.random()
    value = 2 + 0.4 * math.log10(rate / 3e-3) ** 2 + draw.gauss(0, 0.02)
    return FrozenTrial(
        number=number,
        trial_id=-1,
        state=TrialState.COMPLETE,
        value=value,
        datetime_start=datetime.now(),
        datetime_complete=datetime.now(),
        params={"optimizer.lr": rate, "optimizer.weight_decay": 0.3 * draw.random()},
        distributions=distributions,
        user_attrs=_build_notes(number, value),
        system_attrs={"fixed_params": {}},
        intermediate_values={30 * (i + 1): value + 2 / (i + 1) for i in range(VALIDATIONS)},
    )


def _insert(database: Any, study: int, trials: list[Any]) -> None:
    """Write `trials` in one transaction: Optuna takes one for each, and half a minute for a thousand."""
    from optuna.distributions import distribution_to_json
    from optuna.storages._rdb import models
    from sqlalchemy import insert

    with database.scoped_session() as session:
        made = [
            models.TrialModel(
                number=trial.number, study_id=study, state=trial.state,
                datetime_start=trial.datetime_start, datetime_complete=trial.datetime_complete,
            )
            for trial in trials
        ]  # fmt: skip
        session.add_all(made)
        session.flush()
        rows: dict[Any, list[dict[str, Any]]] = {}

        def add(model: Any, **row: Any) -> None:
            rows.setdefault(model, []).append(row)

        for row, trial in zip(made, trials, strict=True):
            own = row.trial_id
            finite = {"value_type": models.TrialValueModel.TrialValueType.FINITE}
            add(models.TrialValueModel, trial_id=own, objective=0, value=trial.value, **finite)
            for key, value in trial.params.items():
                axis = trial.distributions[key]
                described = {
                    "param_value": axis.to_internal_repr(value),
                    "distribution_json": distribution_to_json(axis),
                }
                add(models.TrialParamModel, trial_id=own, param_name=key, **described)
            for key, value in trial.user_attrs.items():
                add(models.TrialUserAttributeModel, trial_id=own, key=key, value_json=json.dumps(value))
            for key, value in trial.system_attrs.items():
                add(models.TrialSystemAttributeModel, trial_id=own, key=key, value_json=json.dumps(value))
            for step, value in trial.intermediate_values.items():
                kind = models.TrialIntermediateValueModel.TrialIntermediateValueType.FINITE
                named = {"intermediate_value": value, "intermediate_value_type": kind}
                add(models.TrialIntermediateValueModel, trial_id=own, step=step, **named)
        for model, listed in rows.items():
            session.execute(insert(model), listed)
        session.commit()


def _build_notes(number: int, value: float) -> dict[str, Any]:
    """Return the notes on a trial, as large as those of a real one."""
    facts = {f"ablate.fact{i}": "a value of a fact" for i in range(8)}
    costs = {"flops_per_update": 1e12, "flops_before": 0.0, "state_bytes": 1e8, "peak_memory_bytes": 1e9}
    metrics = {"val/loss": value, "val/perplexity": math.exp(value), "train/loss": value}
    return {
        "number": number,
        "owner": {"host": "here", "pid": 1, "started": "1"},
        "run_id": None,
        "ending": {
            "status": "completed", "reason": "", "metrics": metrics, "step": 300, "seconds": 51.3,
            "items_per_update": 2048, "facts": facts, "costs": costs,
        },
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------- measuring


def measure_status(url: str, trials: int, arms: int) -> Callable[[], object]:
    """Return what `ablate status` calls."""
    from ablate.scheduler.status import read_statuses

    return lambda: read_statuses(f"scale-{trials}", url)


def measure_report(url: str, trials: int, arms: int) -> Callable[[], object]:
    """Return what `ablate report` calls."""
    import ablate.reports.report

    return lambda: ablate.report(f"scale-{trials}", storage=url)


def measure_take(url: str, trials: int, arms: int, sampler: str = "tpe") -> Callable[[], object]:
    """Return what takes the next trial; the trial ends before the next call."""
    from ablate.scheduler.queue import Queue
    from ablate.scheduler.storage import open_storage
    from ablate.scheduler.studies import create_study, name_study

    spec, storage = build_spec(trials, arms, sampler), open_storage(url)
    for arm in spec.all_arms:
        create_study(storage, name_study(spec.name, 1, arm), spec)
    queue = Queue(storage, spec.name, 1, spec)
    return lambda: queue.take()


def measure_take_random(url: str, trials: int, arms: int) -> Callable[[], object]:
    """Return the same for a random search, whose proposals cost nothing."""
    return measure_take(url, trials, arms, "random")


MEASURED = {
    "status": (measure_status, 3),
    "report": (measure_report, 2),
    "take": (measure_take, 20),
    "take_random": (measure_take_random, 20),
}


def measure(name: str, url: str, trials: int, arms: int) -> dict[str, float]:
    """Return the seconds of the first call, the median and the quickest of the later ones, the same of the processor,
    and the MiB that the first call adds."""
    prepare, times = MEASURED[name]
    call = prepare(url, trials, arms)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, busy, memory = [], [], 0.0
    for _ in range(times):
        start, computed = time.perf_counter(), time.process_time()
        result = call()
        seconds.append(time.perf_counter() - start)
        busy.append(time.process_time() - computed)
        memory = memory or (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        if name.startswith("take"):
            _end(result)
    later = {"later": statistics.median(seconds[1:]), "later_cpu": statistics.median(busy[1:])}
    later["quickest"] = min(seconds[1:])
    return {"first": seconds[0], "first_cpu": busy[0], **later, "mib": memory}


def _end(task: Any) -> None:
    from ablate.training.procedures import Result

    task.record_result(Result("completed", {"val/loss": 2.5}, step=1, run_id=None, seconds=1.0))


def main() -> None:
    """Fill a storage, measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--storage", help="default: SQLite in a temporary folder")
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--arms", type=int, default=2)
    parser.add_argument("--only", choices=MEASURED, nargs="+", default=[*MEASURED])
    parser.add_argument("--filled", action="store_true", help="the storage was filled by an earlier call")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    if given.one:
        print(json.dumps(measure(given.one, given.storage, given.trials[0], given.arms)))
        return
    with tempfile.TemporaryDirectory() as folder:
        url = given.storage or f"sqlite:///{Path(folder) / 'optuna.db'}"
        print("              trials  first call       CPU      later   quickest        CPU    memory")
        for trials in given.trials:
            if not given.filled:
                fill(url, trials, given.arms)
            for name in given.only:
                words = ["--one", name, "--storage", url, "--trials", str(trials), "--arms", str(given.arms)]
                done = subprocess.run([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True, check=True)
                cell = json.loads(done.stdout.splitlines()[-1])
                times = f"{cell['first']:9.2f} s {cell['first_cpu']:7.2f} s"
                times += "".join(f" {1000 * cell[key]:7.1f} ms" for key in ("later", "quickest", "later_cpu"))
                print(f"{name:12} {trials:7} {times} {cell['mib']:5.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
