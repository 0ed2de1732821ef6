"""The optimizers of torch and timm: their names, their arguments, and the reasons for those that are not supported."""

from __future__ import annotations

import functools
import inspect
import json
import operator
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Union

import torch
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from torch import Tensor, nn
from torch.optim import Optimizer

from ablate.config.building import describe_errors
from ablate.config.errors import Problem, did_you_mean

_LONG = 20  # names that a message lists


class Arguments(BaseModel):
    """The arguments of an optimizer, read from JSON, whose lists are tuples where it wants these."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _join_members(problems: list[Problem]) -> list[Problem]:
    """Return `problems` with one for each argument that none of the members of its type, such as list[float], fits."""
    named = {
        problem.path.partition("[")[0].rpartition(".")[0] if "[" in problem.path else problem.path: problem
        for problem in reversed(problems)
    }
    return [replace(problem, path=path) for path, problem in reversed(named.items())]


def describe_class(cls: type[Any]) -> str:
    """Return the first line of a class's documentation without its closing mark and addresses."""
    lines = [line for line in (inspect.getdoc(cls) or "").splitlines() if line]
    return re.sub(r"`([^`<]+?) <[^>]*>`__", r"\1", lines[0]).rstrip(".") if lines else ""


_REFUSED = {
    "LBFGS": "it evaluates the loss several times per update; Ablate evaluates one batch once",
    "SparseAdam": "it accepts only sparse gradients, and all gradients of Ablate are dense",
    "Kron": "it draws random numbers that are not in its state, so that a resumed run would differ",
}
"""Class -> the reason why it is not supported."""
_SECOND_ORDER = "it needs second derivatives (create_graph), which Ablate does not compute"
_OTHER_PACKAGE = "it needs the package {} and a CUDA device, with which it has not been tested"
_UNSHARDED = {"Rprop"}  # classes that torch cannot give shards to (DTensor)
_TAKEN = {"self", "params", "lr", "weight_decay", "adamw_lr", "fallback_lr_scale"}
"""Arguments that are fields of the configuration."""
_UNUSED = {"maximize", "differentiable", "capturable"}
"""Arguments that are not supported."""


@dataclass(frozen=True)
class Entry:
    """One optimizer of a library."""

    cls: type[Optimizer] | None
    """None if its package is not installed."""
    text: str
    """A line about it."""
    refused: str | None
    """The reason why it is not supported; None if it is."""

    @property
    def is_muon(self) -> bool:
        """Whether it updates only matrices, so that other parameters need another optimizer."""
        return self.cls is not None and self.cls.__name__ == "Muon"

    @functools.cached_property
    def arguments(self) -> type[Arguments]:
        """The arguments that may be given, as fields with their types."""
        assert self.cls is not None
        fields: dict[str, Any] = {
            name: (_type_of(parameter), parameter.default)
            for name, parameter in inspect.signature(self.cls.__init__, eval_str=True).parameters.items()
            if name not in _TAKEN | _UNUSED
        }
        model: type[Arguments] = create_model(self.cls.__name__, __base__=Arguments, **fields)
        return model

    @property
    def has_weight_decay(self) -> bool:
        """Whether it takes weight decay."""
        return self.cls is not None and "weight_decay" in inspect.signature(self.cls.__init__).parameters


def _type_of(parameter: inspect.Parameter) -> Any:
    """Return the type of an argument in a configuration: as annotated, or that of its default."""
    if parameter.annotation is not parameter.empty:
        return _without_objects(parameter.annotation)
    default = parameter.default
    if default is None or default is parameter.empty:
        return Any
    if isinstance(default, tuple):
        return tuple[(float,) * len(default)]  # type: ignore[misc]
    return float if type(default) is int else type(default)  # weight_decay=0


def _without_objects(annotation: Any) -> Any:
    """Return `annotation` without types that a configuration cannot hold: tensors and number types."""
    origin, members = typing.get_origin(annotation), typing.get_args(annotation)
    if not members:
        return annotation
    kept = tuple(_without_objects(member) for member in members if member not in (Tensor, torch.dtype))
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, kept)
    return origin[kept]


class Library:
    """The optimizers of one library by name."""

    name: str
    """As it stands in messages."""

    @functools.cached_property
    def entries(self) -> Mapping[str, Entry]:
        """All that the library has, in its order."""
        raise NotImplementedError

    def create(self, name: str, groups: list[dict[str, Any]], lr: float, arguments: Mapping[str, Any]) -> Optimizer:
        """Return the optimizer of parameter `groups`, each of which has its weight decay."""
        raise NotImplementedError

    @property
    def accepted(self) -> list[str]:
        """The supported names."""
        return [name for name, entry in self.entries.items() if entry.refused is None]

    def validate_name(self, name: str) -> list[Problem]:
        """Return the problems of the name."""
        if entry := self.entries.get(name):
            return [Problem("name", f"cannot be used here: {entry.refused}", name)] if entry.refused else []
        near = {known.lower(): known for known in self.accepted}
        hint = did_you_mean(name.lower(), near)
        listed = ", ".join(self.accepted) if len(near) <= _LONG else "what `ablate list library-optimizers` lists"
        meant = f" Did you mean {near[hint.split()[-1][:-1]]}?" if hint else ""
        return [Problem("name", f"{self.name} has no such optimizer. Accepted: {listed}.{meant}", name)]

    def validate_arguments(self, name: str, arguments: Mapping[str, Any]) -> list[Problem]:
        """Return the problems of the arguments of the supported optimizer `name`: of their names and types, and the
        error that the optimizer raises when it is created and updates a matrix."""
        known = list(self.entries[name].arguments.model_fields)
        text = f"{name} of {self.name} has no such argument. Accepted: {', '.join(known) or 'nothing'}."
        problems = [
            Problem(key, f"{text}{did_you_mean(key, known)}", value)
            for key, value in arguments.items()
            if key not in known
        ]
        try:
            self.convert(name, {key: value for key, value in arguments.items() if key in known})
        except ValidationError as error:
            problems += _join_members(describe_errors(self.entries[name].arguments, dict(arguments), error))
        return problems or [*_try(self, name, json.dumps(dict(arguments), default=str))]

    def convert(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the optimizer takes them: lists become tuples if its type is a tuple. Raises
        ValidationError."""
        values = self.entries[name].arguments.model_validate_json(json.dumps(dict(arguments), default=str))
        return {key: getattr(values, key) for key in arguments}

    def can_shard(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Return whether the update of each weight depends on it alone, so that shards can be updated separately."""
        cls = self.entries[name].cls
        return (
            cls is not None
            and cls.__name__ not in _UNSHARDED
            and _compare_shards(self, name, json.dumps(dict(arguments)))
        )


@functools.lru_cache(maxsize=256)
def _try(library: Library, name: str, arguments: str) -> tuple[Problem, ...]:
    """Return the error that the optimizer raises for its arguments when it is created and updates a matrix."""
    weight = nn.Parameter(torch.linspace(-1, 1, 64).view(8, 8))
    try:
        _step(library, name, arguments, [weight], [torch.ones(8, 8)])
    except Exception as error:  # whatever the library raises: the arguments are the cause
        text = f"{name} of {library.name} refuses its arguments: {error}"
        return (Problem("", text, json.loads(arguments)),)
    return ()


@functools.lru_cache(maxsize=256)
def _compare_shards(library: Library, name: str, arguments: str) -> bool:
    """Return whether updating the two halves of a matrix separately gives the same values as updating the matrix."""
    start = torch.linspace(1, 20, 24 * 20).sqrt().mul(9).sin().view(24, 20)
    upper, lower = start.chunk(2)
    lower.pow_(3)  # halves that differ also in the size of their numbers
    # the whole gradient is orthogonal to the weights, its halves are not: some project such a one (AdamP)
    gradients = [
        torch.cat([upper, -lower * upper.square().sum() / lower.square().sum()]),
        *(torch.linspace(0, 9 + n, 24 * 20).cos().view(24, 20) for n in range(5)),
    ]
    whole = nn.Parameter(start.clone())
    halves = [nn.Parameter(half.clone()) for half in start.chunk(2)]
    _step(library, name, arguments, [whole], *([gradient] for gradient in gradients))
    _step(library, name, arguments, halves, *(list(gradient.chunk(2)) for gradient in gradients))
    moved, sharded = whole.detach() - start, torch.cat([half.detach() for half in halves]) - start
    return bool((moved - sharded).abs().max() <= 1e-3 * moved.abs().max())


def _step(library: Library, name: str, arguments: str, weights: list[nn.Parameter], *gradients: list[Tensor]) -> None:
    """Update `weights` once for each list of `gradients`."""
    settings = library.convert(name, json.loads(arguments))
    optimizer = library.create(name, [{"params": weights, "weight_decay": 0.1}], 1e-2, settings)
    for step in gradients:
        for weight, gradient in zip(weights, step, strict=True):
            weight.grad = gradient
        optimizer.step()


class TorchLibrary(Library):
    """`torch.optim`."""

    name = "torch"

    @functools.cached_property
    def entries(self) -> Mapping[str, Entry]:
        classes = {name: cls for name, cls in vars(torch.optim).items() if inspect.isclass(cls)}
        return {
            name: Entry(cls, describe_class(cls), _REFUSED.get(name))
            for name, cls in sorted(classes.items())
            if issubclass(cls, Optimizer) and cls is not Optimizer
        }

    def create(self, name: str, groups: list[dict[str, Any]], lr: float, arguments: Mapping[str, Any]) -> Optimizer:
        cls: Any = self.entries[name].cls
        optimizer: Optimizer = cls(groups, lr=lr, **arguments)
        return optimizer


class TimmLibrary(Library):
    """timm's registry of optimizers, with some of torch's under other defaults."""

    name = "timm"

    @functools.cached_property
    def entries(self) -> Mapping[str, Entry]:
        from timm.optim import get_optimizer_info, list_optimizers

        entries = {}
        for name in list_optimizers():
            info = get_optimizer_info(name)
            if isinstance(info.opt_class, str):
                package = info.opt_class.partition(".")[0]
                entries[name] = Entry(None, info.description, _OTHER_PACKAGE.format(package))
            else:
                reason = _SECOND_ORDER if info.second_order else _REFUSED.get(info.opt_class.__name__)
                entries[name] = Entry(info.opt_class, info.description, reason)
        return entries

    def create(self, name: str, groups: list[dict[str, Any]], lr: float, arguments: Mapping[str, Any]) -> Optimizer:
        from timm.optim import create_optimizer_v2

        optimizer: Optimizer = create_optimizer_v2(groups, opt=name, lr=lr, **arguments)
        return optimizer


TORCH, TIMM = TorchLibrary(), TimmLibrary()
