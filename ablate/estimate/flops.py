"""FLOPs and parameters of a model, by three conventions that iterate over the weights that an item uses.

`count` is exact: the operations that are computed, as shown by `ablate plan`. `count_by_formula` is the formula of
two-stage pre-training (Lee et al.), which is used to compare runs. FLOPs are `(6 N_trained + 2 N_frozen) T`: N counts
the weights that a token is multiplied with, which leaves the look-up in a token embedding out, and T the tokens. Bytes
are `16 P_trained + 2 P_frozen`, for all parameters P: weight, gradient and two moments in float32 where something is
learned, a weight in 16 bits where nothing is. That the gradient has to pass a frozen head on its way to the layers, or
frozen matrices on its way to the adapters beside them (2 N more), is not in it, nor are attention's products of
activations.

`estimate_work` knows the configuration alone: a dry run of a sweep builds no model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ablate.data.text.tokenizers import KNOWN_SIZES
from ablate.estimate.gpus import GPUS, assume_utilisation
from ablate.estimate.skeleton import build_skeleton
from ablate.experiment.tree import Experiment
from ablate.models import Model
from ablate.models.base import is_inside, list_tensors, list_tensors_by_part

H100_FLOPS = GPUS["h100-80gb"].bf16
_PAPERS_VOCABULARY = KNOWN_SIZES["t5-base"]  # and LLaMA's
_DIGITS = (1, 8, 8)  # the shape of images where the data does not say it


def _walk(model: Model) -> Iterator[tuple[int, set[str]]]:
    """Yield for each part of `model` how often an item uses its weights, and their names in the state dict."""
    for part, names in list_tensors_by_part(model).items():
        yield model.count_uses(part), names


# ---------------------------------------------------------------------------------------------------- exact


@dataclass(frozen=True)
class Counts:
    """Numbers of parameters and of FLOPs."""

    total: int
    embedding: int
    """Of the token embedding; for a ViT, of the patch embedding, class token and position embedding."""
    head: int
    """Of the output projection; 0 if it is tied to the embedding."""
    block: int
    """Of the largest layer."""
    forward_flops: float
    """Of one token, or one image, in the forward pass."""
    frozen: int = 0
    """Parameters that are not trained."""
    frozen_flops: float = 0.0
    """Of one token, or one image, in the forward pass, with matrices that are frozen."""

    @property
    def rest(self) -> int:
        """Of the layers and norms: all but embedding and head."""
        return self.total - self.embedding - self.head

    @property
    def training_flops(self) -> float:
        """Of one token, or one image, forward and backward: the backward pass costs two forward passes, one for the
        gradient of a matrix's input and one for the gradient of the matrix, if it is trained."""
        return 3 * self.forward_flops - self.frozen_flops


def count(model: Model, shape: tuple[int, ...], passes: float = 1.0) -> Counts:
    """Count `model` on inputs of `shape`, of which its layers compute so many `passes` (`Task.count_passes`): 2 FLOPs
    for each weight of a matrix and each use of it, and the products of attention. A token of LLaMA takes
    2 [L (4 d^2 + 3 d i) + V d] + 2 L d T; an image is all of its tokens."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    weights = {f"{name}.weight": getattr(module, "weight", None) for name, module in model.named_modules()}
    matrices = {name: weight for name, weight in weights.items() if isinstance(weight, Tensor) and weight.ndim >= 2}
    used = [(uses, matrices[name]) for uses, names in _walk(model) for name in names & matrices.keys()]
    head = list_tensors(model, "head")
    return Counts(
        total=sum(sizes.values()),
        embedding=sum(n for name, n in sizes.items() if is_inside(name, model.embeddings())),
        head=sum(n for name, n in sizes.items() if name in head),
        block=max((sum(p.numel() for p in block.parameters()) for block in model.blocks()), default=0),
        forward_flops=passes
        * (2 * sum(uses * weight.numel() for uses, weight in used) + model.config.attention_flops(shape)),
        frozen=sum(p.numel() for p in model.parameters() if not p.requires_grad),
        frozen_flops=passes * 2 * sum(uses * weight.numel() for uses, weight in used if not weight.requires_grad),
    )


# ---------------------------------------------------------------------------------------------------- by formula


@dataclass(frozen=True)
class Cost:
    """The cost of a model, some parts of which may be frozen."""

    flops: float
    """Of one token of text, or of one image."""
    bytes: int
    """Of weights, gradients and moments."""
    trained: int
    """Parameters that are trained."""
    frozen: int
    """Parameters that are frozen."""


def count_by_formula(model: Model) -> Cost:
    """Return the cost of `model` according to which of its parameters require a gradient; it may be on the meta
    device."""
    state = model.state_dict(keep_vars=True)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    flops = 0.0
    for uses, names in _walk(model):
        tensors = {id(state[name]): state[name] for name in names if state[name].is_floating_point()}.values()
        flops += uses * sum((6 if tensor.requires_grad else 2) * tensor.numel() for tensor in tensors)
    return Cost(flops, 16 * trained + 2 * frozen, trained, frozen)


def count_spent_flops(experiment: Experiment, inputs: tuple[int, tuple[int, ...]], updates: int) -> float:
    """Return the FLOPs that a trained model has used: for its own `updates`, and for the models that it started from.
    `inputs` are (classes, shape of one input)."""
    start = experiment.warm_start
    before = start.flops or 0.0 if start else 0.0
    cost = count_by_formula(build_skeleton(experiment, *inputs))
    passes = experiment.task.count_passes(experiment.model, inputs[1])
    return before + passes * cost.flops * experiment.items_per_update * updates


def collect_facts(model: Model, experiment: Experiment, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return what is written down of the cost of a run on inputs of `shape`: tags of its MLflow run."""
    cost, start = count_by_formula(model), experiment.warm_start
    passes = experiment.task.count_passes(experiment.model, shape)
    facts: dict[str, Any] = {
        "ablate.flops_per_update": passes * cost.flops * experiment.items_per_update,
        "ablate.flops_before": start.flops or 0.0 if start else 0.0,
        "ablate.state_bytes": cost.bytes,
    }
    return facts | ({"ablate.parameters.frozen": cost.frozen} if cost.frozen else {})


# ---------------------------------------------------------------------------------------------------- without a model


@dataclass(frozen=True)
class Work:
    """The work of one trial."""

    items: int
    """Tokens or images."""
    flops: float
    """Floating-point operations, forward and backward."""
    utilisation: float
    """The assumed utilisation of an H100: achieved share of its peak."""

    @property
    def gpu_hours(self) -> float:
        """Hours of one H100."""
        return self.flops / (H100_FLOPS * self.utilisation) / 3600


def estimate_work(experiment: Experiment) -> Work | None:
    """Return the work of one trial; None for an alignment, whose time depends on memory bandwidth during generation and
    on the length of the answers, not on FLOPs.

    As `count` counts, with 6 operations for each weight of the layers and of the head (a frozen head, and a matrix that
    is adapted instead, has no gradient of its own, and hands one on: 4), and at the utilisation that a plan assumes.
    Left out are validation, other frozen parts, and of images the patch embedding and the head.
    """
    if experiment.procedure != "training":
        return None
    model = experiment.model
    shape = experiment.data.input_shape or _DIGITS
    weights = float(model.layer_parameters())
    if experiment.lora is not None:
        weights = 4 / 6 * weights + build_skeleton(experiment, _guess_vocabulary(experiment), shape).parameter_count()
    if model.per_token:
        start = experiment.warm_start
        frozen = experiment.lora is not None or (start is not None and "head" in start.freeze)
        weights += (4 if frozen else 6) / 6 * _guess_vocabulary(experiment) * model.hidden
    per_item = 6 * weights * model.tokens_per_item(shape) + 3 * model.attention_flops(shape)
    per_item *= experiment.task.count_passes(model, shape)
    return Work(experiment.items, float(experiment.items * per_item), assume_utilisation(model.layer_parameters()))


def _guess_vocabulary(experiment: Experiment) -> int:
    """Return the vocabulary size if it is known without loading the tokenizer; otherwise 32,000, the papers' size."""
    tokenizer = str(getattr(experiment.data, "tokenizer", "bytes"))
    return experiment.model.vocabulary(KNOWN_SIZES.get(tokenizer, _PAPERS_VOCABULARY))
