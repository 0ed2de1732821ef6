"""Logs in folders: event files of TensorBoard, and offline runs of W&B."""

from __future__ import annotations

import importlib
import json
import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from ablate.addons.judging.rows import NAME, RUN, STATUS, STEP, Rows, collect, parse_cell
from ablate.config.errors import AblateError, DataError

_EVENTS = "events.out.tfevents"
_BLOCK, _HEAD = 32768, 7  # bytes of W&B's file format, that of LevelDB's log


def read_folder(folder: Path) -> Rows:
    """Return the rows of all runs below `folder`. Raises DataError for a folder with none, and AblateError for a
    missing library."""
    events = sorted({path.parent for path in folder.rglob(f"*{_EVENTS}*")})
    offline = sorted(folder.rglob("run-*.wandb"))
    if offline:
        return collect(folder.name, (row for path in offline for row in _read_offline_run(path)))
    if not events:
        raise DataError(
            f"{folder} has neither event files of TensorBoard (*{_EVENTS}*) nor offline runs of W&B (run-*.wandb). Of "
            f"tables, name the files: {folder}/*.csv"
        )
    told = ["TensorBoard does not record whether a run has ended."]
    rows = (row for run in events for row in _read_events(run, folder))
    return collect(folder.name, rows, told=told)


def import_reader(module: str, what: str, otherwise: str = "") -> Any:
    """Return the module that reads `what`. Raises AblateError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        library = module.partition(".")[0]
        told = f"Reading {what} needs {library}, which is not installed: pip install {library}{otherwise}"
        raise AblateError(told) from None


# ---------------------------------------------------------------------------------------------------- TensorBoard


def _read_events(run: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each step of a run: its scalars, and the settings in Lightning's hparams.yaml, if it is there."""
    accumulator = import_reader("tensorboard.backend.event_processing.event_accumulator", "event files")
    make_ndarray = import_reader("tensorboard.util.tensor_util", "event files").make_ndarray
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # a file that is still written is no news
    events = accumulator.EventAccumulator(str(run), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    steps: dict[int, dict[str, Any]] = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            steps.setdefault(event.step, {})[tag] = event.value
    for tag in events.Tags()["tensors"]:
        if events.SummaryMetadata(tag).plugin_data.plugin_name == "scalars":
            for event in events.Tensors(tag):
                steps.setdefault(event.step, {})[tag] = float(make_ndarray(event.tensor_proto))
    file, name = run / "hparams.yaml", str(run.relative_to(folder))
    try:
        settings = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else None
    except (yaml.YAMLError, UnicodeDecodeError):  # of objects of a program
        settings = None
    config = {"config": settings} if isinstance(settings, dict) else {}
    for step, values in sorted(steps.items()):
        yield {NAME: name, **config, STEP: step, **values}


# ---------------------------------------------------------------------------------------------------- W&B


def _read_offline_run(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each step of an offline run. One without its last record is still running, or was killed."""
    records = import_reader("wandb.proto.wandb_internal_pb2", "offline runs of W&B")
    facts: dict[str, Any] = {RUN: path.stem.removeprefix("run-"), NAME: None, STATUS: "running"}
    config: dict[str, Any] = {}
    history: list[dict[str, Any]] = []
    for data in _list_records(path):
        record = records.Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            facts |= {RUN: record.run.run_id, NAME: record.run.display_name}
            config |= _read_items(record.run.config.update)
        elif kind == "config":
            config |= _read_items(record.config.update)
        elif kind == "history":
            history.append(_read_items(record.history.item))
        elif kind == "exit":
            facts[STATUS] = "finished" if record.exit.exit_code == 0 else "failed"
    own = {key: value for key, value in config.items() if not key.startswith("_")}
    for row in history or [{}]:
        numbers = {key: value for key, value in row.items() if not key.startswith("_")}
        yield {**facts, "config": own, STEP: row.get("_step"), **numbers}


def _read_items(items: Any) -> dict[str, Any]:
    """Return the values of some items of W&B by name."""
    found = {}
    for item in items:
        value = json.loads(item.value_json)  # it writes NaN as a word
        found[item.key or ".".join(item.nested_key)] = parse_cell(value) if isinstance(value, str) else value
    return {key: value for key, value in found.items() if not isinstance(value, list)}


def _list_records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file of W&B: blocks of chunks, each with its sum, length and type (whole, first, middle,
    last). The end of a file that is still written is left out."""
    content = path.read_bytes()
    if not content.startswith(b":W&B"):
        raise DataError(f"{path} is not a run of W&B: it does not begin with its mark.")
    place, record = _HEAD, b""
    while place + _HEAD <= len(content):
        if (left := _BLOCK - place % _BLOCK) < _HEAD:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        chunk = content[place + _HEAD : place + _HEAD + length]
        if len(chunk) < length:
            return
        place += _HEAD + length
        record = chunk if kind in (1, 2) else record + chunk
        if kind in (1, 4):
            yield record
