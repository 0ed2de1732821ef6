"""The inputs of a plan: properties of the data, and a model without values on the meta device. Neither needs a GPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from ablate import tracking
from ablate.config.errors import DataError
from ablate.data import Corpus
from ablate.data.text.tokenizers import KNOWN_SIZES, load_tokenizer
from ablate.experiment.extensions import restrict
from ablate.experiment.tree import Experiment
from ablate.models import Model

CLASSES = 1000  # of ImageNet


class Inputs(NamedTuple):
    """The properties of a corpus that a plan needs."""

    classes: int
    shape: tuple[int, ...]
    note: str = ""
    """A note on assumptions."""
    corpus: Corpus | None = None
    """The corpus, if it had to be loaded."""


def find_inputs(experiment: Experiment) -> Inputs:
    """Return the inputs of an experiment. Raises DataError if neither a corpus nor a setting, such as model.vocab_size,
    determines them."""
    model, shape = experiment.model, experiment.data.input_shape
    if model.per_token and shape:
        if vocabulary := model.vocabulary(0):
            return Inputs(vocabulary, shape)
        name: str | None = getattr(experiment.data, "tokenizer", None)
        if name is not None:
            try:
                end = getattr(experiment.data, "end_of_text", None)
                vocabulary = KNOWN_SIZES.get(name) or load_tokenizer(name, end).vocab_size
            except DataError as error:
                raise DataError(f"{error} A plan only needs the size: model.vocab_size=32000.") from None
            return Inputs(vocabulary, shape, _explain_vocabulary(experiment, vocabulary) if name == "bytes" else "")
    try:
        corpus = experiment.data.load(tracking.cache_folder())
    except DataError:
        if model.per_token or not shape:
            raise
        return Inputs(CLASSES, shape, f"The images cannot be read here; {CLASSES:,} classes are assumed.")
    note = _explain_vocabulary(experiment, corpus.classes) if model.per_token and shape else ""
    return Inputs(model.vocabulary(corpus.classes), corpus.shape, note, corpus)


def _explain_vocabulary(experiment: Experiment, vocabulary: int) -> str:
    """Return a note on a default vocabulary: few models use one so small."""
    setting = "data.tokenizer=NAME or " if hasattr(experiment.data, "tokenizer") else ""
    return (
        f"The vocabulary is assumed to be that of data={experiment.data.kind}, {vocabulary:,} tokens. To change it: "
        f"{setting}model.vocab_size=32000."
    )


class _Uninitialized(TorchFunctionMode):
    """Skips all initialisation, which is slow and without effect on the meta device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init" or getattr(func, "__name__", "") in _RANDOM:
            return args[0] if args else (kwargs or {}).get("tensor")
        return func(*args, **(kwargs or {}))


_RANDOM = ("normal_", "uniform_", "trunc_normal_")


def build_blank(experiment: Experiment, classes: int, shape: tuple[int, ...]) -> Model:
    """Return the uninitialised model on the meta device, with all parameters trained."""
    with torch.device("meta"), _Uninitialized():
        return experiment.build_model(classes, shape)


def build_skeleton(experiment: Experiment, classes: int, shape: tuple[int, ...]) -> Model:
    """Return the uninitialised model on the meta device, with frozen parts and adapters. Raises ConfigError for unknown
    parts."""
    model = build_blank(experiment, classes, shape)
    with torch.device("meta"), _Uninitialized():
        restrict(model, experiment)
    return model
