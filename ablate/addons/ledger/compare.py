"""`compare`: runs, sweeps and bundles side by side: settings that differ, and results in pairs of seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ablate.addons.ledger.sources import ComparedSource, SourceArm, read_source
from ablate.config.errors import SweepError
from ablate.config.formatting import format_setting
from ablate.reports.plain_values import to_plain
from ablate.verdict.comparison import pair_outcomes
from ablate.verdict.failures import ALPHA
from ablate.verdict.intervals import Estimate, bound_mean
from ablate.verdict.sequential import LEAST

MOST_VALUES = 4
"""Values of a setting that are listed for one source."""


@dataclass(frozen=True)
class Pair:
    """An arm in a source, against the same arm in the reference: in the first study, of the same size if it has it."""

    arm: str
    source: str
    reference: str
    seeds: int
    """That both have."""
    failed: int
    reference_failed: int
    difference: Estimate | None
    """This minus the reference, over the seeds on which both trained; with an interval from three pairs on."""


@dataclass(frozen=True)
class Comparison:
    """What several runs, sweeps or bundles have in common, and what not."""

    sources: list[ComparedSource]
    settings: dict[str, dict[str, str]]
    """Dotted path -> source -> its value, or those of its arms; of those that are not the same in all sources."""
    arms: list[str]
    pairs: list[Pair]
    """All intervals together miss with a probability of at most 5 %."""
    notes: list[str]

    def summarise(self, source: ComparedSource, arm: str) -> tuple[Estimate | None, int, int]:
        """Return the mean over the seeds of an arm that trained, with its 95 % interval, those that failed, and all."""
        outcomes = list(source.arms[arm].outcomes.values()) if arm in source.arms else []
        values = [one.value for one in outcomes if one.trained and one.value is not None]
        mean = bound_mean(values, ALPHA if len(values) >= LEAST else 0.0) if values else None
        return mean, sum(not one.trained for one in outcomes), len(outcomes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        sources = []
        for source in self.sources:
            arms = {}
            for arm in source.arms:
                mean, failed, seeds = self.summarise(source, arm)
                arms[arm] = {"mean": asdict(mean) if mean else None, "failed": failed, "seeds": seeds}
            published = [asdict(table) for table in source.published]
            sources.append({"source": source.label, "metric": source.metric, "arms": arms, "published": published})
        plain: dict[str, Any] = to_plain(
            {
                "sources": sources,
                "settings": self.settings,
                "pairs": [asdict(pair) for pair in self.pairs],
                "notes": self.notes,
            }
        )
        return plain


def compare(names: Sequence[str], *, storage: str | None = None, trusts_plugins: bool = False) -> Comparison:
    """Return the comparison of runs, sweeps and bundles, each with the first, size by size where both have several; of
    one bundle alone, its sizes with the first. Raises SweepError for fewer than two, and for a name that is none of
    these."""
    sources = [source for name in names for source in read_source(name, storage, trusts_plugins)]
    if len(sources) < 2:
        raise SweepError("Name two or more to compare: ids of runs, names of sweeps, folders of bundles.")
    return compare_sources(sources)


def compare_sources(sources: Sequence[ComparedSource]) -> Comparison:
    """Return the comparison of the sources, as `compare`. Where each has one arm, these are compared whatever their
    names are."""
    named = _align(sources)
    arms = list(dict.fromkeys(arm for source in named for arm in source.arms))
    settings = _list_settings(named)
    notes = ["Intervals of means are of one look at the data; those of reports and bundles count all looks."]
    metric, matched = named[0].metric, _match(named)
    alike = [(source, reference) for source, reference in matched if source.metric == metric]
    pairs = _pair(alike)
    if len(alike) < len(matched):
        notes.append(f"Sources with another objective than {metric} are not set in pairs with the first.")
    for source, reference in alike:
        if pairs and source.label not in [pair.source for pair in pairs]:
            notes.append(f"No arm of {source.label} has a seed in {reference.label}: nothing of it is in pairs.")
    if any(path.startswith("data.") for path in settings):
        notes.append("The sources differ in their data: losses on different data say nothing about the arms.")
    if not pairs:
        notes.append("No arm has a seed in the first source and in another, so there are no pairs.")
    return Comparison(named, settings, arms, pairs, notes)


def _align(sources: Sequence[ComparedSource]) -> list[ComparedSource]:
    """Return the sources, where each has one arm with one name for it, and with labels of which no two are equal."""
    names = list(dict.fromkeys(arm for source in sources for arm in source.arms))
    single = all(len(source.arms) == 1 for source in sources)
    aligned = []
    for number, source in enumerate(sources, 1):
        double = sum(other.label == source.label for other in sources) > 1
        arms = {" / ".join(names): next(iter(source.arms.values()))} if single else source.arms
        label = f"{source.label} ({number})" if double else source.label
        aligned.append(replace(source, label=label, arms=arms))
    return aligned


def _list_settings(sources: Sequence[ComparedSource]) -> dict[str, dict[str, str]]:
    """Return the settings in which sources differ, over the arms that all of them have or, without any, over all."""
    shared = [arm for arm in sources[0].arms if all(arm in source.arms for source in sources)]
    texts = {source.label: _describe(source.arms, shared or list(source.arms)) for source in sources}
    paths = sorted({path for values in texts.values() for path in values})
    rows = {path: {label: values.get(path, "-") for label, values in texts.items()} for path in paths}
    return {path: values for path, values in rows.items() if len(set(values.values())) > 1}


def _describe(arms: Mapping[str, SourceArm], names: Sequence[str]) -> dict[str, str]:
    """Return dotted path -> the values of the arms, each once."""
    values: dict[str, dict[str, None]] = {}
    for name in names:
        for path, value in arms[name].settings.items():
            values.setdefault(path, {})[format_setting(value)] = None
    return {
        path: ", ".join([*list(each)[:MOST_VALUES], *(["..."] if len(each) > MOST_VALUES else [])])
        for path, each in values.items()
    }


def _match(sources: Sequence[ComparedSource]) -> list[tuple[ComparedSource, ComparedSource]]:
    """Return each source with its reference: in the first study the source of the same size, or the first one."""
    first = [source for source in sources if source.study == sources[0].study]
    by_size = {source.size: source for source in first}
    if others := [source for source in sources if source.study != first[0].study]:
        return [(source, by_size.get(source.size, first[0])) for source in others]
    return [(source, first[0]) for source in first[1:]]


def _pair(matched: Sequence[tuple[ComparedSource, ComparedSource]]) -> list[Pair]:
    pairings = [
        (source, reference, arm, pair_outcomes(source.arms[arm].outcomes, reference.arms[arm].outcomes, None))
        for source, reference in matched
        for arm in reference.arms
        if arm in source.arms and source.arms[arm].outcomes.keys() & reference.arms[arm].outcomes.keys()
    ]
    level = ALPHA / max(1, len(pairings))
    return [
        Pair(
            arm,
            source.label,
            reference.label,
            pairing.seeds,
            pairing.failed,
            pairing.other_failed,
            pairing.estimate(level),
        )
        for source, reference, arm, pairing in pairings
    ]
