"""Measurements over many tokens: one batch at a time, with a progress bar, resumed after a stop."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ablate.config.formatting import to_json
from ablate.data.progress import show_progress
from ablate.diagnostics.measures.base import DEFAULT, Measurement, Options, Result
from ablate.diagnostics.measures.subject import Subject

VERSION = 2
"""Of stored results: raise it when the numbers of a measurement change, so that none of before are read."""
SAVED_EVERY = 20.0
"""Seconds between two times of saving the sums."""


def measure(
    subject: Subject,
    kinds: Sequence[type[Measurement]],
    options: Options = DEFAULT,
    *,
    tokens: int | None = None,
    batch_tokens: int = 2048,
    folder: Path | None = None,
    results: Path | None = None,
) -> dict[str, Result]:
    """Return name of each of `kinds` -> its numbers, over `tokens` tokens or images (None: all; at most all).
    `batch_tokens` of them are in memory at a time. With a `folder`, the sums so far are saved there regularly, and a
    stopped measurement resumes from them with the same numbers. In the folder `results` each complete measurement is
    stored, and one that is there is read instead of taken.
    """
    items = min(subject.items, max(1, -(-(tokens or subject.items * subject.per_item) // subject.per_item)))
    size = max(1, batch_tokens // subject.per_item)
    files: dict[str, Path] = {}
    known: dict[str, Result] = {}
    for kind in kinds:
        comparable = not kind.uses_scores or options.metrics_identity is not None  # of known scores
        if results is not None and comparable:
            files[kind.name] = file = results / f"{_key(subject, [kind], options, items, size)}.json"
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                known[kind.name] = Result.from_dict(json.loads(file.read_text(encoding="utf-8")))
    taken = [kind for kind in kinds if kind.name not in known]
    for name, result in _take(subject, taken, options, items, size, folder).items() if taken else ():
        known[name] = result
        if name in files:
            part = files[name].with_suffix(f".{os.getpid()}.part")
            part.write_text(json.dumps(to_json(result.to_dict()), allow_nan=False) + "\n", encoding="utf-8")
            os.replace(part, files[name])
    return {kind.name: known[kind.name] for kind in kinds}


def _take(
    subject: Subject, kinds: Sequence[type[Measurement]], options: Options, items: int, size: int, folder: Path | None
) -> dict[str, Result]:
    """Return name of each of `kinds` -> its numbers over `items` items, `size` at a time."""
    active = [kind(subject, options) for kind in kinds]
    key = _key(subject, kinds, options, items, size)
    state = folder / f".state-{key}.pt" if folder else None
    done = _resume(state, active)
    saved = time.monotonic()
    with show_progress(subject.label, items * subject.per_item, subject.unit) as advance:
        for number in range(done, -(-items // size)):
            batch = subject.load_batch(number * size, min(items, (number + 1) * size))
            for one in active:
                one.update(batch, number)
            advance(min(items, (number + 1) * size) * subject.per_item)
            if state and time.monotonic() - saved > SAVED_EVERY:
                state.parent.mkdir(parents=True, exist_ok=True)
                part = state.with_suffix(".part")
                torch.save({"done": number + 1, "sums": {one.name: one.sums for one in active}}, part)
                os.replace(part, state)
                saved = time.monotonic()
    facts: dict[str, Any] = {subject.unit: items * subject.per_item, "batch": size * subject.per_item}
    results = {one.name: one.result() for one in active}
    if state:
        state.unlink(missing_ok=True)
    return {name: Result(result.rows, {**facts, **result.facts}) for name, result in results.items()}


def _key(subject: Subject, kinds: Sequence[type[Measurement]], options: Options, items: int, size: int) -> str:
    """Return a text that is equal for two measurements only if their numbers would be equal."""
    scores = (sorted(options.metrics), options.metrics_identity) if any(kind.uses_scores for kind in kinds) else ()
    names = [kind.name for kind in kinds]
    words = (
        VERSION,
        subject.identity,
        subject.device.type,
        names,
        options.positions,
        options.seed,
        scores,
        items,
        size,
    )
    return hashlib.sha256(repr(words).encode()).hexdigest()[:16]


def _resume(state: Path | None, active: Sequence[Measurement]) -> int:
    """Load the state into `active`; return the number of its batches. A state that cannot be read is ignored."""
    if state is None or not state.exists():
        return 0
    try:
        content = torch.load(state, weights_only=True)
        sums = [content["sums"][one.name] for one in active]
    except Exception:  # whatever zip, pickle and disk raise: it is measured anew
        return 0
    for one, values in zip(active, sums, strict=True):
        one.sums = values
    return int(content["done"])
