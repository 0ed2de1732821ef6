"""Whether task, model and data of an experiment go together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ablate.config.errors import Problem
from ablate.data import DataConfig, data_kinds
from ablate.models import ModelConfig, models
from ablate.norms import Initialization, Placement
from ablate.optim.optimizers import OptimizerConfig
from ablate.parametrizations import Parametrization, Scaled, validate_parametrization
from ablate.tasks import Task, tasks


def fit_task(task: Task, model: ModelConfig, data: DataConfig) -> list[Problem]:
    """Return what keeps `task` from being trained with `model` on `data`."""
    known = {part.kind: name for part, name in ((data, data.default_task), (model, model.task))}
    if unknown := [f"{kind} is for {name!r}" for kind, name in known.items() if name not in tasks]:
        return [Problem("task", f"{_join(unknown)}, and there is no such task. Accepted: {_join(tasks)}")]
    takes = tasks[model.task].inputs
    if tasks[data.default_task].inputs != takes:
        uses = (f"{kind} is for {_speak(name)}" for kind, name in known.items())
        fitting = [kind for kind in data_kinds if data_kinds[kind].task == model.task]
        return [Problem("data.kind", f"{', model '.join(uses)}. Accepted: {_join(fitting)}", data.kind)]
    if task.inputs != takes or not task.accepts(data):
        fitting = [kind for kind in tasks if tasks[kind].inputs == takes and tasks.parse(kind).accepts(data)]
        if task.inputs != takes:
            text = f"is for {task.inputs}, and model {model.kind} takes {takes}"
        else:
            text = f"cannot be learnt from data {data.kind}, whose targets are for {_speak(data.default_task)}"
        return [Problem("task.kind", f"{text}. Accepted: {_join(fitting)}", task.kind)]
    if task.needs_head and not model.takes_head:
        fitting = [kind for kind in models if models[kind].takes_head]
        text = f"takes no head of another task, and {_speak(task.kind)} needs its own. Accepted: {_join(fitting)}"
        return [Problem("model.kind", text, model.kind)]
    return task.validate(model, data)


def fit_parametrization(
    chosen: Parametrization,
    model: ModelConfig,
    norm: Placement,
    init: Initialization,
    optimizer: OptimizerConfig,
    task: Task,
    parts: Mapping[str, object],
) -> list[Problem]:
    """Return what keeps the parametrisation of an experiment from scaling it. `parts`: lora and align, if there are."""
    if not isinstance(chosen, Scaled):
        return []
    problems = validate_parametrization(chosen, model, norm, init)
    if not optimizer.scales:
        text = f"the learning rates of {chosen.kind} are for the updates of Adam and Muon. Accepted: adamw, adam, muon"
        problems.append(Problem("optimizer.kind", text, optimizer.kind))
    if task.needs_head:
        text = f"has a head of its own, for which {chosen.kind} has no rule"
        problems.append(Problem("task.kind", text, task.kind))
    for name, part in parts.items():
        if part is not None:
            text = f"trains a model whose size has been chosen, and {chosen.kind} is for training from the beginning"
            problems.append(Problem(name, f"{text}. Remove parametrization or {name}"))
    return problems


def _speak(task: str) -> str:
    return task.replace("_", " ")


def _join(names: Iterable[str]) -> str:
    return ", ".join(names)
