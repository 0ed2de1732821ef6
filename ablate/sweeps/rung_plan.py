"""What a plan says of the rungs of a search, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator

from ablate.config.formatting import count_noun
from ablate.sweeps.search.methods import Rung
from ablate.sweeps.spec.sweep import Sweep


def describe_rungs(spec: Sweep, arm: str) -> Iterator[str]:
    """Yield the lines of a plan on the rungs of `arm`: who trains to each, and the share of the grid's tokens."""
    rungs = spec.plan_rungs(arm)
    if not rungs:
        return
    base = spec.base(arm)
    for number, rung in enumerate(rungs, 1):
        items = rung.trained * base.items_per_update
        runs = f"{count_noun(rung.settings, 'setting')} to update {rung.updates:,}"
        yield f"    rung {number}: {runs}, {items:,} {base.unit}{_describe_decay(rung, rungs[-1])}"
    if spec.confirm.most_seeds and rungs[-2].settings > rungs[-1].settings:
        more = (rungs[-1].updates - rungs[-2].shared) * base.items_per_update
        yield f"    {more:,} {base.unit} more if another setting of rung {len(rungs) - 1} is chosen, which then goes on"
    total = sum(rung.trained for rung in rungs) * base.items_per_update
    yield (
        f"    in all {total:,} {base.unit}, {spec.find_share(arm):.1%} of those of training all "
        f"{count_noun(rungs[0].settings, 'setting')} to the end; more if few have learned at a rung, where all go on"
    )


def _describe_decay(rung: Rung, last: Rung) -> str:
    """Return how the runs of a rung end before they are compared; the last is the whole run itself."""
    if rung is last:
        return ""
    if not rung.shared:
        return ", each a whole short run"
    return f", compared after a decay of {count_noun(rung.updates - rung.shared, 'update')}"
