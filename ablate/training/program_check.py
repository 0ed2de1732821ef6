"""The comparison of a compiled program with its model: a fault of the compiler must not become a result.

torch 2.13 compiles some layers wrongly for processors. Where a batch has as many tokens as the model is wide, the
backward pass of DeepNorm in bfloat16 has no finite gradient, so that all seeds of one arm seem to diverge; other faults
give finite and wrong numbers (https://github.com/pytorch/pytorch/issues/196681).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from ablate.config.errors import AblateError
from ablate.distributed import ranks
from ablate.training.random_states import keep_random_states

LOSS_NOISE = 0.01
"""Share of the loss by which programs may differ in it. Rounding to bfloat16 changes it by some 1e-5."""
NOISE, FLOOR = 0.2, 2e-3
"""A gradient by a program may differ by this share of its norm, and by this share of the norm of the whole gradient.
Rounding to bfloat16 changes a gradient by up to 2 %; one that is close to zero by more."""
CHAOS = 10.0
"""Multiple of the change that rounding the weights makes: a deep model with large weights amplifies it."""

Compute = Callable[[], Tensor]
"""Returns the loss of one batch."""


def check_program(model: nn.Module, eager: Compute, compiled: Compute, precision: str) -> None:
    """Compare loss and gradients of a batch by the `compiled` program with the `eager` ones. The model stays as it is.
    Each rank compares its own gradients or shards; all raise AblateError for a difference that rounding does not
    explain."""
    with keep_random_states(_list_devices(model)):
        fault = find_fault(model, eager, compiled, 2.0**-8 if "bf16" in precision else 2.0**-23)
    if fault := next(filter(None, ranks.gather_objects(fault)), ""):
        kind = next(model.parameters()).device.type
        device = "processor" if kind == "cpu" else "GPU"
        raise AblateError(
            f"torch compiles this model wrongly for this {device}: {fault}. Train it without: trainer.compile=false, "
            "in a sweep for all arms."
        )


def find_fault(model: nn.Module, eager: Compute, compiled: Compute, rounding: float) -> str:
    """Return the first difference between their numbers that rounding does not explain; "" if all agree. `rounding`:
    the relative change of a weight that is rounded."""
    with torch.compiler.set_stance("force_eager"):
        right = _measure(model, eager)
    found = _measure(model, compiled)
    fault = describe_difference(right, found, {})
    if fault:
        with torch.compiler.set_stance("force_eager"), _round_weights(model, rounding):
            rounded = _measure(model, eager)
        noise = {name: CHAOS * float((value - right[name]).norm()) for name, value in rounded.items()}
        fault = describe_difference(right, found, noise)
    return fault


def _measure(model: nn.Module, compute: Compute) -> dict[str, Tensor]:
    """Return the loss of a batch, and its gradient for each parameter that is trained, in float64 on the CPU."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng(_list_devices(model)):
        loss = compute()
    loss.backward()
    found = {"the loss": loss.detach()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[name] = getattr(parameter.grad, "to_local", lambda grad=parameter.grad: grad)()
            parameter.grad = None
    with torch.no_grad():
        for buffer, value in buffers:
            buffer.copy_(value)
    return {name: value.to("cpu", torch.float64) for name, value in found.items()}


@contextlib.contextmanager
def _round_weights(model: nn.Module, rounding: float) -> Iterator[None]:
    """Change each weight within this context by up to the share `rounding` of it, at random."""
    before = [(parameter, parameter.detach().clone()) for parameter in model.parameters()]
    with torch.no_grad(), torch.random.fork_rng(_list_devices(model)):
        for parameter, value in before:
            parameter.add_(value * torch.empty_like(value).uniform_(-rounding, rounding))
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in before:
                parameter.copy_(value)


def _list_devices(model: nn.Module) -> list[torch.device]:
    """Return the GPU of a model, whose random state is kept besides that of the processor."""
    return [parameter.device for parameter in model.parameters() if parameter.is_cuda][:1]


def describe_difference(eager: Mapping[str, Tensor], compiled: Mapping[str, Tensor], noise: Mapping[str, float]) -> str:
    """Return the first number of the program that differs by more than rounding allows, or by `noise`; "" if none
    does."""
    norms = {name: float(value.norm()) for name, value in eager.items()}
    loss = norms.pop("the loss")
    whole = math.hypot(*norms.values())
    if not (math.isfinite(loss) and math.isfinite(whole)):
        return ""  # it would diverge without programs too
    bounds = {"the loss": LOSS_NOISE * loss, **{name: NOISE * norm + FLOOR * whole for name, norm in norms.items()}}
    for name, bound in bounds.items():
        difference = float((compiled[name] - eager[name]).norm()) if name in compiled else math.inf
        if not difference <= max(bound, noise.get(name, 0.0)):
            what = name if name == "the loss" else f"the gradient of {name}"
            size = f"by {difference:.3g} of {float(eager[name].norm()):.3g}"
            return f"{what} differs {size if math.isfinite(difference) else 'and is not a finite number'}"
    return ""
