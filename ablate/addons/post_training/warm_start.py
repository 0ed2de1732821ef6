"""Warm starts: initial weights copied from another run (the source run), and frozen parts.

A part is a name of `Model.parts`: embedding, final_norm, head, layers.0.attn, layers.0.mlp, ...; of a ViT
embedding.patch and so on. A name selects all parts that begin with it: layers.0 is both of its sublayers, layers is all
of them, all is the whole model.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ablate import tracking
from ablate.config.errors import AblateError, ConfigError, Problem, did_you_mean
from ablate.data.text.tokenizers import load_data_tokenizer
from ablate.estimate.flops import count_spent_flops
from ablate.estimate.inputs import build_blank
from ablate.experiment.extensions import Extension, restrict
from ablate.experiment.parts import WarmStart
from ablate.experiment.tree import Experiment
from ablate.models.base import Model, freeze, list_filled_parts, list_tensors, list_tensors_in, match_parts
from ablate.models.config import ALL
from ablate.parallel.deferred import Recipes
from ablate.scheduler.donors import resolve_donors
from ablate.training.checkpoints import hash_weights
from ablate.training.trained import TrainedModel, open_trained


class WarmStartExtension(Extension):
    """Copies parts of a source run and freezes parts."""

    def validate(self, model: Model, experiment: Experiment) -> list[Problem]:
        assert experiment.warm_start is not None
        frozen = experiment.warm_start.freeze
        problems = [*_validate_names(model, frozen, "warm_start.freeze", "the model")]
        if not problems and not {name for name, _ in model.named_parameters()} - list_tensors_in(model, frozen):
            problems.append(Problem("warm_start.freeze", "nothing is left to train", list(frozen)))
        return problems + _validate_tied(model, frozen, "warm_start.freeze")

    def restrict(self, model: Model, experiment: Experiment) -> None:
        if experiment.warm_start:
            freeze(model, experiment.warm_start.freeze)

    def pin(self, experiment: Experiment, classes: int, shape: tuple[int, ...]) -> Experiment:
        """Return `experiment` with its source run, instead of sweep:NAME/ARM, and the SHA-256 of its weights.

        Raises ConfigError if parts are unknown or do not fit, or if the weights are not those that it names;
        AblateError if there is no source run.
        """
        experiment = resolve_donors(experiment)
        if (source := open_donor(experiment, classes, shape)) is None:
            return experiment
        fields = {f"warm_start.{name}": value for name, value in describe_donor(source).items()}
        return Experiment.from_mapping(experiment.to_tree(), fields)

    def describe_source(self, run: str) -> dict[str, Any]:
        return describe_donor(open_trained(run))

    def fill(self, model: Model, experiment: Experiment, recipes: Recipes | None) -> set[int]:
        return _copy(model, experiment.warm_start, recipes)


EXTENSION = WarmStartExtension()


def open_donor(experiment: Experiment, classes: int, shape: tuple[int, ...]) -> TrainedModel | None:
    """Return the source run of `experiment`, checked as before the start of a run; None if all weights start by `init`.
    Raises ConfigError if it does not fit."""
    if (start := experiment.warm_start) is None:
        return None
    model = build_blank(experiment, classes, shape)
    restrict(copy.deepcopy(model), experiment)  # which checks the names of what is frozen and adapted
    return _find_donor(model, start, experiment) if start.donor is not None else None


def _copy(model: Model, start: WarmStart | None, recipes: Recipes | None) -> set[int]:
    """Copy the source run's parts into `model`, and return the ids of their parameters."""
    if start is None or start.donor is None:
        return set()
    state, tensors = _find_donor(model, start).state, model.state_dict(keep_vars=True)
    values = {name: state[name].clone() for name in list_tensors_in(model, start.copied)}
    if recipes is None:
        model.load_state_dict(values, strict=False)
    else:
        for name, value in values.items():
            recipes.assign(tensors[name], value)
    return {id(tensors[name]) for name in values}


def _find_donor(model: Model, start: WarmStart, experiment: Experiment | None = None) -> TrainedModel:
    """Return the source run of `model`. Raises ConfigError if it does not fit the model or, before the start of a run,
    its `experiment`, or if it has changed."""
    assert start.donor is not None
    source = open_trained(start.donor)
    problems = [*_validate_model(experiment, source)] if experiment else []  # which says more than each of its tensors
    problems = problems or [*_validate_copied(model, start, source)]
    if problems or (experiment and (problems := [*_validate_tokens(experiment, source)])):
        raise ConfigError(problems)
    if start.sha256 not in (None, digest := hash_weights(source.state)):
        text = (
            f"the weights of {start.donor} have changed (now {digest}). Remove this setting to start from the new "
            "weights, or a sweep from the beginning with --fresh"
        )
        raise ConfigError([Problem("warm_start.sha256", text, start.sha256)])
    return source


def describe_donor(source: TrainedModel) -> dict[str, Any]:
    """Return the fields of `WarmStart` that a run which starts from `source` records."""
    flops = count_spent_flops(source.experiment, source.inputs, source.step)
    return {"sha256": hash_weights(source.state), "flops": flops}


# ---------------------------------------------------------------------------------------------------- what is wrong


_ONLY_HERE = ("drop_path", "dropout", "noise", "vocab_size")
"""Fields of a model that its weights do not depend on, or that the shapes of its weights show."""


def _validate_model(experiment: Experiment, source: TrainedModel) -> Iterable[Problem]:
    """Yield differences that the copied weights do not show: another factor of the embedding, and, if all parts are
    copied, the fields of model and placement in which the source run differs."""
    start = experiment.warm_start
    if start is None:
        return
    if any(match_parts(("embedding",), part) for part in start.copied):
        here, there = (one.init.embedding_multiplier(one.model.stack()) for one in (experiment, source.experiment))
        if here != there:
            text = (
                f"multiplies the embedding by {here:g}, and the source run {start.donor}, whose is copied, by {there:g}"
            )
            yield Problem("init.kind", text, experiment.init.kind)
    if start.copied and experiment.multipliers != source.experiment.multipliers:
        source_own = source.experiment.parametrization
        text = (
            f"multiplies parts of the model differently from the source run {start.donor}, whose weights are copied: "
            f"its parametrization is {json.dumps(source_own.model_dump(mode='json'))}. Accepted: the same"
        )
        yield Problem("parametrization", text, experiment.parametrization.kind)
    if ALL not in start.copied:
        return
    ours, theirs = experiment.flat(), source.experiment.flat()
    for path in dict.fromkeys([*theirs, *ours]):
        part, _, field = path.partition(".")
        if part in ("model", "norm") and field not in _ONLY_HERE and ours.get(path) != theirs.get(path):
            text = f"all of the source run {start.donor} is copied, where it is {theirs.get(path, 'not set')}"
            yield Problem(path, text, ours.get(path))


PROBES = (
    "The 2nd question: is it true?",
    "naïve façade, 東京",
    "def f(x):\n    return  x ** 2",
    "unbelievably tokenised",
)
"""Texts that two equal tokenizers split equally."""


def _validate_tokens(experiment: Experiment, source: TrainedModel) -> Iterable[Problem]:
    """Yield a problem if embedding or head are copied and the source run used a different tokenizer: their rows belong
    to other tokens. A tokenizer that no longer exists cannot be compared."""
    start, theirs = experiment.warm_start, source.experiment.data
    rows = {part for copied in (start.copied if start else ()) for part in match_parts(("embedding", "head"), copied)}
    if not rows or start is None or experiment.task.kind != "language_modeling":
        return
    cache = tracking.cache_folder()
    try:
        donors, own = load_data_tokenizer(theirs, cache), load_data_tokenizer(experiment.data, cache)
    except AblateError:
        return
    cut = [
        ([ids.tolist() for ids in one.encode(list(PROBES))], one.vocab_size, one.end_of_text) for one in (donors, own)
    ]
    if donors.identity != own.identity and cut[0] != cut[1]:
        name, given = (str(getattr(data, "tokenizer", "bytes")) for data in (theirs, experiment.data))
        text = f"the source run {start.donor} was trained with the tokenizer {name}, and this run's tokenizer differs"
        yield Problem("data.tokenizer", f"{text}: the rows of its embedding and head belong to other tokens", given)


def _validate_copied(model: Model, start: WarmStart, source: TrainedModel) -> Iterable[Problem]:
    """Yield the problems with the names under `copy`, and each of their tensors that does not fit."""
    donor, who = source.model(), f"the source run {start.donor}"
    problems = [*_validate_names(model, start.copied, "warm_start.copy", "the model")]
    problems += _validate_names(donor, start.copied, "warm_start.copy", who)
    problems += _validate_tied(model, start.copied, "warm_start.copy")
    yield from problems
    if problems:
        return
    ours, theirs = model.state_dict(), source.state
    for part in start.copied:
        mine, donors = list_tensors(model, part), list_tensors(donor, part)
        for name in sorted(mine | donors):
            there = list(theirs[name].shape) if name in donors else "missing"
            here = list(ours[name].shape) if name in mine else "missing"
            if here != there:
                yield Problem("warm_start.copy", f"{part} does not fit: {name} is {here} here, {there} in {who}")
    tied = [names for names in _find_shared(model) if names <= list_tensors_in(model, start.copied)]
    for first, *others in map(sorted, tied):
        if any(not torch.equal(theirs[first], theirs[other]) for other in others):
            text = f"{first} and {', '.join(others)} are one matrix in the model and two in {who}"
            yield Problem("warm_start.copy", f"{text}. Set model.tie_embeddings=false")


def _validate_names(model: Model, wanted: Sequence[str], path: str, who: str) -> Iterable[Problem]:
    if not wanted:
        return
    known = list_filled_parts(model)
    for part in wanted:
        if not match_parts(known, part):
            text = f"{who} has no such part. Accepted: {', '.join(_shorten(known))}.{did_you_mean(part, known)}"
            yield Problem(path, text, part)


def _shorten(parts: list[str]) -> list[str]:
    """Return `parts`, with a deep model's layers abbreviated."""
    layers = [part for part in parts if part.startswith("layers.")]
    return [p for p in parts if p not in layers[2:-1]] if len(layers) > 6 else parts


def _validate_tied(model: Model, wanted: tuple[str, ...], path: str) -> list[Problem]:
    """Return each matrix that two parts share if only one of them is named."""
    names = list_tensors_in(model, wanted)
    text = "model.tie_embeddings makes one matrix of embedding and head: name both, or neither"
    return [
        Problem(path, text, list(wanted)) for shared in _find_shared(model) if names & shared and not shared <= names
    ]


def _find_shared(model: Model) -> list[set[str]]:
    """Return the names of each tensor that the model has under several."""
    by_tensor: dict[int, set[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        by_tensor.setdefault(id(tensor), set()).add(name)
    return [names for names in by_tensor.values() if len(names) > 1]
