"""The subjects of checks: small experiments, their batches, and a few updates without Lightning."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from ablate.config.errors import ConfigError
from ablate.data import Corpus, DataConfig
from ablate.diagnostics.checks.base import CheckFailedError, Settings
from ablate.experiment.tree import Experiment
from ablate.models import Model, models
from ablate.optim.optimizers import build_optimizer

SMALL: dict[str, Any] = {
    "model.layers": 4,
    "model.hidden": 16,
    "model.heads": 2,
    "init.std": 0.2,
    "trainer.max_steps": 8,
    "data.seq_len": 16,
}
"""A model that takes milliseconds, with weights so large that every part of it shows in its outputs."""
BATCH = 4
LATE = 10**9
"""Updates after which a model is checked: what a placement lets grow in training has grown."""


def load_anew(data: DataConfig) -> Corpus:
    """Return the corpus of `data`, read into a folder of its own, which is removed with the corpus."""
    folder = TemporaryDirectory(prefix="ablate-check-")
    corpus = data.load(Path(folder.name))
    weakref.finalize(corpus, folder.cleanup)
    return corpus


_load = lru_cache(maxsize=8)(load_anew)


@dataclass(frozen=True)
class Subject:
    """A small experiment and its data."""

    experiment: Experiment

    @cached_property
    def corpus(self) -> Corpus:
        """Its data, which is read into a folder of its own."""
        return _load(self.experiment.data)

    def build_model(self, dtype: torch.dtype = torch.float32, updates: int = LATE) -> Model:
        """Return the model after so many updates, with its initial weights moved a little, so that no gain is 1 and no
        bias 0."""
        torch.manual_seed(1)
        model = self.experiment.build_model(self.corpus.classes, self.corpus.shape).to(dtype)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.05 * torch.randn(p.shape, dtype=torch.float64).to(dtype))
        self.experiment.after_update(model, updates)
        return model

    def read_batch(self, size: int = BATCH, first: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
        """Return (inputs, targets) of validation samples, floats of the inputs in `dtype`."""
        inputs, targets = self.corpus.val.__getitems__(list(range(first, first + size)))
        return pytree.tree_map(lambda t: t.to(dtype) if t.is_floating_point() else t, inputs), targets

    def compute_loss(self, model: Model, batch: tuple[Any, Any]) -> Tensor:
        """Return the loss of the experiment's task."""
        return self.experiment.task.compute_loss(model, *batch)

    def iterate_batches(self, start: int) -> Iterator[tuple[Any, Any]]:
        """Yield training batches without end, from batch `start` on."""
        yield from self.corpus.train.batches(BATCH, self.experiment.seed, start_batch=start)

    def begin(self) -> Progress:
        """Return a run before its first update, with the weights that training starts from."""
        torch.manual_seed(self.experiment.seed)
        model = self.experiment.build_model(self.corpus.classes, self.corpus.shape)
        first, _ = next(self.iterate_batches(0))
        self.experiment.norm.prepare(model, lambda: first)
        self.experiment.after_update(model, 0)
        optimizer = build_optimizer(self.experiment.optimizer, model)
        return Progress(model, optimizer, self.experiment.schedule.build(optimizer, self.experiment.trainer.max_steps))

    def update(self, progress: Progress, updates: int) -> None:
        """Make so many further updates."""
        batches = self.iterate_batches(progress.step)
        progress.model.train()
        for _ in range(updates):
            step_by_closure(progress.optimizer, lambda: self.compute_loss(progress.model, next(batches)))
            progress.schedule.step()
            progress.step += 1
            self.experiment.after_update(progress.model, progress.step)


@dataclass
class Progress:
    """A run between two updates."""

    model: Model
    optimizer: torch.optim.Optimizer
    schedule: Any
    step: int = 0

    def save(self) -> dict[str, Any]:
        """Return the parts of it that a checkpoint stores."""
        parts = self.model.state_dict(), self.optimizer.state_dict(), self.schedule.state_dict()
        return copy.deepcopy({"parts": parts, "step": self.step, "random": torch.get_rng_state()})

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the state that `save` returned."""
        for part, saved in zip((self.model, self.optimizer, self.schedule), state["parts"], strict=True):
            part.load_state_dict(saved)
        self.step = state["step"]
        torch.set_rng_state(state["random"])


def step_by_closure(optimizer: Optimizer, compute_loss: Callable[[], Tensor]) -> float:
    """Make an update as Lightning does, by a closure that computes the loss and its gradients, and return the loss.
    Raises CheckFailedError if the optimizer does not call it."""
    losses: list[float] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = compute_loss()
        loss.backward()
        losses.append(float(loss.detach()))
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]  # torch says float, and Lightning returns a tensor
    if not losses:
        raise CheckFailedError("step(closure) does not call the closure, which computes the loss and its gradients")
    return losses[0]


def build_subject(*settings: Settings) -> Subject:
    """Return the subject of small settings under `settings`; what a kind of model or data does not have is left out."""
    given: dict[str, Any] = {}
    for mapping in settings:
        given |= mapping
    kind = models.kind_of({"kind": given.get("model.kind", models.default)})
    merged: dict[str, Any] = SMALL | given
    if kind and kind.example:  # whose sizes have other names
        example = {f"model.{key}": value for key, value in kind.example.items()}
        merged = {k: v for k, v in SMALL.items() if not k.startswith("model.")} | given
        merged |= {} if example.keys() & given.keys() else example
    try:
        return Subject(Experiment.from_mapping(merged))
    except ConfigError as error:
        unknown = {problem.path for problem in error.problems} & set(SMALL)
        if not unknown:
            raise
        return Subject(Experiment.from_mapping({k: v for k, v in merged.items() if k not in unknown}))


def build_first(candidates: Iterable[Settings], settings: Settings, hint: str) -> Subject:
    """Return the subject of the first of `candidates` that is a valid experiment under `settings`. Raises
    CheckFailedError with `hint` if none is."""
    refused = ""
    for candidate in candidates:
        try:
            return build_subject(candidate, settings)
        except ConfigError as error:
            refused = refused or str(error.problems[0])
    raise CheckFailedError(f"{hint}: {refused}")


class Precision(TorchDispatchMode):
    """Records the least precise floating type, `dtype`, of the computations within this context; float64 if all are."""

    def __init__(self) -> None:
        super().__init__()
        self.dtype = torch.float64

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [leaf.dtype for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        floating = [dtype for dtype in made if dtype.is_floating_point]
        self.dtype = max([self.dtype, *floating], key=lambda dtype: torch.finfo(dtype).eps)
        return result

    @property
    def eps(self) -> float:
        """The rounding of the type."""
        return torch.finfo(self.dtype).eps

    def __str__(self) -> str:
        """Return where it computes in less than float64: ", computed in float32"."""
        return "" if self.dtype == torch.float64 else f", computed in {str(self.dtype).removeprefix('torch.')}"


def compare(a: Tensor, b: Tensor, bound: float, what: str, precision: Precision | None = None) -> float:
    """Return the largest difference, relative to the largest value where that is above 1. Raises CheckFailedError above
    `bound`, or above what rounding may make of it at the `precision` at which it was computed."""
    difference = float((a - b).abs().max() / b.abs().max().clamp(min=1)) if a.numel() else 0.0
    if not difference <= max(bound, 16 * precision.eps if precision else 0.0):
        raise CheckFailedError(f"{what}: they differ by {difference:.2g}{precision or ''}")
    return difference


def check_gradients(module: nn.Module, loss: Tensor) -> None:
    """Raise CheckFailedError if a trainable parameter of `module` gets no gradient from `loss`, or an infinite one."""
    loss.backward()
    for name, p in module.named_parameters():
        if not p.requires_grad:
            continue
        if p.grad is None or not p.grad.any():
            raise CheckFailedError(f"the parameter {name} gets no gradient")
        if not p.grad.isfinite().all():
            raise CheckFailedError(f"the gradient of {name} is not finite")


def check_derivative(module: nn.Module, x: Tensor) -> str:
    """Compare the gradients of `module` at `x` with differences of its outputs, at the precision at which it computes,
    which is returned where it is not float64. Raises CheckFailedError.

    A norm does not change with the size of its input, and one that subtracts the mean not with its shift: a statistic
    that was left out of the gradient shows along these two directions.
    """
    names, weights = zip(*[("", x), *module.named_parameters()], strict=True)
    values = [value.detach().to(torch.float64) for value in weights]

    def function(*given: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names[1:], given[1:], strict=True)), (given[0],))

    with Precision() as precision:
        y = function(*values)
    jacobians = torch.autograd.functional.jacobian(function, tuple(values))
    step, bound = precision.eps ** (1 / 3), max(1e-3, 5 * precision.eps ** (2 / 3))  # where rounding and curvature meet
    generator = torch.Generator().manual_seed(3)
    random = [torch.randn(value.shape, generator=generator, dtype=value.dtype) for value in values]
    still = [torch.zeros_like(value) for value in values[1:]]
    for where, along in {
        "the size of its input": [values[0], *still],
        "a shift of its input": [torch.ones_like(values[0]), *still],
        "a random change of its input": [random[0], *still],
        "a random change of its parameters": [torch.zeros_like(x), *random[1:]],
    }.items():
        ends = [function(*(v + sign * step * a for v, a in zip(values, along, strict=True))) for sign in (1, -1)]
        measured = (ends[0] - ends[1]) / (2 * step)
        derived = sum(torch.tensordot(j, a, a.ndim) for j, a in zip(jacobians, along, strict=True))
        error = float((derived - measured).norm() / max(measured.norm(), y.norm()))
        if not error <= bound:
            text = f"its gradient is not the derivative of its output: along {where} they differ by {error:.2g}"
            raise CheckFailedError(f"{text}{precision}")
    return str(precision).removeprefix(", ")
