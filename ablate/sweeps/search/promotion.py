"""Who goes on from a rung: a decision on how the settings of one arm have ended there, and on nothing else.

It is made anew from the outcomes whenever somebody asks, so that no process has to be told what another has decided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ablate.sweeps.search.methods import Rung
from ablate.verdict.outcomes import Outcome, TrialRecord, read_rung_outcomes

Outcomes = Sequence[Outcome]
"""How the seeds of one setting ended at a rung."""


@dataclass(frozen=True)
class Standing:
    """How far one setting of an arm is."""

    ended: tuple[Outcomes, ...] = ()
    """The outcomes of each rung that it has ended, the first first."""
    failed: bool = False
    """Whether its training broke off with an error, so that nobody waits for it."""

    def find_reached(self) -> float:
        """Return the mean objective over the seeds at the last rung that it has ended."""
        values = [outcome.value for outcome in self.ended[-1] if outcome.value is not None]
        return math.fsum(values) / len(values)


@dataclass(frozen=True)
class Decisions:
    """What is due for the settings of an arm."""

    train: list[int]
    """Settings that are to train to their next rung, or do so already."""
    stop: list[int]
    """Settings that have ended a rung and do not go on."""


def read_standings(
    rungs: Sequence[Rung],
    trials: Iterable[TrialRecord],
    trivial_loss: float | None,
    further: Mapping[int, Sequence[TrialRecord]] = {},
) -> dict[int, Standing]:
    """Return how far the settings of each of an arm's trials are, by its number: they have ended a rung where all of
    its seeds have.

    Args:
        rungs: those of the arm.
        trials: those of the arm, on its own seed.
        trivial_loss: see `classify`.
        further: number of the trial -> runs of its settings on the seeds after the arm's own, in their order.
    """
    return {
        trial.number: _read_standing(rungs, [trial, *further.get(trial.number, ())], trivial_loss) for trial in trials
    }


def find_first_rung(rungs: Sequence[Rung], seed: int) -> int:
    """Return the rung, from 0, to which the seed (0: the arm's own) trains first."""
    return next(number for number, rung in enumerate(rungs) if rung.seeds > seed)


def _read_standing(rungs: Sequence[Rung], runs: Sequence[TrialRecord], trivial_loss: float | None) -> Standing:
    """Return how far settings are: `runs` are theirs on all seeds that were begun, in their order."""
    by_seed = [_read_outcomes(rungs, seed, run, trivial_loss) for seed, run in enumerate(runs)]
    ended: list[Outcomes] = []
    for number, rung in enumerate(rungs):
        outcomes = [known[number] for known in by_seed[: rung.seeds] if number in known]
        if len(outcomes) < rung.seeds:
            break
        ended.append(outcomes)
    return Standing(tuple(ended), any(run.status == "failed" for run in runs))


def _read_outcomes(
    rungs: Sequence[Rung], seed: int, run: TrialRecord, trivial_loss: float | None
) -> dict[int, Outcome]:
    """Return rung -> the outcome of a run there; one that has diverged counts as diverged at all that follow."""
    first = find_first_rung(rungs, seed)
    known = dict(enumerate(read_rung_outcomes(run, trivial_loss), first))
    if run.status == "diverged":
        known |= {number: Outcome("diverged") for number in range(first + len(known), len(rungs))}
    return known


def rank_settings(ended: Mapping[int, Outcomes], maximize: bool = False) -> list[int]:
    """Return the settings that can go on, the best first: those that failed on the fewest seeds; among equals by the
    mean over the seeds on which they trained, then over those on which they are stuck, then by their number. A setting
    that diverged on all of its seeds has no state to go on from.

    Args:
        ended: number of the setting -> how its seeds ended.
        maximize: whether more of the objective is better.
    """
    sign = -1 if maximize else 1

    def rank(number: int) -> tuple[int, float, float, int]:
        outcomes = ended[number]
        trained = [outcome.value for outcome in outcomes if outcome.trained and outcome.value is not None]
        stuck = [outcome.value for outcome in outcomes if not outcome.trained and outcome.value is not None]
        return len(outcomes) - len(trained), sign * _mean(trained, sign), sign * _mean(stuck, sign), number

    alive = (number for number, outcomes in ended.items() if any(one.ending != "diverged" for one in outcomes))
    return sorted(alive, key=rank)


def _mean(values: Sequence[float], sign: int) -> float:
    """Return the mean; without values what is worse than any."""
    return math.fsum(values) / len(values) if values else sign * math.inf


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


def _pick_best(ended: Mapping[int, Outcomes], count: int, maximize: bool) -> list[int]:
    """Return the settings that go on from a rung that all have ended: `count` of them, if enough have learned."""
    learned = sum(any(outcome.trained for outcome in outcomes) for outcomes in ended.values())
    ranked = rank_settings(ended, maximize)
    return ranked[:count] if 2 * learned >= count else ranked


def climb(
    rungs: Sequence[Rung], train: Callable[[int, int, int], Outcome], maximize: bool = False
) -> dict[int, Standing]:
    """Return how far each setting of an arm comes where training ends as `train` says.

    Args:
        rungs: those of the arm.
        train: (number of the setting, rung from 0, seed from 0) -> how that ends.
        maximize: whether more of the objective is better.
    """
    standings = {number: Standing() for number in range(rungs[0].settings)}
    counts = [rung.settings for rung in rungs]
    while due := decide(standings, counts, maximize).train:
        for number in due:
            before = standings[number].ended
            outcomes = [train(number, len(before), seed) for seed in range(rungs[len(before)].seeds)]
            standings[number] = Standing((*before, outcomes))
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


def pick_best_settings(
    rungs: Sequence[Rung],
    trials: Sequence[TrialRecord],
    trivial_loss: float | None,
    further: Mapping[int, Sequence[TrialRecord]],
    maximize: bool = False,
) -> TrialRecord | None:
    """Return the completed trial whose settings are the best; the arguments are those of `read_standings`."""
    by_number = {trial.number: trial for trial in trials}
    order = rank_reached(rungs, read_standings(rungs, trials, trivial_loss, further), maximize)
    return next((by_number[number] for number in order if by_number[number].value is not None), None)
