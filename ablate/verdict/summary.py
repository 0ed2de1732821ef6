"""The result in one sentence: all arms of a comparison, grouped by verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ablate.config.formatting import format_uncertain, join_words
from ablate.verdict.comparison import Compared
from ablate.verdict.statements import assumes_normal
from ablate.verdict.unpaired import Apart


def summarise(
    compared: Mapping[str, Compared],
    places: Mapping[str, Sequence[str]],
    *,
    names: Mapping[str, str],
    baseline: str,
    unit: str,
    seed: str = "fresh seed",
) -> str:
    """Return one sentence on all comparisons; '' if nothing was compared, or there is no verdict yet.

    Args:
        compared: the arms.
        places: place of comparison, such as 'at lr=0.003' -> its members of `compared`; '' is a single unnamed place.
        names: arm of `compared` -> its name in the sentence.
        baseline: the name of the baseline.
        unit: the unit of the objective.
        seed: the name of a seed.
    """
    others = [c for c in compared.values() if c.kind != "baseline"]
    if not others or all(c.kind == "figures" for c in others):
        return ""
    noun = next((c.versus.noun for c in others if c.versus), "seed")
    clauses = []
    for place, arms in places.items():
        said = _describe_place({names[arm]: compared[arm] for arm in arms}, baseline, unit, noun)
        clauses.append(f"{place} {said}" if place else said)
    family = max(c.family for c in others)
    sharing = "one comparison" if family == 1 else f"all {family} comparisons together"
    seeds = sorted({n for c in others if c.versus for n in (c.versus.seeds, c.versus.other_seeds)})
    over = f"On {' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} {seed}s" if seeds else f"On {seed}s"
    if any(map(assumes_normal, others)):
        sharing += f" if {'values' if noun == Apart.noun else 'differences'} are distributed normally"
    return f"{over}, with an error of at most 5 % for {sharing}: {'; '.join(clauses)}."


def _describe_place(arms: Mapping[str, Compared], baseline: str, unit: str, noun: str) -> str:
    """Return the result at one place: first the claims, then the failures, then the open comparisons. `noun`: what is
    counted, a seed or an unpaired run."""
    by_kind: dict[str, list[str]] = {}
    for arm, c in arms.items():
        by_kind.setdefault(_name_group(c), []).append(arm)
    phrases = []
    for kind in (*_WORDS, *(kind for kind in by_kind if kind not in _WORDS)):
        named = by_kind.get(kind, [])
        if not named or kind == "baseline":
            continue
        told = [f"{arm}{_format_amount(arms[arm], unit) if kind in _WITH_AMOUNT else ''}" for arm in named]
        text = _WORDS.get(kind, kind)
        if noun == Apart.noun:
            text = text.replace(" on a typical seed", "").replace("seed", noun)
        for one, several in _PLURAL.items() if len(named) > 1 else ():
            text = text.replace(one, several)
        phrases.append(f"{join_words(told)} {text.replace('BASELINE', baseline)}")
    return ", ".join(phrases) + _list_failures(arms, noun)


def _list_failures(arms: Mapping[str, Compared], noun: str) -> str:
    """Return ' (failed seeds of 10: post 10 and mix 7)'; '' if no seed failed."""
    shares = {arm: c.failures for arm, c in arms.items() if c.failures and c.failures.failed}
    if not shares:
        return ""
    counts = {share.n for share in shares.values()}
    if len(counts) == 1:
        return f" (failed {noun}s of {counts.pop()}: {join_words(f'{arm} {s.failed}' for arm, s in shares.items())})"
    return f" (failed {noun}s: {join_words(f'{arm} {s.failed} of {s.n}' for arm, s in shares.items())})"


_WORDS = {
    "better": "is better than BASELINE on a typical seed",
    "better, failed more": "is better than BASELINE on a typical seed when it trains",
    "worse": "is worse than BASELINE on a typical seed",
    "worse, failed less": "is worse than BASELINE on a typical seed when it trains",
    "better on most seeds": "is better than BASELINE on most seeds (on average not shown)",
    "worse on most seeds": "is worse than BASELINE on most seeds (on average not shown)",
    "fails more often": "fails more often than BASELINE",
    "fails less often": "fails less often than BASELINE",
    "trained on no seed": "trained on no seed",
    "baseline fails on all seeds": "trained although BASELINE trained on no seed",
    "equivalent": "is equivalent to BASELINE on a typical seed",
    "equivalent on most seeds": "is equivalent to BASELINE on a typical seed (on average not shown)",
    "undecided": "is inconclusive",
    "could not be trained": "could not be trained",
    "baseline could not be trained": "has no trained BASELINE to compare with",
    "figures": "has no verdict yet",
}
"""Group -> its wording for one arm, in this order."""
_PLURAL = {"is ": "are ", "fails ": "fail ", "has ": "have ", "it trains": "they train"}
_WITH_AMOUNT = (
    *("better", "better, failed more", "better on most seeds"),
    *("worse", "worse, failed less", "worse on most seeds"),
)


def _name_group(c: Compared) -> str:
    """Return the group that an arm is reported in."""
    if c.kind == "mixed" and c.versus is not None:
        return "better, failed more" if c.versus.fails_more > 0 else "worse, failed less"
    if c.kind == "fails on all seeds" and c.versus is not None:
        return "fails more often" if c.versus.failure_side else "trained on no seed"
    return c.kind


def _format_amount(c: Compared, unit: str) -> str:
    """Return ' (mean 0.27 ± 0.15 nats)', with the number of seeds where both trained on fewer than there were."""
    d, v = c.difference, c.versus
    if d is None or v is None:
        return ""
    if not v.on_average:
        return f" ({v.count_majority()})"
    n = f", n = {d.n}" if v.left_out else ""
    return f" (mean {format_uncertain(abs(d.mean), d.half_width)} {unit}{n})"
