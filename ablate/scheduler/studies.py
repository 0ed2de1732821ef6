"""One generation of a sweep as Optuna's storage keeps it: the search of each arm is a study, SWEEP@GENERATION/ARM, and
the arm's other runs are one more, SWEEP@GENERATION/ARM/seeds. Facts about an arm are attributes of its search."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ablate import tracking
from ablate.config import plugins
from ablate.config.errors import StoreError, SweepError
from ablate.scheduler.leases import OWNER, build_free_owner, count_losses, is_free, is_orphan, is_paused
from ablate.scheduler.samplers import build_pruner
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import CHOOSING, FINISHED, SEARCH, STAGES, Run, RungEnd, Runs
from ablate.sweeps.seeds import SeedTable, tabulate_seeds
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.stages import CHOICE, LOOKS, Wanted, find_kept
from ablate.training.runs import discard_checkpoint
from ablate.verdict.looks import Looks

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial


STUDIES = "studies"  # of the search of an arm: the studies that were made for the arm, and the searches of all arms
INPUTS = "inputs"  # of the search of an arm: what its runs read besides their settings -> SHA-256
SPENT = "seeds"  # of the search of an arm: the seeds that the sweep keeps for itself, a `SeedTable`
SESSION = "session"  # of the search of an arm: the number of times that a command began or continued the sweep
RUN = "run"  # of a trial of SEEDS: stage, number and params of its run
ENDING = "ending"  # of a trial: how it ended
RUNGS = "rungs"  # of a trial: the rungs that it has ended
SEEDS = "seeds"  # the end of the name of the study of an arm's runs beside its search
_FINISHED_STATES = ("COMPLETE", "PRUNED", "FAIL")


def name_study(name: str, generation: int, arm: str) -> str:
    """Return the name of the study of the search of an arm."""
    return f"{name}@{generation}/{arm}"


def parse_study_name(study: str) -> tuple[str, int] | None:
    """Return the sweep and the generation that a study belongs to; None for a study of somebody else."""
    head, slash, _ = study.partition("/")
    name, _, generation = head.rpartition("@")
    return (name, int(generation)) if slash and name and generation.isdigit() else None


def list_studies(storage: BaseStorage) -> dict[str, Mapping[str, Any]]:
    """Return study -> its attributes, except those whose process was killed before it wrote the sweep file. Raises
    StoreError where an attribute is not JSON."""
    try:
        studies = storage.get_all_studies()
    except json.JSONDecodeError as error:
        raise StoreError(
            f"The Optuna storage is damaged: its content is not valid (an attribute of a study is not JSON: {error}). "
            "Replace it by a backup, or move it away to start from the beginning."
        ) from None
    return {study.study_name: study.user_attrs for study in studies if "spec" in study.user_attrs}


def read_seed_tables(storage: BaseStorage) -> dict[str, SeedTable]:
    """Return sweep, with its generation -> the seeds that it keeps for itself, in the order in which they began. Raises
    StoreError for a study without them."""
    tables: dict[str, SeedTable] = {}
    for study, attributes in list_studies(storage).items():
        parsed = parse_study_name(study)
        if parsed is None or study.count("/") > 1:
            continue
        try:
            table = SeedTable.model_validate(attributes[SPENT])
        except (KeyError, ValidationError):
            what = "is damaged" if SPENT in attributes else "is missing"
            raise StoreError(
                f"The attribute {SPENT!r} of the study {study} {what}, so that nobody knows which seeds that sweep has "
                "spent, and a new one could be tested on them again. Continue that sweep with the command that began "
                "it, which writes them down, or begin in another store (ABLATE_STORE)."
            ) from None
        title = study.partition("/")[0]
        tables[title] = max(table, tables.get(title, table), key=lambda one: (one.last, one.tests))
    return tables


def list_spent_seeds(storage: BaseStorage) -> dict[str, dict[str, list[int]]]:
    """Return sweep, with its generation -> the seeds that it has tuned on, chosen on and tested on. Raises StoreError
    for a study without its table of seeds."""
    spent: dict[str, dict[str, set[int]]] = {}
    for title, table in read_seed_tables(storage).items():
        spent[title] = {"tuned": {*table.tuned}, "chosen": set(), "tested": set()}
    for study in list_studies(storage):
        title, arm, *rest = study.split("/")
        if title in spent and rest:
            for trial in storage.get_all_trials(storage.get_study_id_from_name(study), deepcopy=False):
                run = read_trial(trial, arm)
                spent[title]["chosen" if run.stage in CHOOSING else "tested"].add(run.seed)
    return {title: {use: sorted(seeds) for use, seeds in uses.items()} for title, uses in spent.items()}


def load_spec(name: str, attributes: Mapping[str, Any]) -> Sweep:
    """Return the sweep file that a study was last continued with. Its plugins are loaded only if they provide the
    sampler or the pruner: results can be read without them. Only the plugin files of its trials are run."""
    tree, hashes = attributes["spec"], frozenset(attributes.get("plugins", {}).values())
    source = f"the stored sweep {name}"
    with plugins.restrict(hashes.__contains__, source):
        try:
            spec = Sweep.model_validate(tree)
        except ValidationError:
            spec = Sweep.from_tree(tree, source)
    return spec.mark_stored(hashes)


class Studies:
    """Reads a generation of a sweep again and again, as a process does that takes runs. Runs that have ended change no
    more, and are translated once.

    Args:
        storage: Optuna's.
        name: of the sweep.
        generation: of the sweep.
        spec: the sweep; None: as it was last continued.
    """

    def __init__(self, storage: BaseStorage, name: str, generation: int, spec: Sweep | None = None) -> None:
        self.storage, self.name, self.generation, self.spec = storage, name, generation, spec
        self.prefix = f"{name}@{generation}/"
        self._ended: dict[tuple[str, int], Run] = {}
        self._ids: dict[str, int] = {}
        self._seeds: dict[str, int] = {}  # arm -> the seed of its search
        self.session = 0
        """The number of times that a command began or continued the sweep."""
        self._record: SweepRecord | None = None
        self._trials: dict[str, list[FrozenTrial]] = {}

    def refresh(self) -> None:
        """Read the storage again. What was read is kept until then: each reading needs several queries."""
        self._record = None

    def find_id(self, study: str) -> int:
        """Return Optuna's id of a study."""
        if study not in self._ids:
            self._ids[study] = self.storage.get_study_id_from_name(study)
        return self._ids[study]

    def find_trial_id(self, study: str, number: int) -> int:
        """Return Optuna's id of a trial."""
        return self.storage.get_trial_id_from_study_id_trial_number(self.find_id(study), number)

    def read(self) -> SweepRecord:
        """Return what the storage holds of the sweep."""
        if self._record is None:
            self._record = self._read()
        return self._record

    def list_attempts(self, study: str) -> list[FrozenTrial]:
        """Return all trials of a study as they were last read, also those that a later one continues."""
        self.read()
        return self._trials.get(study, [])

    def list_last_attempts(self, study: str) -> list[FrozenTrial]:
        """Return the trials of a study without those that a later one continues."""
        self.read()
        return self._list_last(study)

    def _list_last(self, study: str) -> list[FrozenTrial]:
        trials = self._trials.get(study, [])
        continued = {trial.user_attrs["continues"] for trial in trials if "continues" in trial.user_attrs}
        return [trial for trial in trials if trial.number not in continued]

    def find_attempt(self, wanted: Wanted) -> FrozenTrial | None:
        """Return the last trial of a run that was begun."""
        for trial in self.list_last_attempts(self.name_of(wanted)):
            run = self.translate(self.name_of(wanted), trial)
            is_same = (run.stage, run.number) == (wanted.stage, wanted.number)
            if is_same and (wanted.stage == SEARCH or run.seed == wanted.seed):
                return trial
        return None

    def name_of(self, wanted: Wanted) -> str:
        """Return the study of a run."""
        search = f"{self.prefix}{wanted.arm}"
        return search if wanted.stage == SEARCH else f"{search}/{SEEDS}"

    @property
    def studies(self) -> list[str]:
        """The runs of the sweep, as they were last read."""
        self.read()
        return list(self._trials)

    def translate(self, study: str, trial: FrozenTrial) -> Run:
        """Return a trial as a run."""
        key = study, trial.number
        if key not in self._ended:
            arm = study.removeprefix(self.prefix).partition("/")[0]
            run = read_trial(trial, arm, self._seeds.get(arm, 0))
            if trial.state.name not in _FINISHED_STATES:
                return run
            self._ended[key] = run
        return self._ended[key]

    def _translate_again(self, study: str, trial: FrozenTrial) -> Run:
        """Return a trial as a run; one that failed in an earlier session as one that is to be tried again."""
        run = self.translate(study, trial)
        if run.status != "failed" or trial.user_attrs.get(ENDING, {}).get(SESSION, self.session) >= self.session:
            return run
        return replace(run, status="interrupted", reason="", run_id=None, seconds=None)

    def _read(self) -> SweepRecord:
        notes = {name: own for name, own in list_studies(self.storage).items() if name.startswith(self.prefix)}
        self._trials = {name: self.storage.get_all_trials(self.find_id(name), deepcopy=False) for name in notes}
        if not notes:
            raise SweepError(f"The sweep {self.prefix[:-1]} was deleted from the storage.")
        first = min(notes, key=lambda name: name.count("/"))  # of a search, if one is left
        spec = self.spec or load_spec(first, notes[first])
        made = {study for own in notes.values() for study in own.get(STUDIES, ())}
        made |= {"/".join(name.split("/")[:2]) for name in notes}  # a study of further seeds follows one of a search
        arms = list(spec.all_arms)
        known = {arm: notes.get(self.prefix + arm, {}) for arm in arms}
        fixed = spec.experiment.get("seed", 0)
        self._seeds = {arm: spec.all_arms[arm].settings.get("seed", fixed) for arm in arms}
        names = [name for arm in arms for name in (self.prefix + arm, f"{self.prefix}{arm}/{SEEDS}")]
        self.session = max((int(own.get(SESSION, 0)) for own in known.values()), default=0)
        rows = [self._translate_again(name, trial) for name in names for trial in self._list_last(name)]
        rows.sort(key=lambda run: STAGES.index(run.stage))  # stable: the arms stay in their order
        any_notes = next((own for own in known.values() if own), {})
        counts = [own.get("score_items", {}) for own in known.values()]
        losses = [own.get("trivial_loss") for own in known.values() if own]
        trivial = None if None in losses else max((loss for loss in losses if loss is not None), default=None)
        looks = {arm: own[LOOKS] for arm, own in known.items() if LOOKS in own}
        chosen = {arm: own[CHOICE]["trial"] for arm, own in known.items() if CHOICE in own}
        return SweepRecord(
            self.name,
            self.generation,
            spec,
            Runs(tuple(rows), trivial, None if spec.is_own else spec.objective.direction == "maximize"),
            parents={arm: own["parent"] for arm, own in known.items() if "parent" in own},
            validation_items=min((n for own in known.values() if (n := own.get("validation_items"))), default=None),
            score_items={score: min(own[score] for own in counts if score in own) for own in counts for score in own},
            chosen={arm: 0 if arm in spec.cells else chosen[arm] for arm in arms if arm in chosen or arm in spec.cells},
            looks={arm: Looks(tuple(own["sizes"]), int(own["planned"])) for arm, own in looks.items()},
            first_effects={arm: own["effect"] for arm, own in looks.items()},
            against={arm: list(own["against"]) for arm, own in looks.items()},
            plugins=any_notes.get("plugins", {}),
            inputs={name: digest for own in known.values() for name, digest in own.get(INPUTS, {}).items()},
            initial_loss=any_notes.get("initial_loss"),
            deleted=sorted(made - notes.keys()),
        )


def read_trial(trial: FrozenTrial, arm: str, seed: int = 0) -> Run:
    """Return a trial of Optuna as a run; `seed`: that of its arm."""
    notes = {**trial.user_attrs, **trial.user_attrs.get(ENDING, {})}
    known = notes.get(RUN, {})
    params = known.get("params", {**trial.system_attrs.get("fixed_params", {}), **trial.params})
    value = trial.value if trial.state.name == "COMPLETE" and math.isfinite(trial.value or 0.0) else None
    return Run(
        arm=arm,
        number=int(known.get("number", notes.get("number", trial.number))),
        status=trial_status(trial),
        params=params,
        value=value,
        metrics=notes.get("metrics", {}),
        curve=dict(sorted(trial.intermediate_values.items())),
        step=notes.get("step", max(trial.intermediate_values, default=0)),
        seconds=notes.get("seconds"),
        run_id=notes.get("run_id"),
        reason=notes.get("reason", ""),
        items_per_update=notes.get("items_per_update", 1),
        stage=known.get("stage", SEARCH),
        seed=trial.params.get("seed", seed),
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
    told = {"COMPLETE": "completed", "PRUNED": "pruned", "WAITING": "waiting"}.get(state, "failed")
    return str(trial.user_attrs.get(ENDING, {}).get("status", told))


AT_RUNG = "at_rung"  # of a trial: what would be kept of it if it ended at its last rung


@dataclass(frozen=True)
class Ending:
    """The end of a run."""

    state: str
    """Optuna's: COMPLETE, PRUNED or FAIL."""
    status: str
    reason: str = ""
    value: float | None = None
    """The objective."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Further attributes that the storage keeps."""


class Writer:
    """Writes what becomes of the runs of one generation of a sweep.

    Args:
        storage: Optuna's.
        name: of the sweep.
        generation: of the sweep.
        spec: the sweep.
    """

    def __init__(self, storage: BaseStorage, name: str, generation: int, spec: Sweep) -> None:
        self.storage, self.spec = storage, spec
        self.studies = Studies(storage, name, generation, spec)
        self.prefix = self.studies.prefix
        self.abandoned: set[tuple[str, int]] = set()
        """Trials, by study and number, that this process took and could not hand out."""

    @property
    def full_name(self) -> str:
        """NAME@GENERATION."""
        return self.prefix[:-1]

    @cached_property
    def parents(self) -> dict[str, str]:
        """Arm -> its run in MLflow."""
        return {arm: self.read_notes(arm).get("parent", "") for arm in self.spec.all_arms}

    def read_notes(self, arm: str) -> dict[str, Any]:
        """Return the attributes of the search of an arm."""
        return self.storage.get_study_user_attrs(self.studies.find_id(f"{self.prefix}{arm}"))

    def write_note(self, arm: str, key: str, value: object) -> None:
        """Set an attribute of the search of an arm."""
        self.storage.set_study_user_attr(self.studies.find_id(f"{self.prefix}{arm}"), key, value)
        self.studies.refresh()

    def note_studies(self, arm: str, names: Iterable[str]) -> None:
        """Write down that studies of the sweep were made, so that it is seen if one is deleted."""
        before = self.read_notes(arm).get(STUDIES, [])
        if new := [name for name in names if name not in before]:
            self.write_note(arm, STUDIES, [*before, *new])

    def keep_first(self, key: str, value: int) -> int:
        """Return the first value of `key` of the sweep, and note it for all arms; `value`, if it is the first."""
        notes = [self.read_notes(arm) for arm in self.spec.all_arms]
        kept = int(next((known for own in notes if (known := own.get(key))), value))
        for arm, own in zip(self.spec.all_arms, notes, strict=True):
            if own.get(key) != kept:
                self.write_note(arm, key, kept)
        return kept

    def note_inputs(self, arm: str, inputs: Mapping[str, str]) -> None:
        """Write down what runs of an arm read besides their settings, where it is not known yet."""
        before = self.read_notes(arm).get(INPUTS, {})
        if inputs.keys() - before.keys():
            self.write_note(arm, INPUTS, {**inputs, **before})

    def write_ending(self, study: str, trial: FrozenTrial, ending: Ending) -> None:
        """Write the end of a trial."""
        from optuna.trial import TrialState

        trial_id = self.studies.find_trial_id(study, trial.number)
        failed = {SESSION: self.studies.session} if ending.status == "failed" else {}
        told = {"status": ending.status, "reason": ending.reason, **ending.notes, **failed}
        self.storage.set_trial_user_attr(trial_id, ENDING, told)  # in one write: it is there whole
        value = ending.value
        if value is None and ending.state == "PRUNED" and trial.intermediate_values:
            value = trial.intermediate_values[max(trial.intermediate_values)]
        self.storage.set_trial_state_values(trial_id, TrialState[ending.state], None if value is None else [value])
        self.studies.refresh()

    def drop_checkpoints(self, arm: str) -> None:
        """Remove the checkpoints of finished runs of an arm that the sweep does not keep."""
        if self.spec.checkpoints == "all":
            return
        record = self.studies.read()
        kept = find_kept(record, arm) if self.spec.checkpoints == "best" else set()
        for run in record.runs.select(arm, status=FINISHED):
            if run.run_id and run.run_id not in kept:
                discard_checkpoint(run.run_id)

    def load(self, name: str) -> Study:
        """Return a study as Optuna's samplers and pruners see it."""
        import optuna

        return optuna.load_study(study_name=name, storage=self.storage)

    def prunes(self, arm: str, study: str, trial: FrozenTrial) -> bool:
        """Return whether the pruner stops a trial of a search."""
        base = self.spec.base(arm)
        pruner = build_pruner(self.spec.pruner, base.length or 0, base.warmup)
        return pruner.prune(self.load(study), trial)

    def free_lost(self, study: str, trial: FrozenTrial, reason: str) -> None:
        """Free a run that lost its process or, if that happened too often without a validation in between, record it
        as failed."""
        counts, too_often = count_losses(trial)
        if too_often:
            text = f"its process was killed or crashed, {too_often} times without progress"
            self.write_ending(study, trial, Ending("FAIL", "failed", text))
            end_run(trial.user_attrs.get("run_id"), "failed", text)
        else:
            self.free(study, trial, reason, counts)

    def free(self, study: str, trial: FrozenTrial, reason: str, more: Mapping[str, Any] | None = None) -> None:
        """Leave a run without a process, to be continued by the next that asks; `more` is kept with the reason."""
        owner = build_free_owner(trial, reason, more)
        self.storage.set_trial_user_attr(self.studies.find_trial_id(study, trial.number), OWNER, owner)
        self.abandoned.discard((study, trial.number))
        self.studies.refresh()


def end_run(run_id: str | None, status: str, reason: str) -> None:
    """End the MLflow run of a trial whose process could not do so."""
    if run_id:
        tracking.Tracker(run_id).end(status, reason)


def create_study(storage: BaseStorage, name: str, spec: Sweep) -> Study:
    """Return the study `name`, created if missing, continued with the sweep file `spec`. That of a search has the seeds
    of the sweep before it has the file, without which it does not count as begun."""
    import optuna

    study = optuna.create_study(
        storage=storage, study_name=name, direction=spec.objective.direction, load_if_exists=True
    )
    if name.count("/") == 1:
        study.set_user_attr(SPENT, tabulate_seeds(spec).model_dump(mode="json"))
    study.set_user_attr("spec", spec.to_tree())
    return study
