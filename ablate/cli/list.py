"""`ablate list`: the available choices, with one line about each."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ablate
from ablate.cli.arguments import PLUGINS, Verbs, add_json, add_verb, parse_plugins
from ablate.cli.output import build_console, print_json
from ablate.cli.tables import build_table
from ablate.config.lazy import LazyModule
from ablate.config.yaml import read_yaml

if TYPE_CHECKING:
    from rich.console import Console

    from ablate import data, models, norms, tasks
    from ablate.config import merging, plugins
    from ablate.optim import libraries, optimizers
    from ablate.sweeps import storage
    from ablate.sweeps.spec import library
else:
    libraries, optimizers = LazyModule("ablate.optim.libraries"), LazyModule("ablate.optim.optimizers")
    data, models, norms = LazyModule("ablate.data"), LazyModule("ablate.models"), LazyModule("ablate.norms")
    tasks = LazyModule("ablate.tasks")
    merging = LazyModule("ablate.config.merging")
    plugins = LazyModule("ablate.config.plugins")
    storage, library = LazyModule("ablate.sweeps.storage"), LazyModule("ablate.sweeps.spec.library")

Row = dict[str, Any]


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    parser = add_verb(verbs, "list", "list the available choices", "ablate list placements", run)
    text = "the list to print (default: the available lists)"
    parser.add_argument("what", nargs="?", choices=list(_ROWS), metavar=f"{{{','.join(_ROWS)}}}", help=text)
    parser.add_argument("words", nargs="*", default=[], metavar="plugins=FILE.py", help=PLUGINS)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print one of the lists."""
    rows = list_choices(options.what, parse_plugins(options.words)) if options.what else _lists()
    if options.json:
        print_json(rows)
    else:
        render(rows, build_console())
    return 0


def list_choices(what: str, files: Sequence[str] = ()) -> list[Row]:
    """Return the rows of one list, such as placements or sweeps; all rows have the same columns. The kinds of the
    plugin `files` and of installed plugins are included. Raises ConfigError for a plugin that cannot be loaded."""
    if files:
        _ = ablate.Experiment  # fills every registry, so that everything that the files add is listed
    plugins.load(files)
    return _ROWS[what]()


def render(rows: list[Row], console: Console) -> None:
    """Print the rows of one list, or how to start a sweep if there are none: only the list of sweeps can be empty."""
    if not rows:
        console.print(
            "No sweeps: this folder has no YAML file in sweeps/, and no sweep has been started. Write a sweep file "
            "(`ablate schema --sweep` prints its fields) and start it with: ablate sweep FILE.yaml"
        )
        return
    numbers = [column for column, value in rows[0].items() if isinstance(value, int)]
    cells = [[f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()] for row in rows]
    console.print(build_table(list(rows[0]), cells, right=numbers))


def _lists() -> list[Row]:
    """Return the rows of the list of lists."""
    return [{"list": f"ablate list {what}", "what it shows": _first_sentence(rows)} for what, rows in _ROWS.items()]


def _first_sentence(item: object) -> str:
    text = " ".join((inspect.getdoc(item) or "").split())
    return re.split(r"(?<!et al)\. ", text)[0].rstrip(".")


def _placements() -> list[Row]:
    """Positions of the norms in a layer: norm=KIND."""
    placements = norms.placements
    rows = [{"placement": k, "rule": placements[k].rule, "source": placements[k].source} for k in placements]
    for name, fields in placements.presets.items():
        settings = ", ".join(f"{path}={value}" for path, value in merging.iterate_leaves(fields))
        rows.append({"placement": name, "rule": settings, "source": placements[fields["kind"]].source})
    return rows


def _norms() -> list[Row]:
    """The norm layers themselves: norm.layer=KIND."""
    return [
        {"norm layer": kind, "formula": norms.norm_layers[kind].formula, "source": norms.norm_layers[kind].source}
        for kind in norms.norm_layers
    ]


def _data() -> list[Row]:
    """Training data: data=KIND."""
    data_kinds = data.data_kinds
    what = {kind: (kind, _first_sentence(data_kinds[kind])) for kind in data_kinds}
    for name, fields in data_kinds.presets.items():
        settings = ", ".join(f"{path}={value}" for path, value in merging.iterate_leaves(fields))
        what[name] = (fields["kind"], settings)
    return [
        {"data": name, "task": data_kinds[kind].task.replace("_", " "), "what it is": text}
        for name, (kind, text) in what.items()
    ]


def _tasks() -> list[Row]:
    """What a model is trained to do: task=KIND. By default what the targets of the data are for."""
    return [
        {
            "task": kind,
            "inputs": tasks.tasks[kind].inputs,
            "learns from": tasks.tasks[kind].learns_from,
            "metrics": ", ".join(f"val/{metric.name}" for metric in tasks.tasks[kind].metrics),
            "a sweep compares": tasks.tasks[kind].objective,
        }
        for kind in tasks.tasks
    ]


def _models() -> list[Row]:
    """Model families and named sizes: model=NAME. Parameters are counted at the papers' vocabulary and resolution."""
    import torch

    rows = []
    for name in models.models.names:
        experiment = ablate.Experiment.from_mapping({"model": name})
        config = experiment.model
        shape, classes = _find_inputs(name, config.kind, config.hidden)
        with torch.device("meta"):
            count = config.build(experiment.norm, experiment.init, classes, shape).parameter_count()
        rows.append({
            "model": name, "hidden": config.hidden, "layers": config.layers, "heads": config.heads,
            "parameters": count, "with": f"{classes:,} tokens" if config.kind == "llama" else f"{classes:,} classes",
        })  # fmt: skip
    return rows


def _find_inputs(name: str, kind: str, hidden: int) -> tuple[tuple[int, ...], int]:
    """Return the shape of the inputs, and the number of classes or the vocabulary, for which a model's parameters are
    counted."""
    if kind == "llama":
        return (256,), 32000
    if name == "vit-glyphs":
        return (1, 32, 32), 62
    return ((1, 8, 8), 10) if hidden < 100 else ((3, 224, 224), 1000)


def _optimizers() -> list[Row]:
    """Optimizers: optimizer=KIND, or of a library optimizer={kind: KIND, name: NAME}. With those that are refused."""
    own = optimizers.optimizers
    rows = [
        {"optimizer": kind, "kind": kind, "accepted": "yes", "what it is": _first_sentence(own[kind])}
        for kind in own
        if "name" not in own[kind].model_fields
    ]
    for name, fields in own.presets.items():
        settings = ", ".join(f"{path}={value}" for path, value in merging.iterate_leaves(fields))
        rows.append({"optimizer": name, "kind": fields["kind"], "accepted": "yes", "what it is": settings})
    for library in (libraries.TORCH, libraries.TIMM):
        rows += [
            {
                "optimizer": name, "kind": library.name, "accepted": _yes(entry.refused is None),
                "what it is": entry.text if entry.refused is None else f"Refused: {entry.refused}",
            }
            for name, entry in library.entries.items()
        ]  # fmt: skip
    return rows


def _sweeps() -> list[Row]:
    """Sweep files of this folder, those that come with Ablate, and started sweeps. With the first line of each file's
    header. A file that comes with Ablate is started by its name.
    """
    known = storage.list_sweeps(storage.storage_url())
    rows, seen = [], set()
    own = {file.stem: file for file in sorted(Path("sweeps").glob("*.yaml"))}
    for stem, file in (library.list_sweep_files() | own).items():
        start = str(file) if stem in own else stem
        tree = read_yaml(file)
        name, parts = str(tree.get("name", "")), tree.get("sizes") or tree.get("stages")
        names = [f"{name}-{part}" for part in parts] if isinstance(parts, dict) else [name]
        seen.update(names)
        first = file.read_text(encoding="utf-8").splitlines()[:1]
        question = first[0].lstrip("# ") if first and first[0].startswith("#") else ""
        rows += [{"sweep": n, "file": start, "started": _yes(n in known), "what it asks": question} for n in names]
    rows += [{"sweep": n, "file": "", "started": "yes", "what it asks": ""} for n in known if n not in seen]
    return rows


def _yes(value: bool) -> str:
    return "yes" if value else "no"


_ROWS = {
    "placements": _placements,
    "norms": _norms,
    "models": _models,
    "tasks": _tasks,
    "data": _data,
    "optimizers": _optimizers,
    "sweeps": _sweeps,
}
"""List -> what returns its rows."""
