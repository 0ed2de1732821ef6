"""Training a small model for a few updates, and recording the size of its activations and of their change."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ablate.data import Corpus
from ablate.diagnostics.measures import Layers
from ablate.diagnostics.measures.layers import take_first
from ablate.distributed import ranks
from ablate.experiment.tree import Experiment
from ablate.models import Model
from ablate.optim.optimizers import build_optimizer
from ablate.training.errors import translate_errors
from ablate.training.undisturbed import undisturbed

Course = Mapping[str, Sequence[tuple[float, float]]]
"""Part of the model -> (size of its activations, size of their change since initialisation), at initialisation and
after each update."""
EMBEDDING, FINAL_NORM, LOGITS = "embedding", "final norm", "logits"


def list_batches(experiment: Experiment, corpus: Corpus, items: int, count: int) -> list[tuple[Any, Any]]:
    """Return the first `count` batches of the experiment's order, of `items` items each."""
    return list(itertools.islice(corpus.train.batches(items, experiment.seed), count))


def train_and_record(
    experiment: Experiment, corpus: Corpus, batches: Sequence[tuple[Any, Any]], seed: int, device: torch.device
) -> Course:
    """Train the model of `experiment`, with initial weights by `seed`, for one update on each of `batches`, in float32
    at its constant learning rate: a warm-up would hide the change. Return the sizes of what the parts of the model make
    of the first batch. Raises OutOfMemory."""
    devices = [device] if device.type == "cuda" else []
    with translate_errors(), torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        model = experiment.build_model(corpus.classes, corpus.shape).to(device)
        batches = [pytree.tree_map(lambda tensor: tensor.to(device), batch) for batch in batches]
        probe = batches[0][0]
        experiment.norm.prepare(model, lambda: probe)
        optimizer = build_optimizer(experiment.optimizer, model)
        first = _read_activations(model, probe)
        course = {name: [(_measure(x), 0.0)] for name, x in first.items()}
        for inputs, targets in batches:
            optimizer.zero_grad()
            _compute_loss(experiment, corpus, model, inputs, targets).backward()
            if most := experiment.trainer.gradient_clip_val:
                ranks.clip_gradients(model.parameters(), most)
            optimizer.step()
            for name, x in _read_activations(model, probe).items():
                course[name].append((_measure(x), _measure(x - first[name])))
        return course


def _compute_loss(experiment: Experiment, corpus: Corpus, model: Model, inputs: Any, targets: Any) -> Tensor:
    """Return the mean over all targets but padding, as in training."""
    loss = experiment.task.compute_loss(model, inputs, targets)
    if corpus.padded:
        task = experiment.task
        targeted = task.count_targets(inputs, targets)
        loss = loss * torch.where(targeted > 0, task.count_positions(inputs, targets) / targeted, 0.0)
    return loss


def _read_activations(model: Model, inputs: Any) -> dict[str, Tensor]:
    """Return the outputs of the embedding, of each layer, of its attention and its MLP before anything multiplies or
    norms them, of the final norm, and the logits; the embedding with what follows it in front of the first layer."""
    layers = Layers(model)
    with (
        torch.no_grad(),
        undisturbed(model),
        layers.record_states() as states,
        layers.record_outputs() as parts,
        _record_final_norm(model) as normed,
    ):
        logits = take_first(model(inputs))
    activations = {EMBEDDING: states[0]}
    for index, (state, own) in enumerate(zip(states[1:], parts, strict=True), start=1):
        activations |= {f"layer {index} {name}": x for name, x in own.items()}
        activations[f"layer {index}"] = state
    return {**activations, **normed, LOGITS: logits}


@contextmanager
def _record_final_norm(model: Model) -> Iterator[dict[str, Tensor]]:
    """Yield a dictionary that contains, after a pass, the output of the final norm, where the model has one."""
    normed: dict[str, Tensor] = {}

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        normed[FINAL_NORM] = output

    with ExitStack() as stack:
        for name in model.parts().get("final_norm", ()):
            if not isinstance(module := model.get_submodule(name), nn.Identity):
                stack.callback(module.register_forward_hook(keep).remove)
        yield normed


def _measure(x: Tensor) -> float:
    """Return the root mean square over all coordinates, of all tokens."""
    return x.float().square().mean().sqrt().item()
