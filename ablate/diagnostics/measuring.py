"""Opening one model and measuring its layers, one batch at a time; complete measurements are stored."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ablate import tracking
from ablate.config.errors import AblateError
from ablate.config.formatting import join_words, to_json
from ablate.data.progress import show_progress
from ablate.diagnostics.kinds import heads
from ablate.diagnostics.measures import Measurement, Metric, Options, Pruning, Result, Subject
from ablate.diagnostics.measures.base import DEFAULT
from ablate.diagnostics.opening import Opened, Opening, open_model

if TYPE_CHECKING:
    from ablate.data.text.tokenizers import Tokenizer

TOKENS = 256_000
POSITIONS = ("all", "last")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class MetricSource(Protocol):
    """Source of scores for layer removal that depend on the model, such as
    `ablate.addons.evaluation.layer_removal.Benchmarks`."""

    @property
    def names(self) -> Sequence[str]:
        """The tasks."""

    @property
    def task_data(self) -> str | Path | None:
        """A folder with their questions; None: the hub."""

    @property
    def limit(self) -> int | None:
        """Number of questions of each task; None: all."""

    def select(self, subject: Subject) -> MetricSource:
        """Return the source of the scores that the model can have. Raises AblateError if there is none."""

    def load_metrics(self, subject: Subject, tokenizer: Callable[[], Tokenizer] | None) -> Mapping[str, Metric]:
        """Return name -> a function of the subject's model."""

    def identify(self) -> str:
        """Return a text that is equal for two sources only if their scores of a model would be equal."""


@dataclass(frozen=True)
class Settings:
    """The settings of opening and measuring models. Raises AblateError."""

    tokens: int = TOKENS
    """Number of tokens, or images, to measure on; fewer if the data has fewer."""
    data: Sequence[str] = ()
    """`--data` words; none: the validation data of the model's own experiment."""
    positions: str = "all"
    """Tokens over which the angular distance is averaged, "all" or the "last" of each sequence."""
    batch_tokens: int = 2048
    """Tokens, or images, that are in memory at once."""
    device: str | None = None
    """torch's name of a device; by default a GPU if there is one."""
    dtype: str = "float32"
    """"float32" or "bfloat16", of the weights."""
    seed: int = 0
    """Seed of the random vectors of the Jacobian."""
    trust_remote_code: bool = False
    """Whether code that comes with a model of the hub may be run."""
    opening: Opening = field(init=False)

    def __post_init__(self) -> None:
        _check("--positions", self.positions, POSITIONS)
        _check("--dtype", self.dtype, DTYPES)
        opening = Opening(tuple(self.data), _find_device(self.device), DTYPES[self.dtype], self.trust_remote_code)
        object.__setattr__(self, "opening", opening)


@dataclass(frozen=True)
class Measured:
    """The measurements of one model."""

    label: str
    data: str
    """One line about the data that it was measured on."""
    results: dict[str, Result]
    """Measurement -> numbers."""
    run_id: str | None
    """The MLflow run that trained the model."""
    notes: list[str]
    """Sentences about it, without its label: measurements that cannot be taken, and remarks on the rest."""


def measure_model(
    name: str,
    kinds: Sequence[type[Measurement]],
    settings: Settings,
    *,
    label: str = "",
    metrics: Mapping[str, Metric] | None = None,
    benchmarks: MetricSource | None = None,
    require_all: bool = False,
) -> Measured:
    """Return the measurements `kinds` of the model `name` (see `open_model`). Each one is stored when it is complete,
    and read instead of taken again for the same weights, data and settings. Raises AblateError.

    Args:
        label: its name in tables and figures; by default that of the model.
        metrics: scores for layer removal, by name: a function of the model. With them layer removal is not
            stored, as two functions cannot be compared.
        benchmarks: scores for layer removal that are loaded for each model, such as tasks of lm-evaluation-harness.
        require_all: whether a model is refused, before anything is measured, if one of `kinds` cannot be.
    """
    opening = settings.opening
    if benchmarks:
        task_data, limit = benchmarks.task_data, benchmarks.limit
        opening = replace(opening, tasks=tuple(benchmarks.names), task_data=task_data, limit=limit)
    opened = open_model(name, opening)
    if label:
        opened = replace(opened, subject=replace(opened.subject, label=label))
    subject = opened.subject
    left = {kind.name: reason for kind in kinds if (reason := _find_obstacle(kind, opened))}
    if left and require_all:
        raise AblateError(" ".join(f"{subject.label}: {sentence}" for sentence in _describe_left(left)))
    fitting = [kind for kind in kinds if kind.name not in left]
    scores, known = dict(metrics or {}), None if metrics else ""
    notes, there = _describe_left(left), subject.items * subject.per_item
    if there < settings.tokens:
        notes.append(f"the data has {there:,} {subject.unit}, fewer than {settings.tokens:,}.")
    if benchmarks and Pruning in fitting:
        if subject.unit == "images":
            raise AblateError(
                f"{subject.label} is a model of images, which --tasks cannot score: leave it out, and layer removal is "
                "measured by loss and accuracy."
            )
        own = benchmarks.select(subject)
        scores |= own.load_metrics(subject, opened.tokenizer)
        known = None if metrics else own.identify()
        notes += _note_tasks(subject, own.names, benchmarks.names)
    results = measure(
        subject,
        fitting,
        Options(settings.positions, settings.seed, scores, known),
        tokens=settings.tokens,
        batch_tokens=settings.batch_tokens,
        results=tracking.cache_folder("diagnostics/measured"),
    )
    return Measured(subject.label, opened.data, results, opened.run_id, notes)


def join_notes(notes: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the notes of models (label -> sentences), each once, with the labels of all models that it is about."""
    labels: dict[str, dict[str, None]] = {}
    for label, sentences in notes.items():
        for sentence in sentences:
            labels.setdefault(sentence, {})[label] = None
    return [
        f"{'All models' if len(own) == len(notes) > 1 else join_words(own)}: {sentence}"
        for sentence, own in labels.items()
    ]


def _describe_left(left: Mapping[str, str]) -> list[str]:
    """Return a sentence for each reason for which measurements (name -> reason) are not taken."""
    names: dict[str, list[str]] = {}
    for name, reason in left.items():
        names.setdefault(reason, []).append(name)
    return [f"{reason}, so {join_words(own)} cannot be measured." for reason, own in names.items()]


def _find_obstacle(kind: type[Measurement], opened: Opened) -> str:
    """Return why a measurement of the model cannot be taken; '' if it can be."""
    if kind.needs_targets and not opened.has_targets:
        return "the model's classes are not the data's"
    layers = opened.subject.layers
    return kind.find_obstacle(layers.keeps_shape, layers.placement)


def _note_tasks(subject: Subject, own: Sequence[str], names: Sequence[str]) -> list[str]:
    if not (others := [name for name in names if name not in own]):
        return []
    head = (
        f"a {heads[subject.task].noun}"
        if subject.task
        else f"no {next(heads[name] for name in others if name in heads).noun}"
    )
    return [f"scored on {join_words(own)} and not on {join_words(others)} ({head})."]


def _check(name: str, value: str, accepted: Sequence[str] | Mapping[str, Any]) -> None:
    if value not in accepted:
        raise AblateError(f"{name}: must be one of {', '.join(accepted)}, given {value}")


def _find_device(name: str | None) -> torch.device:
    """Return the device of that name, by default a GPU if there is one."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise AblateError(f"--device {name}: {str(error).splitlines()[0]}") from None
    return device


VERSION = 2
"""Version of stored results: raise it when the numbers of a measurement change, so that earlier ones are not read."""


def measure(
    subject: Subject,
    kinds: Sequence[type[Measurement]],
    options: Options = DEFAULT,
    *,
    tokens: int | None = None,
    batch_tokens: int = 2048,
    results: Path | None = None,
) -> dict[str, Result]:
    """Return name of each of `kinds` -> its numbers, over `tokens` tokens or images (None: all; at most all), of which
    `batch_tokens` are in memory at a time. In the folder `results` each measurement is stored when it is complete, and
    one that is there is read instead of taken.
    """
    items = min(subject.items, max(1, -(-(tokens or subject.items * subject.per_item) // subject.per_item)))
    size = max(1, batch_tokens // subject.per_item)
    found = {}
    for kind in kinds:
        file = None
        if results is not None and (not kind.uses_scores or options.metrics_identity is not None):  # of known scores
            file = results / f"{_key(subject, kind, options, items, size)}.json"
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                found[kind.name] = Result.from_dict(json.loads(file.read_text(encoding="utf-8")))
                continue
        found[kind.name] = result = _take(subject, kind, options, items, size)
        if file is not None:
            part = file.with_suffix(f".{os.getpid()}.part")
            part.write_text(json.dumps(to_json(result.to_dict()), allow_nan=False) + "\n", encoding="utf-8")
            os.replace(part, file)
    return found


def _take(subject: Subject, kind: type[Measurement], options: Options, items: int, size: int) -> Result:
    """Return the numbers of a measurement over `items` items, `size` at a time."""
    measurement = kind(subject, options)
    with show_progress(f"{subject.label}: {kind.name}", items * subject.per_item, subject.unit) as advance:
        for number in range(-(-items // size)):
            last = min(items, (number + 1) * size)
            measurement.update(subject.load_batch(number * size, last), number)
            advance(last * subject.per_item)
    result = measurement.result()
    facts: dict[str, Any] = {subject.unit: items * subject.per_item, "batch": size * subject.per_item}
    return Result(result.rows, {**facts, **result.facts})


def _key(subject: Subject, kind: type[Measurement], options: Options, items: int, size: int) -> str:
    """Return a text that is equal for two measurements only if their numbers would be equal."""
    scores = (sorted(options.metrics), options.metrics_identity) if kind.uses_scores else ()
    own = (options.positions, options.seed, scores, items, size)
    words = (VERSION, subject.identity, subject.device.type, [kind.name], *own)
    return hashlib.sha256(repr(words).encode()).hexdigest()[:16]
