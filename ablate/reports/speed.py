"""How soon each arm reaches the final objective of the baseline, and a target: clauses for the verdict, tables and the
figure; and what is read at equal cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ablate.config.formatting import count_decimals, format_count, format_duration, format_range, join_words
from ablate.plots.figure import Axis, Figure, Panel, Part, list_entries
from ablate.plots.marks import Interval, Mark, Span, Text
from ablate.plots.style import PALETTE
from ablate.reports.labels import name_items
from ablate.reports.section import NOTHING, Column, Section, Table, words
from ablate.sweeps.budgets import AXES, FLOPS, ITEMS, SECONDS, find_budget, list_early, refuse_seconds
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.speed import Speed
from ablate.verdict.speed import Median, Share

Speeds = Mapping[str, Speed]
"""Arm -> how soon it reaches a goal."""


def name_axis(record: SweepRecord, axis: str) -> str:
    """Return the noun of a cost: tokens or images, FLOPs, seconds."""
    return {ITEMS: name_items(record.spec), FLOPS: "FLOPs", SECONDS: "seconds"}[axis]


def _name_goal(record: SweepRecord, target: float | None) -> str:
    """Return what is to be reached: 'the final val/loss of pre', 'a val/loss of 3.2'."""
    title = record.spec.objective.title
    if target is not None:
        return f"a {title} of {target:g}"
    end = "final " if record.spec.compare.at == "end" else ""
    return f"the {end}{title} of {record.spec.compared_with}"


# ---------------------------------------------------------------------------------------------------- sentences


def describe_claims(record: SweepRecord, *known: Speeds) -> Iterator[str]:
    """Yield a sentence for each arm that is claimed to be faster: 'mix reaches the final val/loss of pre with 0.70
    times the tokens (0.61 to 0.80) and 0.75 times the FLOPs (0.65 to 0.86)'."""
    for speeds in known:
        for arm, speed in speeds.items():
            if speed.claimed:
                shares = [(name_axis(record, axis), *_format_parts(speed.shares[axis])) for axis in speed.claimed]
                costs = [f"{value} times the {noun} ({ends})" for noun, value, ends in shares]
                yield f"{arm} reaches {_name_goal(record, speed.goal)} with {join_words(costs)}."


def _format_parts(share: Share) -> tuple[str, str]:
    """Return a share, and its ends as '0.61 to 0.80', 'up to 0.80' or '0.61 or more'; '' if neither is known."""
    width = (share.high or 1.0) - share.low
    decimals = min(4, max(2, count_decimals(width / 2)))
    low, high = f"{share.low:.{decimals}f}", f"{share.high or 0:.{decimals}f}"
    value = "not reached" if share.value is None else f"{share.value:.{decimals}f}"
    if share.high is None:
        return value, f"{low} or more" if share.low else ""
    return value, f"{low} to {high}" if share.low else f"up to {high}"


def describe_equal_cost(record: SweepRecord) -> str:
    """Return at which cost the arms are compared, or why they cannot be; '' at the end of each."""
    axis = record.spec.compare.at
    if axis == "end" or not record.fresh(record.spec.compared_with):
        return ""
    noun = name_axis(record, axis)
    if axis == SECONDS and (why := refuse_seconds(record)):
        return f"Nothing is compared at equal seconds: {why}. Train again alone (one worker), or set compare.at."
    if (budget := find_budget(record)) is None:
        return f"Nothing is compared at equal {noun} yet: no run has ended whose {noun} are known."
    amount = format_duration(budget) if axis == SECONDS else f"{format_count(budget)} {noun}"
    text = f"All arms are compared at {amount}, the most that every run has reached"
    if early := list_early(record):
        told = join_words(f"{arm} after {100 * share:.0f} %" for arm, share in early.items())
        text += (
            f"; interpolated between validations, and before the end of their schedule: {told} of its updates. Their "
            "settings were chosen by the end of their runs"
        )
    return f"{text}."


# ---------------------------------------------------------------------------------------------------- tables


def tabulate_speeds(record: SweepRecord, speeds: Speeds, times: Speeds) -> list[Section]:
    """Return how soon each arm reaches what the baseline ends at (`speeds`), and the target (`times`); nothing before
    there are seeds of both."""
    return [_tabulate(record, known) for known in (speeds, times) if known]


def _tabulate(record: SweepRecord, speeds: Speeds) -> Section:
    goal = _name_goal(record, next(iter(speeds.values())).goal)
    title = f"How soon each arm reaches {goal}"
    rows = list(speeds.values())
    if not any(speed.updates for speed in rows):
        text = "One validation does not tell how soon: set trainer.val_check_interval to a part of trainer.max_steps."
        if not any(speed.pairs for speed in rows):
            text = f"There is no seed on which both an arm and {record.spec.compared_with} trained."
        return Section(title, sentences=[text])
    axes = [axis for axis in AXES if any(axis in speed.shares for speed in rows)]
    columns = [
        words("arm", speeds),
        Column("n", [f"{one.pairs}" if one.pairs == one.seeds else f"{one.pairs} of {one.seeds}" for one in rows]),
        *(
            Column(f"share of {name_axis(record, axis)}", [speed.shares.get(axis) for speed in rows], _format_share)
            for axis in axes
        ),
        words("claimed", [", ".join(name_axis(record, axis) for axis in speed.claimed) or "no" for speed in rows]),
        Column("reached", [f"{speed.reached}/{speed.seeds}" for speed in rows]),
        Column("median", [speed.median for speed in rows], _format_median),
    ]
    return Section(title, Table(columns), list(_explain(record, speeds, goal)))


def _format_share(share: Share) -> str:
    """Return '0.70 (0.61 to 0.80)', '0.70 (0.61 or more)', 'not reached (0.93 or more)'."""
    value, ends = _format_parts(share)
    return f"{value} ({ends})" if ends else value


def _format_median(median: Median) -> str:
    value, low, high = (
        NOTHING if end is None else "never" if math.isinf(end) else f"{end:.2g}"
        for end in (median.value, median.low, median.high)
    )
    return f"{value} ({low} to {high})" if median.low is not None else value


def _explain(record: SweepRecord, speeds: Speeds, goal: str) -> Iterator[str]:
    spec, rows, baseline = record.spec, list(speeds.values()), record.spec.compared_with
    is_target = rows[0].goal is not None
    counts = sorted({speed.validations for speed in rows if speed.validations})
    until, whole = f"until it reaches {goal}", f"all of {baseline}"
    if is_target:
        until, whole = f"until each reaches {goal}", f"that of {baseline}"
    yield (
        f"The cost of the arm {until}, as a share of {whole}: where the mean of its curves over the n seeds on which "
        f"both trained comes there and stays, read at {format_range(counts[0], counts[-1])} validations and "
        "interpolated between them, with the interval of the verdict's paired t-test there."
    )
    if not is_target:
        yield (
            "It is claimed of an arm that is better, and if the whole interval is below 1; the test goes back from the "
            "end, so that it needs no error beside the verdict's. All else here describes these seeds."
        )
    else:
        yield (
            "It is claimed if the whole interval is below 1, the baseline is shown to be behind when the arm is there, "
            "and the arm failed on no more seeds; it is one of the comparisons that share the error of 5 %."
        )
        met = {arm: speed.is_reached for arm, speed in speeds.items()} | {baseline: any(one.shares for one in rows)}
        if missed := [name for name, is_met in met.items() if not is_met]:
            yield f"The mean of {join_words(missed)} does not reach it, so there is no share to state."
    yield (
        "reached: seeds on which the arm comes there and stays; median: over all seeds, of the share of "
        f"{name_items(spec)}, with its exact 95 % interval (six seeds or more), where a seed on which the arm failed "
        "or never comes there counts as never. It is described, and not claimed."
    )
    yield (
        "The learning rate of the arm has not finished its schedule there: a training planned to be that short may "
        "need more or less."
    )
    if failed := [
        f"{arm} on {speed.failed} and {baseline} on {speed.other_failed} of {speed.seeds}"
        for arm, speed in speeds.items()
        if speed.failed or speed.other_failed
    ]:
        yield f"Failed, and left out of the mean curves: {join_words(failed)}."
    if first := [
        arm for arm, speed in speeds.items() if speed.updates and speed.updates.high and not speed.updates.low
    ]:
        yield f"{join_words(first)}: it may be reached before the first validation."
    if (why := refuse_seconds(record)) and spec.compare.at != SECONDS:
        yield f"Seconds are not compared: {why}."
    elif any(SECONDS in speed.shares for speed in rows) and spec.compare.at != SECONDS:
        yield (
            "Seconds are those of updates, without validation and the first update. Their interval holds for the "
            "updates and for the time of one, each at the verdict's level; it is described, and not claimed."
        )


# ---------------------------------------------------------------------------------------------------- figure


def draw_speeds(record: SweepRecord, speeds: Speeds, times: Speeds) -> Figure | None:
    """Return the shares with their intervals, a row for each arm; None if none is known."""
    goals = [known for known in (speeds, times) if any(speed.shares for speed in known.values())]
    if not goals:
        return None
    looks = dict(zip(AXES, zip(PALETTE, ("o", "D", "s"), strict=False), strict=False))
    known = [share for goal in goals for speed in goal.values() for share in speed.shares.values()]
    shown = {axis for goal in goals for speed in goal.values() for axis in speed.shares}
    most = 1.1 * max(
        [1.0, *(end for share in known for end in (share.value, share.high, share.low) if end is not None)]
    )
    panels = []
    for goal in goals:
        marks: list[Mark] = [Span(1, 1, colour="black")]
        for row, (arm, speed) in enumerate(goal.items()):
            for i, (axis, share) in enumerate(speed.shares.items()):
                place, ends = row + 0.2 * (i - 1), (share.low, most * 2 if share.high is None else share.high)
                title = f"{arm}: {_format_share(share)} of the {name_axis(record, axis)}"
                if share.value is None:
                    marks.append(Text(0.97, place, _format_share(share), looks[axis][0], "right", of_axes="x"))
                else:
                    marks.append(Interval(share.value, place, ends, *looks[axis], title=title))
        rows = Axis(ticks=dict(enumerate(goal)), limits=(len(goal) - 0.5, -0.5), grid=False)
        label = f"cost until {_name_goal(record, next(iter(goal.values())).goal)},\nover that of the baseline"
        panels.append(Panel(marks, Axis(label, limits=(0, most)), rows))
    return Figure(
        "speed",
        f"{record.title}: how soon each arm is there",
        [Part(panels, 2, share="y")],
        "left of 1: sooner than the baseline",
        "The cost of each arm until the mean of its curves over fresh seeds reaches the goal and stays there, over the "
        "cost of the baseline, with intervals at the level of the verdict. An arrow: the interval extends beyond the "
        "axis.",
        list_entries({name_axis(record, axis): look for axis, look in looks.items() if axis in shown}, ""),
        (5.5 * len(goals) + 2, 1.8 + 0.6 * max(map(len, goals))),
    )


# ---------------------------------------------------------------------------------------------------- plain values


def cost_to_plain(record: SweepRecord) -> dict[str, Any]:
    """Return at which cost the arms are compared, for JSON."""
    return {
        "at": record.spec.compare.at,
        "cost": find_budget(record),
        "read_early": list_early(record),
        "told": describe_equal_cost(record),
    }
