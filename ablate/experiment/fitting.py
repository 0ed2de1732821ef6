"""Checks that task, model, data and parametrisation of an experiment fit each other."""

from __future__ import annotations

from collections.abc import Mapping

from ablate.config.errors import Problem
from ablate.config.formatting import join_words
from ablate.data import DataConfig, data_kinds
from ablate.data.base import Documents
from ablate.models import ModelConfig, models
from ablate.models.attention_config import AttentionConfig, WithAttention
from ablate.norms import Initialization, Placement, initializations, placements
from ablate.optim.optimizers import OptimizerConfig
from ablate.optim.parametrizations import BaseSize, Parametrization, Scaled
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


def fit_documents(data: DataConfig, model: ModelConfig) -> list[Problem]:
    """Return the reasons why the documents of a window cannot be masked."""
    if not isinstance(data, Documents) or not data.mask_documents:
        return []
    if not model.masks_documents:
        fitting = ", ".join(kind for kind in models if models[kind].masks_documents)
        return [Problem("data.mask_documents", f"model {model.title} cannot mask documents. Accepted: {fitting}", True)]
    rows, apart = getattr(data, "layout", "packed") == "documents", getattr(data, "end_of_text", None) != "none"
    if rows or not apart:
        why = "each row is one document (layout=documents)" if rows else "no token separates them (end_of_text=none)"
        return [Problem("data.mask_documents", f"{why}, so that there is nothing to mask by: set it to false", True)]
    if isinstance(model, WithAttention) and model.attention.qk_clip is not None:
        text = "clips by logits of all tokens before, also of other documents: remove one of the two"
        return [Problem("model.attention.qk_clip", text, model.attention.qk_clip)]
    return []


_WITHOUT = "parametrization=standard"


def fit_parametrization(
    chosen: Parametrization,
    model: ModelConfig,
    norm: Placement,
    init: Initialization,
    optimizer: OptimizerConfig,
    task: Task,
    parts: Mapping[str, object],
) -> list[Problem]:
    """Return the reasons why the parametrisation cannot scale the experiment. `parts`: lora and align, None if not
    set."""
    if not isinstance(chosen, Scaled):
        return []
    problems = _validate_model(chosen, model, norm, init)
    if not optimizer.scales:
        text = f"the learning rates of {chosen.kind} are for the updates of Adam and Muon. Accepted: adamw, adam, muon"
        problems.append(Problem("optimizer.kind", text, optimizer.kind))
    if task.needs_head:
        fitting = (name for name in tasks if tasks[name].inputs == task.inputs and not tasks[name].needs_head)
        accepted = f"Accepted: {join_words(fitting, 'or')}; or {_WITHOUT}"
        text = f"has a head of its own, for which {chosen.kind} has no rule. {accepted}"
        problems.append(Problem("task.kind", text, task.kind))
    for name, part in parts.items():
        if part is not None:
            text = f"trains a model whose size has been chosen, and {chosen.kind} is for training from the beginning"
            problems.append(Problem(name, f"{text}. Remove parametrization or {name}"))
    return problems


def fit_sphere(
    norm: Placement,
    model: ModelConfig,
    init: Initialization,
    parametrization: Parametrization,
    parts: Mapping[str, object],
) -> list[Problem]:
    """Return what does not fit a placement by which all weights have length 1. `parts`: lora and align, None if not
    set."""
    kinds = [one.kind for one in norm.list_parts() if one.on_sphere]
    if not kinds or "sphere" not in model.honours:  # which is a problem of its own
        return []
    layers = [norm.at(index, model.layers) for index in range(max(1, model.layers))]
    attention = model.attention if isinstance(model, WithAttention) else AttentionConfig()
    gate, layer = attention.gate, norm.layer.kind
    lengths = "sets all weights to length 1, whatever size {} gives them. Accepted with it: {}"
    refused = [
        ("norm.kind", norm.kind, not all(one.on_sphere for one in layers), "is for all layers or for none"),
        (
            "norm.layer.kind",
            layer,
            layer not in ("rmsnorm", "none"),
            "has no norm layers. Accepted with it: rmsnorm (the default), none",
        ),
        ("norm.qk", norm.qk.kind, norm.has_qk_norm, "sets queries and keys to length 1 itself. Accepted with it: none"),
        ("model.attention.gate", gate, gate != "none", "has no rule for the weights of a gate. Accepted with it: none"),
        ("model.tie_embeddings", True, model.tied_weights(), "has a head of its own. Accepted with it: false"),
        ("init.kind", init.kind, init.kind != "normal", lengths.format("an initialisation", "normal")),
        (
            "parametrization.kind",
            parametrization.kind,
            isinstance(parametrization, Scaled),
            lengths.format("a parametrisation", "standard"),
        ),
    ]
    kept = "keeps the weights at length 1, which {} does not: remove it"
    refused += [(name, None, part is not None, kept.format(name)) for name, part in parts.items()]
    return [
        Problem(path, f"placement {kinds[-1]} {text}", value) for path, value, is_given, text in refused if is_given
    ]


def _validate_model(
    parametrization: Scaled, model: ModelConfig, norm: Placement, init: Initialization
) -> list[Problem]:
    """Return the problems of a parametrisation with a model, a placement and an initialisation; `path` is that in the
    experiment."""
    kind, base, stack = parametrization.kind, parametrization.base, model.stack()
    if not model.scales:
        accepted = ", ".join(name for name in models if models[name].scales)
        text = (
            f"{kind} needs to know the role of each matrix and places for its multipliers, and model {model.title} "
            f"does not say by `scales` that it has them. Accepted: {accepted}; or {_WITHOUT}"
        )
        return [Problem("parametrization.kind", text, kind)]
    problems = []
    if base.hidden > stack.hidden:
        problems.append(_refuse_base(base, "hidden", f"wider than the model, whose model.hidden is {stack.hidden}"))
    if parametrization.by_depth and base.layers > stack.depth:
        problems.append(_refuse_base(base, "layers", f"deeper than the model, whose model.layers is {stack.depth}"))
    if model.tied_weights():
        text = (
            f"the head has a multiplier with {kind}, which its matrix cannot hold where the embedding is the same one. "
            f"Set model.tie_embeddings=false, or {_WITHOUT}"
        )
        problems.append(Problem("model.tie_embeddings", text, True))
    if not _fits(type(init), parametrization):
        by = "width" if init.by_width else "depth"
        fitting = [name for name in initializations if _fits(initializations[name], parametrization)]
        text = f"scales the initial weights by the {by} itself, as {kind} does. Accepted with it: {', '.join(fitting)}"
        problems.append(Problem("init.kind", text, init.kind))
    layers = [norm.at(index, stack.depth) for index in range(stack.depth)]
    if parametrization.by_depth and (placed := next((one for one in layers if one.scales_by_depth()), None)):
        fitting = [
            name for name in placements if not (one := placements.parse(name)).scales_by_depth() and not one.on_sphere
        ]
        who = placed.kind if placed.kind == norm.kind else f"{placed.kind}, which some of its layers have,"
        usual = f" ({norm.kind} with its usual settings)" if norm.kind in fitting else ""
        text = (
            f"{who} scales residual or initial weights by the number of layers itself, as {kind} does. Accepted with "
            f"it: {', '.join(fitting)}{usual}; or take mup, which scales by the width alone"
        )
        problems.append(Problem("norm.kind", text, norm.kind))
    return problems


def _refuse_base(base: BaseSize, field: str, excess: str) -> Problem:
    """Return the problem of a base that is larger than the model; `excess` says in what."""
    path, size = f"parametrization.base.{field}", getattr(base, field)
    if field in base.model_fields_set:
        return Problem(path, f"is {excess}: a base is the smallest size", size)
    text = f"is not set, and its default, {size}, is {excess}. Set it to the smallest size, at which the settings were"
    return Problem(path, f"{text} found")


def _fits(init: type[Initialization], parametrization: Scaled) -> bool:
    return not (init.of_library or init.by_width or (parametrization.by_depth and init.by_depth))
