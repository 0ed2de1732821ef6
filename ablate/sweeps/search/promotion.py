"""Who goes on from a rung: a decision on how the settings of one arm have ended there, and on nothing else.

It is made anew from the outcomes whenever somebody asks, so that no process has to be told what another has decided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ablate.sweeps.runs import Runs, read_rung_outcomes
from ablate.sweeps.search.methods import Rung
from ablate.verdict.outcomes import Outcome


@dataclass(frozen=True)
class Standing:
    """How far one setting of an arm is."""

    ended: tuple[Outcome, ...] = ()
    """The outcome of each rung that it has ended, the first first."""
    failed: bool = False
    """Whether its training broke off with an error, so that nobody waits for it."""


@dataclass(frozen=True)
class Decisions:
    """What is due for the settings of an arm."""

    train: list[int]
    """Settings that are to train to their next rung, or do so already."""
    stop: list[int]
    """Settings that have ended a rung and do not go on."""


def read_standings(rungs: Sequence[Rung], trials: Runs) -> dict[int, Standing]:
    """Return how far the settings of each of an arm's `trials` are, by its number. One that has diverged counts as
    diverged at all rungs that follow."""
    standings = {}
    for trial in trials:
        ended = read_rung_outcomes(trial, trials.trivial_loss)
        if trial.status == "diverged":
            ended += [Outcome("diverged")] * (len(rungs) - len(ended))
        standings[trial.number] = Standing(tuple(ended), trial.status == "failed")
    return standings


def rank_settings(ended: Mapping[int, Outcome], maximize: bool = False) -> list[int]:
    """Return the settings that can go on, the best first: those that learned before those that are stuck, each by their
    values, then by their number. What diverged has no state to go on from.

    Args:
        ended: number of the setting -> how it ended.
        maximize: whether more of the objective is better.
    """
    sign = -1 if maximize else 1
    keys = [
        (not outcome.trained, sign * outcome.value, number)
        for number, outcome in ended.items()
        if outcome.value is not None
    ]
    return [number for *_, number in sorted(keys)]


def decide(standings: Mapping[int, Standing], counts: Sequence[int], maximize: bool = False) -> Decisions:
    """Return who is to train and who is to stop, of all settings of an arm.

    The settings of a rung wait for each other: nobody goes on before all have ended it, but those that failed. One that
    failed and has been repaired may come late: it goes on if it is among the best then, in addition to the others.
    Where less than half of the places can be given to settings that have learned, the others cannot be told apart, and
    all go on that did not diverge.

    Args:
        standings: number of the setting -> how far it is, of those that were begun.
        counts: how many settings train to each rung; the first is their number.
        maximize: whether more of the objective is better.
    """
    train: list[int] = []
    stop: list[int] = []
    members = list(standings)
    complete = len(members) >= counts[0]
    for rung, _ in enumerate(counts):
        there = {number: standings[number].ended[rung] for number in members if len(standings[number].ended) > rung}
        missing = [number for number in members if number not in there and not standings[number].failed]
        train += missing
        if rung + 1 == len(counts):
            break
        best = _pick_best(there, counts[rung + 1], maximize) if complete and not missing else []
        members = [number for number in there if number in best or len(standings[number].ended) > rung + 1]
        if complete and not missing:
            stop += [number for number in there if number not in members]
        complete = complete and not missing
    return Decisions(train, stop)


def _pick_best(ended: Mapping[int, Outcome], count: int, maximize: bool) -> list[int]:
    """Return the settings that go on from a rung that all have ended: `count` of them, if enough have learned."""
    learned = sum(outcome.trained for outcome in ended.values())
    ranked = rank_settings(ended, maximize)
    return ranked[:count] if 2 * learned >= count else ranked


def climb(rungs: Sequence[Rung], train: Callable[[int, int], Outcome], maximize: bool = False) -> dict[int, Standing]:
    """Return how far each setting of an arm comes where training ends as `train` says.

    Args:
        rungs: those of the arm.
        train: (number of the setting, rung from 0) -> how that ends.
        maximize: whether more of the objective is better.
    """
    standings = {number: Standing() for number in range(rungs[0].settings)}
    counts = [rung.settings for rung in rungs]
    while due := decide(standings, counts, maximize).train:
        for number in due:
            before = standings[number].ended
            standings[number] = Standing((*before, train(number, len(before))))
    return standings


def rank_reached(rungs: Sequence[Rung], standings: Mapping[int, Standing], maximize: bool = False) -> list[int]:
    """Return the settings that may be tested, the best first: those that came to the end, then those that came to the
    last rung but one, as what is best there need not be best at the end; none that diverged."""
    order: list[int] = []
    for reached in (len(rungs), len(rungs) - 1):
        there = {number: one for number, one in standings.items() if len(one.ended) == reached and not one.failed}
        last = {number: one.ended[-1] for number, one in there.items()}
        order += rank_settings(last, maximize)
    return order
