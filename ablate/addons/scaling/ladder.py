"""The scaling ladder: the arms of a sweep file at several sizes, each tuned there, and their comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ablate.addons.scaling.comparison import Comparison, compare_sizes
from ablate.addons.scaling.fits import Interval
from ablate.addons.scaling.sizes import Size, count_parameters
from ablate.addons.scaling.speedup import find_speedups
from ablate.config.errors import SweepError
from ablate.config.formatting import join_words
from ablate.reports.fairness import describe_sizes
from ablate.sweeps.budgets import FLOPS, find_cost
from ablate.sweeps.comparison import compare_record
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.search_edges import describe_edges
from ablate.verdict.comparison import FreshOutcomes
from ablate.verdict.outcomes import LOSS, Outcome


@dataclass(frozen=True)
class Ladder:
    """The arms at each size on fresh seeds, and their comparison."""

    name: str
    sizes: list[Size]
    """The smallest first."""
    trivial_losses: list[float | None]
    """Trivial loss of each size, in nats; None if it is unknown."""
    compared: Comparison
    target: tuple[str, int] | None
    """The size to extrapolate to, and its parameters."""
    taken_over: list[str]
    """The origin of settings that were not tuned at a size: sentences, each with the sizes that it holds for."""
    surroundings: list[str]
    """Differences between the sizes in what they were computed on."""
    computes: dict[str, list[float]]
    """Arm -> FLOPs of a training at each size; empty if they are not known."""
    speedups: dict[str, list[Interval | None]]
    """Arm -> its effective speed-up at each size; empty if the baseline has no curve against compute."""
    claimed: dict[str, list[bool]]
    """Arm -> whether the sweep of each size claims that it is better or worse than the baseline."""
    edges: list[str]
    """The arms that stand at an end of a searched range: sentences, each with the sizes that it holds for."""

    @property
    def baseline(self) -> str:
        """The arm that the others are compared with."""
        return self.compared.baseline


def fit_ladder(
    name: str, known: Sequence[Size], records: Sequence[SweepRecord], extrapolate: str | None = None
) -> Ladder:
    """Return the comparison of the arms of `records`, one record for each size. Raises SweepError if fewer than two
    sizes have a fresh seed that ended."""
    outcomes = {arm: [read_losses(record, arm) for record in records] for arm in known[0].spec.all_arms}
    kept = [k for k in range(len(known)) if any(by_rung[k].outcomes for by_rung in outcomes.values())]
    if len(kept) < 2:
        raise SweepError(
            f"The ladder {name} needs fresh seeds that ended at two sizes. To see the results of each size: ablate "
            f"report {known[0].spec.name}"
        )
    sizes = [known[k] for k in kept]
    compared = compare_sizes(
        [size.parameters for size in sizes],
        {arm: [by_rung[k] for k in kept] for arm, by_rung in outcomes.items()},
        known[0].spec.compared_with,
        find_effect(sizes),
    )
    target = (extrapolate, count_parameters(extrapolate, known)) if extrapolate else None
    trivial_losses = [records[k].trivial_loss for k in kept]
    ended = {size.name: records[k] for size, k in zip(sizes, kept, strict=True)}
    taken = _join_sizes({size: [one.describe()] for size, r in ended.items() if (one := r.spec.taken_over)})
    edges = _join_sizes({size: describe_edges(record) for size, record in ended.items()})
    computes = find_computes([records[k] for k in kept])
    losses = {arm: one.losses for arm, one in compared.arms.items()}
    speedups = find_speedups(computes, losses, compared.baseline) if computes else {}
    told = list(describe_sizes(ended))
    alone = [compare_record(record) for record in ended.values()]
    claimed = {
        arm: [arm in own and own[arm].kind.startswith(("better", "worse")) for own in alone] for arm in compared.pairs
    }
    return Ladder(name, sizes, trivial_losses, compared, target, taken, told, computes, speedups, claimed, edges)


def find_computes(records: Sequence[SweepRecord]) -> dict[str, list[float]]:
    """Return arm -> FLOPs of a training on fresh seeds at each size, those of models that it starts from included;
    empty if some are not known."""
    computes: dict[str, list[float]] = {}
    for arm in records[0].arms:
        for record in records:
            runs = record.fresh(arm).select(status="completed")
            known = [cost for run in runs if (cost := find_cost(run, run.step, FLOPS))]
            if not known:
                return {}
            computes.setdefault(arm, []).append(max(known))
    return computes


def _join_sizes(told: Mapping[str, Iterable[str]]) -> list[str]:
    """Return each of the sentences on sizes (size -> sentences) once, with its sizes."""
    sizes: dict[str, list[str]] = {}
    for size, sentences in told.items():
        for sentence in sentences:
            sizes.setdefault(sentence, []).append(size)
    return [f"{join_words(names)}: {text}" for text, names in sizes.items()]


def find_effect(sizes: Sequence[Size]) -> float | None:
    """Return the smallest difference of the loss that matters at any size; None if the sweeps do not set it, or set it
    for another metric."""
    confirms = [size.spec.confirm for size in sizes if size.spec.objective.metric == LOSS]
    effects = [confirm.effect for confirm in confirms if confirm.effect is not None]
    return min(effects) if len(effects) == len(sizes) else None


def read_losses(record: SweepRecord, arm: str) -> FreshOutcomes:
    """Return the outcomes of the fresh seeds of `arm`; the values are validation losses, whatever the objective."""
    outcomes: dict[int, Outcome] = {}
    for trial in record.fresh(arm):
        outcome = record.runs.find_outcome(trial)
        if outcome is not None and (outcome.value is None or LOSS in trial.metrics):
            loss = None if outcome.value is None else trial.metrics[LOSS]
            outcomes[trial.seed] = replace(outcome, value=loss)
    found = bool(record.spec.cells) or record.best(arm) is not None
    return FreshOutcomes(dict(sorted(outcomes.items())), looks=record.looks.get(arm), found=found)
