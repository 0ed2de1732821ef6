"""Rungs: all settings of an arm train a little, the best of them longer, and few to the end, each from its checkpoint
(successive halving, Jamieson and Talwalkar 2016, arXiv 1502.07943).

Models are compared after their decay, as the loss at a high rate falls most in it. With warm-up, a constant rate and a
decay (wsd) a rung therefore ends in a short decay of a copy, and the run itself goes on from the state before it. With
a schedule that has no constant part, such as cosine, each rung is a whole short run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from ablate.config.errors import Problem
from ablate.config.formatting import count_noun
from ablate.sweeps.runs import Runs
from ablate.sweeps.search.methods import Rung, SearchMethod, methods
from ablate.verdict.outcomes import Outcome

if TYPE_CHECKING:
    from ablate.experiment.tree import Experiment


MOST_RUNGS = 10
SHORTEST = 0.09
"""The share of a run below which a rung is not compared unless it is asked for (docs/explanation/rungs.md)."""


@methods.register
class Rungs(SearchMethod):
    """All settings of every arm train to the first rung, the same share of each arm goes on from its checkpoint, to the
    last rung. Needs a sampler that does not learn from trials: grid or random."""

    kind: Literal["rungs"] = "rungs"
    staged: ClassVar[bool] = True
    rungs: int = Field(3, ge=2, le=MOST_RUNGS)
    """Number of rungs; the last is the end of the run."""
    keep: float = Field(0.33, gt=0, lt=1)
    """Share of the settings of an arm that goes on from each rung, rounded to a whole number."""
    first: float | None = Field(None, gt=0, lt=1)
    """Length of the first rung as a share of the whole run; the others lie between at equal ratios. None: each rung is
    by `keep` shorter than the next, so that each takes about as many tokens, but the first no shorter than 9 % of the
    run: early comparisons favour high learning rates."""

    def count_settings(self, settings: int) -> list[int]:
        """Return how many of so many settings train to each rung."""
        counts = [settings]
        for _ in range(self.rungs - 1):
            counts.append(round(counts[-1] * self.keep))
        return counts

    def count_candidates(self, settings: int | None) -> int | None:
        return None if settings is None else self.count_settings(settings)[-2]  # of the last rung but one

    def list_lengths(self, max_steps: int) -> list[int]:
        """Return the length of the runs of each rung, in updates."""
        steps = self.rungs - 1
        first = self.first or max(SHORTEST, self.keep**steps)
        ratio = first ** (1 / steps)
        return [round(max_steps * ratio ** (steps - rung)) for rung in range(self.rungs)]

    def plan_rungs(self, settings: int, experiment: Experiment) -> Sequence[Rung]:
        max_steps, schedule = experiment.trainer.max_steps, experiment.schedule
        counts, lengths = self.count_settings(settings), self.list_lengths(max_steps)
        rungs: list[Rung] = []
        for count, length in zip(counts, lengths, strict=True):
            shared = schedule.shorten(max_steps, length).count_shared(length)
            rungs.append(Rung(count, length, shared, count * (length - (rungs[-1].shared if rungs else 0))))
        return rungs

    def validate_arm(self, settings: int, experiment: Experiment) -> Iterator[Problem]:
        counts = self.count_settings(settings)
        for rung, (before, count) in enumerate(pairwise(counts), 1):
            if not count or count == before:
                what = "leaves nobody for" if not count else f"leaves out nobody before rung {rung + 1}, and so not for"
                text = (
                    f"{what} rung {rung + 1}: of {count_noun(settings, 'setting')} train "
                    f"{', '.join(map(str, counts))}. Give more settings, fewer rungs or another share: "
                    f"{self._suggest_keep(settings)}"
                )
                yield Problem("search.keep", text, self.keep)
                break
        yield from self._validate_lengths(experiment)

    def _validate_lengths(self, experiment: Experiment) -> Iterator[Problem]:
        """Yield the problems that keep the schedule from being compared at each rung."""
        max_steps, schedule = experiment.trainer.max_steps, experiment.schedule
        lengths, warmup = self.list_lengths(max_steps), schedule.warmup(max_steps)
        if schedule.count_shared(max_steps) >= max_steps:
            text = (
                "has no decay, after which a rung could be compared: at a constant rate a high rate looks worse than "
                "it is. Accepted: wsd with a decay, cosine, or another schedule that falls"
            )
            yield Problem("experiment.schedule", text, schedule.kind)
            return
        if lengths[0] < 2 or any(later == earlier for earlier, later in pairwise(lengths)):
            text = f"is too short for {self.rungs} rungs, which would end at the updates {', '.join(map(str, lengths))}"
            yield Problem("experiment.trainer.max_steps", text, max_steps)
            return
        if not schedule.count_shared(max_steps):
            return
        shared = schedule.shorten(max_steps, lengths[0]).count_shared(lengths[0])
        if shared <= warmup:
            text = (
                f"the first rung is shorter than the warm-up: its decay begins after {count_noun(shared, 'update')}, "
                f"and the warm-up has {warmup}. Accepted: a warm-up of at most {max(0, shared - 1)} updates "
                "(schedule.warmup_steps), fewer rungs, or a longer first one (search.first)"
            )
            yield Problem("search.rungs", text, self.rungs)
        elif shared == lengths[0]:
            text = (
                f"the decay of the first rung, of {count_noun(lengths[0], 'update')}, has none. Set "
                "schedule.decay_fraction higher, or train longer"
            )
            yield Problem("search.rungs", text, self.rungs)

    def _suggest_keep(self, settings: int) -> str:
        """Return a share that leaves one setting for the last rung, in words."""
        if settings < self.rungs:
            return f"{self.rungs} rungs need at least {self.rungs} settings"
        even = settings ** (-1 / (self.rungs - 1))  # of which one setting is left
        for percent in sorted(range(1, 100), key=lambda percent: abs(percent / 100 - even)):
            counts = self.model_copy(update={"keep": percent / 100}).count_settings(settings)
            if all(0 < later < earlier for earlier, later in pairwise(counts)):
                return f"keep {percent / 100:g} gives {', '.join(map(str, counts))}"
        return "fewer rungs"

    def describe(self) -> str:
        first = "" if self.first is None else f", first {self.first:g}"
        return f"{self.rungs} rungs, keep {self.keep:g}{first}"


@dataclass(frozen=True)
class Standing:
    """The progress of one setting of an arm."""

    ended: tuple[Outcome, ...] = ()
    """The outcome of each rung that it has ended, the first first."""
    failed: bool = False
    """Whether its training broke off with an error, so that no other setting waits for it."""


@dataclass(frozen=True)
class Decisions:
    """The settings of an arm that are to train, and those that are to stop."""

    train: list[int]
    """Settings that are to train to their next rung, or do so already."""
    stop: list[int]
    """Settings that have ended a rung and do not go on."""


def read_standings(rungs: Sequence[Rung], trials: Runs) -> dict[int, Standing]:
    """Return the progress of the settings of each of an arm's `trials`, by its number. One that has diverged counts as
    diverged at all rungs that follow."""
    standings = {}
    for trial in trials:
        ended = trials.list_rung_outcomes(trial)
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
    """Return the settings of an arm that are to train and those that are to stop.

    The settings of a rung wait for each other: none goes on before all have ended it, except those that failed. One
    that failed and has been repaired may come late: it goes on, in addition to the others, if it is among the best
    then. If settings that have learned can fill less than half of the places, the others cannot be told apart, and all
    that did not diverge go on.

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
    """Return how far each setting of an arm comes if training ends as `train` says.

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
    last rung but one, as the best there need not be the best at the end; none that diverged."""
    order: list[int] = []
    for reached in (len(rungs), len(rungs) - 1):
        there = {number: one for number, one in standings.items() if len(one.ended) == reached and not one.failed}
        last = {number: one.ended[-1] for number, one in there.items()}
        order += rank_settings(last, maximize)
    return order
