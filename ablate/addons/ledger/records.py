"""The record of a sweep as a part of a bundle, and back: what is read from one is judged like what was run here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ablate.addons.ledger.runs import Shared, publish_runs, restore_run
from ablate.addons.ledger.schema import PublishedArm, PublishedSweep, SeedLooks, Verdict
from ablate.reports.downstream import compare_downstream, tabulate_downstream
from ablate.reports.findings import list_cautions
from ablate.reports.layer_seeds import tabulate_layers
from ablate.reports.plain_values import to_plain
from ablate.reports.report_data import ReportData
from ablate.reports.section import Section
from ablate.reports.seed_sensitivity import tabulate_seed_sensitivities
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import Runs
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.looks import Looks


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
    return [
        *tabulate_downstream(data.downstream),
        *tabulate_seed_sensitivities(data.seed_sensitivities),
        *tabulate_layers(data.layers),
    ]


def _read_data(record: SweepRecord) -> ReportData:
    return ReportData(record, compare_downstream(record), [], {}, Path())
