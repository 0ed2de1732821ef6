"""The verdict on fresh seeds in sentences: of arms against a baseline, and of the effects of a factorial."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ablate.config.formatting import UNBOUNDED, count_decimals, count_noun, format_uncertain, join_words
from ablate.verdict.comparison import Challenge, Claim, Compared, Versus
from ablate.verdict.effects import CLAIMS, Effect, EffectKind
from ablate.verdict.failures import FailureShare
from ablate.verdict.intervals import Estimate
from ablate.verdict.looks import Looks
from ablate.verdict.sequential import LEAST
from ablate.verdict.unpaired import Apart, describe_unpaired

ON_AVERAGE = ("better", "worse", "mixed", "equivalent", "better together", "worse together", "additive")
"""Verdicts that are about the mean."""
TYPICAL = (
    "typical seed: on how many seeds the arm is the better one, or the worse one, with the p-value of the exact sign "
    "test, and the tail that shows in the paired differences, above or below their median, as in up to 10 % of normal "
    "ones. A claim needs both the interval and the seeds; with a tail it is about most seeds, not about the mean."
)
"""Explains `format_typical`."""
_AS_PLANNED = "as planned"
_FEW = 3  # effects whose amounts are all given, whatever the verdict
INTERACTING: tuple[EffectKind, ...] = (
    *("better together", "worse together"),
    *("better together on most seeds", "worse together on most seeds"),
)


def format_estimate(figure: Estimate, sign: bool = False, bounds: tuple[float, float] = UNBOUNDED) -> str:
    """Return '2.153 ± 0.012'; only the mean if there is no interval; both ends if it is clipped at `bounds`."""
    return format_uncertain(figure.mean, figure.half_width, sign=sign, bounds=bounds)


def format_ends(figure: Estimate) -> tuple[str, str]:
    """Return the two ends of the interval of a difference, in two significant digits of its half width."""
    low, high = figure.interval or (figure.mean, figure.mean)
    decimals = count_decimals(figure.half_width or 0.0)
    return f"{low:+.{decimals}f}", f"{high:+.{decimals}f}"


def format_share(share: FailureShare) -> str:
    """Return '2 of 5 (1 diverged, 1 stuck): 5 to 85 %' or '0 of 3: up to 63 %'."""
    kinds = [f"{count} {word}" for count, word in ((share.diverged, "diverged"), (share.stuck, "stuck")) if count]
    told = f" ({', '.join(kinds)})" if kinds else ""
    return f"{share.failed} of {share.n}{told}: {share.describe_interval().partition(',')[0]}"


def format_difference(versus: Versus | None, bounds: tuple[float, float] = UNBOUNDED) -> str:
    """Return '+0.100 ± 0.021 (n=4, 1 left out)'."""
    if versus is None or versus.difference is None:
        return "-"
    left_out = f", {versus.left_out} left out" if versus.left_out else ""
    return f"{format_estimate(versus.difference, sign=True, bounds=bounds)} (n={versus.difference.n}{left_out})"


def format_typical(versus: Versus | None, sign: int) -> str:
    """Return 'better on 9 of 10 (p = 0.021), a tail above': the exact sign test of the pairs, and the tail that shows.
    `sign`: 1 where less is better, -1 where more is."""
    if isinstance(versus, Apart):
        return versus.describe_ranks()
    if versus is None or versus.typical is None or versus.typical.p is None:
        return "-"
    t = versus.typical
    better, worse = (t.below, t.above) if sign > 0 else (t.above, t.below)
    tail = {1: ", a tail above", -1: ", a tail below", 0: ""}[t.tail]
    word, count = ("better", better) if better >= worse else ("worse", worse)
    return f"{word} on {count} of {versus.seeds - versus.left_out} (p = {t.p:.2g}){tail}"


def state_verdict(
    compared: Mapping[str, Compared],
    baselines: str | Mapping[str, str],
    *,
    unit: str,
    maximize: bool = False,
    shared_start: str = "",
    bounds: tuple[float, float] = UNBOUNDED,
    where: str = "each at its chosen settings",
    seeds: str = "fresh seeds",
    planned: bool = True,
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
        seeds: the name of the seeds.
        planned: whether the number of seeds was planned, so that the looks are told beside the plan.
    """
    if not compared:
        return ""
    against = dict.fromkeys(compared, baselines) if isinstance(baselines, str) else baselines
    others = {arm: c for arm, c in compared.items() if arm != against[arm]}
    if not others:
        alone = " ".join(_state_alone(arm, c, bounds) for arm, c in compared.items())
        return f"{alone} There is only one arm, so there is no comparison." if len(compared) == 1 else alone
    better = 1 if maximize else -1
    sentences = [_ArmWording(arm, c, against[arm], unit, better, bounds).state() for arm, c in others.items()]
    sentences += state_basis(others, planned)
    if shared_start:
        sentences.append(f"All seeds share one {shared_start}, so the intervals do not include its variance.")
    return f"On {seeds}, {where}: " + " ".join(sentences)


def _state_alone(arm: str, c: Compared, bounds: tuple[float, float]) -> str:
    """Return a sentence on an arm's failures and its objective when it trains."""
    if c.failures is None:
        return f"{arm} has no finished seed."
    text = f"{arm} failed on {c.failures.describe()}"
    if c.estimate is None:
        return f"{text}."
    return f"{text}; when it trains: {format_estimate(c.estimate, bounds=bounds)} ({count_noun(c.estimate.n, 'seed')})."


def state_basis(compared: Mapping[str, Claim], with_plan: bool = True) -> list[str]:
    """Return the sentences about error control, where anything was tested. `with_plan`: tell the plan beside the
    looks."""
    names: dict[tuple[str, str, str], list[str]] = {}  # what is told of the looks -> what was looked at
    tested = []
    for name, c in compared.items():
        if c.looks and c.versus and min(c.versus.seeds, c.versus.other_seeds) >= LEAST:
            names.setdefault(_describe_looks(c.looks, c.versus, with_plan), []).append(name)
            tested.append(c)
    if not tested:
        return []
    told = []
    groups = sorted(names.items(), key=lambda group: len(group[1]))
    for (counted, sizes, plan), own in groups:
        if len(groups) == 1:
            shown = f", {plan}" if plan == _AS_PLANNED else f" ({plan})" if plan else ""
            told.append(f"{counted} at {sizes}{shown}")
        else:
            rest = len(own) > 1 and own is groups[-1][1] and len(tested) == len(compared)
            who = "all others" if rest else join_words(own)
            told.append(f"{who} on {sizes} ({counted}{f', {plan}' if plan else ''})")
    basis = [f"The error of 5 % covers {count_noun(tested[0].family, 'comparison')} and every look: {'; '.join(told)}."]
    claimed = [c.versus for c in tested if c.kind in ON_AVERAGE and c.versus]
    if apart := [c.versus for c in tested if isinstance(c.versus, Apart)]:
        basis.append(describe_unpaired(apart))
    elif claimed:
        basis.append(
            "A typical seed is the median over seeds; the interval of a mean assumes that no seeds too rare to show "
            "here end far off."
        )
    if assumed := [name for name, c in compared.items() if assumes_normal(c)]:
        test, what = ("of ranks", "values") if apart else ("of the median", "differences")
        basis.append(
            f"What is claimed of {join_words(assumed)} also assumes that {what} are distributed normally: an exact "
            f"test {test} alone does not show it at this error."
        )
    return basis


def assumes_normal(compared: Claim) -> bool:
    """Whether a claim rests on a normal distribution, as no exact test makes it at its level. Of equivalence: whether
    none could on so few seeds."""
    v = compared.versus
    if compared.kind not in ON_AVERAGE or not v:
        return False
    p = v.smallest_p if compared.kind in ("equivalent", "additive") else v.exact_p
    return p is None or p > v.level


def _describe_looks(looks: Looks, v: Versus, with_plan: bool) -> tuple[str, str, str]:
    """Return '2 looks', '3 and 5 seeds' and 'as planned' or '8 were planned', of which the last is empty without it."""
    sizes, left = f"{join_words(map(str, looks.taken))} {v.noun}s", max(v.seeds, v.other_seeds)
    plan = _AS_PLANNED if looks.taken == (looks.planned,) else f"{looks.planned} were planned"
    if left < looks.sizes[-1]:  # seeds were deleted
        sizes, plan = f"{sizes}, of which {left} are left", f"{looks.planned} were planned"
    return count_noun(len(looks.taken), "look"), sizes, plan if with_plan else ""


class _Wording:
    """The sentences about one claim."""

    together = "on which both trained"
    mean = "mean difference"

    def __init__(self, claim: Claim, unit: str, better: int) -> None:
        self.claim, self.unit, self.better = claim, unit, better

    def amount(self, d: Estimate, sign: bool = False) -> str:
        """Return a difference with its interval and unit."""
        return f"{format_uncertain(d.mean if sign else abs(d.mean), d.half_width, sign=sign)} {self.unit}"

    def over(self, v: Versus | None = None) -> str:
        """Return the seeds of a difference, of the claim's own if not given, with the number of omitted seeds."""
        v = v or self.claim.versus
        assert v is not None
        if isinstance(v, Apart):
            return v.describe_runs()
        n = v.seeds - v.left_out
        if not v.left_out:
            return f"n = {n}"
        return f"over the {n} of {count_noun(v.seeds, 'seed')} {self.together}; {v.left_out} left out"

    def is_better(self, v: Versus) -> bool:
        """Return whether the side that is shown is an improvement."""
        return v.side * self.better > 0

    def tell_size(self, v: Versus, when: str = "") -> str:
        """Return of which seeds a difference is claimed, and its mean, as the end of a sentence."""
        assert v.difference is not None
        if isinstance(v, Apart):
            return f"over unpaired runs{when}; mean difference {self.amount(v.difference)} ({self.over(v)})"
        if v.on_average:
            return f"on a typical seed{when}; mean difference {self.amount(v.difference)} ({self.over(v)})"
        return f"on {v.count_majority()}; {self.tell_tail(v)}"

    def tell_tail(self, v: Versus) -> str:
        """Return why a claim is about the typical seed alone, as a clause."""
        assert v.difference is not None
        assert v.typical is not None
        middle = f"{v.typical.median:+.{count_decimals(v.difference.half_width or 0.0)}f}"
        return (
            f"on average not shown, as a tail shows in the differences: their median is {middle}, their mean "
            f"{self.amount(v.difference, sign=True)} ({self.over(v)})"
        )

    def tell_limits(self, v: Versus) -> str:
        """Return the limits of a difference that is not claimed, as a clause."""
        d, noun = v.difference, self.mean.removeprefix("mean ")
        if d is None:
            return "of one of them no run trained" if isinstance(v, Apart) else f"there is no seed {self.together}"
        few = v.ranks is None if isinstance(v, Apart) else d.n < LEAST
        if v.interval is None and few:
            return f"the {self.mean} is {self.amount(d, sign=True)} ({self.over(v)}), too few {v.noun}s for an interval"
        if v.interval is None:
            where = "between any two runs" if isinstance(v, Apart) else "on every seed"
            told = f"the {noun} is {self.amount(d, sign=True)} {where} ({self.over(v)})"
            return f"{told}: equal {noun}s give no interval"
        low, high = format_ends(d)
        return f"the interval of the {noun} is {low} to {high} {self.unit} ({self.over(v)})"

    def tell_disagreement(self, v: Versus, subject: str) -> str:
        """Return how the pairs disagree with an interval of the mean that excludes 0, as a clause with a comma before
        it; empty if it does not, or they agree."""
        side = v.difference.sign if v.difference else 0
        if side and not v.side and isinstance(v, Apart):
            return ", but the ranks of the runs do not agree: a few runs carry the mean"
        if not side or v.side or v.typical is None:
            return ""
        word = "better" if side * self.better > 0 else "worse"
        seeds = v.typical.above if side > 0 else v.typical.below
        told = f", but {subject} is {word} on {seeds} of {count_noun(v.seeds - v.left_out, 'seed')}"
        if not v.typical.agrees_at:
            return f"{told}, too few while more are planned"
        return f"{told}: a tail carries the mean" if v.typical.tail == side else f"{told}: not on enough of them"

    def tell_within(self, on_average: bool, v: Versus) -> str:
        """Return that a difference is less than matters, as the end of a sentence."""
        assert v.difference is not None
        low, high = format_ends(v.difference)
        mean = (
            f"the interval of the mean difference is {low} to {high} ({self.over(v)})"
            if on_average
            else self.tell_tail(v)
        )
        where = "over unpaired runs" if isinstance(v, Apart) else "on a typical seed"
        return f"differ by less than the {self.claim.effect:.2g} {self.unit} that matter {where}; {mean}"

    def tell_small(self, v: Versus) -> str:
        """Return a clause that a claimed difference is less than matters; empty if it is not."""
        if not v.lies_within(self.claim.effect):
            return ""
        return f"; that is less than the {self.claim.effect:.2g} {self.unit} that matter"

    def tell_unheld(self, challenge: Challenge) -> str:
        """Return why nothing is claimed of a difference that was shown at the chosen settings, as a clause."""
        if challenge.edges:
            return join_words(f"{arm} is {edge}" for arm, edge in challenge.edges.items()) + ": it was not tuned"
        if challenge.open:
            return f"{join_words(challenge.open)} may still try other settings"
        arms = join_words(f"{arm}'s" for arm in challenge.rivals)
        return f"{arms} tuning was not exhausted: other settings may make up for it"


class _ArmWording(_Wording):
    """The sentences about one arm."""

    def __init__(
        self, arm: str, compared: Compared, baseline: str, unit: str, better: int, bounds: tuple[float, float]
    ) -> None:
        super().__init__(compared, unit, better)
        self.arm, self.c, self.baseline, self.bounds = arm, compared, baseline, bounds

    def state(self) -> str:
        """Return the sentences."""
        by_kind: dict[str, Callable[[Versus], str]] = {
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
        return by_kind[self.c.kind.removesuffix(" on most seeds")](self.c.versus)

    def _failures(self, v: Versus) -> str:
        """Return the numbers of both as a clause: 'failed on 3 of 5 seeds, pre on 0 of 5'."""
        return (
            f"failed on {v.failed} of {count_noun(v.seeds, v.noun)}, {self.baseline} on {v.other_failed} of "
            f"{v.other_seeds}"
        )

    def _claim(self, v: Versus) -> str:
        d = v.difference
        assert d is not None
        failed = v.failed or v.other_failed
        text = f"{self.arm} is {'better' if self.is_better(v) else 'worse'} than {self.baseline} "
        text += self.tell_size(v, " when it trains" if failed else "")
        if failed:
            text += f"; it {self._failures(v)}{self._weigh(v)}"
        return f"{text}{self.tell_small(v)}."

    def _equivalent(self, v: Versus) -> str:
        assert v.difference is not None
        text = f"{self.arm} and {self.baseline} {self.tell_within(self.c.kind == 'equivalent', v)}"
        return f"{text}; it {self._failures(v)}." if v.failed else f"{text}."

    def _undecided(self, v: Versus) -> str:
        pair = f"{self.arm} and {self.baseline}"
        d = v.difference
        if v.failed == v.seeds and v.other_failed == v.other_seeds:
            return f"{pair}: neither trained on any of {count_noun(v.seeds, v.noun)}."
        failures = f" {self.arm} {self._failures(v)}{self._weigh(v)}." if v.failed or v.other_failed else ""
        if v.side and d is not None:
            word = "better" if self.is_better(v) else "worse"
            text = f"{pair}: inconclusive. At the chosen settings {self.arm} is {word} by {self.amount(d)}"
            assert self.c.challenge is not None
            return f"{text} ({self.over(v)}), but {self.tell_unheld(self.c.challenge)}.{failures}"
        if v.lies_within(self.c.effect):
            text = f"{pair}: inconclusive. When both train {self.tell_limits(v)}, within the difference that matters"
            if self.c.challenge and not self.c.challenge.held:
                text += f", but {self.tell_unheld(self.c.challenge)}"
            return f"{text}.{failures}"
        limits = f"{self.tell_limits(v)}{self.tell_disagreement(v, self.arm)}"
        return f"{pair}: inconclusive with {v.count_seeds()}; {limits}.{failures}"

    def _fails(self, v: Versus) -> str:
        text = (
            f"{self.arm} {self.c.kind} than {self.baseline}: it {self._failures(v)} (exact test, p = {v.failure_p:.2g})"
        )
        return f"{text}; when both train, {self.tell_limits(v)}."

    def _fails_always(self, v: Versus) -> str:
        share = f" ({100 * self.c.failures.low:.0f} % or more, one-sided 95 %)" if self.c.failures else ""
        return (
            f"{self.arm} failed on all of {count_noun(v.seeds, v.noun)}{share}, {self.baseline} on {v.other_failed} of "
            f"{v.other_seeds}{self._weigh(v)}."
        )

    def _baseline_fails_always(self, v: Versus) -> str:
        return (
            f"{self.baseline}, the baseline, failed on all of {count_noun(v.other_seeds, v.noun)}, {self.arm} on "
            f"{v.failed} of {v.seeds}{self._weigh(v)}. {_state_alone(self.arm, self.c, self.bounds)}"
        )

    def _baseline_untested(self, v: Versus) -> str:
        alone = _state_alone(self.arm, self.c, self.bounds)
        return f"{self.baseline}, the baseline, could not be trained within the budget: no fresh seed was run. {alone}"

    def _weigh(self, v: Versus) -> str:
        """Return the evidence of the numbers of failed seeds, as a clause; empty if they are equal."""
        if v.failure_side:
            return f" (exact test, p = {v.failure_p:.2g})"
        return "" if not v.fails_more else ", which does not show that either fails more often"

    def _figures(self, v: Versus) -> str:
        if not v.seeds and isinstance(v, Apart):
            return f"No run of {self.arm} has ended."
        if not v.seeds:
            return f"There is no seed yet on which both {self.arm} and {self.baseline} have ended."
        failures = f"; it {self._failures(v)}" if v.failed or v.other_failed else ""
        figure = self.tell_limits(v) if v.difference is None else self.amount(v.difference, sign=True)
        few = min(v.seeds, v.other_seeds) < LEAST
        need = f"it requires {LEAST if few else f'all {self.c.planned}'} {v.noun}s"
        return (
            f"{self.arm}, difference to {self.baseline}: {figure} ({self.over(v)}){failures}. No verdict yet: {need}."
        )


def state_effects(
    effects: Mapping[str, Effect], *, unit: str, maximize: bool = False, where: str = "each cell at its chosen settings"
) -> str:
    """Return a sentence or two for each effect, and their basis; '' for none.

    Args:
        effects: of the contrasts of a factorial.
        unit: the unit of the objective.
        maximize: whether more of the objective is better.
        where: the settings at which the cells are compared.
    """
    if not effects:
        return ""
    better = 1 if maximize else -1
    sentences = [_EffectWording(effect, unit, better).state() for effect in effects.values()]
    interacting = [effect for effect in effects.values() if effect.kind in INTERACTING]
    sentences += [
        f"As {' and '.join(map(str, effect.contrast.levels))} interact, each one's main effect is a mean over effects "
        "that differ."
        for effect in interacting
    ]
    head = f"On fresh seeds, {where}, an effect being the mean over the components that it does not name: "
    return head + " ".join([*sentences, *state_basis(effects)])


def summarise_effects(effects: Mapping[str, Effect], unit: str) -> str:
    """Return a sentence on main effects and one on interactions, those of one verdict together; '' before there is a
    verdict."""
    if all(effect.kind == "figures" for effect in effects.values()):
        return ""
    mains = [effect for effect in effects.values() if effect.contrast.is_main]
    pairs = [effect for effect in effects.values() if not effect.contrast.is_main]
    parts = [("Main effects", mains), ("Interactions", pairs)]
    return " ".join(f"{word}: {_group(own, unit)}." for word, own in parts if own)


def _group(effects: Sequence[Effect], unit: str) -> str:
    """Return the effects grouped by verdict, with the amounts of claimed ones, and of all if they are few, where they
    have an interval; and the failed runs."""
    groups: dict[str, list[str]] = {}
    for effect in effects:
        v, told = effect.versus, []
        if v.difference and v.interval and (effect.kind in CLAIMS or len(effects) <= _FEW):
            amount = format_uncertain(v.difference.mean, v.difference.half_width, sign=True)
            told.append(f"{amount} {unit}, n = {v.difference.n}")
        if failed := v.failed + v.other_failed:
            told.append(f"{failed} of {count_noun(2 * effect.runs, 'run')} failed")
        groups.setdefault(effect.name_kind(), []).append(
            effect.contrast.describe() + (f" ({'; '.join(told)})" if told else "")
        )
    return "; ".join(f"{name}: {join_words(own)}" for name, own in groups.items())


class _EffectWording(_Wording):
    """The sentences about one effect."""

    mean = "effect"

    def __init__(self, effect: Effect, unit: str, better: int) -> None:
        super().__init__(effect, unit, better)
        self.e, self.v = effect, effect.versus
        self.together = f"on which all {len(effect.contrast.weights)} cells trained"
        contrast = effect.contrast
        self.names = [str(level) for level in contrast.levels]
        level = contrast.levels[0]
        self.level, self.reference = str(level), f"{level.component}={level.reference}"
        self.subject = self.level if contrast.is_main else f"{self.names[0]} and {self.names[1]}"

    def state(self) -> str:
        """Return the sentences."""
        by_kind: dict[str, Callable[[], str]] = {
            "better": self._claim,
            "worse": self._claim,
            "mixed": self._claim,
            "equivalent": self._equivalent,
            "additive": self._equivalent,
            "better together": self._interact,
            "worse together": self._interact,
            "fails more often": self._fails,
            "fails less often": self._fails,
            "undecided": self._undecided,
            "cannot be stated": self._unstated,
            "figures": self._figures,
        }
        text, where = by_kind[self.e.kind.removesuffix(" on most seeds")](), self.e.contrast.where
        if not where:
            return text
        return f"With {where}, {'the ' if text.startswith('The ') else ''}{text.removeprefix('The ')}"

    def _failures(self) -> str:
        """Return the runs that failed as a sentence with a blank before it; empty where none did."""
        if not self.v.failed and not self.v.other_failed:
            return ""
        runs = self.e.runs
        if not self.e.contrast.is_main:
            return f" Of its {2 * runs} runs {self.v.failed + self.v.other_failed} failed."
        text = f" {self.level} failed in {self.v.failed} of {runs} runs"
        text += f", {self.reference} in {self.v.other_failed} of {runs}"
        if self.e.failure_side:
            return f"{text} (exact test over seeds, p = {self.v.failure_p:.2g})."
        equal = self.v.failed == self.v.other_failed
        return f"{text}." if equal else f"{text}, which does not show that either fails more often."

    def _claim(self) -> str:
        word = "better" if self.is_better(self.v) else "worse"
        size = self.tell_size(self.v, " when all cells train" if self.v.left_out else "")
        return f"{self.level} is {word} than {self.reference} {size}{self.tell_small(self.v)}.{self._failures()}"

    def _interact(self) -> str:
        word = "better" if self.is_better(self.v) else "worse"
        text = f"{self.subject} are {word} together than the sum of their effects {self.tell_size(self.v)}"
        return f"{text}.{self._failures()}"

    def _equivalent(self) -> str:
        within = self.tell_within(self.e.kind in ("equivalent", "additive"), self.v)
        if self.e.contrast.is_main:
            return f"{self.level} and {self.reference} {within}.{self._failures()}"
        return f"What {self.subject} do together and the sum of their effects {within}.{self._failures()}"

    def _fails(self) -> str:
        text = f"{self.level} {self.e.kind} than {self.reference}; when all cells train, {self.tell_limits(self.v)}."
        return text + self._failures()

    def _undecided(self) -> str:
        d, name = self.v.difference, self._name()
        if self.v.side and d is not None:
            assert self.e.challenge is not None
            text = f"{name}: inconclusive. At the chosen settings it is {self.amount(d, sign=True)} ({self.over()})"
            return f"{text}, but {self.tell_unheld(self.e.challenge)}.{self._failures()}"
        limits = f"{self.tell_limits(self.v)}{self.tell_disagreement(self.v, 'it')}"
        return f"{name}: inconclusive with {count_noun(self.v.seeds, 'seed')}; {limits}.{self._failures()}"

    def _name(self) -> str:
        return f"The {'effect' if self.e.contrast.is_main else 'interaction'} of {self.subject}"

    def _unstated(self) -> str:
        trained = self.v.seeds - self.v.left_out
        text = f"{self._name()} cannot be stated: all of its {len(self.e.contrast.weights)} cells trained on {trained}"
        text += f" of {count_noun(self.v.seeds, 'seed')}"
        if self.e.untrained:
            text += f", and {join_words(self.e.untrained)} trained on none"
        return f"{text}.{self._failures()}"

    def _figures(self) -> str:
        if not self.v.seeds:
            return f"{self._name()}: no seed has ended yet in all of its cells."
        figure = "no seed trained in all cells"
        if self.v.difference is not None:
            figure = self.amount(self.v.difference, sign=True)
        need = f"it takes {LEAST} seeds" if self.v.seeds < LEAST else f"it is made on all {self.e.planned} seeds"
        return f"{self._name()}: {figure} ({self.over()}). No verdict yet: {need}.{self._failures()}"
