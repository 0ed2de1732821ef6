"""`report`: the trials of a sweep as tables, figures, a page and JSON, in a folder and in MLflow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ablate import tracking
from ablate.config.errors import StoreError
from ablate.config.formatting import clip
from ablate.plots.drawing import save
from ablate.reports import fairness, findings, terminal
from ablate.reports.downstream import add_scores, compare_downstream
from ablate.reports.mlflow_run import Labels, label_parents, locate_report
from ablate.reports.plain_values import to_plain, trial_to_plain
from ablate.reports.report_data import ReportData
from ablate.reports.section import Document
from ablate.reports.sections import PARTS, build_document
from ablate.reports.storing import render_page, store_report, write_report
from ablate.reports.verdict_sections import candidates_to_plain, tries_to_plain
from ablate.scheduler.storage import read_sweep
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.search_edges import find_edges
from ablate.sweeps.verdict_summary import find_bounds

NAMES = JSON, TABLE, PAGE = "report.json", "table.txt", "report.html"


@dataclass(frozen=True, repr=False)
class Report(ReportData):
    """The report of a sweep, with its tables, as a page and as plain values."""

    @property
    def document(self) -> Document:
        """The report for its writers."""
        return build_document(self)

    def table(self) -> str:
        """Return the tables as text."""
        return terminal.to_text(self.document)

    def page(self) -> str:
        """Return the page as HTML."""
        return render_page(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON: a number that is not finite is null, a curve is a list of [updates,
        objective]."""
        record = self.record
        return {
            "verdict": self.verdict,
            "summary": self.summary,
            "sweep": record.title,
            "objective": {"metric": record.spec.objective.metric, "direction": record.spec.objective.direction},
            "scale": {**record.spec.scale.model_dump(), "told": self.scale} if record.spec.scale else None,
            "baseline": record.spec.compared_with,
            "grid": {arm: to_plain(asdict(cell)) for arm, cell in record.spec.cells.items()} or None,
            "items": self.usage_unit.noun,
            "arms": {arm: self._arm_to_dict(arm) for arm in record.arms},
            **{key: value for part in PARTS for key, value in part.values(self).items()},
            "figures": [str(path) for path in self.figures],
            "mlflow": to_plain(self.mlflow),
            "notes": [*self.notes, *fairness.describe_surroundings(record)],
            "spec": to_plain(record.spec.to_tree()),
        }

    def _confirmed_to_dict(self, arm: str) -> dict[str, Any] | None:
        """Return the result of an arm on fresh seeds; the interval of its mean is clipped to possible values of the
        metric."""
        compared = self.confirmed.get(arm)
        if compared is None:
            return None
        plain: dict[str, Any] = to_plain(compared.to_dict())
        if compared.estimate and compared.estimate.interval:
            plain["estimate"]["interval"] = clip(*compared.estimate.interval, find_bounds(self.record.spec))
        return to_plain(plain)

    def _arm_to_dict(self, arm: str) -> dict[str, Any]:
        record, best, sensitivity = self.record, self.record.best(arm), self.sensitivities[arm]
        keys = ("number", "params", "value", "metrics", "run_id", "step", "seconds")
        best_trial = {"trial" if key == "number" else key: trial_to_plain(best)[key] for key in keys} if best else None
        return {
            "confirmed": self._confirmed_to_dict(arm),
            "target": record.target(arm),
            "counts": record.search(arm).count_statuses(),
            "searched": list(record.spec.space(arm)),
            "at_end_of_range": [asdict(edge) for edge in find_edges(record, arm)],
            "best": best_trial,
            "median_seconds": findings.median_seconds(record, arm),
            "cost": asdict(self.usage[arm]),
            **{f"{stage}_cost": asdict(usage[arm]) for stage, usage in self.usage_after.items()},
            "candidates": candidates_to_plain(record, arm),
            "challenge": tries_to_plain(record, arm),
            "compute": to_plain(asdict(self.costs[arm])) if arm in self.costs else None,
            "speed": to_plain(asdict(self.speeds[arm])) if arm in self.speeds else None,
            "target_speed": to_plain(asdict(self.times[arm])) if arm in self.times else None,
            "sensitivity": asdict(sensitivity) if sensitivity else None,
        }


def report(
    title: str | SweepRecord,
    *,
    storage: str | None = None,
    log: bool = True,
    folder: Path | None = None,
    write: bool = True,
) -> Report:
    """Return the report of the sweep `title` (NAME, or NAME@GENERATION; by default the latest), or of what `sweep`
    returned.

    It writes the figures, report.html, report.json and table.txt into `folder` (`reports/TITLE` of the store) and, if
    `log`, to the run "report" of the sweep's MLflow experiment; an MLflow store that fails, and a store that can only
    be read, are noted, not raised. Without `write` nothing is drawn, written or logged. Raises SweepError for an
    unknown sweep and StoreError if the trials cannot be read or `folder` cannot be written.
    """
    record = read_sweep(title.full_name if isinstance(title, SweepRecord) else title, storage)
    notes: list[str] = []
    if write and folder is None:
        try:
            tracking.open_store()
        except StoreError as error:
            write, notes = False, [f"No files were written. {error} Or choose a folder: --output FOLDER."]
    folder = Path(folder or tracking.store_path() / "reports" / record.title)
    if not write:
        content = assemble(record, folder, draw=False)
        return replace(content, notes=[*content.notes, *notes])
    with _lock_folder(folder, record.title):
        content = assemble(record, folder)
        if not log:
            write_report(content, NAMES)
            return content
        spec, compared = record.spec, content.confirmed
        labels = Labels({"ablate.verdict": content.verdict, "ablate.baseline": spec.compared_with})
        content = store_report(record.title, content, NAMES, labels)
        if content.mlflow["run_id"]:
            label_parents(content.record, compared)
    return content


def assemble(record: SweepRecord, folder: Path, draw: bool = True) -> Report:
    """Return the report of `record`, with its figures in `folder`, if they are to be drawn."""
    cautions = []
    try:
        cautions += tracking.list_deleted(record.title, record.list_run_ids())
        record = add_scores(record)
    except StoreError as error:
        cautions.append(f"Scores on downstream tasks are missing, if there are any: {error}")
    downstream = compare_downstream(record)
    record = replace(record, scored=downstream.comparisons)  # before anything is claimed
    cautions += findings.list_cautions(record)
    content = Report(record, downstream, [], locate_report(record), folder, cautions)
    return replace(content, figures=[save(figure, folder)[0] for figure in content.drawings]) if draw else content


@contextmanager
def _lock_folder(folder: Path, title: str) -> Iterator[None]:
    """Let one process at a time write the report of a sweep: workers that end together would create two MLflow runs and
    mixed files."""
    from filelock import FileLock, Timeout

    try:
        locks = tracking.open_folder("reports")
    except StoreError:  # it can only be read
        locks = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / f".{title}.lock", timeout=120):
            yield
    except Timeout:
        raise StoreError(
            f"Another process has been writing the report of {title} for two minutes. Try again once it ends."
        ) from None
    except OSError as error:
        raise StoreError(
            f"The report cannot be written to {folder}: {error.strerror or error}. Choose another folder."
        ) from None
