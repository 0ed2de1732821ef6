"""Tracing one training step of a model without values, with every tensor that it allocates and frees.

The step runs through our own model code and torch's autograd on tensors that have shapes and storages but no memory:
those of the meta device, or, under autocast, which the meta device does not have, fake tensors of the CPU. So
whatever a placement, a norm layer or a sublayer keeps for the backward pass is counted as torch keeps it, and storages
that tensors share are counted once. Kernels that differ on a GPU, or that the meta device lacks, are replaced.

Equal layers are traced a few times and repeated in the result, so that the time does not grow with the depth.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from ablate.models import Model, head
from ablate.tasks import Task

LABELS = ("casts", "gradients", "activations", "logits", "temporary")
_INDEX = "layer_idx"  # by which transformers numbers layers, for a cache of keys and values
KEPT = 4  # equal neighbouring layers that are traced; the second of them stands for all others


@dataclass(frozen=True)
class Timeline:
    """The tensors that a step allocates and frees, in order."""

    bytes: NDArray[np.float64]
    """Change of the allocated bytes by each event."""
    label: NDArray[np.int64]
    """The index in `LABELS` of the event's subject."""
    backward: int
    """The first event of the backward pass."""


@dataclass(frozen=True)
class Step:
    """The step to trace."""

    task: Task
    shape: tuple[int, ...]
    """Shape of one input."""
    classes: int
    precision: str
    """32-true, bf16-mixed (autocast) or bf16-true (bfloat16 parameters)."""
    checkpointing: bool
    in_parts: bool = False
    """Whether the logits of a language model are computed in chunks, or all at once; see `ablate.models.head`."""
    gpu: bool = True
    """Whether to trace the kernels of a GPU, or of the CPU."""


class _Tracker(TorchDispatchMode):
    """Records every storage that is allocated, and when it is freed."""

    def __init__(self, model: nn.Module, classes: int) -> None:
        super().__init__()
        self.events: list[tuple[int, int]] = []  # (number of the storage, bytes; negative where it goes)
        self.labels: list[str] = []  # of each storage, until the end of the forward pass
        self.classes = classes
        self.forward_pass = True
        self.live: dict[int, int] = {}
        self.parameters = {p.untyped_storage()._cdata for p in model.parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.see(tensor, func, args)
        return result

    def see(self, tensor: Tensor, func: Any = None, args: Any = ()) -> None:
        """Notes the storage of a tensor that `func` made of `args`, if it is new."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.live or key in self.parameters or not size:
            return
        number = len(self.labels)
        cast = func is torch.ops.aten._to_copy.default and args[0].untyped_storage()._cdata in self.parameters
        wide = tensor.ndim >= 2 and tensor.shape[-1] == self.classes
        self.labels.append("casts" if cast else "logits" if wide else "made" if self.forward_pass else "temporary")
        self.live[key] = number
        self.events.append((number, size))
        weakref.finalize(storage, self._gone, key, number, size).atexit = False

    def _gone(self, key: int, number: int, size: int) -> None:
        if self.live.get(key) == number:
            del self.live[key]
        self.events.append((number, -size))

    def turn(self) -> int:
        """End the forward pass, whose remaining tensors are activations. Return the number of events so far."""
        self.forward_pass = False
        held = set(self.live.values())
        for number, label in enumerate(self.labels):
            if label == "made":
                self.labels[number] = "activations" if number in held else "temporary"
        return len(self.events)


class _FusedRMSNorm(torch.autograd.Function):
    """The tensors that torch's RMSNorm kernel for GPUs makes and keeps; the CPU uses several kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, x.new_empty((*x.shape[:-1], 1)))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class _Kernels(TorchFunctionMode):
    """Puts in the kernels of a real device: fused attention, which keeps its inputs, its output and one float32 for
    each query, on the CPU as on a GPU; and the RMSNorm of a GPU."""

    def __init__(self, gpu: bool) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and args[0].is_meta:
            causal: bool = kwargs.get("is_causal", False)
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*args[:3], 0.0, causal)[0]
        if self.gpu and func is F.rms_norm and len(args) > 2 and args[2] is not None:
            return _FusedRMSNorm.apply(args[0], args[2])
        return func(*args, **kwargs)


def trace(model: Model, step: Step, batch: int) -> Timeline:
    """Return the timeline of one forward and backward pass of `model`, on any device, over `batch` inputs."""
    without_memory: contextlib.AbstractContextManager[Any] = torch.device("meta")
    if step.precision == "bf16-mixed":
        from torch._subclasses.fake_tensor import FakeTensorMode  # takes a second, and is several times slower

        without_memory = FakeTensorMode()
    with without_memory, shorten_layers(model, step.precision) as runs:
        inputs, targets = step.task.build_batch(batch, step.shape, step.classes)
        if step.precision == "bf16-true":
            inputs = tree_map(lambda tensor: tensor.bfloat16() if tensor.is_floating_point() else tensor, inputs)
        return _record(model, step, inputs, targets, runs)


def _record(model: Model, step: Step, inputs: Any, targets: Any, runs: list[tuple[int, int]]) -> Timeline:
    tracker = _Tracker(model, step.classes)
    forward: list[int] = []  # the event before each layer, and that behind the last
    backward: list[int] = []  # the same of the backward pass: the event before the last layer, ..., behind the first
    layers = list(model.blocks())

    known: list[weakref.ref[Tensor]] = []  # of earlier states, parts of which are handed on

    def enter(block: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        forward.append(len(tracker.events))
        mark(args[0])
        return args

    def leave(block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        forward.append(len(tracker.events))
        mark(output)

    def mark(state: Any) -> None:
        parts = [tensor for tensor in tree_leaves(state) if isinstance(tensor, Tensor)]
        new = [tensor for tensor in parts if not any(tensor is one() for one in known)]
        known.extend(weakref.ref(tensor) for tensor in new)
        if new[-1].requires_grad:  # it does not where all before it is frozen
            new[-1].register_hook(lambda _: backward.append(len(tracker.events)))

    with contextlib.ExitStack() as stack:
        handles = [layer.register_forward_pre_hook(enter) for layer in layers]
        handles += [layer.register_forward_hook(leave) for layer in layers[-1:]]
        for handle in handles:
            stack.callback(handle.remove)
        stack.callback(setattr, head, "LOGITS", head.LOGITS)
        head.LOGITS = head.LOGITS if step.in_parts else sys.maxsize
        if step.checkpointing:
            stack.enter_context(checkpoint_layers(layers, step.gpu))
        stack.enter_context(tracker)
        for tensor in tree_leaves((inputs, targets)):
            tracker.see(tensor)
        stack.enter_context(_Kernels(step.gpu))
        with torch.autocast("cpu", torch.bfloat16, enabled=step.precision == "bf16-mixed"):
            value = step.task.compute_loss(model, inputs, targets)
        turn = tracker.turn()
        value.backward()
        backward += [len(tracker.events)] * (len(forward) - len(backward))
        gradients = {p.grad.untyped_storage()._cdata for p in model.parameters() if p.grad is not None}
        for key in gradients & set(tracker.live):
            tracker.labels[tracker.live[key]] = "gradients"
        events = list(tracker.events)
    for parameter in model.parameters():
        parameter.grad = None
    sizes = np.array([size for _, size in events], dtype=np.float64)
    number = np.array([number for number, _ in events])
    labels = np.array([LABELS.index(label) for label in tracker.labels])
    return _repeat_layers(Timeline(sizes, labels[number], turn), number, forward, backward, runs)


def _repeat_layers(
    timeline: Timeline, number: NDArray[np.int64], forward: list[int], backward: list[int], runs: list[tuple[int, int]]
) -> Timeline:
    """Return the timeline with the layers that were left out: `runs` has (layer that stands for them, how many).
    `number` is the storage of each event; `forward` and `backward` are the events between the layers."""
    sizes = timeline.bytes.copy()
    pieces: list[tuple[int, int, int]] = []  # (from, to, how often more)
    for layer, more in runs:
        start, end = forward[layer], forward[layer + 1]
        pieces.append((start, end, more))
        behind = len(forward) - 2 - layer  # layers, which come before it
        pieces.append((backward[behind], backward[behind + 1], more))
        # What all layers hold until the forward pass ends, such as autocast's copies of weights, goes for all at once.
        held = np.isin(number, number[start:end][timeline.bytes[start:end] > 0])
        held[: forward[-1]] = held[backward[0] :] = False
        sizes[held] *= 1 + more
    index: list[NDArray[np.int64]] = []
    last = added = 0
    for start, end, more in sorted(pieces):
        index += [np.arange(last, end), *[np.arange(start, end)] * more]
        added += (end - start) * more if end <= timeline.backward else 0
        last = end
    whole = np.concatenate([*index, np.arange(last, len(sizes))])
    return Timeline(sizes[whole], timeline.label[whole], timeline.backward + added)


@contextlib.contextmanager
def shorten_layers(model: Model, precision: str) -> Iterator[list[tuple[int, int]]]:
    """Take memory from `model` and leave `KEPT` of each run of equal layers; yields the layers that stand for others,
    by their new index, and for how many."""
    container = model.blocks()
    layers = list(container)
    kept: list[nn.Module] = []
    runs: list[tuple[int, int]] = []
    whole = model.placement is not None and not model.placement.spares_layers  # each layer reads all before it
    for _, group in groupby(layers, key=id if whole else _describe_module):
        run = list(group)
        if len(run) > KEPT:
            runs.append((len(kept) + 1, len(run) - KEPT))
        kept += run[:KEPT]
    before = [(module, dict(module._parameters), dict(module._buffers)) for module in model.modules()]
    container._modules = {str(i): layer for i, layer in enumerate(kept)}
    dtype = torch.bfloat16 if precision == "bf16-true" else None
    copies: dict[int, nn.Parameter] = {}  # a parameter may have two places
    try:
        for module in model.modules():
            for name, p in module._parameters.items():
                if p is not None:
                    fresh = copies.setdefault(
                        id(p), nn.Parameter(torch.empty(p.shape, dtype=dtype or p.dtype), requires_grad=p.requires_grad)
                    )
                    module._parameters[name] = fresh
            for name, b in module._buffers.items():
                module._buffers[name] = None if b is None else torch.empty(b.shape, dtype=b.dtype)
        yield runs
    finally:
        container._modules = {str(i): layer for i, layer in enumerate(layers)}
        for module, parameters, buffers in before:
            module._parameters, module._buffers = parameters, buffers


def _describe_module(module: nn.Module) -> Any:
    """Return a key that is equal for two modules that make and keep the same tensors. Factors only count as 0, 1 or
    another."""
    plain = {
        name: (value if value in (0.0, 1.0) else "factor") if isinstance(value, float) else value
        for name, value in vars(module).items()
        if isinstance(value, (bool, int, float, str)) and not name.startswith("_") and name != _INDEX
    }
    shapes = {name: (tuple(p.shape), p.requires_grad) for name, p in module.named_parameters(recurse=False)}
    return type(module), plain, shapes, [(name, _describe_module(child)) for name, child in module.named_children()]


@contextlib.contextmanager
def checkpoint_layers(
    layers: list[nn.Module], gpu: bool = False, counters: Sequence[AbstractContextManager[Any]] = ()
) -> Iterator[None]:
    """Let each layer keep only its inputs and compute the rest again in the backward pass, where torch does not apply
    function modes; within the `counters`, one for each layer, if there are any."""

    def again(forward: Callable[..., Any], counter: AbstractContextManager[Any]) -> Callable[..., Any]:
        @contextlib.contextmanager
        def recompute() -> Iterator[None]:
            with _Kernels(gpu), counter:
                yield

        settings: Any = {"context_fn": lambda: (contextlib.nullcontext(), recompute())}
        return lambda *args, **more: checkpoint(
            functools.partial(forward, **more), *args, use_reentrant=False, preserve_rng_state=False, **settings
        )

    for layer, counter in zip(layers, counters or [contextlib.nullcontext()] * len(layers), strict=True):
        vars(layer)["forward"] = again(layer.forward, counter)
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["forward"]


def count_recomputed(model: Model, task: Task, shape: tuple[int, ...], classes: int) -> float:
    """Return the FLOPs of matrix products, but for those within attention, that activation checkpointing computes again
    for one input of `shape`: torch ends at the last tensor that a layer keeps, in Pre-LN before its last product."""
    without: Any = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda *args, **more: 0}
    with torch.device("meta"), shorten_layers(model, "32-true") as runs:
        layers = list(model.blocks())
        counters = [FlopCounterMode(display=False, custom_mapping=without) for _ in layers]
        inputs, targets = task.build_batch(1, shape, classes)
        with checkpoint_layers(layers, counters=counters), _Kernels(gpu=False):
            task.compute_loss(model, inputs, targets).backward()
        for parameter in model.parameters():
            parameter.grad = None
    more = dict(runs)
    return float(sum(counter.get_total_flops() * (1 + more.get(i, 0)) for i, counter in enumerate(counters)))
