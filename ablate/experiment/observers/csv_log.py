"""Lightning's CSVLogger, which would delete the table of a run that goes on, made to continue it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning.pytorch.loggers import CSVLogger

    from ablate.experiment.observers.place import LogPlace

KIND = "csv"


def open_csv(place: LogPlace) -> CSVLogger:
    """Return the logger of `mlruns/logs/csv/RUN_ID/metrics.csv`, with the rows that the table has up to the updates of
    the checkpoint that the run goes on from."""
    from lightning.pytorch.loggers import CSVLogger

    file = place.folder / KIND / place.run_id / "metrics.csv"
    rows, fields = _read_rows(file, place.updates)
    logger = CSVLogger(place.folder, KIND, place.run_id, flush_logs_every_n_steps=1)
    writer = logger.experiment  # deletes the file
    if rows:
        with file.open("w", newline="", encoding="utf-8") as opened:
            table = csv.DictWriter(opened, fields)
            table.writeheader()
            table.writerows(rows)
        writer.metrics_keys = fields
    return logger


def _read_rows(file: Path, updates: int) -> tuple[list[dict[str, str]], list[str]]:
    """Return the rows of a table up to so many updates, and its columns; of a last line that was cut off, none."""
    if not updates or not file.exists():
        return [], []
    with file.open(newline="", encoding="utf-8") as opened:
        reader = csv.DictReader(opened)
        rows = [row for row in reader if (row.get("step") or "").isdigit() and int(row["step"]) <= updates]
    return rows, list(reader.fieldnames or [])
