"""FLOPs and parameters of a model, by three conventions that iterate over the weights that an item uses.

`count` is exact: the operations that are computed, as shown by `ablate plan`. `count_by_formula` is the formula of
two-stage pre-training (Lee et al.), which is used to compare runs. FLOPs are `(6 N_trained + 2 N_frozen) T`: N counts
the weights that a token is multiplied with, without the look-up in a token embedding, and T the tokens. Bytes
are `16 P_trained + 2 P_frozen`, for all parameters P: weight, gradient and two moments in float32 where something is
learned, a weight in 16 bits where nothing is. The formula leaves out the gradient's way through a frozen head to the
layers, or through frozen matrices to the adapters beside them (2 N more), and attention's products of activations.

`estimate_work` is the one place that says how long a run takes, by `count`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ablate.data.text.tokenizers import KNOWN_SIZES
from ablate.estimate.gpus import GPU, GPUS, assume_utilisation
from ablate.estimate.inputs import CLASSES, build_skeleton
from ablate.estimate.tracing import count_recomputed
from ablate.estimate.updates import measure_update
from ablate.experiment.trainer import TrainerConfig
from ablate.experiment.tree import Experiment
from ablate.models import Model
from ablate.models.base import is_inside, list_tensors, list_tensors_by_part

_DIGITS = (1, 8, 8)  # the shape of images where the data does not say it


# ---------------------------------------------------------------------------------------------------- exact


@dataclass(frozen=True)
class Counts:
    """Numbers of parameters and of FLOPs."""

    total: int
    embedding: int
    """Parameters of the token embedding; for a ViT, of the patch embedding, class token and position embedding."""
    head: int
    """Parameters of the output projection; 0 if it is tied to the embedding."""
    block: int
    """Parameters of the largest layer."""
    forward_flops: float
    """FLOPs of one token, or one image, in the forward pass."""
    frozen: int = 0
    """Parameters that are not trained."""
    frozen_flops: float = 0.0
    """FLOPs of one token, or one image, in the forward pass, with matrices that are frozen."""
    extra_flops: float = 0.0
    """FLOPs of one token, or one image, that training needs beside the two passes."""

    @property
    def rest(self) -> int:
        """Parameters of the layers and norms: all but embedding and head."""
        return self.total - self.embedding - self.head

    @property
    def training_flops(self) -> float:
        """FLOPs of one token, or one image, forward and backward: the backward pass costs two forward passes, one for
        the gradient of a matrix's input and one for the gradient of the matrix, if it is trained."""
        return 3 * self.forward_flops - self.frozen_flops + self.extra_flops


def count(model: Model, shape: tuple[int, ...], passes: float = 1.0) -> Counts:
    """Count `model` on inputs of `shape`, of which its layers compute so many `passes` (`Task.count_passes`): 2 FLOPs
    for each weight of a matrix and each use of it, and the products of attention. A token of LLaMA takes
    2 [L (4 d^2 + 3 d i) + V d] + 2 L d T; an image is all of its tokens."""
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    weights = {f"{name}.weight": getattr(module, "weight", None) for name, module in model.named_modules()}
    matrices = {name: weight for name, weight in weights.items() if isinstance(weight, Tensor) and weight.ndim >= 2}
    by_part = list_tensors_by_part(model)
    used = [
        (model.count_uses(part), matrices[name]) for part, names in by_part.items() for name in names & matrices.keys()
    ]
    uses_of = {name: model.count_uses(part) for part, names in by_part.items() for name in names}
    of_wiring = sum(  # of placements with several streams
        module.flops * next(uses for tensor, uses in uses_of.items() if tensor.startswith(f"{name}."))
        for name, module in model.named_modules()
        if hasattr(module, "flops")
    )
    head = list_tensors(model, "head")
    return Counts(
        total=sum(sizes.values()),
        embedding=sum(n for name, n in sizes.items() if is_inside(name, model.embeddings())),
        head=sum(n for name, n in sizes.items() if name in head),
        block=max((sum(p.numel() for p in block.parameters()) for block in model.blocks()), default=0),
        forward_flops=passes
        * (2 * sum(uses * weight.numel() for uses, weight in used) + of_wiring + model.config.attention_flops(shape)),
        frozen=sum(p.numel() for p in model.parameters() if not p.requires_grad),
        frozen_flops=passes * 2 * sum(uses * weight.numel() for uses, weight in used if not weight.requires_grad),
        extra_flops=passes * model.config.extra_training_flops(shape),
    )


# ---------------------------------------------------------------------------------------------------- by formula


@dataclass(frozen=True)
class Cost:
    """The cost of a model, some parts of which may be frozen."""

    flops: float
    """FLOPs of one token of text, or of one image."""
    bytes: int
    """Bytes of weights, gradients and moments."""
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
    for part, names in list_tensors_by_part(model).items():
        tensors = {id(state[name]): state[name] for name in names if state[name].is_floating_point()}.values()
        flops += model.count_uses(part) * sum((6 if tensor.requires_grad else 2) * tensor.numel() for tensor in tensors)
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
    """Return the cost of a run on inputs of `shape`, as tags of its MLflow run."""
    cost, start = count_by_formula(model), experiment.warm_start
    passes = experiment.task.count_passes(experiment.model, shape)
    facts: dict[str, Any] = {
        "ablate.flops_per_update": passes * cost.flops * experiment.items_per_update,
        "ablate.flops_before": start.flops or 0.0 if start else 0.0,
        "ablate.state_bytes": cost.bytes,
    }
    return facts | ({"ablate.parameters.frozen": cost.frozen} if cost.frozen else {})


# ---------------------------------------------------------------------------------------------------- the work of a run

_COUNTED = {"model", "norm", "task", "lora", "warm_start", "plugins"}
_counted: dict[str, Counts] = {}  # by these parts: the cells of a sweep, which differ in rates and seeds, share them
_slowed: dict[str, float] = {}  # by the same, where it is asked for
_updated: dict[str, float] = {}  # FLOPs of an update, by the same and the optimizer


@dataclass(frozen=True)
class Work:
    """The work of one run."""

    items: int
    """Tokens or images."""
    flops: float
    """Floating-point operations that are computed: forward, backward and, with activation checkpointing, forward
    again; and of updates that multiply matrices."""
    update_flops: float
    """Those of all updates."""
    peak: float
    """FLOPs per second of the GPU, at the precision of the run."""
    utilisation: float
    """The assumed share of the peak that is achieved."""

    @property
    def gpu_hours(self) -> float:
        """Hours of one GPU, or of all together, without validation."""
        return self.flops / (self.peak * self.utilisation) / 3600


def estimate_work(
    experiment: Experiment,
    inputs: tuple[int, tuple[int, ...]] | None = None,
    gpu: GPU = GPUS["h100-80gb"],
    utilisation: float | None = None,
) -> Work | None:
    """Return the work of one run, and the time of it on a kind of `gpu`, by `count`; None for an alignment, whose time
    depends on memory bandwidth during generation and on the length of the answers, not on FLOPs.

    Args:
        experiment: the run.
        inputs: (classes, shape of one input); None: what is known without the data, or usual.
        gpu: on which it is trained.
        utilisation: model FLOPs utilisation; None: by size.
    """
    if experiment.procedure != "training":
        return None
    inputs = inputs or guess_inputs(experiment)
    key = f"{experiment.model_dump_json(include=_COUNTED)} {inputs}"
    if key not in _counted:
        passes = experiment.task.count_passes(experiment.model, inputs[1])
        _counted[key] = count(build_skeleton(experiment, *inputs), inputs[1], passes)
    counts = _counted[key]
    flops = experiment.items * counts.training_flops
    if experiment.trainer.activation_checkpointing:
        if key not in _slowed:
            _slowed[key] = find_slowdown(build_skeleton(experiment, *inputs), counts, experiment, inputs)
        flops *= _slowed[key]
    updates = experiment.trainer.max_steps * _count_update(experiment, inputs, key)
    return Work(
        experiment.items,
        flops + updates,
        updates,
        gpu.flops(choose_precision(experiment.trainer)),
        utilisation or assume_utilisation(counts.rest),
    )


def _count_update(experiment: Experiment, inputs: tuple[int, tuple[int, ...]], key: str) -> float:
    """Return the FLOPs of an update, from that of a skeleton; 0 where the optimizer multiplies no matrices."""
    if not experiment.optimizer.multiplies:
        return 0.0
    own = f"{key} {experiment.optimizer.model_dump_json()}"
    if own not in _updated:
        _updated[own] = measure_update(build_skeleton(experiment, *inputs), experiment.optimizer, half=False).flops
    return _updated[own]


def find_slowdown(model: Model, counts: Counts, experiment: Experiment, inputs: tuple[int, tuple[int, ...]]) -> float:
    """Return the factor of activation checkpointing on the FLOPs of a step of `model`, which computes its layers
    twice."""
    (classes, shape), task = inputs, experiment.task
    attention = task.count_passes(experiment.model, shape) * model.config.attention_flops(shape)
    products = count_recomputed(model, task, shape, classes) / task.count_items(shape)
    return 1 + (products + attention) / counts.training_flops


def guess_inputs(experiment: Experiment) -> tuple[int, tuple[int, ...]]:
    """Return (classes, shape of one input) without loading the tokenizer or the images: the papers' vocabulary,
    ImageNet's classes."""
    tokenizer = str(getattr(experiment.data, "tokenizer", "bytes"))
    classes = KNOWN_SIZES.get(tokenizer, KNOWN_SIZES["t5-base"]) if experiment.model.per_token else CLASSES
    return experiment.model.vocabulary(classes), experiment.data.input_shape or _DIGITS


def choose_precision(trainer: TrainerConfig) -> str:
    """Return the precision that a plan assumes, Lightning's: 32-true, bf16-mixed or bf16-true."""
    return "bf16-mixed" if trainer.precision == "auto" else str(trainer.precision)
