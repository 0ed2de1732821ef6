"""Checks of norm layers, on their own: [batch, tokens, features] -> the same."""

from __future__ import annotations

import torch
from torch import nn

from ablate.config.merging import merge
from ablate.diagnostics.checks.base import CheckFailedError, CheckSkippedError, Settings, add_check
from ablate.diagnostics.checks.subject import Precision, check_derivative, check_gradients, compare
from ablate.norms import NormLayer, norm_layers

DIM = 24
PART = "norm layer"


def _build(kind: str, settings: Settings) -> tuple[NormLayer, nn.Module]:
    """Return the configuration and its module in float64, with its parameters moved."""
    own = {key.removeprefix("norm.layer."): v for key, v in settings.items() if key.startswith("norm.layer.")}
    layer = norm_layers.parse(merge(norm_layers[kind], {"kind": kind}, own))
    if problems := layer.validate(DIM, causal=False):
        raise CheckFailedError(f"refuses {DIM} features: {problems[0]}")
    torch.manual_seed(1)
    module = layer.build(DIM).double()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.1 * torch.randn(p.shape, dtype=p.dtype))
    return layer, module


def _draw(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 3 + 1).to(dtype)


@add_check(PART, "formula")
def check_formula(kind: str, settings: Settings) -> str:
    """Compare with `reference` of the kind in float64, to 1e-10 or to the rounding of a type that it casts to."""
    layer, module = _build(kind, settings)
    if type(layer).reference is NormLayer.reference:
        raise CheckSkippedError("the class has no reference(x, weights)")
    x = _draw(2, 5, DIM)
    expected = layer.reference(x, dict(module.named_parameters()))
    with Precision() as precision:
        y = module(x)
    return f"differs by {compare(y, expected, 1e-10, 'module and reference', precision):.1g}{precision}"


@add_check(PART, "no future leak")
def check_causality(kind: str, settings: Settings) -> None:
    """Check that a causal model may have it: a token's output is a function of this token alone."""
    layer, module = _build(kind, settings)
    if layer.validate(DIM, causal=True):
        raise CheckSkippedError("it declares that causal models cannot use it")
    x = _draw(2, 5, DIM)
    changed = x.clone()
    changed[:, 3:] += 1
    compare(
        module(changed)[:, :3], module(x)[:, :3], 1e-12, "tokens before the changed ones, so that it sees later ones"
    )


@add_check(PART, "types")
def check_types(kind: str, settings: Settings) -> str:
    """Check that it returns the shape and type it is given, or the type of weights that are more precise, also under
    autocast, and finite values of large inputs."""
    _, module = _build(kind, settings)
    given = (torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16)
    told = ""
    for dtype, weights in (*given, (torch.bfloat16, torch.float32)):
        x = _draw(2, 5, DIM, dtype=dtype)
        y = module.to(weights)(x)
        if y.shape != x.shape or y.dtype not in (dtype, weights):
            raise CheckFailedError(f"makes {y.dtype} {list(y.shape)} of {x.dtype} {list(x.shape)}")
        told = "" if y.dtype == dtype else "makes float32 of bfloat16 where its weights are float32"
    with torch.autocast("cpu", torch.bfloat16):
        y = module.float()(_draw(2, 5, DIM, dtype=torch.bfloat16) * 200)
    if not y.isfinite().all():
        raise CheckFailedError("is not finite under autocast to bfloat16 on values of several hundred")
    return told


@add_check(PART, "gradients")
def check_gradient(kind: str, settings: Settings) -> str:
    """Compare its gradients with differences of its outputs."""
    _, module = _build(kind, settings)
    x = _draw(2, 3, DIM).requires_grad_()
    check_gradients(module, (module(x) * _draw(2, 3, DIM).sin()).sum())
    return check_derivative(module, x)


@add_check(PART, "compile")
def check_compiled(kind: str, settings: Settings) -> None:
    """Check that it is one graph for torch.compile."""
    _, module = _build(kind, settings)
    torch.compiler.reset()
    x = _draw(2, 5, DIM)
    with Precision() as precision:
        y = module(x)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)(x)
    compare(compiled, y, 1e-10, "compiled and eager", precision)


@add_check(PART, "meta device")
def check_meta(kind: str, settings: Settings) -> None:
    """Check that plans can trace it without memory."""
    layer, module = _build(kind, settings)
    with torch.device("meta"):
        bare = layer.build(DIM)
        bare(torch.empty(2, 5, DIM))
    if bare.state_dict().keys() != module.state_dict().keys():
        raise CheckFailedError("has other tensors on the meta device")
