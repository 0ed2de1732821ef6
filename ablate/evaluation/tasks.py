"""Tasks of lm-evaluation-harness, with the data of the hub or of local files."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.config.errors import AblateError, DataError, did_you_mean
from ablate.config.extras import import_library
from ablate.evaluation.local import find_questions
from ablate.tracking.scores import name_metrics

SEED = 1234
"""Seed of the choice of solved examples: the harness's own."""
FOLDERS = {
    "arc_easy": "arc", "arc_challenge": "arc", "boolq": "super_glue/boolq", "hellaswag": "hellaswag",
    "lambada_openai": "lambada", "mmlu": "mmlu/default", "openbookqa": "openbookqa", "piqa": "piqa", "sciq": "sciq",
    "social_iqa": "siqa", "wikitext": "wikitext", "winogrande": "winogrande",
}  # fmt: skip
"""The harness's folder of a task; for other tasks all folders are read, which takes ten seconds."""


def load_tasks(names: Sequence[str], task_data: str | Path | None = None, shots: int | None = None) -> dict[str, Any]:
    """Return the tasks and groups called `names`, in the form that the harness's `evaluate` accepts.

    Args:
        names: such as arc_easy, or mmlu.
        task_data: a folder with their data; None: the hub.
        shots: solved examples before each question; None: the task's own number.

    Raises AblateError for an unknown task and without the extra, DataError where its data is missing.
    """
    harness: Any = import_library("lm_eval.tasks", "eval")
    folder = Path(harness.__file__).parent
    with silence_harness():
        known = all(name in FOLDERS for name in names)
        paths = sorted({folder / FOLDERS[name] for name in names}) if known else None
        manager = harness.TaskManager(include_path=paths, include_defaults=not known)
        if unknown := [name for name in names if name not in manager.all_tasks]:
            guess = did_you_mean(unknown[0], FOLDERS) or did_you_mean(unknown[0], manager.all_tasks)
            raise AblateError(
                f"unknown task {unknown[0]!r}.{guess} Common tasks: {', '.join(FOLDERS)}; lm_eval ls tasks lists all."
            )
        entries = [
            name if task_data is None else _localize(name, Path(task_data).expanduser(), shots) for name in names
        ]
        try:
            loaded = manager.load(list(names) if task_data is None else {"group": "local", "task": entries})
        except OSError as error:  # and what datasets makes of a network that is away
            text = " ".join(str(error).split())
            raise DataError(
                f"The questions cannot be loaded: {text} To read local files: --task-data FOLDER."
            ) from error
    if task_data is not None:  # the group was for what it passes on to its tasks
        loaded |= {"groups": {}, "group_map": {}}
    for task in loaded["tasks"].values():
        default = task.get_config("num_fewshot")
        if shots is not None and default != 0:  # 0 in a task's own file means that it has none
            task.set_config(key="num_fewshot", value=shots)
        elif default is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=SEED)
    return dict(loaded)


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


def _localize(name: str, folder: Path, shots: int | None) -> dict[str, Any]:
    """Return a task with its data under `folder`."""
    splits = find_questions(name, folder)
    test = next(split for split in ("test", "validation") if split in splits)
    examples = next(split for split in ("train", "validation", "test") if split in splits)
    if (shots or 0) >= len(splits[examples]):
        raise DataError(f"The {examples} questions of {name} under {folder} are not enough for --shots {shots}.")
    return {
        "task": name,
        "custom_dataset": lambda **_: splits,
        "training_split": "train" if "train" in splits else None,
        "validation_split": "validation" if "validation" in splits else None,
        "test_split": test,  # only by this the harness knows that an example may be the question itself
        "fewshot_split": examples,
    }


@contextlib.contextmanager
def silence_harness(progress: bool = False) -> Iterator[None]:
    """Silence the harness in this context, including its progress bars unless `progress` is set."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.nullcontext() if progress else contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
