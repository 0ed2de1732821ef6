"""The seeds that a sweep keeps for itself: no later sweep of the storage that trains the same model on the same data is
tested, or chooses settings, on one of them. Nothing here accesses a storage.

What was chosen with knowledge of a test cannot be tested on the same seeds again. So it does not count what changed
since: the name or generation of the sweep, its arms, their norms and initialisation, the optimizer, the length of
training, or what is searched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.config.base import Config
from ablate.config.bounds import MOST_SEED
from ablate.config.errors import SweepError
from ablate.sweeps.spec.parts import Spent
from ablate.sweeps.spec.sweep import Sweep


class SeedTable(Config):
    """The seeds that a sweep keeps for itself, as the storage has it."""

    tuned: list[int]
    """The seeds of its searches."""
    first: int
    """The first of those that it tests and selects on. A block, as seeds may be added to a sweep at any time."""
    last: int
    tests: int
    """The most fresh seeds that its file asks for; 0: it tests nothing."""
    trained: list[dict[str, Any]]
    """The models that it trains and their data, without what is searched: dotted path -> value."""


def tabulate_seeds(spec: Sweep) -> SeedTable:
    """Return the seeds that `spec` keeps for itself."""
    plain = spec.without_grid()
    trained: list[dict[str, Any]] = []
    for arm in plain.all_arms:
        searched = plain.space(arm)
        settings = plain.base(arm).identify()
        own = {p: v for p, v in settings.items() if not any(p == s or p.startswith(f"{s}.") for s in searched)}
        if own not in trained:
            trained.append(own)
    return SeedTable(
        tuned=[] if spec.at_grid else sorted({plain.base(arm).seed for arm in plain.all_arms}),
        first=spec.first_seed,
        last=spec.last_seed,
        tests=spec.confirm.most_seeds,
        trained=trained,
    )


def draw_seeds(spec: Sweep, spent: Mapping[str, SeedTable]) -> Sweep:
    """Return `spec`, which is about to begin, with fresh and selection seeds above all that earlier sweeps keep which
    train the same model on the same data; unchanged where there are none. `spent`: sweep -> its seeds.

    Raises SweepError where it would be tuned on seeds on which one of them is tested, and where no seeds are left."""
    own = tabulate_seeds(spec)
    earlier = {title: table for title, table in spent.items() if _train_the_same(own, table)}
    for title, table in earlier.items():
        tuned = [seed for seed in own.tuned if table.first <= seed <= table.last]
        if tuned and table.tests:
            raise SweepError(
                f"{spec.name} would be tuned on the seed {tuned[0]}, and {title}, one of those that {spec.kind.same}, "
                f"keeps the seeds {table.first} to {table.last} for its choice and its test: tuning, "
                f"selection and test never share a seed. Set the seed to at most {table.first - 1}, or above "
                f"{max(one.last for one in earlier.values())}."
            )
    known = spec.spent or Spent(last=0, sweeps=[])
    last = max([known.last, *(table.last for table in earlier.values())])
    names = list(dict.fromkeys([*known.sweeps, *earlier]))
    drawn = spec.model_copy(update={"spent": Spent(last=last, sweeps=names, same=spec.kind.same)}) if last else spec
    if drawn.taken_over and not {*drawn.fresh_seeds()}.isdisjoint(drawn.taken_over.seeds):
        last = max(drawn.taken_over.seeds)
        drawn = spec.model_copy(update={"spent": Spent(last=last, sweeps=names, same=spec.kind.same)})
    if drawn.confirm.most_seeds and drawn.selection_seeds()[-1] > MOST_SEED:
        raise SweepError(
            f"No seeds are left for {spec.name}: those up to {drawn.first_seed - 1} are spent or tuned on, and the "
            f"largest is {MOST_SEED}. Give a smaller seed, or begin it in another store (ABLATE_STORE)."
        )
    return drawn


def _train_the_same(one: SeedTable, other: SeedTable) -> bool:
    """Return whether some arms of two sweeps do not differ in their model and data, except in what either searches."""
    return any(
        bool(shared := ours.keys() & theirs.keys()) and all(ours[path] == theirs[path] for path in shared)
        for ours in one.trained
        for theirs in other.trained
    )
