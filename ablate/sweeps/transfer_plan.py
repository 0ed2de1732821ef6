"""The plan of sizes that take over settings from another, before it is known whether these hold, and what it saves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ablate.config.formatting import count_noun, join_words
from ablate.sweeps.remaining import count_left
from ablate.sweeps.spec.references import list_awaited
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.spec.transfer import FACTORS


def outline_open(spec: Sweep) -> str:
    """Return the plan of a sweep that waits for others."""
    transfer = spec.transfer
    assert transfer is not None
    base = spec.base(next(iter(spec.own_arms)))
    arms = count_noun(len(spec.own_arms), "arm")
    length = f"{base.trainer.max_steps} updates = {base.items:,} {base.unit}"
    if transfer.check == spec.name:
        runs = len(spec.own_arms) * len(FACTORS) * transfer.seeds
        return (
            f"sweep {spec.name}: a spot check at {transfer.at} of the settings that {transfer.search} chooses\n"
            f"each of {arms} at its settings, and at half and twice their learning rate, on {transfer.seeds} seeds: "
            f"{runs} runs of {length}\nto do: {count_noun(runs, 'trial')}, {_count_check(spec):,} {base.unit}"
        )
    seeds = spec.confirm.first_seeds
    source = transfer.search or f"the size {transfer.source}"
    return (
        f"sweep {spec.name}: takes over the settings that {source} chooses, where the spot check lets it\n"
        f"each of {arms} on {count_noun(seeds, 'fresh seed')}: {seeds * len(spec.own_arms)} runs of {length}\n"
        f"to do: {_count_tested(spec):,} {base.unit}; if the spot check refuses the settings of any arm, all are "
        f"searched: {_count_searched(spec):,} {base.unit}"
    )


def describe_saving(specs: Sequence[Sweep]) -> Iterator[str]:
    """Yield a sentence on the tokens of all sweeps of a file with its transfer, and without; nothing of others."""
    open_ones = [spec for spec in specs if list_awaited(spec)]
    if not open_ones:
        return
    checks = [spec for spec in open_ones if spec.transfer and spec.transfer.check == spec.name]
    sizes = [spec for spec in open_ones if spec not in checks]
    searched = sum(_count_searched(spec) for spec in specs if spec not in open_ones)
    spent = sum(map(_count_check, checks))
    with_it = searched + spent + sum(map(_count_tested, sizes))
    without = searched + sum(map(_count_searched, sizes))
    unit = specs[0].base(next(iter(specs[0].own_arms))).unit
    names = join_words(spec.name for spec in specs if spec not in checks)
    yield (
        f"{names} together, from their beginning: {with_it:,} {unit} with the transfer, {spent:,} of them for the spot "
        f"check; {without:,} where every size is searched. If the spot check refuses the settings: {without + spent:,}."
        + (
            " So the transfer saves nothing here: it pays with longer searches, more sizes, or fewer seeds of its "
            "check (search.transfer.seeds)."
            if with_it >= without
            else ""
        )
    )


def _count_check(spec: Sweep) -> int:
    """Return the tokens or images of a spot check."""
    assert spec.transfer is not None
    return sum(spec.base(arm).items for arm in spec.own_arms) * len(FACTORS) * spec.transfer.seeds


def _count_tested(spec: Sweep) -> int:
    """Return the tokens or images of testing arms that are not searched."""
    return sum(spec.base(arm).items for arm in spec.own_arms) * spec.confirm.first_seeds


def _count_searched(spec: Sweep) -> int:
    """Return the tokens or images of searching and testing the arms."""
    items = {arm: spec.base(arm).items for arm in spec.all_arms}
    return round(sum(left.whole * items[arm] for arm, left in count_left(spec, items).items()))
