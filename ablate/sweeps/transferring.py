"""What a size of a file trains that takes over settings from another (`search: {transfer: {from: SIZE}}`).

The arms are searched at the smallest size. At a larger one a spot check trains each at the chosen settings, and at half
and twice their learning rate. Where for no arm a neighbour is better by more than `confirm.effect`, or fails on fewer
seeds, all other sizes take the settings over and are tested on fresh seeds; otherwise all of them are searched, for all
arms alike. The mean over the seeds decides: a test would keep a wrong rate where too few seeds can refuse it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ablate.config.errors import SweepError
from ablate.config.formatting import count_noun, format_number, join_words
from ablate.config.merging import Tree, merge
from ablate.experiment.tree import Experiment
from ablate.sweeps.comparison import read_outcomes
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.spec.transfer import FACTORS, list_rates
from ablate.sweeps.status import count_runs
from ablate.sweeps.storage import list_sweeps, read_sweep

Settings = Mapping[str, Any]
"""Dotted path -> value, of all that an arm searches."""


@dataclass(frozen=True)
class Neighbour:
    """An arm of a spot check with its learning rates times a factor, against the arm at the chosen ones."""

    factor: float
    gain: float | None
    """By how much it is better, in the unit of the objective, on average over the seeds that trained at both; None if
    there are none."""
    failed: int
    """Seeds that failed with it."""


@dataclass(frozen=True)
class Spot:
    """The spot check of one arm."""

    arm: str
    seeds: int
    failed: int
    """Seeds that failed at the chosen settings."""
    neighbours: list[Neighbour]
    effect: float
    """The smallest difference that matters."""

    @property
    def better(self) -> list[Neighbour]:
        """The neighbours that refuse the chosen settings."""
        return [
            one
            for one in self.neighbours
            if one.failed < self.failed
            or (one.failed == self.failed and one.gain is not None and one.gain > self.effect)
        ]

    @property
    def holds(self) -> bool:
        """Whether the settings may be taken over: some seed trains with them, and no neighbour is better."""
        return self.failed < self.seeds and not self.better

    def describe(self) -> str:
        """Return in words what refuses the settings; '' where nothing does."""
        if self.failed == self.seeds:
            return f"{self.arm} fails on all {count_noun(self.seeds, 'seed')} at its chosen settings"
        parts = []
        for one in self.better:
            rate = f"{one.factor:g} times its learning rate"
            if one.failed < self.failed:
                parts.append(f"fails on {one.failed} instead of {self.failed} of {self.seeds} seeds at {rate}")
            elif one.gain is not None:
                parts.append(f"is better by {format_number(one.gain)} at {rate}")
        return f"{self.arm} {join_words(parts)}" if parts else ""


def resolve(spec: Sweep, url: str) -> Sweep:
    """Return the sweep that `spec` comes to: itself, or what the sweeps that it waits for let it train.

    Raises SweepError where one of these, in the storage at `url`, has not ended.
    """

    def read(name: str) -> SweepRecord:
        state = "has not begun"
        if name in list_sweeps(url):
            record = read_sweep(name, url)
            done, total = count_runs(record)
            if done >= total:
                return record
            state = f"has ended {done} of {total} runs"
        raise SweepError(f"{spec.name} waits for {name}, which {state}. `ablate sweep FILE.yaml` runs it first.")

    return resolve_from(spec, read)


def resolve_from(spec: Sweep, read: Callable[[str], SweepRecord]) -> Sweep:
    """Return `resolve` with the records that `read` returns of the sweeps of a name."""
    transfer = spec.transfer
    if transfer is None or not spec.awaits:
        return spec
    if transfer.search is None or transfer.check is None:
        raise SweepError(
            f"{spec.name} takes over the settings of the size {transfer.source}, and so needs its whole file: run "
            "ablate sweep FILE.yaml, or ablate ladder FILE.yaml"
        )
    chosen = pick_settings(read(transfer.search))
    if spec.name == transfer.check:
        return build_check(spec, chosen)
    return build_size(spec, chosen, judge(read(transfer.check)))


def find_resolved(spec: Sweep, url: str) -> Sweep | None:
    """Return `resolve`; None where it is not known yet what `spec` trains."""
    try:
        return resolve(spec, url)
    except SweepError:
        return None


def pick_settings(record: SweepRecord) -> dict[str, Settings]:
    """Return arm -> the settings that its search chose, of the arms that trained. Raises SweepError if none did."""
    settled = {arm: record.settled(arm) for arm in record.spec.own_arms}
    chosen: dict[str, Settings] = {arm: trial.params for arm, trial in settled.items() if trial is not None}
    if not chosen:
        raise SweepError(f"No trial of {record.title} completed, so no other size can take over settings from it.")
    return chosen


def build_check(spec: Sweep, chosen: Mapping[str, Settings]) -> Sweep:
    """Return the spot check: each arm at the `chosen` settings, and at half and twice their learning rates.

    Its seeds are those on which candidates of a search are compared, so that no arm is tested on one of them.
    """
    assert spec.transfer is not None
    arms = {}
    for arm, settings in chosen.items():
        for factor in FACTORS:
            rates = {path: float(settings[path]) * factor for path in list_rates(settings)}
            arms[name_spot(arm, factor)] = (arm, {**settings, **rates})
    lacking = _describe_lacking(spec, chosen)
    changed = {"outcome": "check", "settings": {name: settings for name, (_, settings) in arms.items()}}
    changed |= {"reason": lacking} if lacking else {}
    seed = spec.selection_seeds()[0] - 1  # fresh seeds begin above it
    tree = _leave_out_search(spec, changed, {"seeds": spec.transfer.seeds})
    tree |= {"arms": {name: _set(spec, arm, {**own, "seed": seed}) for name, (arm, own) in arms.items()}}
    return Sweep.from_tree({**tree, "baseline": None, "published": []}, spec.name)


def name_spot(arm: str, factor: float) -> str:
    """Return the name of an arm in a spot check, with its learning rates times `factor`."""
    return f"{arm} x{factor:g}"


def judge(record: SweepRecord) -> list[Spot]:
    """Return what the spot check in `record` shows of each arm."""
    chosen = name_spot("", 1.0)
    return [_judge_arm(record, name.removesuffix(chosen)) for name in record.spec.own_arms if name.endswith(chosen)]


def _judge_arm(record: SweepRecord, arm: str) -> Spot:
    def read(factor: float) -> tuple[dict[int, float], int]:
        """Return seed -> objective, of the seeds that trained, and the number of those that failed."""
        outcomes = read_outcomes(record.confirmed.get(name_spot(arm, factor), ()), record.trivial_loss)
        values = {seed: one.value for seed, one in outcomes.items() if one.trained and one.value is not None}
        return values, len(outcomes) - len(values)

    effect = record.spec.confirm.effect
    assert effect is not None  # a transfer requires it
    sign = 1.0 if record.spec.objective.direction == "maximize" else -1.0
    values, failed = read(1.0)
    neighbours = []
    for factor in FACTORS:
        if factor != 1:
            others, other_failed = read(factor)
            gains = [sign * (others[seed] - value) for seed, value in values.items() if seed in others]
            neighbours.append(Neighbour(factor, math.fsum(gains) / len(gains) if gains else None, other_failed))
    return Spot(arm, len(values) + failed, failed, neighbours, effect)


def build_size(spec: Sweep, chosen: Mapping[str, Settings], spots: list[Spot]) -> Sweep:
    """Return what a size trains after the spot check: each arm at the `chosen` settings on fresh seeds alone, or the
    search of every arm where one has none or a spot does not hold."""
    assert spec.transfer is not None
    if refused := _list_refusals(_describe_lacking(spec, chosen), spots, f"in {spec.transfer.check} "):
        searched = {"outcome": "searched", "reason": "; ".join(refused)}
        return spec.model_copy(update={"transfer": spec.transfer.model_copy(update=searched)})
    tree = _leave_out_search(spec, {"outcome": "holds", "settings": chosen}, {})
    tree |= {"arms": {arm: _set(spec, arm, settings) for arm, settings in chosen.items()}}
    return Sweep.from_tree(tree, spec.name)


def _describe_lacking(spec: Sweep, chosen: Mapping[str, Settings]) -> str:
    """Return in words which arms have no `chosen` settings; '' where all have."""
    assert spec.transfer is not None
    lacking = [arm for arm in spec.own_arms if arm not in chosen]
    return f"no trial of {join_words(lacking, 'or')} completed in {spec.transfer.search}" if lacking else ""


def _list_refusals(lacking: str, spots: list[Spot], where: str) -> list[str]:
    """Return in words what refuses the settings: arms that have none, and the spot checks, which were made `where`."""
    refused = [text for spot in spots if (text := spot.describe())]
    return [*filter(None, [lacking]), *([where + "; ".join(refused)] if refused else [])]


def _leave_out_search(spec: Sweep, transfer: Settings, confirm: Settings) -> Tree:
    """Return the tree of a sweep that tests its arms as they stand."""
    assert spec.transfer is not None
    tree, kept = spec.to_tree(), ("seeds", "effect", "sd", "sd_source")
    tested = {**{field: value for field, value in tree["confirm"].items() if field in kept}, **confirm}
    rest = {key: value for key, value in tree.items() if key not in ("search", "fixed", "method", "budget")}
    return {
        **rest,
        "sampler": "grid",
        "pruner": "none",
        "confirm": {**tested, "at": "grid"},
        "transfer": {**tree["transfer"], **transfer},
    }


def _set(spec: Sweep, arm: str, settings: Settings) -> Tree:
    """Return the settings of an arm with `settings` over them."""
    return merge(Experiment, merge(Experiment, {}, spec.own_arms[arm].settings), settings)


def describe_check(record: SweepRecord) -> str:
    """Return the sentence on a spot check: what follows for the other sizes of its file, once it has ended."""
    done, total = count_runs(record)
    if done < total:
        return f"{record.title} has ended {done} of {total} runs, and the other sizes wait for it."
    spots, transfer = judge(record), record.spec.transfer
    assert transfer is not None
    if refused := _list_refusals(transfer.reason or "", spots, "at this size "):
        text = "; ".join(refused)
        return f"{text[0].upper()}{text[1:]}: every arm is searched at every size."
    return (
        f"No arm is better by more than {format_number(spots[0].effect)}, or fails on fewer seeds, at half or twice "
        f"its learning rate: all sizes take over the settings that {transfer.search} chose."
    )
