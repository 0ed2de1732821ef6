"""`compare`: runs, sweeps and bundles side by side, each as arms with outcomes of their seeds: settings that differ,
and results in pairs of seeds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ablate import tracking
from ablate.addons.bundles import files
from ablate.addons.bundles.records import resolve_settings
from ablate.addons.bundles.schema import FILE, NOTES, PAGE
from ablate.config.errors import DataError, SweepError, did_you_mean
from ablate.config.formatting import format_setting
from ablate.config.merging import iterate_leaves
from ablate.experiment.metrics import read_metric
from ablate.reports.plain_values import to_plain
from ablate.scheduler.storage import list_sweeps, read_sweep, storage_url
from ablate.sweeps.comparison import collect_outcomes
from ablate.sweeps.records import SweepRecord
from ablate.verdict.comparison import pair_outcomes
from ablate.verdict.failures import ALPHA
from ablate.verdict.intervals import Estimate, bound_mean
from ablate.verdict.outcomes import LOSS, Outcome, classify
from ablate.verdict.sequential import LEAST

_RUN = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class SideArm:
    """A compared arm, or one run."""

    outcomes: Mapping[int, Outcome]
    """Seed -> outcome, of fresh seeds; for a run, its own."""
    settings: Mapping[str, Any]
    """Dotted path -> value, without the seed."""


@dataclass(frozen=True)
class Side:
    """A run, a sweep, or a sweep of a bundle."""

    label: str
    metric: str
    arms: Mapping[str, SideArm]
    study: str = ""
    """The name that was given; several sizes of a bundle share it."""
    size: str | None = None
    """The size, of a bundle with several."""


def read_side(name: str, storage: str | None = None, trusts_plugins: bool = False) -> list[Side]:
    """Return the run, the sweep, or the sweeps of the bundle that `name` stands for: the id of a run, the name of a
    sweep, or a folder. Raises SweepError if it is none of them, and DataError for a bundle that is damaged."""
    if os.path.isfile(Path(name) / FILE):
        bundle = files.read_bundle(name)
        if damage := files.list_damage(name, free=(PAGE, NOTES)):
            raise DataError(f"{name} is damaged: {damage[0]}. See all of it: ablate verify {name}")
        with files.refuse_misfits(name):
            records = files.restore_records(bundle, name, trusts_plugins)
            sizes = [(size if len(records) > 1 else None, record) for size, record in records.items()]
            return [
                replace(_describe_sweep(f"{bundle.name} {size}" if size else name, record), study=name, size=size)
                for size, record in sizes
            ]
    if _RUN.fullmatch(name):
        return [_read_run(name)]
    known = list_sweeps(storage_url(storage))
    if name.partition("@")[0] not in known:
        listed = ", ".join(known) or "none yet"
        text = f"{name!r} is no folder with a bundle, no id of a run, and no sweep. Sweeps: {listed}."
        raise SweepError(text + did_you_mean(name, known))
    record = read_sweep(name, storage)
    return [_describe_sweep(record.title, record)]


def _describe_sweep(label: str, record: SweepRecord) -> Side:
    arms = {
        arm: SideArm(fresh.outcomes, resolve_settings(record, arm)) for arm, fresh in collect_outcomes(record).items()
    }
    return Side(label, record.spec.objective.metric, arms, study=label)


def _read_run(run_id: str) -> Side:
    if (run := tracking.find_active_run(run_id)) is None:
        raise SweepError(f"There is no run {run_id} in the MLflow store. ablate ui shows its runs.")
    with tracking.explain_errors(tracking.tracking_uri()):
        text = Path(tracking.client().download_artifacts(run_id, "config.yaml")).read_text(encoding="utf-8")
    settings = dict(iterate_leaves(yaml.safe_load(text)))
    seed = settings.pop("seed", 0)
    loss = read_metric(run.data.metrics, LOSS)
    status = run.data.tags.get("ablate.status", "")
    ended = status == "diverged" or (status == "completed" and loss is not None)
    outcome = Outcome("diverged") if status == "diverged" else Outcome(classify(loss, None), loss)
    name = run.data.tags.get("ablate.arm", "") or "run"
    label = f"{run.info.run_name} ({run_id[:8]})"
    return Side(label, LOSS, {name: SideArm({int(seed): outcome} if ended else {}, settings)}, study=run_id)


MOST_VALUES = 4
"""Values of a setting that are listed for one side."""


@dataclass(frozen=True)
class Pair:
    """An arm in a side, against the same arm in the reference: in the first study, of the same size if it has it."""

    arm: str
    side: str
    reference: str
    seeds: int
    """Seeds that both have."""
    failed: int
    reference_failed: int
    difference: Estimate | None
    """This minus the reference, over the seeds on which both trained; with an interval from three pairs on."""


@dataclass(frozen=True)
class Comparison:
    """The comparison of several runs, sweeps or bundles."""

    sides: list[Side]
    settings: dict[str, dict[str, str]]
    """Dotted path -> side -> its value, or those of its arms; for settings that are not the same in all sides."""
    arms: list[str]
    pairs: list[Pair]
    """All intervals together miss with a probability of at most 5 %."""
    notes: list[str]

    def summarise(self, side: Side, arm: str) -> tuple[Estimate | None, int, int]:
        """Return the mean over the seeds of an arm that trained, with its 95 % interval, those that failed, and all."""
        outcomes = list(side.arms[arm].outcomes.values()) if arm in side.arms else []
        values = [one.value for one in outcomes if one.trained and one.value is not None]
        mean = bound_mean(values, ALPHA if len(values) >= LEAST else 0.0) if values else None
        return mean, sum(not one.trained for one in outcomes), len(outcomes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        sides = []
        for side in self.sides:
            arms = {}
            for arm in side.arms:
                mean, failed, seeds = self.summarise(side, arm)
                arms[arm] = {"mean": asdict(mean) if mean else None, "failed": failed, "seeds": seeds}
            sides.append({"side": side.label, "metric": side.metric, "arms": arms})
        plain: dict[str, Any] = to_plain(
            {
                "sides": sides,
                "settings": self.settings,
                "pairs": [asdict(pair) for pair in self.pairs],
                "notes": self.notes,
            }
        )
        return plain


def compare(names: Sequence[str], *, storage: str | None = None, trusts_plugins: bool = False) -> Comparison:
    """Return the comparison of runs, sweeps and bundles, each with the first, size by size if both have several; for
    one bundle alone, its sizes with the first. Raises SweepError for fewer than two, and for a name that is none of
    these."""
    sides = [side for name in names for side in read_side(name, storage, trusts_plugins)]
    if len(sides) < 2:
        raise SweepError("Name two or more to compare: ids of runs, names of sweeps, folders of bundles.")
    return compare_sides(sides)


def compare_sides(sides: Sequence[Side]) -> Comparison:
    """Return the comparison of the sides, as `compare`. Where each has one arm, these are compared whatever their
    names are."""
    named = _align(sides)
    arms = list(dict.fromkeys(arm for side in named for arm in side.arms))
    settings = _list_settings(named)
    notes = ["Intervals of means are of one look at the data; those of reports and bundles count all looks."]
    metric, matched = named[0].metric, _match(named)
    alike = [(side, reference) for side, reference in matched if side.metric == metric]
    pairs = _pair(alike)
    if len(alike) < len(matched):
        notes.append(f"Sides with another objective than {metric} are not set in pairs with the first.")
    for side, reference in alike:
        if pairs and side.label not in [pair.side for pair in pairs]:
            notes.append(f"No arm of {side.label} has a seed in {reference.label}: nothing of it is in pairs.")
    if any(path.startswith("data.") for path in settings):
        notes.append("The sides differ in their data: losses on different data say nothing about the arms.")
    if not pairs:
        notes.append(
            "No arm has a seed in the first side and in another, so there are no pairs. Sweeps of one store that train "
            "the same model on the same data have seeds of their own; the arms of one sweep are compared in pairs."
        )
    return Comparison(named, settings, arms, pairs, notes)


def _align(sides: Sequence[Side]) -> list[Side]:
    """Return the sides with labels that differ and, if each has one arm, with one name for it."""
    names = list(dict.fromkeys(arm for side in sides for arm in side.arms))
    single = all(len(side.arms) == 1 for side in sides)
    aligned = []
    for number, side in enumerate(sides, 1):
        double = sum(other.label == side.label for other in sides) > 1
        arms = {" / ".join(names): next(iter(side.arms.values()))} if single else side.arms
        label = f"{side.label} ({number})" if double else side.label
        aligned.append(replace(side, label=label, arms=arms))
    return aligned


def _list_settings(sides: Sequence[Side]) -> dict[str, dict[str, str]]:
    """Return the settings in which sides differ, over the arms that all of them have or, without any, over all."""
    shared = [arm for arm in sides[0].arms if all(arm in side.arms for side in sides)]
    texts = {side.label: _describe(side.arms, shared or list(side.arms)) for side in sides}
    paths = sorted({path for values in texts.values() for path in values})
    rows = {path: {label: values.get(path, "-") for label, values in texts.items()} for path in paths}
    return {path: values for path, values in rows.items() if len(set(values.values())) > 1}


def _describe(arms: Mapping[str, SideArm], names: Sequence[str]) -> dict[str, str]:
    """Return dotted path -> the values of the arms, each once."""
    values: dict[str, dict[str, None]] = {}
    for name in names:
        for path, value in arms[name].settings.items():
            values.setdefault(path, {})[format_setting(value)] = None
    return {
        path: ", ".join([*list(each)[:MOST_VALUES], *(["..."] if len(each) > MOST_VALUES else [])])
        for path, each in values.items()
    }


def _match(sides: Sequence[Side]) -> list[tuple[Side, Side]]:
    """Return each side with its reference: in the first study the side of the same size, or the first one."""
    first = [side for side in sides if side.study == sides[0].study]
    by_size = {side.size: side for side in first}
    if others := [side for side in sides if side.study != first[0].study]:
        return [(side, by_size.get(side.size, first[0])) for side in others]
    return [(side, first[0]) for side in first[1:]]


def _pair(matched: Sequence[tuple[Side, Side]]) -> list[Pair]:
    pairings = [
        (side, reference, arm, pair_outcomes(side.arms[arm].outcomes, reference.arms[arm].outcomes, None))
        for side, reference in matched
        for arm in reference.arms
        if arm in side.arms and side.arms[arm].outcomes.keys() & reference.arms[arm].outcomes.keys()
    ]
    level = ALPHA / max(1, len(pairings))
    return [
        Pair(
            arm,
            side.label,
            reference.label,
            pairing.seeds,
            pairing.failed,
            pairing.other_failed,
            pairing.estimate(level),
        )
        for side, reference, arm, pairing in pairings
    ]
