"""The verdict on the arms on fresh seeds, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ablate.config.formatting import UNBOUNDED, count_decimals, count_noun, format_uncertain, join_words
from ablate.verdict.comparison import Compared, Kind, Versus
from ablate.verdict.intervals import Estimate
from ablate.verdict.sequential import LEAST

if TYPE_CHECKING:
    from ablate.verdict.effects import Effect


def format_estimate(figure: Estimate, sign: bool = False, bounds: tuple[float, float] = UNBOUNDED) -> str:
    """Return '2.153 ± 0.012'; only the mean if there is no interval; both ends if it is clipped at `bounds`."""
    return format_uncertain(figure.mean, figure.half_width, sign=sign, bounds=bounds)


def format_ends(figure: Estimate) -> tuple[str, str]:
    """Return the two ends of the interval of a difference, in two significant digits of its half width."""
    low, high = figure.interval or (figure.mean, figure.mean)
    decimals = count_decimals(figure.half_width or 0.0)
    return f"{low:+.{decimals}f}", f"{high:+.{decimals}f}"


def state_verdict(
    compared: Mapping[str, Compared],
    baselines: str | Mapping[str, str],
    *,
    unit: str,
    maximize: bool = False,
    shared_start: str = "",
    bounds: tuple[float, float] = UNBOUNDED,
    where: str = "each at its chosen settings",
) -> str:
    """Return one or two sentences for each arm except baselines, and their basis: looks, comparisons, intervals.

    Args:
        compared: the arms.
        baselines: the baseline of all arms, or arm -> its baseline.
        unit: the unit of the objective.
        maximize: whether a higher objective is better.
        shared_start: the model that all seeds start from, such as 'stage-1 model'; empty: each has its own start.
        bounds: the possible range of the objective, to which printed intervals are clipped.
        where: the settings at which they are compared.
    """
    if not compared:
        return ""
    against = dict.fromkeys(compared, baselines) if isinstance(baselines, str) else baselines
    others = {arm: c for arm, c in compared.items() if arm != against[arm]}
    if not others:
        alone = " ".join(_state_alone(arm, c, bounds) for arm, c in compared.items())
        return f"{alone} There is only one arm, so there is no comparison." if len(compared) == 1 else alone
    better = 1 if maximize else -1
    sentences = [_Wording(arm, c, against[arm], unit, better, bounds).state() for arm, c in others.items()]
    sentences += state_basis(others.values())
    if shared_start:
        sentences.append(f"All seeds share one {shared_start}, so the intervals do not include its variance.")
    return f"On fresh seeds, {where}: " + " ".join(sentences)


def _state_alone(arm: str, c: Compared, bounds: tuple[float, float]) -> str:
    """Return a sentence on an arm's failures and its objective when it trains."""
    if c.failures is None:
        return f"{arm} has no finished seed."
    text = f"{arm} failed on {c.failures.describe()}"
    if c.estimate is None:
        return f"{text}."
    return f"{text}; when it trains: {format_estimate(c.estimate, bounds=bounds)} ({count_noun(c.estimate.n, 'seed')})."


def state_basis(compared: Iterable[Compared | Effect]) -> list[str]:
    """Return the sentences about error control, where anything was tested."""
    tested = [c for c in compared if c.versus is not None and c.versus.seeds >= LEAST and c.looks]
    if not tested:
        return []
    plans = {
        (c.looks.sizes, c.looks.planned, min(c.versus.seeds, c.looks.sizes[-1])) for c in tested if c.looks and c.versus
    }
    told = []
    for sizes, planned, left in sorted(plans):
        plan = ", as planned" if sizes == (planned,) else f" ({planned} were planned)"
        if left < sizes[-1]:  # seeds were deleted from the storage
            plan = f", of which {left} are left ({planned} were planned)"
        told.append(f"{count_noun(len(sizes), 'look')} at {join_words(map(str, sizes))} seeds{plan}")
    return [f"The error of 5 % covers {count_noun(tested[0].family, 'comparison')} and every look: {join_words(told)}."]


class _Wording:
    """The sentences about one arm."""

    def __init__(
        self, arm: str, compared: Compared, baseline: str, unit: str, better: int, bounds: tuple[float, float]
    ) -> None:
        self.arm, self.c, self.baseline, self.unit, self.better = arm, compared, baseline, unit, better
        self.bounds = bounds

    def state(self) -> str:
        """Return them."""
        by_kind: dict[Kind, Callable[[Versus], str]] = {
            "better": self._claim,
            "worse": self._claim,
            "mixed": self._claim,
            "equivalent": self._equivalent,
            "undecided": self._undecided,
            "fails more often": self._fails,
            "fails less often": self._fails,
            "fails on all seeds": self._fails_always,
            "baseline fails on all seeds": self._baseline_fails_always,
            "baseline could not be trained": self._baseline_untested,
            "figures": self._figures,
        }
        if self.c.kind == "could not be trained":
            return (
                f"{self.arm} could not be trained within the budget: no trial of its search completed, so no fresh "
                "seed was run. The search used one seed; other seeds are unknown."
            )
        assert self.c.versus is not None
        return by_kind[self.c.kind](self.c.versus)

    def _amount(self, d: Estimate, sign: bool = False) -> str:
        return f"{format_uncertain(d.mean if sign else abs(d.mean), d.half_width, sign=sign)} {self.unit}"

    def _over(self, v: Versus) -> str:
        """Return the seeds of a difference, with the number of omitted seeds."""
        n = v.seeds - v.left_out
        if not v.left_out:
            return f"n = {n}"
        return f"over the {n} of {count_noun(v.seeds, 'seed')} on which both trained; {v.left_out} left out"

    def _failures(self, v: Versus) -> str:
        """Return the numbers of both as a clause: 'failed on 3 of 5 seeds, pre on 0 of 5'."""
        return (
            f"failed on {v.failed} of {count_noun(v.seeds, 'seed')}, {self.baseline} on {v.other_failed} of {v.seeds}"
        )

    def _is_better(self, d: Estimate) -> bool:
        return d.mean * self.better > 0

    def _claim(self, v: Versus) -> str:
        d = v.difference
        assert d is not None
        amount = self._amount(d)
        if v.failed or v.other_failed:
            word = "is better than" if self._is_better(d) else "is worse than"
            text = f"{self.arm} {word} {self.baseline} by {amount} when it trains ({self._over(v)})"
            text += f"; it {self._failures(v)}{self._weigh(v)}"
        else:
            word = "beats" if self._is_better(d) else "is worse than"
            text = f"{self.arm} {word} {self.baseline} by {amount} ({self._over(v)})"
        if v.lies_within(self.c.effect):
            text += f"; that is less than the {self.c.effect:.2g} {self.unit} that matter"
        if self.c.crossed is not None:
            text += f", and {self._crossed(self.c.crossed)}"
        return f"{text}."

    def _crossed(self, v: Versus) -> str:
        """Return the result of the loser at the winner's settings, as a clause."""
        loser = self.c.crossed_loser
        winner = self.baseline if loser == self.arm else self.arm
        failed = v.failed if loser == self.arm else v.other_failed
        if v.difference is None or v.difference.n < LEAST:
            return f"at {winner}'s settings {loser} failed on {failed} of {count_noun(v.seeds, 'seed')}"
        return (
            f"with {loser} at {winner}'s settings the difference of {self.arm} to {self.baseline} is "
            f"{self._amount(v.difference, sign=True)} ({self._over(v)})"
        )

    def _equivalent(self, v: Versus) -> str:
        assert v.difference is not None
        low, high = format_ends(v.difference)
        text = (
            f"{self.arm} and {self.baseline} differ by less than the {self.c.effect:.2g} {self.unit} that matter: "
            f"{low} to {high} ({self._over(v)})"
        )
        return f"{text}; it {self._failures(v)}." if v.failed else f"{text}."

    def _undecided(self, v: Versus) -> str:
        pair = f"{self.arm} and {self.baseline}"
        d = v.difference
        if v.failed == v.seeds == v.other_failed:
            return f"{pair}: neither trained on any of {count_noun(v.seeds, 'seed')}."
        failures = f" {self.arm} {self._failures(v)}{self._weigh(v)}." if v.failed or v.other_failed else ""
        if v.side and d is not None:
            word = "better" if self._is_better(d) else "worse"
            text = f"{pair}: inconclusive. At their own settings {self.arm} is {word} by {self._amount(d)}"
            text += f" ({self._over(v)})"
            if self.c.needs_crossed:
                winner = self.arm if self.c.needs_crossed == self.baseline else self.baseline
                return f"{text}, but {self.c.needs_crossed} has not been trained at {winner}'s settings.{failures}"
            assert self.c.crossed is not None
            return f"{text}, but {self._crossed(self.c.crossed)}: the difference may be due to the settings.{failures}"
        if v.lies_within(self.c.effect):
            return (
                f"{pair}: inconclusive. When both train {self._limits(v)}, which is less than the difference that "
                f"matters.{failures}"
            )
        return f"{pair}: inconclusive with {count_noun(v.seeds, 'seed')}; {self._limits(v)}.{failures}"

    def _limits(self, v: Versus) -> str:
        """Return as a clause the limits of the mean difference if nothing is claimed."""
        d = v.difference
        if d is None:
            return "there is no seed on which both trained"
        if v.interval is None and d.n < LEAST:
            return (
                f"the mean difference is {self._amount(d, sign=True)} ({self._over(v)}), too few seeds for an interval"
            )
        if v.interval is None and v.level:
            same = format_uncertain(d.mean, None, sign=True)
            return (
                f"the difference is {same} {self.unit} on every seed ({self._over(v)}): equal differences give no "
                "interval"
            )
        low, high = format_ends(d)
        return f"the difference lies between {low} and {high} {self.unit} ({self._over(v)})"

    def _fails(self, v: Versus) -> str:
        text = (
            f"{self.arm} {self.c.kind} than {self.baseline}: it {self._failures(v)} (exact test, p = {v.failure_p:.2g})"
        )
        return f"{text}; when both train, {self._limits(v)}."

    def _fails_always(self, v: Versus) -> str:
        share = f" ({100 * self.c.failures.low:.0f} % or more, one-sided 95 %)" if self.c.failures else ""
        return (
            f"{self.arm} failed on all of {count_noun(v.seeds, 'seed')}{share}, {self.baseline} on {v.other_failed} of "
            f"{v.seeds}{self._weigh(v)}."
        )

    def _baseline_fails_always(self, v: Versus) -> str:
        return (
            f"{self.baseline}, the baseline, failed on all of {count_noun(v.seeds, 'seed')}, {self.arm} on "
            f"{v.failed} of {v.seeds}{self._weigh(v)}. {_state_alone(self.arm, self.c, self.bounds)}"
        )

    def _baseline_untested(self, v: Versus) -> str:
        alone = _state_alone(self.arm, self.c, self.bounds)
        return f"{self.baseline}, the baseline, could not be trained within the budget: no fresh seed was run. {alone}"

    def _weigh(self, v: Versus) -> str:
        """Return as a clause the evidence of the numbers of failed seeds; empty if they are equal."""
        if v.failure_side:
            return f" (exact test, p = {v.failure_p:.2g})"
        return "" if v.failed == v.other_failed else ", which does not show that either fails more often"

    def _figures(self, v: Versus) -> str:
        if not v.seeds:
            return f"There is no seed yet on which both {self.arm} and {self.baseline} have ended."
        failures = f"; it {self._failures(v)}" if v.failed or v.other_failed else ""
        figure = (
            ("there is no seed on which both trained")
            if v.difference is None
            else self._amount(v.difference, sign=True)
        )
        need = f"it requires {LEAST} seeds" if v.seeds < LEAST else f"it requires all {self.c.planned} seeds"
        return (
            f"{self.arm}, difference to {self.baseline}: {figure} ({self._over(v)}){failures}. No verdict yet: {need}."
        )
