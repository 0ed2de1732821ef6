"""The looks at a table, counted in a small file beside it: judging again with more seeds is another look, and every
look shares the error."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from ablate.config.errors import DataError
from ablate.config.formatting import count_noun, join_first, join_words
from ablate.config.lazy import postpone_imports
from ablate.verdict.looks import Looks

with postpone_imports():
    from ablate.data import files

_ABOUT = (
    "ablate judge counts here how often it looked at each comparison of the table beside this file, since every look "
    "shares the error of 5 %. Delete the file only if the table was replaced by other runs."
)


@dataclass(frozen=True)
class Look:
    """A look at a comparison."""

    seeds: int
    values: str
    """A short sum of each pair of runs, in any order, which tells whether it has changed."""
    day: str = field(default_factory=lambda: date.today().isoformat(), compare=False)

    def adds_to(self, other: Look) -> bool:
        """Whether this is a look at the values of `other` and at further seeds."""
        return self.seeds > other.seeds and {*other.values.split()} <= {*self.values.split()}


def add_looks(earlier: Sequence[Look], now: Look, told: Iterable[int]) -> list[Look]:
    """Return the looks in their order: the earlier ones, this one, unless it was at the same values as one of them, and
    those that are `told`: numbers of seeds below those of this one."""
    looks = [*earlier] if now in earlier else [*earlier, now]
    for size in sorted({*told} - {look.seeds for look in looks}):
        place = next(i for i, look in enumerate(looks) if look.seeds > size)
        looks.insert(place, Look(size, looks[place - 1].values if place else ""))
    return looks


def split_looks(looks: Sequence[Look], now: Look) -> tuple[Sequence[Look], Sequence[Look]]:
    """Return the looks up to this one in two parts: the last of them, each of which adds seeds to the one before it,
    come second."""
    looks = looks[: looks.index(now) + 1]
    since = max((i for i in range(1, len(looks)) if not looks[i].adds_to(looks[i - 1])), default=0)
    return looks[:since], looks[since:]


@dataclass
class Counted:
    """The looks that the file of a table has."""

    file: Path
    comparisons: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Comparison in words -> planned: seeds; looks: each with its day, its seeds and sums of its values."""

    @classmethod
    def read(cls, file: Path) -> Counted:
        """Return the looks in `file`, none if it is missing. Raises DataError."""
        try:
            content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
            comparisons = content.get("comparisons", {})
            for one in comparisons.values():
                Looks((1,), one["planned"], tuple(Look(**look).seeds for look in one["looks"]))
                " ".join(look["values"] for look in one["looks"])
        except OSError as error:
            raise DataError(f"{file} cannot be read: {files.explain(error)}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(
                f"{file} does not have the looks that ablate judge wrote: put it back, or judge without it: "
                "--looks-file none."
            ) from None
        return cls(file, comparisons)

    def find(self, comparison: str) -> tuple[int, list[Look]]:
        """Return the seeds that were planned at the first look at a comparison, 0 if there was none, and all looks."""
        known = self.comparisons.get(comparison, {"planned": 0, "looks": []})
        return known["planned"], [Look(**look) for look in known["looks"]]

    def tell(self, now: Mapping[str, tuple[Looks, Sequence[Look]]], effect: float | None) -> list[str]:
        """Return what is counted, in sentences. `now`: comparison -> its looks up to this one, and all in the file."""
        told = []
        known = {name: self.comparisons[name] for name in now if name in self.comparisons}
        days = {(look.seeds, look.day) for looks, own in now.values() for look in own[: len(looks.taken) - 1]}
        if earlier := [f"{seeds} seeds ({day})" for seeds, day in sorted(days)]:
            told.append(f"Earlier looks, counted in {self.file.name}: at {join_words(earlier)}.")
        if changed := [name for name, (looks, _) in now.items() if looks.before]:
            told.append(
                f"Not every earlier look at {join_first(changed, 3)} leads to this one by further seeds alone, such as "
                "where values have changed. All of them count, and this one has a share of the error of its own."
            )
        if before := {one.get("effect") for one in known.values()} - {effect}:
            names = join_words("none" if value is None else f"{value:g}" for value in sorted(before, key=str))
            told.append(
                f"The difference that matters was {names} at the first look and is "
                f"{'none' if effect is None else f'{effect:g}'} now: it was not chosen beforehand."
            )
        if others := [name for name in self.comparisons if name not in now]:
            told.append(
                f"{count_noun(len(others), 'other comparison')} of this table, made before, "
                f"{'shares' if len(others) == 1 else 'share'} the error: {join_first(others, 3)}."
            )
        return told

    def count_others(self, now: Mapping[str, Any]) -> int:
        """Return the number of comparisons that were made before, and are not among those of `now`."""
        return sum(name not in now for name in self.comparisons)

    def write(self, now: Mapping[str, tuple[Looks, Sequence[Look]]], effect: float | None) -> str:
        """Write the looks of `now`, and return '', or why they could not be written."""
        before = json.dumps(self.comparisons)
        for name, (looks, own) in now.items():
            one = self.comparisons.setdefault(name, {"planned": looks.planned, "effect": effect})
            one["looks"] = [asdict(look) for look in own]
        if json.dumps(self.comparisons) == before:
            return ""
        part = self.file.with_name(f"{self.file.name}.{os.getpid()}.part")
        try:
            text = json.dumps({"about": _ABOUT, "comparisons": self.comparisons}, indent=2, ensure_ascii=False)
            part.write_text(text + "\n", encoding="utf-8")
            part.replace(self.file)
        except OSError as error:
            part.unlink(missing_ok=True)
            return f"This look could not be counted: {self.file} cannot be written ({files.explain(error)})."
        return ""


def sum_values(runs: Iterable[Any]) -> list[str]:
    """Return a short sum of each of `runs`, which tells whether it has changed; equal ones are numbered."""
    seen = Counter[str]()
    sums = []
    for text in map(repr, runs):
        seen[text] += 1
        sums.append(hashlib.sha256(f"{text} {seen[text]}".encode()).hexdigest()[:8])
    return sums
