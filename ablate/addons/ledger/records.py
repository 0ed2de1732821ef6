"""The record of a sweep as a part of a bundle, and back: what is read from one is judged like what was run here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ablate.addons.ledger.runs import Shared, to_runs, to_trial
from ablate.addons.ledger.schema import ArmRuns, CandidateRuns, CrossedPair, PublishedSweep, Run, SeedLooks, Verdict
from ablate.reports.downstream import compare_downstream
from ablate.reports.findings import list_cautions
from ablate.reports.layers_section import tabulate_layers
from ablate.reports.plain_values import to_plain
from ablate.reports.report_data import ReportData
from ablate.reports.sections import tabulate_downstream
from ablate.reports.sensitivity_section import tabulate_seed_sensitivities
from ablate.reports.table import Section
from ablate.sweeps.records import Candidate, CrossedRuns, SweepRecord
from ablate.sweeps.seed_studies import stand_for_point
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.looks import Looks
from ablate.verdict.outcomes import TrialRecord


def publish_record(record: SweepRecord, size: str | None, shared: Shared) -> PublishedSweep:
    """Return all that has ended of a sweep, whose trials have their scores. What is not fixed yet, as runs go on, is
    left out."""
    record = share_with_scores(record)
    first = next(iter(record.trials))
    settings = resolve_settings(record, first)
    return PublishedSweep(
        name=record.name,
        generation=record.generation,
        size=size,
        spec=record.spec.to_tree(),
        settings=settings,
        arms={arm: _publish_arm(record, arm, settings, shared) for arm in record.trials},
        crossed=_publish_crossed(record, shared),
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
    settled = record.settled(arm)
    params = {path: value for path, value in settled.params.items() if path != "seed"} if settled else {}
    experiment = record.spec.at(arm, params) if settled else record.spec.base(arm)
    return {path: value for path, value in experiment.flat().items() if path != "seed"}


def _publish_arm(record: SweepRecord, arm: str, settings: Mapping[str, Any], shared: Shared) -> ArmRuns:
    def convert(trials: Sequence[TrialRecord]) -> list[Run]:
        return to_runs(trials, record.trivial_loss, shared)

    looks, chosen, search = record.looks.get(arm), record.chosen.get(arm), convert(record.trials[arm])
    ended = {run.number for run in search}  # what else belongs to a trial is published with it
    own = resolve_settings(record, arm)
    missing = {path: None for path in settings if path not in own}
    return ArmRuns(
        settings={**{path: value for path, value in own.items() if settings.get(path, ...) != value}, **missing},
        search=search,
        candidates=[
            CandidateRuns(trial=one.trial.number, runs=convert(one.runs))
            for one in record.candidates.get(arm, ())
            if one.trial.number in ended
        ],
        chosen=chosen.number if chosen and chosen.number in ended and not record.spec.at_grid else None,
        fresh=convert(record.confirmed.get(arm, ())),
        looks=SeedLooks(sizes=list(looks.sizes), planned=looks.planned) if looks else None,
        first_effect=record.first_effects.get(arm),
        against=list(record.against.get(arm, ())),
        trial_items=record.trial_items.get(arm, 1),
    )


def _publish_crossed(record: SweepRecord, shared: Shared) -> list[CrossedPair]:
    pairs: list[tuple[str | None, str | None, CrossedRuns]] = [(arm, None, one) for arm, one in record.crossed.items()]
    pairs += [(None, winner, one) for (_, winner), one in record.crossed_cells.items()]
    return [
        CrossedPair(
            loser=one.loser,
            winner=winner,
            arm=arm,
            params=dict(one.params),
            runs=to_runs(one.runs, record.trivial_loss, shared),
        )
        for arm, winner, one in pairs
    ]


def restore_record(sweep: PublishedSweep, shared: Shared) -> SweepRecord:
    """Return the record that was published. Its runs have no run in MLflow."""
    spec = Sweep.model_validate(sweep.spec)

    def convert(runs: Sequence[Run], arm: str) -> list[TrialRecord]:
        return [to_trial(run, arm, shared) for run in runs]

    trials = {arm: convert(one.search, arm) for arm, one in sweep.arms.items()}
    numbered = {arm: {trial.number: trial for trial in searched} for arm, searched in trials.items()}
    restored = [
        (pair, CrossedRuns(pair.loser, dict(pair.params), convert(pair.runs, pair.loser))) for pair in sweep.crossed
    ]
    record = SweepRecord(
        sweep.name,
        sweep.generation,
        spec,
        trials,
        validation_items=sweep.validation_items,
        score_items=dict(sweep.score_items),
        confirmed={arm: convert(one.fresh, arm) for arm, one in sweep.arms.items() if one.fresh},
        candidates={
            arm: [Candidate(numbered[arm][entry.trial], convert(entry.runs, arm)) for entry in one.candidates]
            for arm, one in sweep.arms.items()
            if one.candidates
        },
        chosen={
            arm: stand_for_point(arm) if one.chosen is None else numbered[arm][one.chosen]
            for arm, one in sweep.arms.items()
            if spec.at_grid or one.chosen is not None
        },
        crossed={pair.arm: runs for pair, runs in restored if pair.arm is not None},
        crossed_cells={(pair.loser, pair.winner): runs for pair, runs in restored if pair.winner is not None},
        looks={arm: Looks(tuple(one.looks.sizes), one.looks.planned) for arm, one in sweep.arms.items() if one.looks},
        first_effects={arm: one.first_effect for arm, one in sweep.arms.items() if one.fresh},
        against={arm: list(one.against) for arm, one in sweep.arms.items() if one.fresh},
        trial_items={arm: one.trial_items for arm, one in sweep.arms.items()},
        initial_loss=sweep.initial_loss,
        trivial_loss=sweep.trivial_loss,
    )
    return share_with_scores(record)


def share_with_scores(record: SweepRecord) -> SweepRecord:
    """Return the record with the number of comparisons of downstream scores, which share the error of its verdict."""
    return replace(record, scored=compare_downstream(record).comparisons)


def judge(record: SweepRecord) -> Verdict:
    """Return what may be said of a sweep, from its runs alone."""
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
    return [*tabulate_downstream(data), *tabulate_seed_sensitivities(data), *tabulate_layers(data)]


def _read_data(record: SweepRecord) -> ReportData:
    return ReportData(record, compare_downstream(record), [], {}, Path())
