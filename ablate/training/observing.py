"""The callbacks of `trainer.callbacks` in a run: observers are isolated from it, and their state is in checkpoints."""

from __future__ import annotations

import functools
import logging
import traceback
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ablate.config.errors import AblateError, ConfigError, Problem
from ablate.experiment.observers import CallbackConfig
from ablate.experiment.tree import Experiment
from ablate.training.runs import describe_error
from ablate.training.undisturbed import keep_random_states

logger = logging.getLogger(__name__)

CHECKED_EVERY = 100
"""Calls of a hook of each batch between two looks at the values of the weights; at every call it is looked at what was
written to."""
_NOT_FORWARDED = ("state_dict", "load_state_dict")
_HOOKS = tuple(
    name for name, hook in vars(Callback).items()
    if callable(hook) and not name.startswith("_") and name not in _NOT_FORWARDED
)  # fmt: skip
_OF_CHECKPOINTS = ("on_save_checkpoint", "on_load_checkpoint")
_OF_BATCHES = (
    "on_train_batch_start", "on_train_batch_end", "on_before_zero_grad", "on_before_backward", "on_after_backward",
    "on_before_optimizer_step",
)  # fmt: skip
_PLAIN = (type(None), bool, int, float, str)
"""What a checkpoint is loaded with again, besides tensors, lists, tuples and mappings: that runs no code."""


def build_callbacks(experiment: Experiment) -> list[Callback]:
    """Return the callbacks of `trainer.callbacks`, in their order. Raises ConfigError where one cannot be built."""
    built: list[Callback] = []
    problems = []
    for number, config in enumerate(experiment.trainer.callbacks):
        try:
            built.append(_wrap(config, number))
        except Exception as error:
            text = f"the callback {config.kind} cannot be built: {describe_error(error)}"
            problems.append(Problem(f"trainer.callbacks.{number}", text))
    if problems:
        raise ConfigError(problems)
    return built


def _wrap(config: CallbackConfig, number: int) -> Callback:
    key = f"trainer.callbacks.{number}: {config.kind}"
    if config.changes_training:
        return Changing(config.build(), config.kind, key)
    with keep_random_states():
        return Observer(config.build(), config.kind, key)


class Changing(Callback):
    """A callback that changes training, which its configuration declares: all hooks of `inner`, and its state under a
    key that no callback of ours has."""

    def __init__(self, inner: Callback, kind: str, key: str) -> None:
        if not isinstance(inner, Callback):
            raise TypeError(f"build() must return a lightning.pytorch.Callback, it is a {type(inner).__name__}")
        self.inner, self.kind, self._key = inner, kind, key
        for name in _HOOKS:
            if getattr(type(inner), name) is not getattr(Callback, name):
                setattr(self, name, functools.partial(self._call, name))

    @property
    def state_key(self) -> str:
        return self._key

    def state_dict(self) -> dict[str, Any]:
        state = self.inner.state_dict()
        if problem := _find_unloadable(state):
            raise AblateError(f"The state of the callback {self.kind} cannot be in a checkpoint: {problem}.")
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.inner.load_state_dict(state_dict)

    def _call(self, hook: str, *arguments: Any, **named: Any) -> Any:
        return getattr(self.inner, hook)(*arguments, **named)


class Observer(Changing):
    """A callback that observes. Random states are put back after each of its hooks.

    After each hook it is looked whether weights, gradients, the optimizer's state, the learning rate, the modes or the
    batch were written to (torch counts that), and now and then whether the weights have other values: then AblateError
    ends the run. An observer that raises an error itself is left out from there on, with a warning: a run does not
    depend on what looks at it.
    """

    def __init__(self, inner: Callback, kind: str, key: str) -> None:
        super().__init__(inner, kind, key)
        if names := [name for name in _OF_CHECKPOINTS if name in vars(self)]:
            raise TypeError(f"it has {names[0]}; an observer keeps its state by state_dict and load_state_dict")
        self._calls = dict.fromkeys(_HOOKS, 0)
        self.failure = ""
        """How it failed, if it did."""

    def state_dict(self) -> dict[str, Any]:
        try:
            return {} if self.failure else super().state_dict()
        except Exception as error:
            self._give_up("state_dict", error)
            return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        try:
            super().load_state_dict(state_dict)
        except Exception as error:
            self._give_up("load_state_dict", error)

    def _call(self, hook: str, *arguments: Any, **named: Any) -> None:
        if self.failure:
            return
        trainer: Trainer = arguments[0]
        module: LightningModule = arguments[1]
        calls, self._calls[hook] = self._calls[hook], self._calls[hook] + 1
        values = hook not in _OF_BATCHES or calls % CHECKED_EVERY == 0
        before = _note_state(trainer, module, arguments[2:], values)
        try:
            with keep_random_states([module.device] if module.device.type == "cuda" else ()):
                super()._call(hook, *arguments, **named)
        except Exception as error:
            self._give_up(hook, error)
        after = _note_state(trainer, module, arguments[2:], values)
        if changed := [what for what in before if before[what] != after[what]]:
            what = " and ".join(changed)
            text = f"The callback {self.kind} is an observer, and changed {what} in {hook}. If it is meant to, set "
            raise AblateError(f"{text}changes_training = True in its class: arms of a sweep then differ by it.")

    def _give_up(self, hook: str, error: Exception) -> None:
        last = traceback.extract_tb(error.__traceback__)[-1]
        self.failure = (
            f"the callback {self.kind} in {hook}: {describe_error(error)} ({last.filename}, line {last.lineno})"
        )
        logger.warning(f"\nAn observer failed and is left out from here on: {self.failure}. The run goes on.")


def _note_state(trainer: Trainer, module: LightningModule, arguments: Any, values: bool) -> Mapping[str, Any]:
    """Return what an observer may not change, by its name: counts of what was written to and, with `values`, the norms
    of the weights."""
    weights = [*module.parameters(), *module.buffers()]
    optimizers = trainer.optimizers if trainer.state.fn == "fit" else []
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    moments = [t for o in optimizers for state in o.state.values() for t in state.values() if isinstance(t, Tensor)]
    return {
        "the weights": [_count_writes(weights), _take_norms(weights) if values else None],
        "the gradients": [(id(p.grad), *_count_writes([p.grad])) for p in weights if p.grad is not None],
        "what is trained": [p.requires_grad for p in weights],
        "the modes of modules": [m.training for m in module.modules()],
        "the optimizer's state": _count_writes(moments),
        "the optimizer's settings": [{k: v for k, v in group.items() if k != "params"} for group in groups],
        "the batch": _count_writes(_list_tensors(arguments)),
        "the end of the run": [trainer.should_stop],
    }


def _count_writes(tensors: Iterable[Tensor]) -> list[tuple[int, int]]:
    """Return which tensors these are, and how often torch has written to each; it does not count where inference mode
    is on."""
    return [(id(tensor), -1 if tensor.is_inference() else tensor._version) for tensor in tensors]


def _take_norms(tensors: Iterable[Tensor]) -> list[bytes]:
    """Return the norms of what this rank has of the tensors, bit for bit."""
    with torch.no_grad():
        own = [t.to_local() if hasattr(t, "to_local") else t for t in tensors if t.is_floating_point()]
        there = [tensor.detach() for tensor in own if tensor.numel() and not tensor.is_meta]
        return [norm.double().cpu().numpy().tobytes() for norm in (torch._foreach_norm(there) if there else ())]


def _list_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, or of what a step has returned."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _list_tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _list_tensors(item)


def _find_unloadable(value: Any, path: str = "") -> str:
    """Return what in a state a checkpoint could not be loaded with; '' for nothing."""
    if type(value) in (dict, OrderedDict):
        items = [(f"{path}[{key!r}]", item) for key, item in value.items()]
        if odd := [key for key in value if not isinstance(key, (*_PLAIN, tuple))]:
            return f"the key {odd[0]!r} in {path or 'it'} is of the type {type(odd[0]).__name__}"
    elif type(value) in (list, tuple):
        items = [(f"{path}[{number}]", item) for number, item in enumerate(value)]
    else:
        if type(value) in _PLAIN or isinstance(value, Tensor):
            return ""
        accepted = "numbers, text, tensors, lists and mappings of them"
        return f"{path or 'it'} is of the type {type(value).__name__}. Accepted: {accepted}"
    return next(filter(None, (_find_unloadable(item, at) for at, item in items)), "")
