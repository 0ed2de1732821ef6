"""Checks that task, model and data of an experiment fit each other."""

from __future__ import annotations

from ablate.config.errors import Problem
from ablate.data import DataConfig, data_kinds
from ablate.models import ModelConfig, models
from ablate.tasks import Task, tasks


def fit_task(task: Task, model: ModelConfig, data: DataConfig) -> list[Problem]:
    """Return the reasons why `task` cannot be trained with `model` on `data`."""
    known = {part.kind: name for part, name in ((data, data.default_task), (model, model.task))}
    if unknown := [f"{kind} is for {name!r}" for kind, name in known.items() if name not in tasks]:
        return [Problem("task", f"{', '.join(unknown)}, and there is no such task. Accepted: {', '.join(tasks)}")]
    takes = tasks[model.task].inputs
    if tasks[data.default_task].inputs != takes:
        uses = (f"{kind} is for {_speak(name)}" for kind, name in known.items())
        fitting = [kind for kind in data_kinds if data_kinds[kind].task == model.task]
        return [Problem("data.kind", f"{', model '.join(uses)}. Accepted: {', '.join(fitting)}", data.kind)]
    if task.inputs != takes or not task.accepts(data):
        fitting = [kind for kind in tasks if tasks[kind].inputs == takes and tasks.parse(kind).accepts(data)]
        if task.inputs != takes:
            text = f"is for {task.inputs}, and model {model.kind} takes {takes}"
        else:
            text = f"cannot be learnt from data {data.kind}, whose targets are for {_speak(data.default_task)}"
        return [Problem("task.kind", f"{text}. Accepted: {', '.join(fitting)}", task.kind)]
    if task.needs_head and not model.takes_head:
        fitting = [kind for kind in models if models[kind].takes_head]
        text = f"takes no head of another task, and {_speak(task.kind)} needs its own. Accepted: {', '.join(fitting)}"
        return [Problem("model.kind", text, model.kind)]
    return task.validate(model, data)


def _speak(task: str) -> str:
    return task.replace("_", " ")
