"""Tasks of lm-evaluation-harness, with the data of the hub or of local files in the form of the hub."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from ablate import tracking
from ablate.config.errors import AblateError, DataError, did_you_mean
from ablate.config.lazy import import_library
from ablate.config.logs import silence
from ablate.diagnostics.kinds import heads
from ablate.tracking.scores import name_metrics

SEED = 1234
"""Seed of the choice of solved examples: the harness's own."""
_SHOWN = 3
"""Number of unusable questions of a task that are described one by one."""


def load_tasks(
    names: Sequence[str], task_data: str | Path | None = None, shots: int | None = None, limit: int | None = None
) -> dict[str, Any]:
    """Return the tasks and groups called `names`, in the form that the harness's `evaluate` accepts.

    Args:
        names: such as arc_easy, or mmlu.
        task_data: a folder with their data (see `load_local`); None: the hub.
        shots: solved examples before each question; None: the task's own number, mostly 0.
        limit: number of local questions of each task that are checked, from its start; None: all.

    Raises AblateError for an unknown task and without the extra, DataError where its data is missing or unusable.
    """
    with silence_harness():
        manager = _find_manager(names)
        if task_data is None:
            loaded = _load(manager, names)
        else:
            with _read_from(Path(task_data).expanduser()):
                loaded = _load(manager, names, task_data)
            _check_questions(loaded["tasks"], task_data, limit)
    for task in loaded["tasks"].values():
        default = task.get_config("num_fewshot")
        if shots is not None and default != 0:  # 0 in a task's own file means that it has none
            task.set_config(key="num_fewshot", value=shots)
        elif default is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=SEED)
    if task_data is not None:
        for name, task in loaded["tasks"].items():
            count = int(task.get_config("num_fewshot"))
            if count > (there := len(list(task.fewshot_docs() or ()))):
                text = f"{there} solved examples of {name} under {task_data} are not enough for --shots {count}."
                raise DataError(text)
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


def load_local(folder: Path, dataset: str, subset: str | None = None, **options: Any) -> Any:
    """Return a dataset of the hub as `datasets` reads it from `folder`: there, a folder with the last part of its name
    is laid out as its repository on the hub. Without the repository's README, which names the files of each subset,
    those of a subset are in a folder of its name. Raises DataError if there is no folder of the dataset."""
    from datasets.load import load_dataset  # what `_read_from` does not replace

    place = folder / dataset.rpartition("/")[2]
    if not place.is_dir():
        raise DataError(
            f"There are no questions of {dataset} under {folder}: no folder {place}. On a machine with a network: "
            f"hf download {dataset} --repo-type dataset --local-dir {place}"
        )
    if subset and not (place / "README.md").exists() and (place / subset).is_dir():
        place, subset = place / subset, None
    options.setdefault("cache_dir", str(tracking.cache_folder() / "tasks"))
    return load_dataset(str(place), subset, **options)


@contextlib.contextmanager
def _read_from(folder: Path) -> Iterator[None]:
    """Let the harness, which has no setting for it, load its datasets from `folder` in this context."""
    import datasets

    load_from_hub = datasets.load_dataset
    datasets.load_dataset = lambda path, name=None, **options: load_local(folder, path, name, **options)
    try:
        yield
    finally:
        datasets.load_dataset = load_from_hub


def _find_manager(names: Sequence[str]) -> Any:
    """Return the harness's TaskManager that has these tasks, groups or tags. Its index of all takes 10 to 25 seconds;
    tasks in folders that begin their names, as arc begins arc_easy, are found without it. Raises AblateError for an
    unknown name."""
    root = Path(import_library("lm_eval.tasks", "eval").__file__ or "").parent
    folders = [place for place in root.iterdir() if place.is_dir()]
    own = {
        max(
            (place for place in folders if name.startswith(place.name)), key=lambda place: len(place.name), default=root
        )
        for name in names
    }
    if root not in own:
        manager = _index(tuple(sorted(own)))
        if all(name in manager.all_subtasks for name in names):
            return manager
    manager = _index((root,))
    if unknown := [name for name in names if name not in manager.task_index]:
        guesses = "".join(did_you_mean(name, manager.all_tasks) for name in unknown)
        for name in (name for name in unknown if name in heads):
            guesses += f" ablate diagnose MODEL --what pruning --tasks {name} scores models with a {heads[name].noun}."
        raise AblateError(f"unknown task {', '.join(map(repr, unknown))}.{guesses} lm_eval ls tasks lists all.")
    return manager


@cache
def _index(folders: tuple[Path, ...]) -> Any:
    import lm_eval.tasks

    return lm_eval.tasks.TaskManager(include_path=list(folders), include_defaults=False)


def _load(manager: Any, names: Sequence[str], task_data: str | Path | None = None) -> dict[str, Any]:
    """Return the tasks as the harness loads them. Raises DataError for its errors; for local data, with the problems of
    all tasks."""
    try:
        return dict(manager.load(list(names)))
    except MemoryError:
        raise
    except Exception as error:  # whatever the templates and the code of a task, datasets and the network raise
        if task_data is not None and len(names) > 1:
            problems = []
            for name in names:
                try:
                    _load(manager, [name], task_data)
                except DataError as problem:
                    problems.append(str(problem))
            if problems:
                raise DataError("\n".join(problems)) from error
        if isinstance(error, AblateError):
            raise
        text = " ".join(str(error).split()).rstrip(".")
        if task_data is not None:
            raise DataError(
                f"The questions of {', '.join(names)} under {task_data} are not as lm-evaluation-harness expects them: "
                f"{type(error).__name__}: {text}. It needs all splits and columns of the hub's dataset, and on loading "
                "builds the prompt and the answers of the first question."
            ) from error
        hint = " To read local files: --task-data FOLDER, in training evaluation.task_data=FOLDER."
        raise DataError(
            f"The questions cannot be loaded: {text}.{hint if isinstance(error, OSError) else ''}"
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
            return f"has the answer {one!r}, which is not one of its {len(choices)} choices"
    return ""


@contextlib.contextmanager
def silence_harness(progress: bool = False) -> Iterator[None]:
    """Silence the harness and the hub in this context, including progress bars unless `progress` is set."""
    shown = contextlib.nullcontext() if progress else contextlib.redirect_stderr(io.StringIO())
    with silence("lm_eval", "huggingface_hub"), shown:
        yield
