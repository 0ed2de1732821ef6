"""What a run takes, by the formulas of two-stage pre-training (Lee et al.), from the model as it is.

FLOPs are `(6 N_trained + 2 N_frozen) T`: N counts the weights that a token is multiplied with, which leaves the look-up
in a token embedding out, and T the tokens. Bytes are `16 P_trained + 2 P_frozen`, for all parameters P: weight,
gradient and two moments in float32 where something is learned, a weight in 16 bits where nothing is. Both are the
paper's conventions. That the gradient has to pass a frozen head on its way to the layers, or frozen matrices on its way
to the adapters beside them (2 N more), is not in them, nor are attention's products of activations; `ablate plan`
counts what is really computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ablate.estimate.skeleton import skeleton
from ablate.experiment.tree import Experiment
from ablate.models import Model
from ablate.models.base import tensors_of


@dataclass(frozen=True)
class Cost:
    """Of a model, some parts of which may be frozen."""

    flops: float
    """Of one token of text, or of one image."""
    bytes: int
    """Of weights, gradients and moments."""
    trained: int
    """Parameters that are trained."""
    frozen: int
    """Parameters that are not."""


def cost_of(model: Model) -> Cost:
    """By which parameters of `model` want a gradient; it may be on the meta device."""
    state = model.state_dict(keep_vars=True)
    trained = frozen = 0
    for parameter in model.parameters():
        if parameter.requires_grad:
            trained += parameter.numel()
        else:
            frozen += parameter.numel()
    flops = 0.0
    for part in model.parts():
        seen = {id(t): t for name in tensors_of(model, part) if state[name].is_floating_point() for t in [state[name]]}
        weights = sum((6 if tensor.requires_grad else 2) * tensor.numel() for tensor in seen.values())
        flops += weights * _times(model, part)
    return Cost(flops, 16 * trained + 2 * frozen, trained, frozen)


def _times(model: Model, part: str) -> int:
    """How often an item uses the weights of a part: a token once, but for its embedding; of an image each of its tokens
    does, but the patch embedding does not make the class token, and the head sees that alone."""
    vit: Any = getattr(model, "vit", None)
    if vit is None:
        return 0 if part.startswith("embedding") else 1
    patches = vit.patch_embed.num_patches
    other = {"embedding.patch": patches, "embedding.position": 0, "head": 1}
    return int(other.get(part, patches + vit.num_prefix_tokens))


def items_per_update(experiment: Experiment) -> int:
    """Tokens or images of one update; of an alignment pairs or answers."""
    return experiment.trainer.batch_size * experiment.items_per_sample


def count_spent_flops(experiment: Experiment, inputs: tuple[int, tuple[int, ...]], updates: int) -> float:
    """The FLOPs that a trained model has taken: its own `updates`, and those of the models that it started from.
    `inputs` are (classes, shape of one input)."""
    start = experiment.warm_start
    before = start.flops or 0.0 if start else 0.0
    return before + cost_of(skeleton(experiment, *inputs)).flops * items_per_update(experiment) * updates


def facts_of(model: Model, experiment: Experiment) -> dict[str, Any]:
    """What is written down of a run: tags of its MLflow run."""
    cost, start = cost_of(model), experiment.warm_start
    facts: dict[str, Any] = {
        "ablate.flops_per_update": cost.flops * items_per_update(experiment),
        "ablate.flops_before": start.flops or 0.0 if start else 0.0,
        "ablate.state_bytes": cost.bytes,
    }
    return facts | ({"ablate.parameters.frozen": cost.frozen} if cost.frozen else {})
