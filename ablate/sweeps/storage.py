"""The Optuna side of a sweep: the location of studies, the notes on each trial, and reading them back.

A sweep has one study per arm, named SWEEP@GENERATION/ARM. `--fresh` starts a new generation and leaves the old ones.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ablate.config import plugins
from ablate.config.errors import SweepError, did_you_mean
from ablate.sweeps.attempts import RUNGS, read_trial_notes, trial_number
from ablate.sweeps.leases import is_free, is_orphan, is_paused
from ablate.sweeps.records import SweepRecord, format_title
from ablate.sweeps.runs import Run, RungEnd, Runs
from ablate.sweeps.seed_studies import (
    AGAINST,
    EFFECT,
    INPUTS,
    LOOKS,
    PLANNED,
    STUDIES,
    StoredStudy,
    read_choices,
    read_looks,
    read_seed_runs,
)
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.storage_errors import explain_damage
from ablate.sweeps.storages.kinds import find_file, open_address
from ablate.tracking.databases import add_driver, file_exists, sqlite_url
from ablate.tracking.paths import store_path
from ablate.verdict.looks import Looks

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage
    from optuna.study._frozen import FrozenStudy
    from optuna.trial import FrozenTrial


def storage_url(url: str | None = None) -> str:
    """Return `url`, else ABLATE_STORAGE, else the SQLite database of the store."""
    return add_driver(url or os.environ.get("ABLATE_STORAGE") or sqlite_url(store_path() / "optuna.db"))


def open_storage(url: str) -> BaseStorage:
    """Return Optuna's storage at `url`, created if missing. Raises StoreError if it cannot be used."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return open_address(add_driver(url))


def name_study(name: str, generation: int, arm: str) -> str:
    """Return the name of the study of one arm."""
    return f"{name}@{generation}/{arm}"


def parse_study_name(study: str) -> tuple[str, int] | None:
    """Return the sweep and the generation that a study belongs to; None for a study of somebody else."""
    head, slash, _ = study.partition("/")
    name, _, generation = head.rpartition("@")
    return (name, int(generation)) if slash and name and generation.isdigit() else None


def list_sweeps(url: str) -> dict[str, list[int]]:
    """Return the sweeps of the storage at `url`: name -> its generations, ascending. Creates nothing."""
    if (storage := open_existing(url)) is None:
        return {}
    with explain_damage(storage):
        return list_generations(storage)


def open_existing(url: str) -> BaseStorage | None:
    """Return the storage at `url`; None if it is a file that does not exist yet. Raises StoreError."""
    file = find_file(url)
    return None if file is not None and not file_exists(file) else open_storage(url)


def list_generations(storage: BaseStorage) -> dict[str, list[int]]:
    """Return the sweeps of a storage: name -> its generations, ascending."""
    generations: dict[str, set[int]] = {}
    for study in list_studies(storage):
        if parsed := parse_study_name(study.study_name):
            generations.setdefault(parsed[0], set()).add(parsed[1])
    return {name: sorted(numbers) for name, numbers in sorted(generations.items())}


def list_studies(storage: BaseStorage) -> list[FrozenStudy]:
    """Return the studies, except those whose process was killed before it wrote the sweep file."""
    return [study for study in storage.get_all_studies() if "spec" in study.user_attrs]


def read_sweep(title: str, url: str | None = None) -> SweepRecord:
    """Return the sweep `title` (NAME, or NAME@GENERATION; by default the latest). Raises SweepError for an unknown one,
    with the existing names.
    """
    if not isinstance(title, str):
        raise TypeError(f"give the name of a sweep, such as 'demo', not a {type(title).__name__}")
    return read_sweep_from(open_existing(storage_url(url)), title)


def read_sweep_from(storage: BaseStorage | None, title: str) -> SweepRecord:
    """Return `read_sweep` for an open storage; None: there is none yet."""
    with explain_damage(storage):
        return _find_sweep(storage, title)


def _find_sweep(storage: BaseStorage | None, title: str) -> SweepRecord:
    name, _, wanted = title.partition("@")
    known = {} if storage is None else list_generations(storage)
    if storage is None or name not in known or (wanted and (not wanted.isdigit() or int(wanted) not in known[name])):
        names = [format_title(n, g) for n, gs in known.items() for g in gs]
        listed = f"Sweeps: {', '.join(names)}." if names else "There are none yet: run `ablate sweep FILE.yaml`."
        raise SweepError(f"There is no sweep {title!r}. {listed}{did_you_mean(title, names)}")
    return read_generation(storage, name, int(wanted) if wanted else known[name][-1])


def read_generation(storage: BaseStorage, name: str, generation: int) -> SweepRecord:
    """Return one generation of a sweep that exists in `storage`."""
    prefix = f"{name}@{generation}/"
    found = [study for study in list_studies(storage) if study.study_name.startswith(prefix)]
    studies = {}
    for study in found:
        arm = study.study_name.removeprefix(prefix).partition("/")[0]
        trials = read_trials(storage.get_all_trials(study._study_id, deepcopy=False), arm)
        studies[study.study_name] = StoredStudy(trials, study.user_attrs)
    spec = load_spec(min(found, key=lambda study: study.study_name.count("/")))  # of a search, if one is left
    made = {name for study in studies.values() for name in study.notes.get(STUDIES, ())}
    made |= {"/".join(name.split("/")[:2]) for name in studies}  # a study of further seeds follows one of a search
    deleted = sorted(made - studies.keys())
    ordered = list(spec.all_arms)
    studies = {prefix + arm: StoredStudy([], {}) for arm in ordered} | studies
    notes = {arm: studies[prefix + arm].notes for arm in ordered}
    any_notes = next((known for known in notes.values() if known), {})
    counts = [known.get("score_items", {}) for known in notes.values()]
    losses = [known.get("trivial_loss") for known in notes.values() if known]
    chosen = read_choices(prefix, studies, spec)
    tested = read_looks(prefix, studies, chosen)
    searched = [run for arm in ordered for run in studies[prefix + arm].runs]
    return SweepRecord(
        name,
        generation,
        spec,
        Runs(
            (*searched, *read_seed_runs(prefix, studies, chosen, spec)),
            None if None in losses else max((loss for loss in losses if loss is not None), default=None),
        ),
        parents={arm: notes[arm]["parent"] for arm in ordered if "parent" in notes[arm]},
        validation_items=min((n for arm in ordered if (n := notes[arm].get("validation_items"))), default=None),
        score_items={score: min(own[score] for own in counts if score in own) for own in counts for score in own},
        chosen=chosen,
        looks={
            arm: Looks(tuple(study.notes[LOOKS]), int(study.notes[PLANNED]))
            for arm, study in tested.items()
            if study.notes.get(LOOKS)
        },
        first_effects={arm: study.notes[EFFECT] for arm, study in tested.items() if EFFECT in study.notes},
        against={arm: list(study.notes.get(AGAINST, [])) for arm, study in tested.items()},
        plugins=any_notes.get("plugins", {}),
        inputs={name: digest for known in notes.values() for name, digest in known.get(INPUTS, {}).items()},
        trial_items={arm: int(notes[arm].get("trial_items", 1)) for arm in ordered},
        initial_loss=any_notes.get("initial_loss"),
        deleted=deleted,
    )


def create_study(storage: BaseStorage, name: str, spec: Sweep) -> Study:
    """Return the study `name`, created if missing, continued with the sweep file `spec`."""
    import optuna

    study = optuna.create_study(
        storage=storage, study_name=name, direction=spec.objective.direction, load_if_exists=True
    )
    study.set_user_attr("spec", spec.to_tree())
    return study


def load_study(storage: BaseStorage, name: str) -> Study:
    """Return the study `name`, which exists."""
    import optuna

    return optuna.load_study(study_name=name, storage=storage)


def load_spec(study: Study | FrozenStudy) -> Sweep:
    """Return the sweep file that a study was last continued with. Its plugins are loaded only if they provide the
    sampler or the pruner: results can be read without them. Only the plugin files of its trials are run."""
    tree, hashes = study.user_attrs["spec"], frozenset(study.user_attrs.get("plugins", {}).values())
    source = f"the stored sweep {study.study_name}"
    with plugins.restrict(hashes.__contains__, source):
        try:
            spec = Sweep.model_validate(tree)
        except ValidationError:
            spec = Sweep.from_tree(tree, source)
    return spec.mark_stored(hashes)


def read_trials(frozen: Sequence[FrozenTrial], arm: str) -> list[Run]:
    """Return the trials of a study of `arm`; for an interrupted and resumed trial only the last attempt."""
    return TrialReader(arm).read(frozen)


class TrialReader:
    """Reads the trials of a study of `arm` again and again, as a process does that takes trials. Those that have ended
    change no more, and are translated once."""

    def __init__(self, arm: str) -> None:
        self.arm = arm
        self._begin: list[Run] = []  # those in front of the first that has not ended
        self._ended: dict[int, Run] = {}  # the same of all that have ended
        self._continued: set[int] = set()  # numbers of trials that a later one continues

    def read(self, frozen: Sequence[FrozenTrial]) -> list[Run]:
        """Return the trials, as `read_trials` does; `frozen` are all trials of the study, in their order."""
        rest = [self._read(trial) for trial in self.list_open(frozen)]
        trials = [*self._begin, *rest]
        if not self._continued:
            return trials
        return [trial for number, trial in enumerate(trials) if number not in self._continued]

    def list_open(self, frozen: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Return those of `frozen` from the first that has not ended on."""
        for trial in itertools.takewhile(lambda trial: trial.state.is_finished(), frozen[len(self._begin) :]):
            self._begin.append(self._read(trial))
        return list(frozen[len(self._begin) :])

    def _read(self, trial: FrozenTrial) -> Run:
        if record := self._ended.get(trial.number):
            return record
        if "continues" in trial.user_attrs:
            self._continued.add(trial.user_attrs["continues"])
        record = read_trial(trial, self.arm)
        if trial.state.is_finished():
            self._ended[trial.number] = record
        return record


def read_trial(trial: FrozenTrial, arm: str) -> Run:
    """Return a trial of Optuna as a run."""
    notes = read_trial_notes(trial)
    value = trial.value if trial.state.name == "COMPLETE" and math.isfinite(trial.value or 0.0) else None
    return Run(
        arm=arm,
        number=trial_number(trial),
        status=trial_status(trial),
        params={**trial.system_attrs.get("fixed_params", {}), **trial.params},
        value=value,
        metrics=notes.get("metrics", {}),
        curve=dict(sorted(trial.intermediate_values.items())),
        step=notes.get("step", max(trial.intermediate_values, default=0)),
        seconds=notes.get("seconds"),
        run_id=notes.get("run_id"),
        reason=notes.get("reason", ""),
        items_per_update=notes.get("items_per_update", 1),
        facts=notes.get("facts", {}),
        costs=notes.get("costs", {}),
        layers=notes.get("layers", {}),
        rungs=tuple(RungEnd(**rung) for rung in notes.get(RUNGS, ())),
    )


def trial_status(trial: FrozenTrial) -> str:
    """Return one of STATUSES. A begun trial without a process is interrupted, also where its process has just ended; at
    a rung it waits."""
    state = trial.state.name
    if state == "RUNNING":
        if is_paused(trial):
            return "waiting"
        return "interrupted" if is_free(trial) or is_orphan(trial) else "running"
    if state == "WAITING":
        return "interrupted" if "continues" in trial.user_attrs else "waiting"
    return str(
        read_trial_notes(trial).get("status", {"COMPLETE": "completed", "PRUNED": "pruned"}.get(state, "failed"))
    )
