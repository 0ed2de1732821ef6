"""The record of a sweep and its runs as a part of a bundle, and back: a record that is read from one is judged like one
that was run here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from ablate.addons.bundles import schema
from ablate.addons.bundles.schema import PublishedArm, PublishedSweep, SeedLooks, Verdict
from ablate.reports.downstream import compare_downstream, tabulate_downstream
from ablate.reports.findings import list_cautions
from ablate.reports.layer_seeds import tabulate_layers
from ablate.reports.plain_values import to_plain
from ablate.reports.report_data import ReportData
from ablate.reports.section import Section
from ablate.reports.sensitivity import tabulate_seed_sensitivities
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FINISHED, Run, RungEnd, Runs
from ablate.sweeps.spec.sweep import Sweep
from ablate.tracking.provenance import COMPARED
from ablate.verdict.looks import Looks
from ablate.verdict.outcomes import Outcome
from ablate.verdict.questions import Question, Score

PUBLISHED = (*FINISHED, "failed")
"""Statuses of runs that have ended."""
T = TypeVar("T")


@dataclass
class Shared:
    """Facts that runs have in common, each kept once and numbered by its first occurrence."""

    surroundings: list[dict[str, str]] = field(default_factory=list)
    """Combinations of hardware, versions and corpus."""
    questions: list[list[str]] = field(default_factory=list)
    """Lists of questions of downstream tasks."""

    def number_facts(self, facts: Mapping[str, str]) -> int:
        """Return the number of the facts that should be the same in all runs."""
        return _number({key: str(facts[key]) for key in COMPARED if key in facts}, self.surroundings)

    def number_questions(self, questions: Sequence[Question]) -> int:
        """Return the number of the list of these questions."""
        return _number([question.id for question in questions], self.questions)


def _number(value: T, known: list[T]) -> int:
    """Return the index of `value` among the `known`, to which a new one is added."""
    if value not in known:
        known.append(value)
    return known.index(value)


def publish_runs(runs: Runs, shared: Shared) -> list[schema.Run]:
    """Return those of `runs` that have ended."""
    return [_publish(run, runs.find_outcome(run), shared) for run in runs if run.status in PUBLISHED]


_ALIKE = [name for name in schema.Run.model_fields if name in Run.__dataclass_fields__ and name != "scores"]
"""Fields that a run has both here and in a bundle."""


def _publish(run: Run, outcome: Outcome | None, shared: Shared) -> schema.Run:
    values = {name: getattr(run, name) for name in _ALIKE} | {
        "ending": outcome.ending if outcome else None,
        "value": _to_finite(run.value),
        "metrics": _to_nulls(run.metrics),
        "curve": [[step, _to_finite(value)] for step, value in sorted(run.curve.items())],
        "costs": {name: float(value) for name, value in run.costs.items() if math.isfinite(value)},
        "rungs": [schema.Rung(**{**rung._asdict(), "metrics": _to_nulls(rung.metrics)}) for rung in run.rungs],
        "scores": {task: _to_task_score(score, shared) for task, score in run.scores.items()},
        "surroundings": shared.number_facts(run.facts),
    }
    return schema.Run(**values)


def restore_run(run: schema.Run, shared: Shared) -> Run:
    """Return a published run. It has no run in MLflow."""
    values = {name: getattr(run, name) for name in _ALIKE} | {
        "metrics": _from_nulls(run.metrics),
        "curve": {int(step or 0): _from_null(value) for step, value in run.curve},
        "facts": shared.surroundings[run.surroundings],
        "rungs": tuple(RungEnd(r.updates, r.value, _from_nulls(r.metrics), r.branched) for r in run.rungs),
        "scores": {task: _from_task_score(task, score, shared) for task, score in run.scores.items()},
    }
    return Run(**values, run_id=None)


def _to_task_score(score: Score, shared: Shared) -> schema.TaskScore:
    metrics = dict.fromkeys(metric for question in score.questions for metric in question.values)
    return schema.TaskScore(
        shots=score.shots,
        metrics=_to_nulls(score.metrics),
        stderr=_to_nulls(score.stderr),
        questions=shared.number_questions(score.questions),
        values={metric: [_shorten(question.values.get(metric)) for question in score.questions] for metric in metrics},
        cut=score.cut,
        long=score.long,
    )


def _from_task_score(task: str, score: schema.TaskScore, shared: Shared) -> Score:
    names = shared.questions[score.questions]
    answers = zip(*score.values.values(), strict=True) if score.values else [()] * len(names)
    rows = [dict(zip(score.values, row, strict=True)) for row in answers]
    return Score(
        task,
        _from_nulls(score.metrics),
        _from_nulls(score.stderr),
        [
            Question(name, {metric: float(value) for metric, value in row.items() if value is not None}, [])
            for name, row in zip(names, rows, strict=True)
        ],
        score.shots,
        score.cut,
        score.long,
    )


def _shorten(value: float | None) -> int | float | None:
    """Return a value as JSON has it: a whole number, as most answers are, without its decimal."""
    finite = _to_finite(value)
    return int(finite) if finite is not None and float(finite).is_integer() else finite


def _to_finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _to_nulls(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _to_finite(value) for name, value in values.items()}


def _from_null(value: float | None) -> float:
    return math.nan if value is None else value


def _from_nulls(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: _from_null(value) for name, value in values.items()}


def publish_record(record: SweepRecord, size: str | None, shared: Shared) -> PublishedSweep:
    """Return all that has ended of a sweep, whose trials have their scores. What is not fixed yet, as runs go on, is
    left out."""
    record = share_with_scores(record)
    first = record.arms[0]
    settings = resolve_settings(record, first)
    return PublishedSweep(
        name=record.name,
        generation=record.generation,
        size=size,
        spec=record.spec.to_tree(),
        settings=settings,
        arms={arm: _publish_arm(record, arm, settings) for arm in record.arms},
        runs=publish_runs(record.runs, shared),
        validation_items=record.validation_items,
        score_items=dict(record.score_items),
        scored=record.scored,
        initial_loss=record.initial_loss,
        trivial_loss=record.trivial_loss,
        verdict=judge(record),
        cautions=list_cautions(record),
    )


def resolve_settings(record: SweepRecord, arm: str) -> dict[str, Any]:
    """Return all settings of an arm, at the point that was tested, or else at the first of its search."""
    params = {path: value for path, value in record.find_settings(arm).items() if path != "seed"}
    experiment = record.spec.at(arm, params) if record.settled(arm) else record.spec.base(arm)
    return {path: value for path, value in experiment.flat().items() if path != "seed"}


def _publish_arm(record: SweepRecord, arm: str, settings: Mapping[str, Any]) -> PublishedArm:
    looks, own = record.looks.get(arm), resolve_settings(record, arm)
    missing = {path: None for path in settings if path not in own}
    return PublishedArm(
        settings={**{path: value for path, value in own.items() if settings.get(path, ...) != value}, **missing},
        chosen=record.chosen.get(arm),
        looks=SeedLooks(sizes=list(looks.sizes), planned=looks.planned) if looks else None,
        first_effect=record.first_effects.get(arm),
        against=list(record.against.get(arm, ())),
    )


def restore_record(sweep: PublishedSweep, shared: Shared) -> SweepRecord:
    """Return the record that was published. Its runs have no run in MLflow. Raises KeyError if the settings chosen for
    an arm are those of no run."""
    numbers = {(run.arm, run.number) for run in sweep.runs}
    for arm, one in sweep.arms.items():
        if one.chosen is not None and (arm, one.chosen) not in numbers:
            raise KeyError(f"{arm} #{one.chosen}")
    record = SweepRecord(
        sweep.name,
        sweep.generation,
        Sweep.model_validate(sweep.spec),
        Runs(tuple(restore_run(run, shared) for run in sweep.runs), sweep.trivial_loss),
        validation_items=sweep.validation_items,
        score_items=dict(sweep.score_items),
        chosen={arm: one.chosen for arm, one in sweep.arms.items() if one.chosen is not None},
        looks={arm: Looks(tuple(one.looks.sizes), one.looks.planned) for arm, one in sweep.arms.items() if one.looks},
        first_effects={arm: one.first_effect for arm, one in sweep.arms.items() if one.looks},
        against={arm: list(one.against) for arm, one in sweep.arms.items() if one.against},
        initial_loss=sweep.initial_loss,
    )
    return share_with_scores(record)


def share_with_scores(record: SweepRecord) -> SweepRecord:
    """Return the record with the number of comparisons of downstream scores, which share the error of its verdict."""
    return replace(record, scored=compare_downstream(record).comparisons)


def judge(record: SweepRecord) -> Verdict:
    """Return the verdict of a sweep, from its runs alone."""
    data = _read_data(record)
    return Verdict(
        text=data.verdict,
        arms={arm: to_plain(compared.to_dict()) for arm, compared in data.confirmed.items()},
        effects={contrast: to_plain(asdict(effect)) for contrast, effect in data.effects.items()},
        sensitivities=to_plain(data.seed_sensitivities.to_dict()) if data.seed_sensitivities else None,
        layers=to_plain(data.layers.to_dict()) if data.layers else None,
        downstream=to_plain(data.downstream.to_dict()["rows"]),
    )


def list_sections(record: SweepRecord) -> list[Section]:
    """Return the sections of the report, beside the verdict, that follow from the runs alone."""
    data = _read_data(record)
    return [
        *tabulate_downstream(data.downstream),
        *tabulate_seed_sensitivities(data.seed_sensitivities),
        *tabulate_layers(data.layers),
    ]


def _read_data(record: SweepRecord) -> ReportData:
    return ReportData(record, compare_downstream(record), [], {}, Path())
