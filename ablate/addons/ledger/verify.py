"""`verify`: whether a bundle is what was published, follows from its runs, and comes out again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ablate.addons.ledger import bundles, claims
from ablate.addons.ledger.cells import Cell, find_obstacle, list_cells, shuffle_cells
from ablate.addons.ledger.reproduction import Checked, compare_cell
from ablate.addons.ledger.retraining import Trained, train_cell
from ablate.config.errors import DataError
from ablate.config.formatting import join_words


@dataclass(frozen=True)
class Verification:
    """What was found."""

    name: str
    damage: list[str]
    """What was changed in the files, and what does not follow from the runs."""
    cells: list[Checked] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """Of all cells: verdicts that are others with the values found here."""
    left_out: list[str] = field(default_factory=list)
    """Cells that were drawn, and that the bundle is not enough for, and why."""
    of: int = 0
    """Cells of the bundle."""

    @property
    def holds(self) -> bool:
        """Whether nothing was found against it, and all runs that were trained came out again."""
        return not self.damage and not self.changed and all(cell.reproduced for cell in self.cells)

    @property
    def reproduced(self) -> bool | None:
        """Whether runs of it came out again; None if none was trained and nothing was found against it."""
        return self.holds if self.cells or not self.holds else None

    def list_surroundings(self) -> dict[str, tuple[str, str]]:
        """Return fact -> as published, and here, of those in which the runs here differ from theirs."""
        return {name: values for cell in self.cells for name, values in cell.differs.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "bundle": self.name,
            "reproduced": self.reproduced,
            "damage": self.damage,
            "cells": [asdict(cell) for cell in self.cells],
            "changed_verdicts": self.changed,
            "left_out": self.left_out,
            "cells_in_bundle": self.of,
        }


def verify(
    folder: str | Path,
    *,
    cells: int | None = 1,
    cheapest: bool = False,
    only: Sequence[str] = (),
    trusts_plugins: bool = False,
    train: Callable[[Cell], Trained] = train_cell,
    show: Callable[[str], None] = lambda text: None,
) -> Verification:
    """Check the bundle in `folder`, and train some of its runs again.

    Args:
        folder: the bundle.
        cells: how many runs, drawn at random; None: all; 0: none.
        cheapest: whether they are drawn from among the cheapest.
        only: they are drawn from among those that have all of these texts in their labels.
        trusts_plugins: whether the bundle's plugins may be run.
        train: trains a cell; by default as an experiment here.
        show: is told what goes on.

    Raises DataError and ConfigError for what is no bundle, for plugins that are not trusted, and where no run is as
    `only` says.
    """
    bundle = bundles.read_bundle(folder)
    if damage := bundles.list_damage(folder):
        return Verification(bundle.name, damage)
    with bundles.refuse_misfits(folder):
        records = bundles.restore_records(bundle, folder, trusts_plugins)
        if damage := [*claims.check_values(bundle), *claims.check_verdicts(bundle, records)]:
            return Verification(bundle.name, damage)
        show("Files: as published. Verdict: follows from the runs.")
        every = list_cells(records.values())
    named = [cell for cell in every if all(text in cell.label for text in only)]
    if every and not named:
        raise DataError(f"No run of {bundle.name} is called {join_words(only)}. One of its runs is {every[0].label!r}.")
    chosen, left_out = _choose(named, len(named) if cells is None else cells, cheapest)
    checked, retrained = [], []
    for number, cell in enumerate(chosen, 1):
        show(f"[{number}/{len(chosen)}] {cell.label}")
        trained = _train(cell, train)
        retrained.append((cell, trained))
        checked.append(compare_cell(cell, trained, len(chosen)))
        show(f"  {checked[-1].word}: {checked[-1].why}")
    changed = claims.list_other_kinds(bundle.name, records, retrained) if cells is None else []
    return Verification(bundle.name, [], checked, changed, left_out, len(every))


def _train(cell: Cell, train: Callable[[Cell], Trained]) -> Trained:
    """Return what a cell came to here. Raises DataError with the corpus that it needs, if its data is not here."""
    try:
        return train(cell)
    except DataError as error:
        corpus = cell.run.facts.get("ablate.corpus", "not known")
        known = f"No corpus is part of a bundle; the SHA-256 of this one is {corpus}."
        raise DataError(f"{cell.label} cannot be trained here: {error} {known}") from None


def _choose(every: Sequence[Cell], count: int, cheapest: bool) -> tuple[list[Cell], list[str]]:
    """Return `count` cells that can be trained, and why those could not be that were drawn in vain."""
    chosen: list[Cell] = []
    left_out = []
    for cell in every if count == len(every) else shuffle_cells(every, count, cheapest):
        if len(chosen) == count:
            break
        if obstacle := find_obstacle(cell):
            left_out.append(f"{cell.label}: {obstacle}")
        else:
            chosen.append(cell)
    return chosen, left_out
