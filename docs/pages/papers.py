"""papers.md: every table and figure of the papers, from docs/papers.yaml and the sweep files that its commands name."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ablate.config.markdown import build_table
from ablate.scheduler.dry_run import describe_cost
from ablate.sweeps.spec.files import add_earlier_sweeps, load_sweeps
from ablate.sweeps.spec.sweep import Sweep

Load = Callable[[Path, str | None], Sequence[Sweep]]

_HEAD = """\
# Papers

Every table and figure of the five documents that Ablate implements, and those of later ones whose figures a sweep
stands beside: the command that repeats it, its cost, what was run of it and at which scale, and what is not covered.
`make docs` writes this page from `docs/papers.yaml` and from the sweep files.

Costs are estimates for H100s at the utilisation that `ablate plan` assumes, for the search and the fresh seeds of all
arms; from the fewest runs to the most, with seeds that are added until a decision and runs of arms at each other's
settings. A file with several sizes has a row for each. Sweeps that a command runs first, since it starts from their
models, are listed before it. Published figures are those that a report shows beside yours. Where nothing is said under
*Run*, the tests trained every arm of the file for two updates at its smallest size: that shows that the file works, and
nothing else.
[Run a table of a paper](how-to/papers.md) says how to run one smaller.
"""


def build_page(docs: Path) -> str:
    """Return the whole page, Markdown. Raises KeyError for a part without `name` or `shows`."""
    papers = yaml.safe_load((docs / "papers.yaml").read_text(encoding="utf-8"))
    overview = [
        (paper["title"], part["name"], part["shows"], _summarise(part)) for paper in papers for part in paper["parts"]
    ]
    blocks = [_HEAD, build_table(["document", "part", "shows", "covered"], overview)]
    for paper in papers:
        blocks.append(f"## {paper['title']}\n\n{paper['source']}. {paper.get('note', '')}".rstrip() + "\n")
        blocks += [_describe_part(part, docs.parent) for part in paper["parts"]]
    return "\n".join(blocks)


def _summarise(part: Mapping[str, Any]) -> str:
    if not part.get("commands"):
        return "no"
    return "in part" if part.get("missing") else "yes"


def _describe_part(part: Mapping[str, Any], root: Path) -> str:
    lines = [f"### {part['name']}: {part['shows']}\n"]
    if commands := part.get("commands", ()):
        lines += ["```bash", *commands, "```\n"]
    sweeps = list(list_sweeps(commands, root))
    costed = list(list_sweeps(commands, root, _load_with_earlier))
    facts = [f"Cost: {describe_cost(costed[0])}."] if len(costed) == 1 else []
    facts += [f"Run: {part['ran']}."] if "ran" in part else []
    facts += [f"Not covered: {part['missing']}."] if "missing" in part else []
    lines += [f"- {' '.join(fact.split())}" for fact in facts]
    if len(costed) > 1:  # of several sizes, or of the sweeps that it starts from
        rows = [(f"`{sweep.name}`", *describe_cost(sweep).split(", ")) for sweep in costed]
        lines += ["", build_table(["sweep", "trainings", "cost"], rows)]
    return "\n".join([*lines, "", *_build_published(sweeps)])


@cache
def _load(file: Path, size: str | None) -> tuple[Sweep, ...]:
    return tuple(load_sweeps(file, size=size))


@cache
def _load_with_earlier(file: Path, size: str | None) -> tuple[Sweep, ...]:
    return tuple(add_earlier_sweeps(file, _load(file, size), {}))


def list_sweeps(commands: Sequence[str], root: Path, load: Load = _load) -> Iterator[Sweep]:
    """Yield the sweeps of the files that `commands` run, those of the size alone where a command gives one. `root` is
    the folder that the paths of the files begin in; `load` returns the sweeps of a file and a size."""
    for words in map(shlex.split, commands):
        if words[:2] == ["ablate", "sweep"]:
            size = words[words.index("--size") + 1] if "--size" in words else None
            yield from load(root / words[2], size)


def _build_published(sweeps: Sequence[Sweep]) -> Iterator[str]:
    """Yield a table of the published figures of each source: a row for each sweep and metric, a column for each arm."""
    entries = [(sweep.name, entry) for sweep in sweeps for entry in sweep.published]
    for source in dict.fromkeys(entry.source for _, entry in entries):
        rows = [(name, entry) for name, entry in entries if entry.source == source]
        arms = list(dict.fromkeys(arm for _, entry in rows for arm in entry.values))
        table = [
            (
                f"`{name}`",
                f"`{entry.metric}`",
                *(f"{entry.values[arm]:g}" if arm in entry.values else "" for arm in arms),
            )
            for name, entry in rows
        ]
        yield f"Published, {source}:\n\n{build_table(['sweep', 'metric', *arms], table)}"
