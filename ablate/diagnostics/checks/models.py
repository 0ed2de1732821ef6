"""Checks of model families: placements change what they declare, every parameter is trained once, plans are true."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ablate.config.errors import ConfigError
from ablate.config.formatting import count_noun
from ablate.diagnostics.checks.base import CheckFailedError, CheckSkippedError, Settings, add_check
from ablate.diagnostics.checks.subject import Precision, Subject, build_subject, check_gradients, compare
from ablate.estimate import flops
from ablate.models.base import list_tensors_by_part
from ablate.norms import NormLayer, Placement, Site, placements
from ablate.norms.residuals import Multiplier
from ablate.optim.scaling import check_places

PART = "model"


class MarkedNorm(nn.Module):
    """A norm that can be found in a model, whatever its own norm layer is: `x / rms(x) * weight`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.dim = nn.Parameter(torch.ones(dim)), dim

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, (self.dim,), self.weight)


class _Marked(NormLayer):
    """The configuration of `MarkedNorm`; it is not registered."""

    kind: Literal["marked"] = "marked"

    def build(self, dim: int) -> nn.Module:
        return MarkedNorm(dim)

    def build_statistic(self, dim: int) -> nn.Module:
        return MarkedNorm(dim)


def _subjects(kind: str, settings: Settings) -> dict[str, Subject]:
    """Return placement -> subject, of all placements that the family takes."""
    subjects, refused = {}, []
    for name in (*placements, *(name for name in placements.accepted if name not in placements.names)):
        try:
            subjects[name] = build_subject({"model.kind": kind, "norm.kind": name}, settings)
        except ConfigError as error:
            refused.append(str(error.problems[0]))
    if not subjects:
        raise CheckFailedError(f"takes no placement: {refused[0]}")
    return subjects


def check_counts(subject: Subject) -> None:
    """Raise CheckFailedError unless the layers and the ends of the model compute as many norms as the placement
    declares.

    A layer has those of its wiring, one before each output projection (`inner_norm`), and one for queries, keys and
    values each (`qkv_norm`), or for queries and keys (`norm.qk`). On summed inputs it has those that the model says it
    has of its own, each of which a recurrence may compute many times.
    """
    given = subject.experiment.norm
    if given.of_library:  # it declares nothing
        return
    norm: Placement = given.model_copy(update={"layer": _Marked(), **({"qk": _Marked()} if given.has_qk_norm else {})})
    experiment = subject.experiment.model_copy(update={"norm": norm})
    stack, corpus = experiment.model.stack(), subject.corpus
    torch.manual_seed(1)
    model: Any = experiment.build_model(corpus.classes, corpus.shape)
    calls: dict[int, int] = {}
    for module in model.modules():
        if isinstance(module, MarkedNorm):
            module.register_forward_hook(lambda m, *_: calls.update({id(m): calls.get(id(m), 0) + 1}))
    inputs, targets = subject.read_batch()
    subject.experiment.task.compute_loss(model, inputs, targets)
    inside, outside = experiment.model.count_own_norms()
    both = getattr(experiment.model, "sublayers", "both") == "both"
    for index, block in enumerate(model.blocks()):
        placed = norm.at(index, stack.depth)
        if placed.on_summed_inputs:
            _compare_counts(index, placed, sum(bool(calls.pop(id(m), 0)) for m in block.modules()), inside)
            continue
        site = Site(index, stack.depth, stack.hidden, lambda *_: MarkedNorm(stack.hidden))
        wiring = norm.wire(site) if both else (norm.wire_attn(site),)
        declared = sum(isinstance(m, MarkedNorm) for side in wiring for m in side.modules())
        declared += inside + (2 if both else 1) * placed.inner_norm + (3 if placed.qkv_norm else 2 * norm.has_qk_norm)
        _compare_counts(index, placed, sum(calls.pop(id(module), 0) for module in block.modules()), declared)
    first = norm.at(0, stack.depth)
    declared = first.embedding_norm + (norm.final_norm and not first.on_sphere) + outside
    declared += norm.at(stack.depth - 1, stack.depth).closing_norms if stack.depth else 0
    if (computed := sum(calls.values())) != declared:
        raise CheckFailedError(
            f"computes {computed} norms outside of its layers with placement {norm.kind}, which declares {declared} "
            "(embedding and final norm)"
        )


def _compare_counts(index: int, placed: Placement, computed: int, declared: int) -> None:
    if computed != declared:
        text = f"layer {index + 1} computes {computed} norms with placement {placed.kind}, which declares {declared}"
        raise CheckFailedError(text)


def check_leak(subject: Subject) -> None:
    """Raise CheckFailedError if an output of a causal model changes with later tokens, or with how many there are, or
    does not change with a token before it."""
    model = subject.build_model(torch.float64).eval()
    inputs, _ = subject.read_batch()
    length = inputs.shape[1]
    for place in (1, length // 2, length - 1):
        changed = inputs.clone()
        changed[:, place] = (inputs[:, place] + 1) % subject.corpus.classes
        with Precision() as precision:
            before, after, shorter = model(inputs), model(changed), model(inputs[:, :place])
        for other in (after[:, :place], shorter):
            compare(other, before[:, :place], 1e-10, "outputs depend on later tokens", precision)
        if not (before[:, place:] - after[:, place:]).abs().amax(-1).all():
            raise CheckFailedError("outputs do not depend on the tokens at all")


def check_items(subject: Subject) -> None:
    """Raise CheckFailedError if an output outside of training depends on the other items of its batch."""
    model = subject.build_model(torch.float64).eval()
    inputs, _ = subject.read_batch(dtype=torch.float64)
    with Precision() as precision:
        together = model(inputs)
    for row in range(len(inputs)):
        compare(
            model(inputs[row : row + 1])[0], together[row], 1e-10, "outputs depend on other items of a batch", precision
        )


@add_check(PART, "norms in each layer")
def check_norms(kind: str, settings: Settings) -> str:
    """Check with each placement that the family takes."""
    subjects = _subjects(kind, settings)
    for subject in subjects.values():
        check_counts(subject)
    left = [name for name in placements if name not in subjects]
    return count_noun(len(subjects), "placement") + (f"; refused: {', '.join(left)}" if left else "")


@add_check(PART, "placements differ")
def check_differences(kind: str, settings: Settings) -> None:
    """Check that no placement computes the same as Pre-LN but in name."""
    subjects = _subjects(kind, settings)
    if "pre" not in subjects:
        raise CheckSkippedError("it does not take pre")
    with torch.no_grad():
        outputs = {}
        for name, subject in subjects.items():
            inputs, _ = subject.read_batch(dtype=torch.float64)
            model = subject.build_model(torch.float64, updates=1).eval()  # what grows ends as another placement
            outputs[name] = model(inputs)
    same = [
        name for name in outputs if name not in ("pre", "library") and torch.allclose(outputs[name], outputs["pre"])
    ]
    if same:
        raise CheckFailedError(f"computes the same with {', '.join(same)} as with pre")


@add_check(PART, "no future leak")
def check_causality(kind: str, settings: Settings) -> None:
    """Check with each placement."""
    for name, subject in _subjects(kind, settings).items():
        if not subject.experiment.model.stack().causal:
            raise CheckSkippedError("stack() says that it is not causal")
        try:
            check_leak(subject)
        except CheckFailedError as error:
            raise CheckFailedError(f"with placement {name} {error}") from None


@add_check(PART, "items alone")
def check_alone(kind: str, settings: Settings) -> None:
    """Check with each placement that an item's outputs do not depend on its batch."""
    for subject in _subjects(kind, settings).values():
        check_items(subject)


@add_check(PART, "gradients")
def check_gradient(kind: str, settings: Settings) -> None:
    """Check with each placement that every trainable parameter gets a gradient."""
    for name, subject in _subjects(kind, settings).items():
        model = subject.build_model()
        try:
            check_gradients(model, subject.compute_loss(model, subject.read_batch()))
        except CheckFailedError as error:
            raise CheckFailedError(f"with placement {name} {error}") from None


@add_check(PART, "scaled")
def check_scaling(kind: str, settings: Settings) -> None:
    """Check that a family that says `scales` multiplies the input of its head, and its queries."""
    subject = build_subject({"model.kind": kind}, settings)
    if not subject.experiment.model.scales:
        raise CheckSkippedError("it does not say scales: it is refused with mup and complete_p")
    inputs, _ = subject.read_batch(dtype=torch.float64)
    for method, factor in (("scale_output", Multiplier(0.5)), ("scale_queries", 0.5)):
        model: Any = subject.build_model(torch.float64).eval()
        check_places(model)
        with torch.no_grad():
            before = model(inputs)
            getattr(model, method)(factor)
            after = model(inputs)
        if torch.allclose(before, after, rtol=1e-12, atol=0):
            raise CheckFailedError(f"computes the same after {method} with a factor of 0.5")


@add_check(PART, "trained once")
def check_training(kind: str, settings: Settings) -> None:
    """Check that every trainable parameter is in one group of the optimizer, and moves in an update."""
    check_updates(build_subject({"model.kind": kind, "optimizer.weight_decay": 0.0}, settings))


def check_updates(subject: Subject) -> None:
    """Raise CheckFailedError unless every trainable parameter is in one group of the optimizer, and two updates change
    it to finite values."""
    progress = subject.begin()
    check_groups(progress.model, progress.optimizer)
    before = {name: p.detach().clone() for name, p in progress.model.named_parameters()}
    subject.update(progress, 2)
    for name, p in progress.model.named_parameters():
        if p.requires_grad and torch.equal(p, before[name]):
            raise CheckFailedError(
                f"the parameter {name} of {subject.experiment.model.kind} does not change in training"
            )
        if not p.isfinite().all():
            raise CheckFailedError(f"the parameter {name} of {subject.experiment.model.kind} becomes infinite")


def check_groups(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise CheckFailedError unless every trainable parameter is in exactly one group of `optimizer`."""
    places: dict[int, int] = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            places[id(p)] = places.get(id(p), 0) + 1
    for name, p in model.named_parameters():
        if p.requires_grad and places.get(id(p), 0) != 1:
            raise CheckFailedError(f"the parameter {name} is in {places.get(id(p), 0)} groups of the optimizer")


@add_check(PART, "parts")
def check_parts(kind: str, settings: Settings) -> None:
    """Check that every tensor belongs to a part, and every projection is a weight of the model."""
    subject = build_subject({"model.kind": kind}, settings)
    model = subject.build_model()
    named = set().union(*list_tensors_by_part(model).values())
    if missing := sorted(set(model.state_dict()) - named):
        raise CheckFailedError(f"no part of parts() has {missing[0]}")
    storages = {p.untyped_storage().data_ptr() for p in model.parameters()}
    for projection in model.projections():
        if projection.weight.untyped_storage().data_ptr() not in storages:
            raise CheckFailedError(
                f"the projection {projection.role} of layer {projection.layer} is not a weight of the model"
            )


@add_check(PART, "resume")
def check_resume(kind: str, settings: Settings) -> None:
    """Check that 4 updates are 2 updates, a checkpoint and 2 more, bit for bit."""
    check_resumption(build_subject({"model.kind": kind}, settings))


def check_resumption(subject: Subject) -> None:
    """Raise CheckFailedError unless 4 updates give the same weights as 2 updates, a checkpoint and 2 more."""
    whole = subject.begin()
    subject.update(whole, 4)
    part = subject.begin()
    subject.update(part, 2)
    saved = part.save()
    rest = subject.begin()
    rest.restore(saved)
    subject.update(rest, 2)
    for (name, a), b in zip(whole.model.state_dict().items(), rest.model.state_dict().values(), strict=True):
        if not torch.equal(a, b):
            raise CheckFailedError(f"a resumed run has another {name} than an uninterrupted one")


@add_check(PART, "plan")
def check_plan(kind: str, settings: Settings) -> str:
    """Compare the parameters and FLOPs that a plan counts with those that torch counts in a forward pass."""
    subject = build_subject({"model.kind": kind}, settings)
    experiment, shape = subject.experiment, subject.corpus.shape
    model = subject.build_model().eval()
    counts = flops.count(model, shape)
    total = sum(p.numel() for p in model.parameters())
    if counts.total != total:
        raise CheckFailedError(f"the plan counts {counts.total:,} parameters, and the model has {total:,}")
    layers = sum(projection.weight.numel() for projection in model.projections() if projection.layer is not None)
    if (weights := experiment.model.layer_parameters()) != layers:
        raise CheckFailedError(f"layer_parameters() counts {weights:,} weights in the layers, and there are {layers:,}")
    inputs, _ = subject.read_batch(1)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        model(inputs)
    by_operation = {str(op): n for op, n in counter.get_flop_counts()["Global"].items()}
    attention = sum(n for op, n in by_operation.items() if "bmm" in op)
    matrices = sum(by_operation.values()) - attention
    items = experiment.task.count_items(shape)
    planned = experiment.model.attention_flops(shape) * items
    pairs = planned * (2 if experiment.model.stack().causal else 1)  # the plain kernel computes all pairs
    for what, measured, counted in (
        ("matrices", matrices, counts.forward_flops * items - planned),
        ("attention", attention, pairs),
    ):
        if abs(measured - counted) > 0.01 * max(counted, 1):
            raise CheckFailedError(f"the plan counts {counted:,.0f} FLOPs of {what}, and torch measures {measured:,}")
    return f"{total:,} parameters, {matrices:,} + {attention:,} FLOPs"
