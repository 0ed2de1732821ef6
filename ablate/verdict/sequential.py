"""The exact distribution of tests that are repeated as seeds are added, under the hypothesis of no difference.

Student's t: x_1, x_2, ... are normal with mean 0. The ratio u_n = sum(x) / sqrt(sum(x^2)) fixes t_n and does not depend
on sum(x^2) (Basu's theorem). So (u_n) is a Markov chain: u_{n+1} = (u_n + w) / sqrt(1 + w^2), where w sqrt(n) has
Student's distribution with n degrees of freedom. Its law is carried from look to look by numerical integration, as
Jennison & Turnbull (1991, Biometrika 78, 133-141) do for exact sequential t-tests. The levels of the normal theory
(Armitage, McPherson & Rowe 1969) are too liberal for few seeds: t-tests at looks after 3, 4, ..., 12 seeds that are to
spend 0.8 * 5 % / 7 spend 26 % more than that.

Sign test: of d seeds on which one arm alone failed, the number that are the first arm's is binomial, with probability
1/2; a walk from look to look.

Laws are kept as masses in cells of the p-value: P(|t_n| > edge) is the same at an edge for all n. Each further seed
blurs them by a share of a cell: up to some 20 seeds what is spent is right to 1 %, at 200 it is 2 % less than may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
LEAST = 3
"""Minimum number of pairs of seeds for a test."""
NODES = 3  # of Gauss-Legendre in each cell
EDGES: Array = np.concatenate([np.linspace(1, 0.1, 65), np.geomspace(0.1, 1e-7, 128)[1:], [0.0]])
"""p-values, descending: finer in the tail."""


def find_levels(pairs: Sequence[int], spent: Sequence[float]) -> tuple[float, ...]:
    """Return the p-value below which a two-sided t-test rejects at each look, so that the probability of a rejection at
    any look so far is `spent`.

    Args:
        pairs: the number of pairs at each look, not descending. A look with fewer than LEAST pairs has no test (level
            0), and its share is available at the next look.
        spent: the probability that may be spent up to each look, ascending.
    """
    return _find_levels(tuple(pairs), tuple(spent))


@lru_cache(maxsize=65536)
def _find_levels(pairs: tuple[int, ...], spent: tuple[float, ...]) -> tuple[float, ...]:
    levels: list[float] = []
    mass, n, used = -np.diff(EDGES), 0, 0.0
    for count, total in zip(pairs, spent, strict=True):
        if count < LEAST or total <= used:
            levels.append(0.0)
            continue
        mass, n = _advance(mass, n, count), count
        tail = np.append(np.cumsum(mass[::-1])[::-1], 0.0)  # not rejected so far, and beyond each edge
        levels.append(float(np.interp(total - used, tail[::-1], EDGES[::-1])))
        mass = _cut(mass, levels[-1])
        used = total
    return tuple(levels)


def find_crossing(pairs: Sequence[int], levels: Sequence[float]) -> float:
    """Return the probability that a two-sided t-test of no difference is below its level at one look or more."""
    mass, n = -np.diff(EDGES), 0
    for count, level in zip(pairs, levels, strict=True):
        mass, n = _advance(mass, n, count), count
        mass = _cut(mass, level)
    return 1 - float(mass.sum())


def _cut(mass: Array, level: float) -> Array:
    """Return `mass` without the part at p-values below `level`."""
    kept = (EDGES[:-1] - level) / -np.diff(EDGES)
    return mass * np.clip(kept, 0.0, 1.0)


def _advance(mass: Array, n: int, count: int) -> Array:
    """Return the distribution of |t| over `count` pairs, given that over the first `n` of them. 0: no pairs yet."""
    for known in range(n, count) if n else ():
        below = _transition(known) @ mass
        mass = np.maximum(np.diff(below), 0.0)
    return mass


@lru_cache(maxsize=128)
def _transition(n: int) -> Array:
    """Return [edge, cell]: P(|u_{n+1}| below the edge, given that |u_n| lies in the cell)."""
    x, weight = np.polynomial.legendre.leggauss(NODES)
    middle, half = (EDGES[:-1] + EDGES[1:]) / 2, (EDGES[:-1] - EDGES[1:]) / 2
    u = _ratio((middle[:, None] + half[:, None] * x).ravel(), n)[None, :]
    y = _ratio(EDGES, n + 1)[:, None]
    # |(u + w) / sqrt(1 + w^2)| <= y where w^2 (1 - y^2) + 2 u w + u^2 - y^2 <= 0: between two roots, outside for y > 1
    a = 1 - y**2
    a = np.where(np.abs(a) < 1e-9, 1e-9, a)
    root = y * np.sqrt(np.maximum(u**2 + a, 0.0))
    between = (_central((root - u) / a, n) - _central((-u - root) / a, n)) / 2
    below = np.where(y**2 >= u**2 + 1, 1.0, np.where(a > 0, between, 1 + between))
    result: Array = (below.reshape(len(EDGES), -1, NODES) * (weight / 2)).sum(-1)
    return result


def _ratio(p: Array, n: int) -> Array:
    """Return |u_n| of the t-test with the two-sided p-value `p`."""
    from scipy.special import stdtrit

    # t = u sqrt(n - 1) / sqrt(n - u^2)
    inverse = np.divide(1, -stdtrit(n - 1, np.maximum(p, 1e-30) / 2), out=np.full(p.shape, np.inf), where=p < 1)
    ratio: Array = np.where(p <= 0, np.sqrt(n), np.sqrt(n / (1 + (n - 1) * inverse**2)))
    return ratio


def _central(w: Array, n: int) -> Array:
    """Return P(|T| < w sqrt(n)) with the sign of `w`, for Student's T with n degrees of freedom (Abramowitz & Stegun
    26.7.3 and 26.7.4): many times as fast as scipy's, which accepts n that are not integers."""
    square = 1 / (1 + w * w)
    term, total = np.ones_like(w), np.zeros_like(w)
    odd = n % 2
    for k in range(n // 2):
        total += term
        term *= square * ((2 * k + 1 + odd) / (2 * k + 2 + odd))
    if odd:
        result: Array = (np.arctan(w) + w * square * total) * (2 / np.pi)
        return result
    even: Array = w * np.sqrt(square) * total
    return even


def find_sign_levels(discordant: Sequence[int], spent: Sequence[float]) -> tuple[float, ...]:
    """Return the two-sided p-value of the sign test at which it rejects at each look, so that the probability of a
    rejection at any look so far is at most `spent`; 0 if no outcome rejects.

    Args:
        discordant: the number of seeds so far on which exactly one of the two arms failed, not descending.
        spent: the probability that may be spent up to each look, ascending.
    """
    return _find_sign_levels(tuple(discordant), tuple(spent))


@lru_cache(maxsize=65536)
def _find_sign_levels(discordant: tuple[int, ...], spent: tuple[float, ...]) -> tuple[float, ...]:
    from scipy.special import bdtr

    levels: list[float] = []
    law, n, used = np.ones(1), 0, 0.0  # P(the first arm's number, and not rejected so far)
    for count, total in zip(discordant, spent, strict=True):
        for _ in range(n, count):
            law = np.convolve(law, [0.5, 0.5])
        n, level = count, 0.0
        for few in range((count + 1) // 2):  # rejected where either arm has at most `few`
            more = law[few] + law[count - few]
            if used + more > total * (1 + 1e-12):
                break
            used += more
            law[few] = law[count - few] = 0.0
            level = min(1.0, 2 * float(bdtr(few, count, 0.5)))
        levels.append(level)
    return tuple(levels)
