"""`report`: the trials of a sweep as tables, figures, a page and JSON, beside the sweep and in MLflow."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ablate import tracking
from ablate.config.errors import StoreError
from ablate.reports import fairness, findings, page, terminal
from ablate.reports.contents import Contents
from ablate.reports.figures import draw
from ablate.reports.importance import finished, importance
from ablate.reports.layers import draw_layers
from ablate.reports.publish import place_of, publish, report_run
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.storage import read_sweep
from ablate.verdict.outcomes import TrialRecord

JSON, TABLE, PAGE = "report.json", "table.txt", "report.html"


@dataclass(frozen=True)
class Report(Contents):
    """What a sweep found, with its tables, as a page and as plain values."""

    def table(self) -> str:
        """The tables as text."""
        return terminal.plain(self)

    def page(self) -> str:
        """The page as HTML."""
        return page.html(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: a number that is not finite is null, a curve is a list of [updates, objective]."""
        record = self.record
        return {
            "sweep": record.title,
            "objective": {"metric": record.spec.objective.metric, "direction": record.spec.objective.direction},
            "scale": {**record.spec.scale.model_dump(), "told": self.scale} if record.spec.scale else None,
            "verdict": self.verdict,
            "baseline": record.spec.compared_with,
            "items": self.measure.noun,
            "arms": {arm: self._arm(arm) for arm in record.trials},
            "downstream": asdict(self.downstream),
            "published": [asdict(source) for source in self.published],
            "confounds": asdict(self.confounds) if self.confounds else None,
            "surroundings": {s.key: s.runs for s in self.surroundings},
            "common": fairness.common(record),
            "trials": [_trial(trial) for trials in record.trials.values() for trial in trials],
            "confirmations": [_trial(trial) for trials in record.confirmed.values() for trial in trials],
            "figures": [str(path) for path in self.figures],
            "mlflow": _finite(self.mlflow),
            "notes": [*self.notes, *fairness.surrounding_notes(record)],
            "spec": _finite(record.spec.to_tree()),
        }

    def _arm(self, arm: str) -> dict[str, Any]:
        record, best, rates = self.record, self.record.best(arm), self.sensitivities[arm]
        kept = ("number", "params", "value", "metrics", "run_id", "step", "seconds")
        told = {"trial" if key == "number" else key: _trial(best)[key] for key in kept} if best else None
        return {
            "target": record.target(arm),
            "counts": record.counts(arm),
            "searched": list(record.spec.space(arm)),
            "best": told,
            "spread": _finite(findings.spread(record, arm)),
            "median_seconds": findings.seconds_of(record, arm),
            "cost": asdict(self.costs[arm]),
            "confirmation_cost": asdict(self.confirmation_costs[arm]),
            "confirmed": self.confirmed[arm].to_dict() if arm in self.confirmed else None,
            "compute": _finite(asdict(self.savings[arm])) if arm in self.savings else None,
            "sensitivity": asdict(rates) if rates else None,
            "importance": self.importance[arm],
            "importance_n": finished(record, arm),
        }


def report(title: str, *, storage: str | None = None, log: bool = True, folder: Path | None = None) -> Report:
    """The report of the sweep `title` (NAME, or NAME@GENERATION; by default the latest).

    Writes the figures, report.html, report.json and table.txt into `folder` (`reports/TITLE` of the store) and, if
    `log`, to the run "report" of the sweep's MLflow experiment; an MLflow store that fails is noted, not raised.
    Raises SweepError for an unknown sweep and StoreError where the trials cannot be read or the folder not be written.
    """
    record = read_sweep(title, storage)
    folder = Path(folder) if folder is not None else tracking.open_store() / "reports" / record.title
    with _writing(folder, record.title):
        made = assembled(record, folder)
        if log:
            return _logged(made)
        _write(made)
    return made


def assembled(record: SweepRecord, folder: Path) -> Report:
    """The report of `record`, with its figures in `folder`."""
    figures = {**draw(record, folder), **draw_layers(record, folder)}
    return Report(
        record,
        list(figures),
        {arm: importance(record, arm) for arm in record.trials},
        place_of(record),
        folder,
        findings.observations(record),
        {path.name: text for path, text in figures.items()},
    )


def _logged(made: Report) -> Report:
    try:
        made = replace(made, mlflow={**made.mlflow, **report_run(made.record.title)})
        files = _write(made)
        publish(made.mlflow["run_id"], [*made.figures, *files])
    except StoreError as error:
        made = replace(made, notes=[*made.notes, f"The report is in {made.folder} only. {error}"])
        _write(made)
    return made


def _write(made: Report) -> list[Path]:
    """report.json, table.txt and report.html."""
    files = [made.folder / name for name in (JSON, TABLE, PAGE)]
    files[0].write_text(json.dumps(made.to_dict(), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    files[1].write_text(made.table(), encoding="utf-8")
    files[2].write_text(made.page(), encoding="utf-8")
    return files


@contextmanager
def _writing(folder: Path, title: str) -> Iterator[None]:
    """One report of a sweep at a time: workers that end together would make two MLflow runs and mixed files."""
    from filelock import FileLock, Timeout

    locks = tracking.open_store() / "reports"
    try:
        locks.mkdir(exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / f".{title}.lock", timeout=120):
            yield
    except Timeout:
        raise StoreError(
            f"Another process has been writing the report of {title} for two minutes. Try again once it ends."
        ) from None
    except OSError as error:
        raise StoreError(
            f"The report cannot be written to {folder}: {error.strerror or error}. Give another folder."
        ) from None


def _trial(trial: TrialRecord) -> dict[str, Any]:
    return {**_finite(asdict(trial)), "curve": [[step, _finite(value)] for step, value in sorted(trial.curve.items())]}


def _finite(value: Any) -> Any:
    """`value` with what JSON has no word for as null."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
