"""What may be said of the effects of a factorial, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ablate.config.formatting import count_noun, format_uncertain, join_words
from ablate.verdict.effects import CLAIMS, Effect, EffectKind
from ablate.verdict.intervals import Estimate
from ablate.verdict.sequential import LEAST
from ablate.verdict.statements import format_ends, state_basis

_FEW = 3  # effects that are told with their amounts, whatever is said of them
INTERACTING: tuple[EffectKind, ...] = ("better together", "worse together")


def state_effects(
    effects: Mapping[str, Effect], *, unit: str, maximize: bool = False, where: str = "each cell at its chosen settings"
) -> str:
    """Return a sentence or two for each effect, and what they rest on; '' for none.

    Args:
        effects: of the contrasts of a factorial.
        unit: the unit of the objective.
        maximize: whether more of the objective is better.
        where: the settings at which the cells are compared.
    """
    if not effects:
        return ""
    better = 1 if maximize else -1
    sentences = [_Wording(effect, unit, better).state() for effect in effects.values()]
    interacting = [effect for effect in effects.values() if effect.kind in INTERACTING]
    sentences += [
        f"As {' and '.join(map(str, effect.contrast.levels))} interact, each one's main effect is a mean over effects "
        "that differ."
        for effect in interacting
    ]
    head = f"On fresh seeds, {where}, an effect being the mean over the components that it does not name: "
    return head + " ".join([*sentences, *state_basis(effects.values())])


def summarise_effects(effects: Mapping[str, Effect], unit: str) -> str:
    """Return a sentence on main effects and one on interactions, those of one verdict together; '' before there is a
    verdict."""
    if all(effect.kind == "figures" for effect in effects.values()):
        return ""
    mains = [effect for effect in effects.values() if effect.contrast.is_main]
    pairs = [effect for effect in effects.values() if not effect.contrast.is_main]
    parts = [("Main effects", mains), ("Interactions", pairs)]
    return " ".join(f"{word}: {_group(own, unit)}." for word, own in parts if own)


def name_effect(effect: Effect) -> str:
    """Return the verdict on an effect in a word or two."""
    if effect.kind == "figures":
        return "no verdict yet"
    if effect.kind in ("equivalent", "additive"):
        return f"{effect.kind} within {effect.effect:.2g}"
    if effect.kind == "undecided":
        if effect.versus.side:
            return "inconclusive, not yet crossed" if effect.needs_crossed else "inconclusive, as settings differ"
        return f"inconclusive with {count_noun(effect.versus.seeds, 'seed')}"
    if effect.kind in ("better", "worse") and effect.versus.lies_within(effect.effect):
        return f"{effect.kind}, by less than matters"
    if effect.kind == "mixed":
        return "mixed: the level that is better when all train failed more"
    return effect.kind


def _group(effects: Sequence[Effect], unit: str) -> str:
    """Return the effects of each verdict together; the amounts of what is claimed, and of all of them where these are
    few, if they have an interval; and the runs that failed."""
    groups: dict[str, list[str]] = {}
    for effect in effects:
        v, told = effect.versus, []
        if v.difference and v.interval and (effect.kind in CLAIMS or len(effects) <= _FEW):
            amount = format_uncertain(v.difference.mean, v.difference.half_width, sign=True)
            told.append(f"{amount} {unit}, n = {v.difference.n}")
        if failed := v.failed + v.other_failed:
            told.append(f"{failed} of {count_noun(2 * effect.runs, 'run')} failed")
        groups.setdefault(name_effect(effect), []).append(
            effect.contrast.describe() + (f" ({'; '.join(told)})" if told else "")
        )
    return "; ".join(f"{name}: {join_words(own)}" for name, own in groups.items())


class _Wording:
    """The sentences about one effect."""

    def __init__(self, effect: Effect, unit: str, better: int) -> None:
        self.e, self.v, self.unit, self.better = effect, effect.versus, unit, better
        contrast = effect.contrast
        self.names = [str(level) for level in contrast.levels]
        level = contrast.levels[0]
        self.level, self.reference = str(level), f"{level.component}={level.reference}"
        self.subject = self.level if contrast.is_main else f"{self.names[0]} and {self.names[1]}"

    def state(self) -> str:
        """Return them."""
        by_kind: dict[EffectKind, Callable[[], str]] = {
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
        text, where = by_kind[self.e.kind](), self.e.contrast.where
        if not where:
            return text
        return f"With {where}, {'the ' if text.startswith('The ') else ''}{text.removeprefix('The ')}"

    def _amount(self, d: Estimate, sign: bool = False) -> str:
        return f"{format_uncertain(d.mean if sign else abs(d.mean), d.half_width, sign=sign)} {self.unit}"

    def _over(self) -> str:
        """Return over which seeds the effect is, with the number that it leaves out."""
        n = self.v.seeds - self.v.left_out
        if not self.v.left_out:
            return f"n = {n}"
        return (
            f"over the {n} of {count_noun(self.v.seeds, 'seed')} on which all {len(self.e.contrast.weights)} cells "
            f"trained; {self.v.left_out} left out"
        )

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
        d = self.v.difference
        assert d is not None
        word = "better" if d.mean * self.better > 0 else "worse"
        when = " when all cells train" if self.v.left_out else ""
        text = f"{self.level} is {word} than {self.reference} by {self._amount(d)}{when} ({self._over()})"
        if self.v.lies_within(self.e.effect):
            text += f"; that is less than the {self.e.effect:.2g} {self.unit} that matter"
        return f"{text}{self._crossed()}.{self._failures()}"

    def _crossed(self) -> str:
        """Return what was seen with the cells that are behind at the others' settings, as a clause."""
        if self.e.agrees is None:
            return ""
        if self.e.crossed is None or self.e.crossed.difference is None:
            return ", and the cells that are behind train on no seed at the settings of the others"
        d = self.e.crossed.difference
        return f", and by {self._amount(d, sign=True)} with the cells that are behind at the settings of the others"

    def _interact(self) -> str:
        d = self.v.difference
        assert d is not None
        word = "better" if d.mean * self.better > 0 else "worse"
        text = (
            f"{self.subject} are {word} together than the sum of their effects by {self._amount(d)} ({self._over()})"
            f"{self._crossed()}"
        )
        return f"{text}.{self._failures()}"

    def _equivalent(self) -> str:
        assert self.v.difference is not None
        low, high = format_ends(self.v.difference)
        ends = f"by less than the {self.e.effect:.2g} {self.unit} that matter: {low} to {high} ({self._over()})"
        if self.e.contrast.is_main:
            return f"{self.level} and {self.reference} differ {ends}.{self._failures()}"
        return f"What {self.subject} do together differs from the sum of their effects {ends}.{self._failures()}"

    def _fails(self) -> str:
        text = f"{self.level} {self.e.kind} than {self.reference}; when all cells train, {self._limits()}."
        return text + self._failures()

    def _undecided(self) -> str:
        d, name = self.v.difference, self._name()
        if self.v.side and d is not None:
            text = f"{name}: inconclusive. At their own settings it is {self._amount(d, sign=True)} ({self._over()})"
            if self.e.needs_crossed:
                cells = join_words(loser for loser, _ in self.e.needs_crossed)
                return f"{text}, but {cells} have not been trained at the settings of the others.{self._failures()}"
            seen = "it cannot be measured"
            if self.e.crossed is not None and self.e.crossed.difference is not None:
                seen = f"it is {self._amount(self.e.crossed.difference, sign=True)}"
            return (
                f"{text}, but with the cells that are behind at the settings of the others {seen}: the settings may be "
                f"what differs.{self._failures()}"
            )
        return f"{name}: inconclusive with {count_noun(self.v.seeds, 'seed')}; {self._limits()}.{self._failures()}"

    def _name(self) -> str:
        return f"The {'effect' if self.e.contrast.is_main else 'interaction'} of {self.subject}"

    def _limits(self) -> str:
        """Return as a clause what is known of an effect that is not claimed."""
        d = self.v.difference
        if d is None:
            return "on no seed did all of its cells train"
        if self.v.interval is None and d.n < LEAST:
            return f"the effect is {self._amount(d, sign=True)} ({self._over()}), too few seeds for an interval"
        if self.v.interval is None:
            return f"the effect is {self._amount(d, sign=True)} on every seed, which has no interval ({self._over()})"
        low, high = format_ends(d)
        return f"the effect lies between {low} and {high} {self.unit} ({self._over()})"

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
            figure = self._amount(self.v.difference, sign=True)
        need = f"it takes {LEAST} seeds" if self.v.seeds < LEAST else f"it is made on all {self.e.planned} seeds"
        return f"{self._name()}: {figure} ({self._over()}). No verdict yet: {need}.{self._failures()}"
