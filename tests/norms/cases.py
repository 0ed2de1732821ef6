"""What the tests of norms and models are parametrised over."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from ablate.models import list_families, models
from ablate.norms import initializations, norm_layers, placements
from ablate.norms.placement import STREAM

RESIDUAL = [family for family in list_families() if models[family].has_residuals]
"""The families that take placements; the others norm their summed inputs."""


CARRIERS = [kind for kind in placements if placements.parse(kind).carrier != STREAM]
"""The placements whose layers hand on more than one stream."""


def sensible(family, layer):
    """Whether a model family can have a norm layer; the others are refused by the configuration."""
    if family == "convpool":  # whose gains are along other features than its statistics
        return norm_layers[layer].per_feature or norm_layers[layer]().has_statistic
    return layer != "batchnorm" or models[family].task != "language_modeling"


def takes(family, kind):
    """Whether a model family can have a placement."""
    return kind != "ngpt" or "sphere" in models[family].honours


def list_placements(family):
    """The placements that a model family can have."""
    return [kind for kind in placements if takes(family, kind)] if models[family].has_residuals else ["summed_inputs"]


WIRED = [(family, kind) for family in RESIDUAL for kind in list_placements(family)]
"""(family, placement), of those with residual connections."""
NORMED = [kind for kind in placements if not placements.parse(kind).on_sphere]
"""The placements that have norms."""
WITHOUT = [
    ("sandwich_scaled", "none"),
    ("x0", "none"),
    *(("ngpt", layer) for layer in norm_layers if layer not in ("rmsnorm", "none")),
]
"""Placements without a norm: one is refused, the other begins with a stream so large that it explodes. One that has no
norms refuses all norm layers that are not the default."""
COMBINATIONS = [
    (family, kind, layer)
    for family in list_families()
    for kind in list_placements(family)
    for layer in norm_layers
    if sensible(family, layer) and (kind, layer) not in WITHOUT
]
"""(family, placement, norm layer)."""


def mark_rest(cases, few):
    """`cases`, of which all but the `few` are run by `make chaos` alone: a norm layer is computed alike wherever it
    stands."""
    return [case if case in few else pytest.param(*case, marks=pytest.mark.chaos) for case in cases]


EACH_ONCE = [case for case in COMBINATIONS if case[1] in ("pre", "summed_inputs") or case[2] == "rmsnorm"]
"""Of these every placement and every norm layer, for what costs more: a norm layer is computed again alike wherever it
stands."""
DAILY = [case for case in COMBINATIONS if case in EACH_ONCE or case[1] in ("post", "hc")]

INITS = [
    (family, init)
    for family in RESIDUAL
    for init in initializations
    if init != "scaled_embedding" or models[family].task == "language_modeling"
]
"""(family, initialisation)."""


_PROFILE = {"kind": "admin", "start": "profile"}
PROFILED = {"llama": {"norm": _PROFILE, "init": {"embedding_std": 1.0}}, "vit": {"norm": _PROFILE}}
"""Family -> settings in which the first batch sets the weights of the residual."""


def settings_of(kind, layer, **more):
    """Settings in which every part of a placement shows: a mix has layers of both kinds, pRMSNorm several features,
    and the weights are large."""
    settings = {"norm": kind, "norm.layer": layer, "init.std": 0.3}
    if kind == "mix":
        settings["norm.alpha"] = 0.5
    if kind == "by_depth":
        settings["norm.ranges"] = {"shallow": {"until": 0.5, "placement": "post"}, "deep": {"placement": "pre"}}
    if kind == "attnres":
        settings["norm.block"] = 1  # which divides every number of sublayers
    if layer == "prmsnorm":
        settings["norm.layer.p"] = 0.5
    if layer == "groupnorm":
        settings["norm.layer.groups"] = 2
    return settings | more


def shaken(model, by):
    """`model` with every parameter moved by noise of standard deviation `by`, so that no gain is 1 and no bias 0."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(by * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model


def gradients(model, logits):
    """The gradient of each parameter by a random sum of the logits."""
    model.zero_grad()
    weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1), dtype=logits.dtype)
    (logits * weight).sum().backward()
    return [p.grad.clone() for p in model.parameters()]


def check_recomputed(model, inputs):
    """Layers that are computed again in the backward pass give the same outputs and gradients."""
    plain = model(inputs)
    expected = gradients(model, plain)
    for block in model.blocks():
        forward = block.forward
        block.forward = lambda *args, f=forward: checkpoint(f, *args, use_reentrant=False)
    again = model(inputs)
    torch.testing.assert_close(again, plain, atol=1e-12, rtol=1e-12)
    for a, b in zip(gradients(model, again), expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)
