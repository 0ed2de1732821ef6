"""What is compared: runs, sweeps and bundles, each as arms with outcomes of their seeds."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from ablate import tracking
from ablate.addons.ledger import bundles
from ablate.addons.ledger.records import resolve_settings
from ablate.addons.ledger.schema import FILE, NOTES, PAGE
from ablate.config.errors import DataError, SweepError, did_you_mean
from ablate.config.merging import iterate_leaves
from ablate.experiment.metrics import is_score, list_parts, read_metric
from ablate.reports.literature import PublishedTable, compare_published
from ablate.reports.stored_scores import add_scores, collect_scores, find_scored_runs
from ablate.scheduler.storage import list_sweeps, read_sweep, storage_url
from ablate.sweeps.comparison import collect_outcomes
from ablate.sweeps.records import SweepRecord
from ablate.verdict.outcomes import LOSS, Outcome, classify

_RUN = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class SourceArm:
    """An arm of what is compared, or one run."""

    outcomes: Mapping[int, Outcome]
    """Seed -> outcome, of fresh seeds; of a run, its own."""
    settings: Mapping[str, Any]
    """Dotted path -> value, without the seed."""


@dataclass(frozen=True)
class ComparedSource:
    """A run, a sweep, or a sweep of a bundle."""

    label: str
    metric: str
    arms: Mapping[str, SourceArm]
    published: list[PublishedTable] = field(default_factory=list)
    """The figures of papers beside its own."""
    study: str = ""
    """What was named: several sizes of a bundle share it."""
    size: str | None = None
    """Of a bundle with several, which."""


def read_source(name: str, storage: str | None = None, trusts_plugins: bool = False) -> list[ComparedSource]:
    """Return the run, the sweep, or the sweeps of the bundle that `name` is: the id of a run, the name of a sweep, or a
    folder. Raises SweepError where it is none of them, and DataError for a bundle that is damaged."""
    if os.path.isfile(Path(name) / FILE):
        bundle = bundles.read_bundle(name)
        if damage := bundles.list_damage(name, free=(PAGE, NOTES)):
            raise DataError(f"{name} is damaged: {damage[0]}. See all of it: ablate verify {name}")
        with bundles.refuse_misfits(name):
            records = bundles.restore_records(bundle, name, trusts_plugins)
            sizes = [(size if len(records) > 1 else None, record) for size, record in records.items()]
            return [
                replace(_describe_sweep(f"{bundle.name} {size}" if size else name, record), study=name, size=size)
                for size, record in sizes
            ]
    if _RUN.fullmatch(name):
        return [_read_run(name)]
    known = list_sweeps(storage_url(storage))
    if name.partition("@")[0] not in known:
        listed = ", ".join(known) or "none yet"
        text = f"{name!r} is no folder with a bundle, no id of a run, and no sweep. Sweeps: {listed}."
        raise SweepError(text + did_you_mean(name, known))
    record = read_sweep(name, storage)
    quotes_scores = any(is_score(part) for table in record.spec.published for part in list_parts(table.metric))
    return [_describe_sweep(record.title, add_scores(record) if quotes_scores else record)]


def _describe_sweep(label: str, record: SweepRecord) -> ComparedSource:
    arms = {
        arm: SourceArm(fresh.outcomes, resolve_settings(record, arm)) for arm, fresh in collect_outcomes(record).items()
    }
    published = compare_published(record, collect_scores(find_scored_runs(record)))
    return ComparedSource(label, record.spec.objective.metric, arms, published, study=label)


def _read_run(run_id: str) -> ComparedSource:
    if (run := tracking.find_active_run(run_id)) is None:
        raise SweepError(f"There is no run {run_id} in the MLflow store. ablate ui shows its runs.")
    with tracking.explain_errors(tracking.tracking_uri()):
        text = Path(tracking.client().download_artifacts(run_id, "config.yaml")).read_text(encoding="utf-8")
    settings = dict(iterate_leaves(yaml.safe_load(text)))
    seed = settings.pop("seed", 0)
    loss = read_metric(run.data.metrics, LOSS)
    status = run.data.tags.get("ablate.status", "")
    ended = status == "diverged" or (status == "completed" and loss is not None)
    outcome = Outcome("diverged") if status == "diverged" else Outcome(classify(loss, None), loss)
    name = run.data.tags.get("ablate.arm", "") or "run"
    label = f"{run.info.run_name} ({run_id[:8]})"
    return ComparedSource(label, LOSS, {name: SourceArm({int(seed): outcome} if ended else {}, settings)}, study=run_id)
