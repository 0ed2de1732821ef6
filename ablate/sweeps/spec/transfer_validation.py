"""Checks of `search: {transfer: {from: SIZE}}`: of each sweep, and of the sizes of a file together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ablate.config.errors import Problem, did_you_mean
from ablate.config.formatting import join_words
from ablate.sweeps.spec.fields import SweepFields
from ablate.sweeps.spec.transfer import list_rates


def check_transfer(sweep: SweepFields) -> Iterator[Problem]:
    """Yield what keeps a sweep from taking over what another size chose."""
    if not sweep.awaits:
        return
    if sweep.components:
        yield Problem("search.transfer", "goes with arms, and this file has components: write its arms out")
    if sweep.at_grid:
        text = "tests every point of a grid and chooses none that another size could take over. Accepted: at: best"
        yield Problem("confirm.at", text, sweep.confirm.at)
        return
    if not sweep.confirm.most_seeds:
        text = "is required with search.transfer: what a size takes over is tested there on fresh seeds alone"
        yield Problem("confirm.seeds", text)
    if sweep.confirm.effect is None:
        text = "is required with search.transfer: a learning rate that is better by more than it refuses the transfer"
        yield Problem("confirm.effect", text)
    if without := [arm for arm in sweep.own_arms if not list_rates(sweep.space(arm))]:
        lack = f"{join_words(without)} {'have' if without[1:] else 'has'} none"
        text = f"a learning rate is searched, such as optimizer.lr, and {lack}"
        yield Problem("search.transfer", text)


def refuse_without_sizes(sweep: SweepFields) -> Iterator[Problem]:
    """Yield the problem of a sweep that is no size of a file and asks for a transfer."""
    if sweep.awaits and sweep.transfer:
        text = "goes from one size of a file to others, and this file has no sizes"
        yield Problem("search.transfer", text, sweep.transfer.source)


def check_sizes(sizes: Mapping[str, SweepFields]) -> Iterator[Problem]:
    """Yield what keeps the sizes of a file, the smallest first, from taking over settings from one of them."""
    asking = {name: spec.transfer for name, spec in sizes.items() if spec.transfer}
    if not asking:
        return
    transfer = next(iter(asking.values()))
    wanted = transfer.source
    for field in ("search", "check", "outcome", "reason", "settings"):
        if given := getattr(transfer, field):
            yield Problem(f"search.transfer.{field}", "is set when the sweeps of the file begin: remove it", given)
    if len(asking) < len(sizes):
        others = join_words(name for name in sizes if name not in asking)
        yield Problem("search.transfer", f"all sizes have the same search, and that of {others} is another", wanted)
    elif wanted not in sizes:
        text = f"no such size. Accepted: {', '.join(sizes)}.{did_you_mean(wanted, sizes)}"
        yield Problem("search.transfer.from", text, wanted)
    elif wanted != (smallest := next(iter(sizes))):
        yield Problem("search.transfer.from", f"settings are taken over from the smallest size, {smallest}", wanted)
    elif len(sizes) < 2:
        yield Problem("search.transfer.from", "two sizes or more are needed: one takes over what another chose", wanted)
    elif transfer.at is not None and transfer.at not in list(sizes)[1:]:
        text = f"the spot check is at a size above {smallest}. Accepted: {', '.join(list(sizes)[1:])}"
        yield Problem("search.transfer.at", text, transfer.at)
    elif different := [name for name, spec in sizes.items() if list(spec.own_arms) != list(sizes[smallest].own_arms)]:
        yield Problem("arms", f"with search.transfer every size has the same arms; {join_words(different)} has others")
