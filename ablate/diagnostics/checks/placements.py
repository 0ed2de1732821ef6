"""Checks of placements, in a small model of each family that takes them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from ablate.config.errors import ConfigError
from ablate.diagnostics.checks.base import CheckFailedError, CheckSkippedError, Settings, add_check
from ablate.diagnostics.checks.models import check_counts, check_leak
from ablate.diagnostics.checks.subject import Precision, Subject, build_subject, check_gradients, compare
from ablate.models import list_families
from ablate.models.base import make_norm_factory
from ablate.norms import Placement, Site, placements
from ablate.norms.init import OUTPUTS

PART = "placement"


def _build(kind: str, settings: Settings) -> Iterator[Subject]:
    """Yield a subject of each family that takes the placement, with it in every layer."""
    refused = []
    for family in list_families():
        try:
            yield build_subject({"model.kind": family, "norm.kind": kind}, settings)
        except ConfigError as error:
            refused.append(f"{family}: {error.problems[0]}")
    if len(refused) == len(list_families()):
        raise CheckFailedError(f"no family takes it. {refused[0]}")


def _skip_without_residuals(kind: str) -> None:
    if placements.parse(kind).on_summed_inputs:
        raise CheckSkippedError("it wires no residual connections")


@add_check(PART, "formula")
def check_formula(kind: str, settings: Settings) -> str:
    """Compare a layer with `reference` of the kind in float64, to 1e-10 or the rounding of a type that it casts to."""
    for subject in _build(kind, settings):
        norm, depth = subject.experiment.norm, 4
        if type(norm).reference is Placement.reference:
            raise CheckSkippedError("the class has no reference(x, attn, mlp, norms, factors, layer, depth)")
        worst = 0.0
        new_norm = make_norm_factory(norm, 8)
        for index in range(depth):
            torch.manual_seed(1)
            sides = nn.ModuleList(norm.wire(Site(index, depth, 8, new_norm))).double()
            with torch.no_grad():
                for p in sides.parameters():
                    p.add_(0.1 * torch.randn(p.shape, dtype=p.dtype))
            attn, mlp = (nn.Sequential(nn.Linear(8, 8), nn.Tanh()).double() for _ in range(2))
            x = torch.randn(2, 5, 8, dtype=torch.float64)
            built: list[nn.Module] = [m for m in sides.modules() if type(m) is type(new_norm())]
            inside = {id(p) for m in built for p in m.parameters()}
            factors = [p for p in sides.parameters() if id(p) not in inside]
            expected = norm.reference(x, attn, mlp, built, factors, index + 1, depth)
            with Precision() as precision:
                y = sides[1](sides[0](x, attn), mlp)
            worst = max(worst, compare(y, expected, 1e-10, f"layer {index + 1} of {depth} and reference", precision))
        return f"differs by {worst:.1g}{precision}"
    raise CheckSkippedError("no family takes it")


@add_check(PART, "norms in each layer")
def check_norms(kind: str, settings: Settings) -> None:
    """Check that each family has the norms that the placement declares."""
    for subject in _build(kind, settings):
        check_counts(subject)


@add_check(PART, "no future leak")
def check_causality(kind: str, settings: Settings) -> None:
    """Check that no output of a causal model changes with later tokens."""
    for subject in _build(kind, settings):
        if subject.experiment.model.stack().causal:
            check_leak(subject)


@add_check(PART, "gradients")
def check_gradient(kind: str, settings: Settings) -> None:
    """Check that every parameter gets a finite gradient."""
    for subject in _build(kind, settings):
        model = subject.build_model()
        check_gradients(model, subject.compute_loss(model, subject.read_batch()))


@add_check(PART, "autocast")
def check_autocast(kind: str, settings: Settings) -> None:
    """Check that the loss in bfloat16 is close to that in float32."""
    for subject in _build(kind, settings):
        model, batch = subject.build_model(), subject.read_batch()
        exact = subject.compute_loss(model, batch)
        with torch.autocast("cpu", torch.bfloat16):
            rough = subject.compute_loss(model, batch)
        if not rough.isfinite() or (rough - exact).abs() > 0.1 * exact.abs().clamp(min=1):
            raise CheckFailedError(f"the loss is {rough:.4g} under autocast to bfloat16, and {exact:.4g} in float32")


@add_check(PART, "compile")
def check_compiled(kind: str, settings: Settings) -> None:
    """Check that a layer is one graph for torch.compile."""
    for subject in _build(kind, settings):
        torch.compiler.reset()  # earlier programs count against a limit
        model, (inputs, _) = subject.build_model(torch.float64).eval(), subject.read_batch(dtype=torch.float64)
        with Precision() as precision:
            expected = model(inputs)
        for block in model.blocks():
            block.compile(backend="aot_eager", fullgraph=True)
        compare(model(inputs), expected, 1e-10, "compiled and eager", precision)


@add_check(PART, "meta device")
def check_meta(kind: str, settings: Settings) -> None:
    """Check that plans can build it without memory, and that it then computes the same with the same weights: a factor
    that is neither a parameter nor a buffer is no tensor."""
    for subject in _build(kind, settings):
        corpus, model = subject.corpus, subject.build_model(torch.float64).eval()
        with torch.device("meta"):
            bare = subject.experiment.build_model(corpus.classes, corpus.shape)
        if bare.state_dict().keys() != model.state_dict().keys():
            raise CheckFailedError("the model has other tensors on the meta device")
        filled = bare.to_empty(device="cpu").double().eval()
        filled.load_state_dict(model.state_dict())
        for ours, theirs in zip(filled.buffers(), model.buffers(), strict=True):  # also those that no checkpoint has
            ours.copy_(theirs)
        inputs, _ = subject.read_batch(dtype=torch.float64)
        if not torch.equal(filled(inputs), model(inputs)):
            raise CheckFailedError("built on the meta device, it computes something else with the same weights")


@add_check(PART, "stochastic depth")
def check_drop(kind: str, settings: Settings) -> None:
    """Check that both branches of a layer pass through `site.drop()`."""

    _skip_without_residuals(kind)

    class Drop(nn.Identity):
        pass

    for subject in _build(kind, settings):
        norm = subject.experiment.norm
        for side in norm.wire(Site(0, 2, 8, make_norm_factory(norm, 8), Drop)):
            if not any(isinstance(module, Drop) for module in side.modules()):
                raise CheckFailedError("its wiring leaves out site.drop(): model.drop_path is refused with it")
    _check_dropped(kind, settings)


def _check_dropped(kind: str, settings: Settings) -> None:
    """Raise CheckFailedError if a ViT in training computes the same whether it drops most branches or none."""
    try:
        subjects = [
            build_subject({"model.kind": "vit", "norm.kind": kind, "model.drop_path": rate}, settings)
            for rate in (0.0, 0.9)
        ]
    except ConfigError:  # a placement that ViT does not take
        return
    whole, dropped = (subject.build_model().train() for subject in subjects)
    dropped.load_state_dict(whole.state_dict())
    inputs, _ = subjects[0].read_batch(8)
    torch.manual_seed(0)
    with torch.no_grad():
        if torch.equal(whole(inputs), dropped(inputs)):
            raise CheckFailedError("the branches do not pass through site.drop(): model.drop_path changes nothing")


@add_check(PART, "residual")
def check_residual(kind: str, settings: Settings) -> None:
    """Check that layers whose branches are zero hand their input on, in models whose outputs follow their own token."""
    _skip_without_residuals(kind)
    subjects = [subject for subject in _build(kind, settings) if subject.experiment.model.stack().causal]
    if not subjects:
        raise CheckSkippedError("no causal family takes it")
    for subject in subjects:
        model, (inputs, _) = subject.build_model().eval(), subject.read_batch(2)
        with torch.no_grad():
            for projection in model.projections():
                if projection.role in OUTPUTS and projection.layer is not None:
                    projection.weight.zero_()
            first, second = model(inputs)
        if torch.equal(first, second):
            raise CheckFailedError("with branches of zero no output depends on its token: the residual is lost")
