"""Tasks and groups of lm-evaluation-harness on local files: what the configuration of a task says about its files, and
what is changed in it. Prompts, splits, solved examples and aggregation stay the harness's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.config.errors import DataError
from ablate.evaluation.catalog import list_members
from ablate.evaluation.local import KNOWN, Local, Questions, TaskFolder

if TYPE_CHECKING:
    from datasets import Dataset

SUBSTITUTES = {"test": "validation", "validation": "test"}
"""Split that is scored -> the split that is scored if it has no files."""
_FORMATS = ("json", "csv", "parquet", "arrow", "text")  # what `datasets` calls files that are no dataset of the hub


class LocalTasks:
    """The tasks of an index on the files in a folder. Tasks without usable files are collected, to be told together.

    Args:
        index: of the harness; the groups in it are changed so that they consist of tasks on the files.
        folder: with the files.
        shots: solved examples before each question; None: the task's own number.
    """

    def __init__(self, index: MutableMapping[str, Any], folder: Path, shots: int | None) -> None:
        self.index, self.folder, self.shots = index, TaskFolder(folder), shots
        self.opened: list[str] = []
        """Tasks whose questions the harness has asked for, in this order."""
        self._missing: dict[str, tuple[Questions, str]] = {}
        self._faults: list[str] = []
        self._substituted: dict[tuple[str, str], list[str]] = {}

    def localize(self, names: Sequence[str]) -> dict[str, Any]:
        """Return a group, in the form that the harness's `load` accepts, of the tasks, groups and tags `names`.

        Raises DataError, with all of them, for tasks that have no usable files.
        """
        members = [*self._localize_members(names)]
        if self._missing or self._faults:
            raise DataError("\n".join([*_explain_missing(self._missing, self.folder.folder), *self._faults]))
        return {"group": "local", "task": members}

    def list_notes(self) -> list[str]:
        """Return a line for each split that is scored in place of another."""
        return [
            f"{', '.join(tasks)}: scored on the {other} questions, since there are no {split} questions under "
            f"{self.folder.folder}."
            for (split, other), tasks in self._substituted.items()
        ]

    def _localize_members(self, members: Sequence[str | Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the members of a group with local data."""
        for member in members:
            settings: dict[str, Any] = {} if isinstance(member, str) else dict(member)
            name: Any = member if isinstance(member, str) else settings.get("task", settings.get("group"))
            if isinstance(name, list):  # a group that is defined within a group
                yield {**settings, "task": [*self._localize_members(name)]}
                continue
            entry: Any = self.index.get(name)
            kind = entry.kind.name if entry else "TASK"
            if kind == "TAG":
                yield from self._localize_members(list_members(entry))
            elif kind == "GROUP":
                content = [*self._localize_members(list_members(entry))]
                self.index[name] = replace(entry, yaml_path=None, cfg={**entry.cfg, "task": content})
                yield {**settings, "group": name}
            elif kind == "PY_TASK":
                self._faults.append(f"{name} loads its questions by code of its own. Omit --task-data for it.")
            else:
                config = {**(entry.cfg if entry else {}), **settings}
                yield {**settings, "task": name, **self._localize_task(name, config)}

    def _localize_task(self, name: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that read the questions of a task from its files."""
        scored = config.get("test_split") or config.get("validation_split") or "test"
        questions = self._find_questions(name, config, scored)
        splits = questions.splits
        if scored not in splits:
            if (other := SUBSTITUTES.get(scored, "")) not in splits:
                self._missing[name] = questions, scored
                return {}
            self._substituted.setdefault((scored, other), []).append(name)
            scored = other
        here = {f"{part}_split": config.get(f"{part}_split") for part in ("training", "validation", "test")}
        settings: dict[str, Any] = {key: split if split in splits else None for key, split in here.items()}
        if (settings["test_split"] or settings["validation_split"]) != scored:
            settings["test_split"] = scored

        def load(**_: Any) -> dict[str, Dataset]:
            self.opened.append(name)
            return splits

        settings |= self._choose_examples(name, {**config, **settings}, scored, questions)
        return {**settings, "custom_dataset": load}

    def _find_questions(self, name: str, config: Mapping[str, Any], scored: str) -> Questions:
        """Return the questions in files of a deviating form that is known, or else in files of the hub's form."""
        own = [config.get(f"{part}_split") for part in ("training", "validation", "fewshot")]
        names = [scored, *filter(None, own)]
        ways = [*filter(None, [KNOWN.get(name)]), *describe_files(name, config)]
        tries = [self.folder.find_questions(name, local, names) for local in ways]
        wanted = {scored, SUBSTITUTES.get(scored, scored)}
        return next((questions for questions in tries if wanted & set(questions.splits)), tries[0])

    def _choose_examples(
        self, name: str, config: Mapping[str, Any], scored: str, questions: Questions
    ) -> dict[str, Any]:
        """Return the settings of the solved examples that are not the harness's own, which has no files for them."""
        fewshot = config.get("fewshot_config") or {}
        if "samples" in fewshot:
            return {}
        own, splits = config.get("num_fewshot"), questions.splits
        shots = self.shots if self.shots is not None and own != 0 else own or 0
        named = fewshot.get("split") or config.get("fewshot_split")
        examples = named or config["training_split"] or config["validation_split"] or scored
        if examples not in splits:
            if shots:
                text = f"There are no {examples} questions of {name} under {self.folder.folder} for the {shots} solved "
                text += f"examples: no {'/'.join(questions.local.names)} with {examples}.jsonl, .json, .csv, .parquet "
                self._faults.append(text + "or .arrow." + "".join(f" {remark}." for remark in questions.remarks))
            return {"fewshot_split": scored}
        # by equal names the harness knows that an example may be the question itself
        changes = {"fewshot_split": scored, "test_split": scored} if examples == scored and not named else {}
        itself = changes.get("fewshot_split", named) == changes.get("test_split", config["test_split"])
        if shots and shots + itself > len(splits[examples]):
            self._faults.append(
                f"The {examples} questions of {name} under {self.folder.folder} are not enough for --shots {shots}."
            )
        return changes


def describe_files(name: str, config: Mapping[str, Any]) -> list[Local]:
    """Return how the files of a task are recognised by its configuration: in a folder of the name of its dataset, or of
    the task if it has none, and of the dataset's subset, which may be omitted if it is `default`."""
    path, subset = config.get("dataset_path"), config.get("dataset_name")
    hub = "" if not path or path in _FORMATS else str(path)
    columns, lists = _list_columns(config)
    folders = [((hub or name).rpartition("/")[2], *([subset] if subset else []))]
    if subset == "default":
        folders.append(folders[0][:1])
    return [Local(hub, folder, columns, lists=lists) for folder in folders]


def _list_columns(config: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns that the templates of a task need, and those among them that are lists; none for a task that
    changes its questions by code, or asks whether there is a column."""
    from jinja2 import Environment, TemplateSyntaxError, meta, nodes

    columns: dict[str, None] = {}
    lists: dict[str, None] = {}
    environment = Environment()
    for key in () if config.get("process_docs") else ("doc_to_text", "doc_to_target", "doc_to_choice"):
        template = config.get(key)
        if not isinstance(template, str):
            continue
        if template.isidentifier():  # the harness takes it for a column if there is one
            columns[template] = None
            continue
        try:
            tree = environment.parse(template)
        except TemplateSyntaxError:
            continue
        if any(test.name in ("defined", "undefined", "none") for test in tree.find_all(nodes.Test)):
            continue
        names = sorted(meta.find_undeclared_variables(tree) - set(environment.globals))
        columns |= dict.fromkeys(names)
        for item in tree.find_all(nodes.Getitem):
            by_number = isinstance(item.arg, nodes.Const) and isinstance(item.arg.value, int)
            if by_number and isinstance(item.node, nodes.Name) and item.node.name in names:
                lists[item.node.name] = None
    return tuple(columns), tuple(lists)


def _explain_missing(missing: Mapping[str, tuple[Questions, str]], folder: Path) -> Iterator[str]:
    """Yield, for each dataset, a text on its tasks without questions, where these were looked for, and their origin."""
    alike: dict[Any, dict[str, Questions]] = {}
    for task, (questions, split) in missing.items():
        local = questions.local
        alike.setdefault((local.hub, local.columns, split), {})[task] = questions
    for (hub, columns, split), tasks in alike.items():
        places = ", ".join(f"{task} (in {'/'.join(questions.local.names)})" for task, questions in tasks.items())
        text = f"There are no questions of {places} under {folder}: {split}.jsonl, .json, .csv, .parquet or .arrow, or "
        text += f"a folder {split} of such files" + (f", or {SUBSTITUTES[split]}" if split in SUBSTITUTES else "")
        text += f", with the columns {', '.join(columns)}." if columns else "."
        text += "".join(f" {remark}." for questions in tasks.values() for remark in questions.remarks)
        yield text + (f" The dataset is {hub} on the Hugging Face hub, which is read without --task-data." * bool(hub))
