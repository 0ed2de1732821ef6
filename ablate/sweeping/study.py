"""The Optuna side of a sweep: where studies are kept, what is remembered with each trial, and reading it back.

A sweep has one study per arm, named SWEEP@GENERATION/ARM. `--fresh` starts a new generation and leaves the old ones.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ablate.errors import StoreError, SweepError, did_you_mean
from ablate.sweeping.spec import Sweep
from ablate.tracking import creation_lock, redacted, shortened, sqlite_file, store_path

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

STATUSES = ("completed", "running", "pruned", "diverged", "failed", "interrupted", "waiting")
FINISHED = ("completed", "pruned", "diverged")  # results; the budget counts these


def storage_url(given: str | None = None) -> str:
    """`given`, else ABLATE_STORAGE, else the SQLite database of the store."""
    return given or os.environ.get("ABLATE_STORAGE") or f"sqlite:///{store_path() / 'optuna.db'}"


def open_storage(url: str) -> BaseStorage:
    """Optuna's storage at `url`, created if missing. Raises StoreError where it cannot be used."""
    import optuna
    import sqlalchemy.exc

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        engine = {"connect_args": {"timeout": 60}} if sqlite_file(url) else {}
        with creation_lock(url):
            return optuna.storages.RDBStorage(url, engine_kwargs=engine)
    except ImportError as error:
        module = getattr(error.__cause__, "name", None) or str(error)
        raise StoreError(
            f"The Optuna storage {redacted(url)} needs the Python module {module}, which is not installed."
        ) from None
    except (sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, OSError, ValueError) as error:
        text = shortened(error)
        raise StoreError(
            f"The Optuna storage {redacted(url)} cannot be used: {text} "
            "Give another with --storage URL, or move a damaged file away."
        ) from None


@dataclass(frozen=True)
class TrialRecord:
    """One trial, as far as it got."""

    arm: str
    number: int
    """Its place among the trials of the arm, from 0; a further attempt keeps it. Optuna counts the attempts."""
    status: str
    """One of STATUSES."""
    params: dict[str, Any]
    """What was searched: dotted path -> value."""
    value: float | None
    """The objective; None unless completed."""
    metrics: dict[str, float]
    """Those of the last validation."""
    curve: dict[int, float]
    """Updates -> objective, at each validation."""
    step: int
    """Updates made."""
    seconds: float | None
    """Wall-clock seconds of training."""
    run_id: str | None
    """Its MLflow run."""
    reason: str
    """Why it diverged, was pruned or failed."""


@dataclass(frozen=True)
class SweepRecord:
    """A sweep, as the storage has it."""

    name: str
    generation: int
    spec: Sweep
    trials: dict[str, list[TrialRecord]]
    """Arm -> its trials, without the attempts that a later one continued."""
    parents: dict[str, str] = field(default_factory=dict)
    """Arm -> its parent run in MLflow."""
    validation_items: int | None = None
    """Sequences or images of the smallest validation set; None where that is not known."""
    confirmed: dict[str, list[TrialRecord]] = field(default_factory=dict)
    """Arm -> the trainings of its best settings on fresh seeds; `params` holds the seed."""
    plugins: dict[str, str] = field(default_factory=dict)
    """Plugin file -> SHA-256 of what it was when the sweep was last continued."""

    @property
    def title(self) -> str:
        """The name, with the generation unless it is the first; also the name of the MLflow experiment."""
        return title_of(self.name, self.generation)

    def best(self, arm: str) -> TrialRecord | None:
        """The completed trial of `arm` with the best objective."""
        return best_of(self.trials[arm], self.spec.objective.direction)

    def counts(self, arm: str | None = None) -> dict[str, int]:
        """Trials by status, of one arm or of all."""
        found = [t.status for a, trials in self.trials.items() if arm in (None, a) for t in trials]
        return {status: found.count(status) for status in STATUSES}

    def failed(self) -> int:
        """Trials and confirmations that failed."""
        everything = [*self.trials.values(), *self.confirmed.values()]
        return sum(t.status == "failed" for trials in everything for t in trials)

    def target(self, arm: str | None = None) -> int:
        """Finished trials that there are to be, of one arm or of all."""
        return sum(self.spec.trials(a) for a in self.trials if arm in (None, a))


def best_of(trials: Iterable[TrialRecord], direction: str) -> TrialRecord | None:
    """The trial with the best objective, of those that have one."""
    sign = 1 if direction == "minimize" else -1
    valued = ((sign * trial.value, trial) for trial in trials if trial.value is not None)
    return min(valued, key=lambda pair: pair[0], default=(0.0, None))[1]


def finished(trials: Iterable[TrialRecord]) -> int:
    """How many of `trials` are results: completed, pruned or diverged."""
    return sum(trial.status in FINISHED for trial in trials)


def title_of(name: str, generation: int) -> str:
    """The name of one generation of a sweep."""
    return name if generation == 1 else f"{name}@{generation}"


def study_name(name: str, generation: int, arm: str) -> str:
    """The name of the study of one arm."""
    return f"{name}@{generation}/{arm}"


def confirmation_name(study: str, best: TrialRecord) -> str:
    """The name of the study that confirms the trial `best` of the arm of `study`."""
    return f"{study}/confirm-{best.number}"


def known_sweeps(url: str) -> dict[str, list[int]]:
    """The sweeps of the storage at `url`: name -> its generations, ascending. Creates nothing."""
    storage = existing_storage(url)
    return {} if storage is None else generations(storage)


def existing_storage(url: str) -> BaseStorage | None:
    """The storage at `url`; None where it is a file that nothing has made yet. Raises StoreError."""
    file = sqlite_file(url)
    return None if file is not None and not file.exists() else open_storage(url)


def generations(storage: BaseStorage) -> dict[str, list[int]]:
    """The sweeps of a storage: name -> its generations, ascending."""
    import optuna

    found: dict[str, set[int]] = {}
    for full in optuna.get_all_study_names(storage):
        head, slash, _ = full.rpartition("/")
        name, at, generation = head.rpartition("@")
        if slash and at and generation.isdigit():
            found.setdefault(name, set()).add(int(generation))
    return {name: sorted(numbers) for name, numbers in sorted(found.items())}


def read_sweep(title: str, url: str | None = None) -> SweepRecord:
    """The sweep called `title` (NAME, or NAME@GENERATION; by default the latest).

    Raises SweepError for an unknown one, with the names that there are.
    """
    import optuna

    url = storage_url(url)
    name, _, wanted = title.partition("@")
    storage = existing_storage(url)
    known = {} if storage is None else generations(storage)
    if storage is None or name not in known or (wanted and (not wanted.isdigit() or int(wanted) not in known[name])):
        names = [title_of(n, g) for n, gs in known.items() for g in gs]
        listed = f"Known: {', '.join(names)}." if names else "There are none yet: run `ablate sweep FILE.yaml`."
        raise SweepError(f"No sweep is called {title!r}. {listed}{did_you_mean(title, names)}")
    generation = int(wanted) if wanted else known[name][-1]
    prefix = f"{name}@{generation}/"
    full_names = [full for full in optuna.get_all_study_names(storage) if full.startswith(prefix)]
    arms = [arm for full in full_names if "/" not in (arm := full.removeprefix(prefix))]
    studies = {arm: optuna.load_study(study_name=prefix + arm, storage=storage) for arm in arms}
    first = next(iter(studies.values()))
    spec = spec_of(first)
    ordered = [arm for arm in spec.all_arms if arm in studies]
    items = [n for study in studies.values() if (n := study.user_attrs.get("validation_items"))]
    trials = {arm: records(studies[arm], arm) for arm in ordered}
    confirmed = {}
    for arm in ordered:
        best = best_of(trials[arm], spec.objective.direction)
        if best and (full := confirmation_name(prefix + arm, best)) in full_names:
            confirmed[arm] = records(optuna.load_study(study_name=full, storage=storage), arm)
    return SweepRecord(
        name,
        generation,
        spec,
        trials,
        {arm: studies[arm].user_attrs["parent"] for arm in ordered if "parent" in studies[arm].user_attrs},
        min(items, default=None),
        confirmed,
        first.user_attrs.get("plugins", {}),
    )


def spec_of(study: Study) -> Sweep:
    """The sweep file that a study was last continued with. Its plugins are loaded only where the sampler or the pruner
    is theirs: what a sweep found can be read without them."""
    tree = study.user_attrs["spec"]
    try:
        return Sweep.model_validate(tree)
    except ValidationError:
        return Sweep.from_tree(tree, f"the stored sweep {study.study_name}")


def records(study: Study, arm: str) -> list[TrialRecord]:
    """The trials of a study; of one that was interrupted and continued only the last attempt."""
    return [record(trial, arm) for trial in attempts(study)]


def attempts(study: Study) -> list[FrozenTrial]:
    """The trials of a study without those that a later one continues."""
    frozen = study.get_trials(deepcopy=False)
    continued = {trial.user_attrs["continues"] for trial in frozen if "continues" in trial.user_attrs}
    return [trial for trial in frozen if trial.number not in continued]


def number_of(trial: FrozenTrial | Trial) -> int:
    """The number that a trial is known by, in MLflow and in the report: its place among the trials of its arm."""
    return int(trial.user_attrs.get("number", trial.number))


def record(trial: FrozenTrial, arm: str) -> TrialRecord:
    """A trial of Optuna in our words."""
    notes = trial.user_attrs
    value = trial.value if trial.state.name == "COMPLETE" and math.isfinite(trial.value or 0.0) else None
    return TrialRecord(
        arm=arm,
        number=number_of(trial),
        status=status(trial),
        params=trial.params or dict(trial.system_attrs.get("fixed_params", {})),
        value=value,
        metrics=notes.get("metrics", {}),
        curve=dict(sorted(trial.intermediate_values.items())),
        step=notes.get("step", max(trial.intermediate_values, default=0)),
        seconds=notes.get("seconds"),
        run_id=notes.get("run_id"),
        reason=notes.get("reason", ""),
    )


def status(trial: FrozenTrial) -> str:
    """One of STATUSES. A trial whose process is gone is interrupted, whatever the storage says."""
    state = trial.state.name
    if state == "RUNNING":
        return "interrupted" if is_orphan(trial) else "running"
    if state == "WAITING":
        return "interrupted" if "continues" in trial.user_attrs else "waiting"
    return str(trial.user_attrs.get("status", {"COMPLETE": "completed", "PRUNED": "pruned"}.get(state, "failed")))


# ---------------------------------------------------------------------------------------------------- owners


def owner() -> dict[str, Any]:
    """This process, in a form that another process can ask after: host, pid and the time it started."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": _started(os.getpid())}


def is_orphan(trial: FrozenTrial) -> bool:
    """Whether a running trial's process was on this machine and is gone."""
    who = trial.user_attrs.get("owner")
    if not isinstance(who, Mapping) or who.get("host") != socket.gethostname():
        return False
    return who.get("started") != _started(int(who["pid"]))


def _started(pid: int) -> str | None:
    """What tells a process from a later one of the same pid; None where there is no such process."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    if Path("/proc/self").exists():
        return None
    try:  # no /proc: the pid alone has to do
        os.kill(pid, 0)
    except OSError:
        return None
    return "alive"


@contextlib.contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Turns a storage that fails in the middle of a sweep into a StoreError that says what to do."""
    import optuna
    import sqlalchemy.exc

    try:
        yield
    except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError, sqlite3.Error) as error:
        text = shortened(error.__cause__ or error)
        raise StoreError(
            f"The Optuna storage {redacted(url)} failed: {text} "
            "Finished trials are safe; run the same command again once it answers."
        ) from None
