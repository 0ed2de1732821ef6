"""`ablate list`: the available choices, each registry's kinds with one line about each."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import ablate
from ablate.cli.arguments import PLUGINS, Verbs, add_json, add_verb, build_error, parse_plugins
from ablate.cli.output import build_console, build_table, print_json
from ablate.config.errors import did_you_mean
from ablate.config.lazy import postpone_imports
from ablate.config.yaml import read_yaml

if TYPE_CHECKING:
    from rich.console import Console

    from ablate.config.registry import Registry
    from ablate.models import ModelConfig

with postpone_imports():
    from ablate import tasks
    from ablate.config import formatting, merging, plugins, registry
    from ablate.diagnostics import figures, kinds, measures
    from ablate.models import attention_config
    from ablate.optim import libraries
    from ablate.scheduler import storage
    from ablate.sweeps import records
    from ablate.sweeps.spec import library

Row = dict[str, Any]
"""Letters of a word; a longer one would keep the table from 80 columns."""
_NAMES = {"norm layer": "norms", "data": "data"}
"""Registry -> its list, where that is not its plural."""


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    parser = add_verb(verbs, "list", "list the available choices", "ablate list placements", run)
    text = "the list to print, such as placements, data or optimizers (default: the available lists)"
    parser.add_argument("what", nargs="?", metavar="LIST", help=text)
    parser.add_argument("words", nargs="*", default=[], metavar="plugins=FILE.py", help=PLUGINS)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Print one of the lists, or the available lists."""
    what, words = options.what, options.words
    if what and "=" in what:  # plugins=FILE.py alone
        what, words = None, [what, *words]
    rows = list_choices(what, parse_plugins(words))
    if options.json:
        print_json(rows)
    else:
        render(rows, build_console())
    return 0


def list_choices(what: str | None = None, files: Sequence[str] = ()) -> list[Row]:
    """Return the rows of one list, by default of the list of lists; all rows have the same columns. The kinds of the
    plugin `files` and of installed plugins are included. Raises ConfigError for an unknown list, and for a plugin that
    cannot be loaded."""
    _ = ablate.Experiment, ablate.Sweep  # fill every registry
    plugins.load(files)
    registries = {_NAMES.get(one.name, f"{one.name}s"): one for one in registry.Registry.all.values()}
    if what is None:
        kinds = registry.Registry.all["experiment"]
        settings = {"attention": "model.attention"}
        settings |= {path: name for kind in kinds for path, name in _iterate_settings(kinds[kind])}
        settings |= {"experiment": "experiment", **dict(_iterate_settings(ablate.Sweep))}
        settings |= dict(_iterate_settings(ablate.Experiment))
        rows = [(name, _first_sentence(one.base), settings.get(one.name, "")) for name, one in registries.items()]
        rows += [(name, _first_sentence(list_rows), settings.get(name, "")) for name, list_rows in _OTHERS.items()]
        return [{"list": f"ablate list {n}", "set by": path, "what it shows": text} for n, text, path in sorted(rows)]
    if what in registries:
        return _list_kinds(registries[what])
    if what in _OTHERS:
        return _OTHERS[what]()
    known = sorted([*registries, *_OTHERS])
    raise build_error("LIST", f"there is no list {what!r}. Accepted: {', '.join(known)}.{did_you_mean(what, known)}")


def _iterate_settings(cls: type[Any], prefix: str = "", above: tuple[type[Any], ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield (registry, dotted path of a setting that takes its kinds) of a configuration class, the shortest paths
    last."""
    own = []
    for name in cls.model_fields if cls not in above else ():
        known, part = merging.find_part(cls, {}, name)
        path = f"{prefix}{name}"
        own += [(known.name, path)] if known else []
        for kind in (known[kind] for kind in known) if known else [part] if isinstance(part, type) else []:
            yield from _iterate_settings(kind, f"{path}.", (*above, cls))
    yield from reversed(own)  # the first field of a class is the one that is meant


def render(rows: list[Row], console: Console) -> None:
    """Print the rows of one list, or what to do if there are none: only sweeps can be missing."""
    if not rows:
        console.print(
            "No sweeps: there is no YAML file in sweeps/ of this folder, and none has been started. "
            "Write one (`ablate config --schema --sweep` says what it takes) and start it with: ablate sweep FILE.yaml"
        )
        return
    numbers = [column for column, value in rows[0].items() if isinstance(value, int)]
    cells = [[_format(value, console.width // 2) for value in row.values()] for row in rows]
    console.print(build_table(list(rows[0]), cells, right=numbers))


def _format(value: Any, most: int) -> str:
    """Return the text of a cell; a word of more than `most` letters may be folded after its first equals sign."""
    if isinstance(value, dict):
        return "; ".join(f"{use} {formatting.format_whole(seeds)}" for use, seeds in value.items() if seeds)
    text = f"{value:,}" if isinstance(value, int) else str(value)
    return " ".join(word.replace("=", "= ", 1) if len(word) > most else word for word in text.split(" "))


def _first_sentence(item: object) -> str:
    """Return the first sentence of a text, or of the documentation of anything else."""
    text = " ".join((item if isinstance(item, str) else inspect.getdoc(item) or "").split())
    return re.split(r"(?<!et al)\. ", text)[0].rstrip(".")


def _list_kinds(kinds: Registry[Any]) -> list[Row]:
    """Return the rows of a registry: its kinds and presets, and where each comes from."""
    describe = _COLUMNS.get(kinds.name, lambda name, cls, preset: {"what it is": preset or _first_sentence(cls)})
    rows = []
    for name in kinds.names:
        fields = kinds.presets.get(name)
        preset = " ".join(f"{path}={value}" for path, value in merging.iterate_leaves(fields)) if fields else ""
        columns = describe(name, kinds[fields["kind"] if fields else name], preset)
        rows.append({kinds.name: name, **columns, "from": plugins.describe_origin(kinds.find_module(name))})
    return rows


def _describe_task(name: str, cls: Any, preset: str) -> Row:
    metrics = ", ".join(f"val/{metric.name}" for metric in cls.metrics)
    return {"inputs": cls.inputs, "learns from": cls.learns_from, "metrics": metrics, "a sweep compares": cls.objective}


def _describe_model(name: str, cls: Any, preset: str) -> Row:
    """Return its sizes, with its parameters at the papers' vocabulary and resolution."""
    import torch

    if cls.of_library and not preset:
        return {"hidden": "", "layers": "", "heads": "", "parameters": "", "with": "any, by name"}
    experiment = ablate.Experiment.from_mapping({"model": name})
    config = experiment.model
    shape, classes = _find_inputs(name, config)
    with torch.device("meta"):
        count = experiment.build_model(classes, shape).parameter_count()
    with_what = f"{classes:,} {'tokens' if config.per_token else 'classes'}"
    sizes = {"hidden": config.hidden, "layers": config.layers, "heads": config.heads}
    return {**sizes, "parameters": count, "with": with_what}


def _find_inputs(name: str, config: ModelConfig) -> tuple[tuple[int, ...], int]:
    """Return the shape of the inputs, and the classes or the vocabulary, that a model's parameters are counted for."""
    if config.per_token:
        return (256,), 32000
    if name == "convpool-cnn-c":
        return (3, 32, 32), 10
    if name in ("vit-glyphs", "convpool"):
        return (1, 32, 32), 62
    return ((1, 8, 8), 10) if config.hidden < 100 else ((3, 224, 224), 1000)


def _sweeps() -> list[Row]:
    """Sweep files of this folder, those that come with Ablate, and started sweeps with the seeds that they have spent.
    With the first line of each file's header. A file that comes with Ablate is started by its name.
    """
    known, spent = storage.list_sweeps(storage.storage_url()), storage.list_spent(storage.storage_url())
    rows: list[Row] = []
    seen: set[str] = set()

    def add(name: str, file: str, question: str) -> None:
        seen.add(name)
        for generation in known.get(name, [1]):
            title, seeds = records.format_title(name, generation), spent.get(f"{name}@{generation}", {})
            about = {"file": file, "started": _yes(name in known), "seeds spent": seeds, "what it asks": question}
            rows.append({"sweep": title, **about})

    own = library.list_own_files()
    for stem, file in (library.list_sweep_files() | own).items():
        start = str(file) if stem in own else stem
        tree = read_yaml(file)
        name = str(tree.get("name", ""))
        first = file.read_text(encoding="utf-8").splitlines()[:1]
        question = first[0].lstrip("# ") if first and first[0].startswith("#") else ""
        for full in [f"{name}-{part}" for part in library.list_parts(tree)] or [name]:
            add(full, start, question)
    for other in [other for other in known if other not in seen]:
        add(other, "", "")
    return rows


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _attention() -> list[Row]:
    """Options inside of the attention, beside any placement: gate, sink, value residual, temperature, QK-clip. Of LLaMA
    and ViT."""
    return [
        {
            "option": f"model.attention.{name}",
            "accepted": ", ".join(attention_config.AttentionConfig.list_accepted(name)),
            "what it is": _first_sentence(field.description or ""),
            "from": plugins.describe_origin(attention_config.AttentionConfig.__module__),
        }
        for name, field in attention_config.AttentionConfig.model_fields.items()
    ]


def _metrics() -> list[Row]:
    """Metrics of a validation, by task: objective.metric of a sweep."""
    registered = tasks.tasks
    return [
        {"metric": f"val/{metric.name}", "task": kind, "from": plugins.describe_origin(registered[kind].__module__)}
        for kind in registered
        for metric in registered[kind].metrics
    ]


def _library_optimizers() -> list[Row]:
    """Optimizers of torch and timm by name: optimizer={kind: KIND, name: NAME}. With those that are refused."""
    return [
        {
            "kind": entries.name,
            "name": name,
            "accepted": _yes(entry.refused is None),
            "what it is": entry.text if entry.refused is None else f"Refused: {entry.refused}",
            "from": entries.name,
        }
        for entries in (libraries.TORCH, libraries.TIMM)
        for name, entry in entries.entries.items()
    ]


def _measurements() -> list[Row]:
    """Measurements on the layers: trainer.diagnose.what, and `ablate diagnose --what`."""
    return [
        {"measurement": name, "what it is": _first_sentence(cls), "from": plugins.describe_origin(cls.__module__)}
        for name, cls in measures.measurements.items()
    ]


def _figures() -> list[Row]:
    """Figures of the papers on the layers: `ablate diagnose --what figure:NAME`. With their numbers there."""
    return [
        {
            "figure": name,
            "also called": ", ".join(number for number, paper in kinds.papers.items() if paper.figure == name),
            "what it is": _first_sentence(cls),
            "from": plugins.describe_origin(cls.__module__),
        }
        for name, cls in figures.figures.items()
    ]


_COLUMNS: dict[str, Callable[[str, Any, str], Row]] = {
    "placement": lambda name, cls, preset: {"rule": preset or cls.rule, "source": cls.source},
    "norm layer": lambda name, cls, preset: {"formula": preset or cls.formula, "source": cls.source},
    "data": lambda name, cls, preset: {
        "task": cls.task.replace("_", " "),
        "what it is": preset or _first_sentence(cls),
    },
    "model": _describe_model,
    "task": _describe_task,
}
"""Registry -> the function that returns the columns of (a name, its class, the settings of a preset), if these are not
from its docstring."""
_OTHERS: dict[str, Callable[[], list[Row]]] = {
    "attention": _attention,
    "figures": _figures,
    "library-optimizers": _library_optimizers,
    "metrics": _metrics,
    "measurements": _measurements,
    "sweeps": _sweeps,
}
"""List without a registry -> the function that returns its rows."""
