"""The looks at a table, counted in a small file beside it: judging again with more seeds is another look, and every
look shares the error."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from ablate.config.errors import DataError
from ablate.config.formatting import count_noun, join_first, join_words
from ablate.data.files import explain
from ablate.verdict.looks import Looks

_ABOUT = (
    "ablate judge counts here how often it looked at each comparison of the table beside this file, since every look "
    "shares the error of 5 %. Delete the file only if the table was replaced by other runs."
)


@dataclass
class Counted:
    """The looks that the file of a table has."""

    file: Path
    comparisons: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Comparison in words -> planned: seeds; looks: each with its day, its seeds and a sum of its values."""

    @classmethod
    def read(cls, file: Path) -> Counted:
        """Return the looks in `file`, none if it is missing. Raises DataError."""
        try:
            content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
            comparisons = content.get("comparisons", {})
            for one in comparisons.values():
                Looks(tuple(look["seeds"] for look in one["looks"]), one["planned"])
        except OSError as error:
            raise DataError(f"{file} cannot be read: {explain(error)}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(
                f"{file} does not have the looks that ablate judge wrote: put it back, or judge without it: "
                "--looks-file none."
            ) from None
        return cls(file, comparisons)

    def find(self, comparison: str) -> Looks | None:
        """Return the earlier looks at a comparison; None: there are none."""
        known = self.comparisons.get(comparison)
        return Looks(tuple(look["seeds"] for look in known["looks"]), known["planned"]) if known else None

    def tell(self, now: Mapping[str, tuple[Looks, str]], effect: float | None) -> list[str]:
        """Return what is counted, in sentences. `now`: comparison -> its looks, and the sum of its values."""
        told = []
        known = {name: self.comparisons[name] for name in now if name in self.comparisons}
        days = {(look["seeds"], look["day"]) for one in known.values() for look in one["looks"]}
        last = max((looks.sizes[-1] for looks, _ in now.values()), default=0)
        if earlier := [f"{seeds} seeds ({day})" for seeds, day in sorted(days) if seeds != last]:
            told.append(f"Earlier looks, counted in {self.file.name}: at {join_words(earlier)}.")
        if changed := [
            name
            for name, one in known.items()
            if one["looks"][-1]["values"] != now[name][1] and one["looks"][-1]["seeds"] >= now[name][0].sizes[-1]
        ]:
            told.append(
                f"Since the last look the values of {join_first(changed, 3)} have changed, without a further seed: if "
                "some runs took the place of others, those were looked at too, and are not counted."
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

    def write(self, now: Mapping[str, tuple[Looks, str]], effect: float | None) -> str:
        """Add the looks of `now`, and return '', or why they could not be written."""
        before = json.dumps(self.comparisons)
        for name, (looks, values) in now.items():
            one = self.comparisons.setdefault(name, {"planned": looks.planned, "effect": effect, "looks": []})
            known = [look["seeds"] for look in one["looks"]]
            day = date.today().isoformat()
            added = [{"day": day, "seeds": size, "values": values} for size in looks.sizes if size not in known]
            one["looks"] = sorted([*one["looks"], *added], key=lambda look: look["seeds"])
        if json.dumps(self.comparisons) == before:
            return ""
        part = self.file.with_name(f"{self.file.name}.{os.getpid()}.part")
        try:
            text = json.dumps({"about": _ABOUT, "comparisons": self.comparisons}, indent=2, ensure_ascii=False)
            part.write_text(text + "\n", encoding="utf-8")
            part.replace(self.file)
        except OSError as error:
            part.unlink(missing_ok=True)
            return f"This look could not be counted: {self.file} cannot be written ({explain(error)})."
        return ""


def sum_values(values: Any) -> str:
    """Return a short sum of the values of a comparison, which tells whether they have changed."""
    return hashlib.sha256(repr(values).encode()).hexdigest()[:12]
