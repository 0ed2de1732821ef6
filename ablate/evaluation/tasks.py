"""Tasks of lm-evaluation-harness, with the data of the hub or of local files."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ablate.config.errors import AblateError, DataError
from ablate.config.logs import silence
from ablate.evaluation.catalog import index_tasks
from ablate.evaluation.localize import LocalTasks
from ablate.tracking.scores import name_metrics

_log = logging.getLogger(__name__)

SEED = 1234
"""Seed of the choice of solved examples: the harness's own."""
_SHOWN = 3
"""Number of unusable questions of a task that are told one by one."""


def load_tasks(
    names: Sequence[str],
    task_data: str | Path | None = None,
    shots: int | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Return the tasks and groups called `names`, in the form that the harness's `evaluate` accepts.

    Args:
        names: such as arc_easy, or mmlu.
        task_data: a folder with their data; None: the hub.
        shots: solved examples before each question; None: the task's own number.
        limit: number of local questions of each task that are checked, from its start; None: all.

    Raises AblateError for an unknown task and without the extra, DataError where its data is missing or unusable.
    """
    notes: list[str] = []
    with silence_harness():
        manager = index_tasks(names)
        if task_data is None:
            loaded = _load(manager, list(names))
        else:
            local = LocalTasks(manager.task_index, Path(task_data).expanduser(), shots)
            loaded = _load(manager, local.localize(names), local)
            del loaded["groups"]["local"], loaded["group_map"]["local"]
            _check_questions(loaded["tasks"], task_data, limit)
            notes = local.list_notes()
    for note in notes:
        _log.warning(note)
    for task in loaded["tasks"].values():
        default = task.get_config("num_fewshot")
        if shots is not None and default != 0:  # 0 in a task's own file means that it has none
            task.set_config(key="num_fewshot", value=shots)
        elif default is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=SEED)
    return loaded


def count_questions(loaded: Mapping[str, Any], limit: int | None) -> dict[str, int]:
    """Return metric, eval/TASK/NAME -> the number of questions that it is computed from, of tasks and groups that
    `load_tasks` returned. `limit`: of the questions of each task; None: all."""
    sizes = {name: len(task.eval_docs) for name, task in loaded["tasks"].items()}
    counts = {name: size if limit is None else min(size, limit) for name, size in sizes.items()}
    metrics = {name: dict.fromkeys(task.aggregation(), counts[name]) for name, task in loaded["tasks"].items()}
    for name, group in loaded["groups"].items():
        questions = sum(counts[leaf] for leaf in list_leaves(name, loaded["group_map"]))
        metrics[name] = {aggregate.metric: questions for aggregate in group.aggregate_metric_list or ()}
    return {name: int(count) for name, count in name_metrics(metrics).items()}


def list_leaves(group: str, children: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the tasks of a group and of the groups in it."""
    for child in children[group]:
        if child in children:
            yield from list_leaves(child, children)
        else:
            yield child


def _load(manager: Any, names: Any, local: LocalTasks | None = None) -> dict[str, Any]:
    """Return what the harness loads. Raises DataError for what it raises."""
    try:
        return dict(manager.load(names))
    except (MemoryError, AblateError):
        raise
    except Exception as error:  # whatever the templates and the code of a task, datasets and the network raise
        text = " ".join(str(error).split()).rstrip(".")
        if local is None:
            hint = (
                " To read local files: --task-data FOLDER, in training evaluation.task_data=FOLDER."
                if isinstance(error, OSError)
                else ""
            )
            raise DataError(f"The questions cannot be loaded: {text}.{hint}") from error
        task = local.opened[-1] if local.opened else ", ".join(map(str, names))
        raise DataError(
            f"The questions of {task} under {local.folder.folder} are not as lm-evaluation-harness expects them: "
            f"{type(error).__name__}: {text}. On loading, the harness builds the prompt and the answers of the first "
            "question: check its columns, and that its answer is among its choices."
        ) from error


def _check_questions(tasks: Mapping[str, Any], task_data: str | Path, limit: int | None) -> None:
    """Raise DataError, with the first of each task, for local questions from which the harness cannot make a prompt,
    or whose answer is not among their choices, which it would count as wrong answers of the model."""
    texts = []
    for name, task in tasks.items():
        questions = enumerate(islice(task.eval_docs, limit), 1)
        faults = [(number, fault) for number, question in questions if (fault := _find_fault(task, question))]
        if faults:
            first = "; ".join(f"question {number} {fault}" for number, fault in faults[:_SHOWN])
            texts.append(f"{len(faults):,} questions of {name} under {task_data} cannot be scored: {first}.")
    if texts:
        raise DataError("\n".join(texts))


def _find_fault(task: Any, question: Mapping[str, Any]) -> str:
    """Return why a question cannot be scored; "" if it can."""
    try:
        text, answer = task.doc_to_text(question), task.doc_to_target(question)
        if task.OUTPUT_TYPE != "multiple_choice":
            return ""
        choices = task.doc_to_choice(question)
    except Exception as error:  # whatever the templates and the code of a task raise
        return f"has another form than the task expects ({type(error).__name__}: {' '.join(str(error).split())})"
    answer = text if task.multiple_input else answer
    for one in answer if isinstance(answer, list) else [answer]:
        if one not in (choices if isinstance(one, str) else range(len(choices))):
            return f"has the answer {one!r}, which is none of its {len(choices)} choices"
    return ""


@contextlib.contextmanager
def silence_harness(progress: bool = False) -> Iterator[None]:
    """Silence the harness and the hub in this context, including progress bars unless `progress` is set."""
    shown = contextlib.nullcontext() if progress else contextlib.redirect_stderr(io.StringIO())
    with silence("lm_eval", "huggingface_hub"), shown:
        yield
