"""The needs of a sweep before it runs: GPU hours of every arm, and what the planned seeds can show."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.config.formatting import count_noun, join_words
from ablate.config.lazy import postpone_imports
from ablate.config.yaml import parse_overrides, read_yaml
from ablate.experiment.tree import Experiment
from ablate.sweeps.runs import FRESH, SEARCH, SELECTION
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.stages import Left, count_left, count_unassigned, describe_stages
from ablate.verdict.looks import Looks, plan_looks
from ablate.verdict.power import (
    MOST,
    count_failures_needed,
    count_seeds,
    exclude_failures,
    find_smallest_difference,
)
from ablate.verdict.sequential import LEAST

if TYPE_CHECKING:
    from ablate.estimate.plan import Assumed, Plan

with postpone_imports():  # it needs torch, and the plan of a command does not
    from ablate.estimate import plan as estimates


def count_comparisons(spec: Sweep) -> int:
    """Return the comparisons of means that share the error of 5 %: of this sweep, and of the rest of its file."""
    return len(spec.comparisons) + spec.count_timed() + (spec.family or 0)


def describe_power(spec: Sweep, hours: float | None = None) -> list[str]:
    """Return lines on the statistical power of the planned seeds; none if no seeds are requested. Args: spec: the
    sweep. hours: GPU hours of one seed of all arms; None: unknown.
    """
    confirm, most, name = spec.confirm, spec.confirm.most_seeds, spec.objective.title
    if not most:
        return []
    if most < LEAST:
        what = "one seed gives" if most == 1 else "two seeds give"
        return [f"{what} figures but no verdict: a verdict needs three or more seeds"]
    if not spec.comparisons:
        return [f"one arm: figures but no verdict; {_describe_exclusion(most)}"]
    comparisons = count_comparisons(spec)
    looks = plan_looks(confirm.first_seeds, most) if confirm.is_sequential else Looks((most,), most)
    sd = _find_sd(spec)
    smallest = find_smallest_difference(sd or 1.0, looks, comparisons) or math.inf
    shared = ", which share" if comparisons > 1 else ", with"
    family = f"{count_noun(comparisons, 'comparison')} in the file{shared} an error of 5 % (failures may add some)"
    share = max(one.sd_share for one in spec.comparisons if one.kind != "interaction")
    warnings = list(_warn(spec, smallest * share, comparisons, hours, share)) if sd else []
    if any(one.levels for one in spec.comparisons):
        return [*_describe_effects(spec, smallest, family), *warnings]
    if sd is None:
        advice = _describe_full_sd(spec) or (
            "set confirm.sd, a standard deviation from earlier runs, to see this in the unit of the objective"
        )
        shown = f"at least {smallest:.2g} standard deviations of a paired difference over seeds; {advice}"
    else:
        shown = f"at least {smallest:.2g}, by a standard deviation of {sd:g} of a paired difference"
        shown += f" over seeds{_name_source(spec)}"
    needed = count_failures_needed(comparisons + 1)
    shown_failures = f"to show that an arm fails more often, it must fail on {needed} seeds on which the other trains"
    if needed > most:
        shown_failures = f"that an arm fails more often takes at least {needed} seeds to show"
    lines = [
        f"{most} seeds, {family}: they detect, with a power of 80 %, differences of {name} of {shown}",
        f"failures: {_describe_exclusion(most)}; {shown_failures}",
    ]
    return [*lines, *warnings]


def _find_sd(spec: Sweep) -> float | None:
    """Return the standard deviation of a paired difference over seeds; None if it is unknown, as at a scale for which
    the command line sets none: that of the file is of the full setting."""
    return spec.confirm.sd if spec.scale is None or "confirm.sd" in spec.scale.changed else None


def _describe_full_sd(spec: Sweep) -> str:
    """Return why the standard deviation of the file is not used; '' if it has none."""
    if spec.confirm.sd is None:
        return ""
    return (
        f"confirm.sd, {spec.confirm.sd:g}{_name_source(spec)}, is of the full setting and does not hold at this scale: "
        "set it on the command line to one from runs at this scale"
    )


def _name_source(spec: Sweep) -> str:
    source, scale = spec.confirm.sd_source, spec.scale
    own = scale is None or "confirm.sd" not in scale.changed or "confirm.sd_source" in scale.changed
    return f", from {source}" if source and own else ""


def _describe_effects(spec: Sweep, smallest: float, family: str) -> Iterator[str]:
    """Yield lines on the effects of a factorial that the seeds can show: a mean over pairs of cells varies less than
    one pair does. `smallest`: the difference of two cells that they can show."""
    seeds = spec.confirm.most_seeds
    shares: dict[str, list[float]] = {}
    for one in spec.comparisons:
        shares.setdefault(f"{one.kind}s", []).append(one.sd_share)
    told = join_words(f"{len(own)} {kind}" for kind, own in shares.items())
    shown = join_words(f"{kind} of at least {smallest * max(own):.2g}" for kind, own in shares.items())
    sd = _find_sd(spec)
    if sd is None:
        unit = "standard deviations of a paired difference of two cells over seeds"
        unit += f"; {full}" if (full := _describe_full_sd(spec)) else ""
    else:
        unit = f"of {spec.objective.title}, by a standard deviation of {sd:g} of a paired "
        unit += f"difference of two cells over seeds{_name_source(spec)}"
    yield f"{seeds} seeds, {told}; {family}: with a power of 80 % they show {shown} {unit}"
    yield (
        "this holds if all cells train, and cells vary independently beyond what a seed does to all alike; a seed on "
        "which any of them fails is left out of the effects that it is in"
    )
    needed = count_failures_needed(count_comparisons(spec) + 1)
    yield (
        f"failures: {_describe_exclusion(seeds)}; to show that a level fails more often, more of its cells must fail "
        f"on {needed} seeds, and fewer on none"
    )


def _warn(spec: Sweep, smallest: float, comparisons: int, hours: float | None, share: float) -> Iterator[str]:
    """Yield the differences that are too small to be shown, and the cost of showing them. `share`: the standard
    deviation of a compared value, as a share of `confirm.sd`."""
    sought = {"confirm.effect": spec.confirm.effect} if spec.confirm.effect else {}
    sought |= {} if spec.scale else _list_gaps(spec)  # which are of the full setting
    for source, gap in sought.items():
        if gap and gap < smallest:
            needed = count_seeds(share * (_find_sd(spec) or 0.0), gap, comparisons)
            text = f"WARNING: {source}, {gap:.2g}, is less than these seeds can detect"
            if needed is None:
                yield f"{text}: it would need more than {MOST:,}"
                continue
            more = needed - spec.confirm.most_seeds
            if more <= 0:  # its looks cost a sequence some power
                yield f"{text} at their last look: it would need {needed} planned as a fixed number"
                continue
            cost = f", {format_hours(more * hours)} hours of a GPU" if hours else ""
            arms = len(spec.all_arms)
            of = f"{arms} arms and points" if spec.cells else count_noun(arms, "arm")
            yield f"{text}: it would need {needed} ({more * arms} more runs of {of}{cost})"


def _list_gaps(spec: Sweep) -> dict[str, float]:
    """Return description -> difference of the published figures of an arm and the baseline, in the unit of the
    objective; perplexities as losses."""
    gaps, metric = {}, spec.objective.metric
    baselines = dict([*one.weights] for one in spec.comparisons if not one.levels)
    for entry in spec.published:
        for arm, value in entry.values.items():
            if (baseline := baselines.get(arm)) not in entry.values:
                continue
            theirs = entry.values[baseline]
            what = f"the difference of {arm} and {baseline} in {entry.source}"
            if entry.metric == metric:
                gaps[what] = abs(value - theirs)
            elif entry.metric == metric.removesuffix("loss") + "perplexity" and min(value, theirs) > 0:
                gaps[f"{what} (perplexities, in nats)"] = abs(math.log(value / theirs))
    return gaps


def _describe_exclusion(seeds: int) -> str:
    return f"an arm that fails on none of {seeds} seeds may still fail on up to {100 * exclude_failures(seeds):.0f} %"


def format_hours(hours: float) -> str:
    """Return hours with three digits."""
    return "less than 0.1" if hours < 0.1 else f"{hours:.3g}" if hours < 100 else f"{hours:,.0f}"


@dataclass(frozen=True)
class ArmCost:
    """The cost of an arm of a sweep, without pruning."""

    arm: str
    plan: Plan
    left: Left
    """Its runs."""

    @property
    def runs(self) -> tuple[float, float]:
        """The least and the most whole runs."""
        return self.left.whole, self.left.whole + sum(self.left.more.values())

    @property
    def items(self) -> float:
        """Maximum number of tokens or images."""
        return self.runs[1] * self.plan.work.items

    @property
    def gpu_hours(self) -> tuple[float, float]:
        """The least and the most hours of all devices together."""
        least, most = (runs * self.plan.gpu_hours for runs in self.runs)
        return least, most


@dataclass(frozen=True)
class SweepPlan:
    """The cost of a whole sweep."""

    name: str
    arms: tuple[ArmCost, ...]
    unassigned: dict[str, int]
    """Stage -> maximum number of runs whose arms are not known yet."""
    power: tuple[str, ...] = ()
    """Lines on the planned seeds and their statistical power."""
    kept: str = ""
    """The checkpoints that stay."""
    more: tuple[str, ...] = ()
    """The `key=value` words with which it is planned, as an arm does not fit without them."""

    @property
    def fits(self) -> bool:
        """Whether each arm fits."""
        return all(arm.plan.fits for arm in self.arms)

    @property
    def items(self) -> float:
        """Tokens or images of all arms."""
        return sum(arm.items for arm in self.arms)

    @property
    def gpu_hours(self) -> tuple[float, float]:
        """The least and the most hours of all devices together."""
        return sum(arm.gpu_hours[0] for arm in self.arms), sum(arm.gpu_hours[1] for arm in self.arms)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        arms = {
            cost.arm: {
                "trials": cost.left.runs[SEARCH], SELECTION: cost.left.runs[SELECTION],
                FRESH: cost.left.runs[FRESH], **{
                    f"{stage}_at_most": cost.left.runs[stage] + cost.left.more[stage] for stage in (SELECTION, FRESH)
                },
                cost.plan.unit: cost.items, "gpu_hours_at_least": cost.gpu_hours[0], "gpu_hours": cost.gpu_hours[1],
                "trial": cost.plan.to_dict(),
            }
            for cost in self.arms
        }  # fmt: skip
        unit = self.arms[0].plan.unit
        return {
            "sweep": self.name, unit: self.items, "gpu_hours_at_least": self.gpu_hours[0],
            "gpu_hours": self.gpu_hours[1], "arms": arms, "power": list(self.power),
            "checkpoints_kept": self.kept, "fits_with": list(self.more),
            **{f"{stage}_at_most": count for stage, count in self.unassigned.items()},
        }  # fmt: skip


def plan_sweep(spec: Sweep, assumed: Assumed) -> SweepPlan:
    """Return the plan of a whole sweep, each arm at the first values of its search space."""
    plans = {arm: estimates.plan(spec.own_base(arm), assumed) for arm in spec.all_arms}
    left = count_left(spec)
    arms = tuple(ArmCost(arm, plans[arm], left[arm]) for arm in plans)
    lines = [*describe_stages(spec), *describe_power(spec, sum(arm.plan.gpu_hours for arm in arms))]
    return SweepPlan(spec.name, arms, count_unassigned(spec), tuple(lines), describe_kept(spec))


def describe_kept(spec: Sweep) -> str:
    """Return how many checkpoints of a sweep stay."""
    seeds = bool(spec.confirm.most_seeds)
    counts = {"none": "none", "all": "1 of each", "best": f"at most {1 + seeds} of each of {len(spec.all_arms)} arms"}
    return f"{counts[spec.checkpoints]} after it (checkpoints: {spec.checkpoints})"


def plan_file(
    file: str | Path | None, overrides: Mapping[str, Any], assumed: Assumed, size: str | None = None
) -> Plan | SweepPlan:
    """Return the plan of an experiment's file (None: the defaults) or of a sweep file, of its size or stage `size` if
    it has several, with `overrides`. A sweep that does not fit is planned with the settings with which its largest arm
    does, if all arms fit with them."""
    tree = {} if file is None else read_yaml(Path(file))
    if {"arms", "search", "experiment", "name"} & set(tree):
        assert file is not None
        planned = plan_sweep(Sweep.load(file, overrides, size), assumed)
        more = max((arm.plan for arm in planned.arms), key=lambda plan: plan.memory.peak).more
        if not more:
            return planned
        again = plan_sweep(Sweep.load(file, {**overrides, **parse_overrides(more)}, size), assumed)
        return replace(again, more=more) if again.fits else planned
    source = str(file) if file else "the configuration"
    return estimates.plan(Experiment.from_mapping(tree, overrides, source=source), assumed)
