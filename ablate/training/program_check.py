"""Whether the programs that torch compiles for a model compute what the model does: a fault of the compiler must not
become a result of a comparison.

torch 2.13 compiles some layers wrongly for processors. Where a batch has as many tokens as the model is wide, the
backward pass of DeepNorm in bfloat16 has no finite gradient, so that all seeds of one arm seem to diverge; other faults
give finite and wrong numbers (https://github.com/pytorch/pytorch/issues/196681).
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ablate.data import Corpus
from ablate.distributed import ranks
from ablate.experiment.extensions import restrict
from ablate.experiment.tree import Experiment
from ablate.models import Model
from ablate.parallel import strategies
from ablate.parallel.compiling import CompiledParts, describe_shapes, keep_programs
from ablate.parallel.sharing import sharing_of
from ablate.training.errors import translate_errors
from ablate.training.precision import Speed
from ablate.training.timing import compute_in, read_batches

LOSS_NOISE = 0.01
"""Share of the loss by which programs may differ in it. Rounding to bfloat16 changes it by some 1e-5."""
NOISE, FLOOR = 0.2, 2e-3
"""A gradient by a program may differ by this share of its norm, and by this share of the norm of the whole gradient.
Rounding to bfloat16 changes a gradient by up to 2 %; one that is close to zero by more."""
_faults: dict[Hashable, str] = {}

logger = logging.getLogger(__name__)


def check_programs(experiment: Experiment, corpus: Corpus, speed: Speed) -> Speed:
    """Return `speed`, without compiling where a processor's programs compute other gradients than the model.

    They are compared once in a process for each model. Programs of GPUs come from another compiler and are not
    compared, nor are those of sharded layers, which no rank has whole.
    """
    on_processor = not (torch.cuda.is_available() or torch.backends.mps.is_available())  # as Lightning decides it
    if speed.compile is not True or sharing_of(experiment.trainer) == "fsdp" or not on_processor:
        return speed
    usual = _take_usual_weights(experiment)
    frozen = usual.warm_start.freeze if usual.warm_start else ()
    key = (describe_shapes(usual), repr((usual.norm, usual.init, usual.parametrization, frozen)), speed.precision)
    if key not in _faults:
        with translate_errors():
            _faults[key] = find_fault(usual, corpus, speed.precision)
        if _faults[key]:
            logger.warning(f"Not compiled: {_faults[key]}")
    return replace(speed, compile=False, why=f"{speed.why}; eager after all: {_faults[key]}") if _faults[key] else speed


def _take_usual_weights(experiment: Experiment) -> Experiment:
    """Return the experiment of the same programs whose initial weights have their usual scale, and a seed of its own.

    A program does not depend on the weights. Rounding does: with large ones a deep model makes so much of it that
    right programs lie far apart. And what is found must not depend on which run of a process came first.
    """
    init = experiment.init.model_copy(update={"std": None, "embedding_std": None})
    return experiment.model_copy(update={"init": init, "seed": 0})


def find_fault(experiment: Experiment, corpus: Corpus, precision: str) -> str:
    """Return how the programs of an experiment's model differ from the model, in the loss of a batch and in its
    gradients; "" if they do not."""
    keep_programs(describe_shapes(experiment))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        model = experiment.build_model(corpus.classes, corpus.shape)
        restrict(model, experiment)
        if experiment.trainer.activation_checkpointing:
            strategies.checkpoint_activations(model)
        trainer = experiment.trainer
        if precision == "bf16-true":
            model.to(torch.bfloat16)
        part = trainer.model_copy(update={"batch_size": trainer.batch_size // ranks.world_size(), "num_workers": 0})
        batches = read_batches(
            experiment.model_copy(update={"trainer": part}), corpus, next(model.parameters()).device, precision
        )
        batch = next(batch for batch in batches if experiment.task.count_targets(*batch))
        model.train()
        eager = _measure(experiment, model, batch, precision, contextlib.nullcontext())
        compiled = _measure(experiment, model, batch, precision, CompiledParts(model).run())
    return _describe_difference(eager, compiled)


def _measure(
    experiment: Experiment,
    model: Model,
    batch: tuple[Any, Any],
    precision: str,
    context: contextlib.AbstractContextManager[None],
) -> dict[str, Tensor]:
    """Return the loss of a batch, and its gradient for each parameter that is trained. The model stays as it was."""
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[]), context, compute_in(precision, next(model.parameters()).device):
        loss = experiment.task.compute_loss(model, *batch)
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    with torch.no_grad():
        for buffer, value in buffers:
            buffer.copy_(value)
    known = {name: gradient for name, gradient in zip(parameters, gradients, strict=True) if gradient is not None}
    return {"the loss": loss.detach(), **known}


def _describe_difference(eager: Mapping[str, Tensor], compiled: Mapping[str, Tensor]) -> str:
    """Return the first difference that rounding does not explain, in words; "" if there is none."""
    norms = {name: float(value.double().norm()) for name, value in eager.items()}
    loss = norms.pop("the loss")
    whole = math.hypot(*norms.values())
    if not (math.isfinite(loss) and math.isfinite(whole)):
        return ""  # it would diverge without programs too
    bounds = {"the loss": LOSS_NOISE * loss, **{name: NOISE * norm + FLOOR * whole for name, norm in norms.items()}}
    for name, bound in bounds.items():
        difference = float((compiled[name].double() - eager[name].double()).norm()) if name in compiled else math.inf
        if not difference <= bound:
            what = name if name == "the loss" else f"the gradient of {name}"
            size = f"by {difference:.3g} of {float(eager[name].double().norm()):.3g}"
            how = size if math.isfinite(difference) else "and is no finite number"
            return f"torch compiles this model wrongly for this processor: {what} differs {how}"
    return ""
