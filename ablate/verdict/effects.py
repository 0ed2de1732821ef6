"""The effects of a factorial design: main effects and interactions, on the same fresh seeds in all cells.

The seed is the block. Each seed gives one number for each contrast, the weighted sum of its cells, so that whatever a
seed does to all cells alike cancels; Student's t over these numbers is the test. A seed on which a cell of the contrast
failed has no such number: it is left out and counted, and the failures are compared separately, by the exact sign
test on the seeds on which more cells failed at one level than at the other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from ablate.verdict.comparison import (
    DECIDED,
    Challenge,
    Claim,
    FreshOutcomes,
    Pairing,
    Versus,
    challenge_claim,
    decide,
    pair_weighted,
)
from ablate.verdict.failures import ALPHA, count_family
from ablate.verdict.looks import Looks
from ablate.verdict.sequential import LEAST


@dataclass(frozen=True)
class Level:
    """A level of a component, against its reference."""

    component: str
    """Its name in sentences."""
    level: str
    reference: str
    path: str
    """The component as the file names it."""

    def __str__(self) -> str:
        return f"{self.component}={self.level}"


@dataclass(frozen=True)
class Contrast:
    """A weighted sum over the cells of a design, which is 0 if there is no effect. The file fixes it before it runs.

    With one level it is the main effect: the difference of the cell at the level to the cell at the reference, as a
    mean over the combinations of the other components. With `where` it is the same among the cells that have one level
    of another component (a simple effect). With two levels it is their interaction: the difference of two such effects
    of the first, with the second at its level and at its reference, as a mean over the combinations of the others.
    """

    levels: tuple[Level, ...]
    """One, or two of different components; none of an arm and its baseline, which are cells of no design."""
    weights: Mapping[str, float]
    """Cell -> weight; they sum to 0."""
    where: str = ""
    """The level of another component that its cells have, 'norm=mix'; "": they have all levels."""

    @property
    def name(self) -> str:
        """'norm=lns', or 'norm=lns x qk_norm=true', or 'warmup=0.01 at norm=mix'."""
        return " x ".join(map(str, self.levels)) + (f" at {self.where}" if self.where else "")

    @property
    def is_main(self) -> bool:
        """Whether it is the effect of one level, and no interaction."""
        return len(self.levels) == 1

    @property
    def sd_share(self) -> float:
        """Its standard deviation over seeds, relative to that of a difference of two cells, if the cells of a seed vary
        independently apart from what the seed does to all alike."""
        return math.sqrt(sum(weight**2 for weight in self.weights.values()) / 2)

    @property
    def kind(self) -> str:
        """'comparison' of two arms, 'main effect' or 'interaction'."""
        return ("comparison", "main effect", "interaction")[len(self.levels)]

    def describe(self) -> str:
        """Return 'norm=lns against norm=pre', 'warmup=0.01 against warmup=0.1 at norm=mix'; for an interaction its
        name."""
        if not self.is_main:
            return self.name
        level = self.levels[0]
        where = f" at {self.where}" if self.where else ""
        return f"{level} against {level.component}={level.reference}{where}"


def contrast_pair(arm: str, baseline: str) -> Contrast:
    """Return the contrast of an arm with its baseline."""
    return Contrast((), {arm: 1.0, baseline: -1.0})


EffectKind = Literal[
    "better",
    "worse",
    "mixed",
    "equivalent",
    "fails more often",
    "fails less often",
    "better together",
    "worse together",
    "additive",
    "better on most seeds",
    "worse on most seeds",
    "equivalent on most seeds",
    "better together on most seeds",
    "worse together on most seeds",
    "additive on most seeds",
    "undecided",
    "cannot be stated",
    "figures",
]
CLAIMS: tuple[EffectKind, ...] = (
    "better", "worse", "mixed", "fails more often", "fails less often", "better together", "worse together",
    "better on most seeds", "worse on most seeds", "better together on most seeds", "worse together on most seeds",
)  # fmt: skip
_TOGETHER = {"better": "better together", "worse": "worse together", "equivalent": "additive"}
"""Kind of a main effect -> that of an interaction."""
_DECIDED = {*DECIDED, *_TOGETHER.values(), *(f"{kind} on most seeds" for kind in _TOGETHER.values())}


@dataclass(frozen=True, kw_only=True)
class Effect(Claim):
    """The verdict of a contrast. `failed` of its figures counts the runs of the cells with positive weights,
    `other_failed` those with negative ones."""

    contrast: Contrast
    kind: EffectKind
    versus: Versus
    runs: int
    """The number of runs of the cells with positive weights; the cells with negative ones have as many."""
    untrained: tuple[str, ...] = ()
    """Cells without settings, and those that failed on every seed, of three or more: no further seed will help."""
    failure_side: int = 0
    """1: the level of a main effect is shown to fail more often than the reference; -1: less often; 0: neither."""

    @property
    def decided(self) -> bool:
        """Whether no further seeds would be run for it."""
        return self.kind in _DECIDED or bool(self.untrained)

    def name_kind(self) -> str:
        """Return the kind in a word or two."""
        mixed = "mixed: the level that is better when all train failed more"
        return mixed if self.kind == "mixed" else super().name_kind()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**super().to_dict(), "name": self.contrast.name, "main": self.contrast.is_main}


def compare_cells(
    contrasts: Mapping[str, Contrast],
    cells: Mapping[str, FreshOutcomes],
    *,
    planned: int,
    maximize: bool = False,
    effect: float | None = None,
    resolution: float = 0.0,
    others: int = 0,
) -> dict[str, Effect]:
    """Return the effect of each of `contrasts`.

    Args:
        contrasts: those of the design.
        cells: the outcomes of each cell.
        planned: the number of seeds that each is to have.
        maximize: whether more of the objective is better.
        effect: the smallest difference that matters; None: nothing is called equivalent.
        resolution: 1/N for a metric that counts N items, such as accuracy; 0: it does not count.
        others: comparisons that share the error besides these.
    """
    outcomes = {name: cell.outcomes for name, cell in cells.items()}
    pairings = {
        name: pair_weighted(contrast.weights, outcomes, _find_looks(contrast.weights, cells))
        for name, contrast in contrasts.items()
    }
    tests = [sum(pairings[name].alone) for name, contrast in contrasts.items() if contrast.is_main]
    family = count_family(others + len(contrasts), tests)
    effects = {}
    for name, contrast in contrasts.items():
        pairing, share = pairings[name], resolution * contrast.sd_share
        versus = pairing.measure(ALPHA / family, share)
        side = (pairing.alone[0] > pairing.alone[1]) - (pairing.alone[0] < pairing.alone[1])
        facts: dict[str, Any] = {
            "versus": versus,
            "runs": pairing.seeds * len(contrast.weights) // 2,
            "planned": planned,
            "looks": pairing.looks,
            "family": family,
            "effect": effect,
            "untrained": _list_untrained(contrast, cells),
            "failure_side": side if contrast.is_main and versus.failure_side else 0,
        }
        pending = any(cells[cell].pending for cell in contrast.weights)
        challenge = None
        if pairing.ready and not pending:
            challenge = challenge_claim(contrast.weights, cells, versus, maximize, effect)
        kind = "figures" if pending else _decide(contrast, pairing, facts, maximize, challenge)
        effects[name] = Effect(contrast=contrast, kind=kind, **facts, challenge=challenge)
    return effects


def _find_looks(weights: Iterable[str], cells: Mapping[str, FreshOutcomes]) -> Looks | None:
    """Return the looks of the cell that has the fewest: a killed process may have written only a part of a round."""
    known = [cells[cell].looks for cell in weights]
    return None if None in known else min((one for one in known if one), key=lambda one: len(one.sizes))


def _list_untrained(contrast: Contrast, cells: Mapping[str, FreshOutcomes]) -> tuple[str, ...]:
    return tuple(
        name
        for name in contrast.weights
        if not cells[name].found
        or (len(ended := cells[name].outcomes.values()) >= LEAST and not any(one.trained for one in ended))
    )


def _decide(
    contrast: Contrast, pairing: Pairing, facts: Mapping[str, Any], maximize: bool, challenge: Challenge | None
) -> EffectKind:
    """Return the kind of verdict of a contrast."""
    if not pairing.ready:
        return "cannot be stated" if facts["untrained"] and not pairing.seeds else "figures"
    is_main = contrast.is_main
    kind = decide(facts["versus"], maximize, facts["effect"], challenge, facts["failure_side"], can_mix=is_main)
    if kind == "undecided" and pairing.pairs < LEAST:
        return "cannot be stated"
    word, typical, _ = kind.partition(" on most seeds")
    return cast("EffectKind", kind if is_main else f"{_TOGETHER.get(word, word)}{typical}")
