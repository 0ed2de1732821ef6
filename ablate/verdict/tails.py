"""What an interval of Student's t takes for granted of paired differences, checked on the same pairs: the exact sign
test of the typical pair, the median, and whether a tail shows.

No method can bound a mean without an assumption about what few pairs do not show (Bahadur & Savage 1956, Ann. Math.
Stat. 27, 1115-1122): one seed in ten that ends far off moves it, and ten seeds miss such a seed in a third of all
sweeps. What is claimed is therefore the sign of the median. The t-test shows it where the sign test of the same pairs
agrees and no tail on the side of the claim carries the mean; where a tail shows, the sign test alone may show it, with
a share of the error of its own. The limits below were chosen by simulation: of samples with a median
of 0 (lognormal, or up to 30 % outliers of 50 standard deviations) at most 6.5 % make a claim, as the tests show.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ablate.verdict.failures import ALPHA, compare_failures, smallest_p
from ablate.verdict.intervals import EQUAL
from ablate.verdict.looks import Looks, sign_levels

AGREES, AGREES_ALONE = 0.11, 0.15
"""The largest two-sided p-value at which the sign test agrees with the t-test: 8 of 10 pairs, 12 of 16. The second is
for one comparison at one look: 6 of 7, 9 of 12."""
FEW = 4
"""Pairs at which the sign test cannot come so low: it agrees where all have one sign and no more seeds are planned."""
SIGN_SHARE = 0.6
"""Share of the error of a comparison with which the sign test alone may show a difference where a tail shows."""
ROBUST = 1.4826
"""Standard deviation of normal numbers, in median distances from their median (Hampel 1974)."""
SKEWS = (
    0.954, 0.812, 1.212, 1.017, 1.299, 1.123, 1.345, 1.189, 1.372, 1.235, 1.389, 1.270, 1.403, 1.295,
    1.413, 1.314, 1.420, 1.331, 1.426, 1.343, 1.431, 1.355, 1.437, 1.365, 1.438, 1.372, 1.443, 1.380,
)  # fmt: skip
"""For 3 to 30 pairs, what |skew| of normal differences exceeds in 5 % (simulated, 1,000,000 each)."""
FARTHEST = (
    21.9, 6.90, 7.93, 5.56, 5.85, 4.91, 5.08, 4.57, 4.67, 4.36, 4.43, 4.22, 4.28, 4.12,
    4.17, 4.05, 4.10, 3.99, 4.02, 3.95, 3.98, 3.91, 3.94, 3.88, 3.90, 3.86, 3.88, 3.84,
)  # fmt: skip
"""The same of |farthest|."""
_FAR = 2.5
"""In units of FARTHEST, how far behind others of the same settings a run is that the second reading of a challenge sets
aside."""


@dataclass(frozen=True)
class Typical:
    """The median of paired differences: the exact sign test at the last look, and the tail that the pairs show."""

    median: float
    above: int
    """Pairs above 0. Those at 0 count neither above nor below, and the test leaves them out (Putter 1955, Ann. Math.
    Stat. 26, 368-386)."""
    below: int
    p: float | None
    """Two-sided; None if all pairs are at 0."""
    level: float
    """The largest p-value that shows a difference where a tail shows; 0: no outcome would."""
    agrees_at: float
    """The largest p-value that agrees with a t-test; 0: none."""
    interval: tuple[float, float] | None
    """Of the median, at `level`: two of the ordered differences (Thompson 1936, Ann. Math. Stat. 7, 122-128)."""
    agreeing: tuple[float, float] | None
    """The same at `agrees_at`."""
    range: tuple[float, float]
    """The lowest and the highest difference."""
    skew: float | None
    """sqrt(n) (mean - median) / sd (Cabilio & Masaro 1996, Canad. J. Statist. 24, 349-361); None for fewer than three
    pairs, and for equal ones."""
    farthest: float | None
    """The pair farthest from the median, in robust standard deviations (Hampel 1974, JASA 69, 383-393); None as
    above."""
    tail: int
    """1: a tail shows above the median; -1: below; 0: none shows, as in 90 % of samples of a normal distribution."""

    @property
    def majority(self) -> int:
        """1: more pairs are above 0 than below; -1: fewer; 0: equally many."""
        return (self.above > self.below) - (self.above < self.below)

    @property
    def side(self) -> int:
        """The side of 0 that the sign test alone shows, which needs a tail; 0: neither."""
        return self.majority if self.tail and self.p is not None and self.p <= self.level else 0

    @property
    def is_unanimous(self) -> bool:
        """Whether no two pairs lie on different sides of 0: no tail reaches across it."""
        return not min(self.above, self.below)

    def agrees(self, side: int) -> bool:
        """Whether the pairs let a t-test that shows this `side` of 0 speak of the median: the sign test agrees, and the
        mean is not carried by a tail on that side, unless all pairs are there."""
        if self.majority != side or self.p is None or self.p > self.agrees_at:
            return False
        return self.tail != side or self.is_unanimous


def find_far(rows: Sequence[Sequence[float]]) -> float:
    """Return the distance beyond which a run lies far from others of the same settings, from settings (rows) on the
    same seeds (columns), by the typical difference of two settings, which outliers do not move. The fewer seeds, the
    larger it is, as a typical difference may be small by chance; 0: it is not known."""
    pairs = [[a - b for a, b in zip(*both, strict=True)] for both in itertools.combinations(rows, 2)]
    apart = [abs(difference - median(own)) for own in pairs for difference in own]
    if not apart or len(rows[0]) < 3:
        return 0.0
    return _FAR * FARTHEST[_find_row(len(rows[0]))] * ROBUST * median(apart) / math.sqrt(2)


def _find_row(n: int) -> int:
    """Return the place of `n` pairs in SKEWS and FARTHEST."""
    return min(n, len(SKEWS) + 2) - 3


def describe_typical(
    differences: Sequence[float], looks: Looks, pairs: Sequence[int], alpha: float, least_sd: float = 0.0
) -> Typical:
    """Return what the pairs show of their median.

    Args:
        differences: one of each pair, in the order of the seeds; one or more.
        looks: the looks so far. pairs: the number of pairs at each.
        alpha: the error of the comparison, over all looks.
        least_sd: the standard deviation of the differences due to rounding.
    """
    n, ordered = len(differences), sorted(differences)
    above, below = (sum(1 for d in differences if sign * d > 0) for sign in (1, -1))
    untied = [sum(1 for d in differences[:count] if d) for count in pairs]
    level, level_of_all = (sign_levels(looks, SIGN_SHARE * alpha, counts)[-1] for counts in (untied, pairs))
    alone = alpha >= ALPHA and len(looks.taken) == 1
    agrees_at = AGREES_ALONE if alone else AGREES
    if n <= FEW:
        agrees_at = smallest_p(n) if looks.sizes[-1] >= looks.planned else 0.0
    middle = median(ordered)
    skew, farthest = _measure_tail(differences, middle, least_sd)
    at = _find_row(n)
    tails = [(skew, SKEWS), (farthest, FARTHEST)]
    tail = next((1 if value > 0 else -1 for value, limits in tails if value and abs(value) > limits[at]), 0)
    return Typical(
        middle,
        above,
        below,
        compare_failures(above, below) if above + below else None,
        level,
        agrees_at,
        _bound_median(ordered, level_of_all),
        _bound_median(ordered, agrees_at),
        (ordered[0], ordered[-1]),
        skew,
        farthest,
        tail,
    )


def _measure_tail(differences: Sequence[float], middle: float, least_sd: float) -> tuple[float | None, float | None]:
    """Return the skew of the differences, and how far the farthest is from their median."""
    n = len(differences)
    if n < 3:
        return None, None
    mean = math.fsum(differences) / n
    sd = max(math.sqrt(math.fsum((d - mean) ** 2 for d in differences) / (n - 1)), least_sd)
    robust = max(ROBUST * median(abs(d - middle) for d in differences), least_sd)
    if sd <= EQUAL * max(map(abs, differences)):
        return None, None
    far = max((d - middle for d in differences), key=abs)
    return math.sqrt(n) * (mean - middle) / sd, far / robust if robust > EQUAL * abs(far) else None


def _bound_median(ordered: Sequence[float], level: float) -> tuple[float, float] | None:
    """Return the two ordered values outside of which the sign test at `level` rejects a median; None where it rejects
    none."""
    out = count_outside(len(ordered), level)
    return (ordered[out - 1], ordered[-out]) if out else None


def count_outside(n: int, level: float) -> int:
    """Return the place, from 1 on, of the lowest of `n` ordered values that the sign test at `level` does not reject as
    their median; 0: it rejects none."""
    return sum(compare_failures(few, n - few) <= level for few in range((n + 1) // 2))
