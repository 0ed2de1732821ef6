"""The claims of a bundle, checked against its runs by the rules of the verdict of this version of Ablate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ablate.addons.bundles.records import judge
from ablate.addons.bundles.reruns import Rerun, Trained
from ablate.addons.bundles.schema import Bundle, Verdict
from ablate.addons.scaling.over_sizes import find_comparison
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FRESH
from ablate.sweeps.spec.fields import count_others

_CLOSE = 1e-9
_KINDS = ("kind", "word", "verdict")
"""Keys of claims that are one word."""
_WORDS = ("verdict", "notes")
"""Keys of the sentences on several sizes, whose words change with versions of Ablate."""


def check_values(bundle: Bundle) -> list[str]:
    """Return the runs whose objective is not the last of their curve."""
    damage = []
    for sweep in bundle.sweeps:
        for run in sweep.runs:
            last = run.curve[-1] if run.curve else None
            if run.status == "completed" and last and last[0] == run.step and last[1] != run.value:
                text = f"its objective is {run.value}, and its curve ends at {last[1]}"
                damage.append(f"{sweep.name}, {run.params}: {text}")
    return damage


def check_verdicts(bundle: Bundle, records: Mapping[str, SweepRecord]) -> list[str]:
    """Return the claims of the bundle that its runs do not show."""
    damage = _list_unshared(records)
    for sweep, record in zip(bundle.sweeps, records.values(), strict=True):
        damage += [f"{sweep.name}: {text}" for text in _list_changes(sweep.verdict, judge(record))]
        damage += [f"{sweep.name}: {text}" for text in _list_differences(sweep.scored, record.scored, "scored")]
    if len(records) > 1:
        together = find_comparison(bundle.name, records)
        now = together.to_plain() if together else None
        damage += [f"over the sizes: {text}" for text in _list_differences(bundle.over_sizes, now, "")]
    return damage


def _list_unshared(records: Mapping[str, SweepRecord]) -> list[str]:
    """Return the sweeps whose verdict does not share its error of 5 % with all other comparisons of the bundle."""
    others = count_others([record.spec for record in records.values()])
    return [
        f"{record.name}: its verdict shares the error of 5 % with {record.spec.family or 0} comparisons of other "
        f"sweeps; this bundle has {count}"
        for record, count in zip(records.values(), others, strict=True)
        if record.spec.count_shared() and (record.spec.family or 0) < count
    ]


def _list_changes(before: Verdict, now: Verdict) -> list[str]:
    """Return the numbers of a verdict that differ now."""
    return [
        *_list_differences(before.arms, now.arms, "verdict"),
        *_list_differences(before.effects, now.effects, "effects"),
        *_list_differences(before.sensitivities or {}, now.sensitivities or {}, "sensitivities"),
        *_list_differences(before.layers or {}, now.layers or {}, "layers"),
        *_list_differences(before.downstream, now.downstream, "downstream"),
    ]


def _list_differences(before: Any, now: Any, path: str) -> list[str]:
    """Return path: before -> now, of the leaves of `before` that differ in `now`. Keys that `before` does not have
    may be of a later version."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        return [
            text
            for key, value in before.items()
            if path or key not in _WORDS
            for text in _list_differences(value, now.get(key), f"{path}.{key}" if path else str(key))
        ]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [text for k, (old, new) in pairs for text in _list_differences(old, new, f"{path}[{k}]")]
    if isinstance(before, (int, float)) and isinstance(now, (int, float)) and math.isclose(before, now, rel_tol=_CLOSE):
        return []
    return [] if before == now else [f"{path}: {before} is said, and the runs show {now}"]


def list_other_kinds(
    name: str, records: Mapping[str, SweepRecord], trained: Sequence[tuple[Rerun, Trained]]
) -> list[str]:
    """Return the claims that would differ in kind with the values of fresh seeds that were found here: those of each
    sweep, and of the sizes of the study `name` together."""
    now = {size: _put_values(record, trained) for size, record in records.items()}
    changed = []
    for size, record in records.items():
        before, after = (_list_words(judge(one).model_dump()) for one in (record, now[size]))
        changed += [f"{record.name}, {text}" for text in _list_other_words(before, after)]
    if len(records) > 1:
        before, after = (
            _list_words(together.to_plain()) if (together := find_comparison(name, sizes)) else {}
            for sizes in (records, now)
        )
        changed += [f"over the sizes, {text}" for text in _list_other_words(before, after)]
    return changed


def _put_values(record: SweepRecord, trained: Sequence[tuple[Rerun, Trained]]) -> SweepRecord:
    """Return the record with the values of fresh seeds that were found here."""
    own = {
        (rerun.arm, rerun.run.number, rerun.seed): one
        for rerun, one in trained
        if rerun.record is record and rerun.run.stage == FRESH
    }
    rows = [
        replace(run, status=one.status, value=one.value, metrics=one.metrics, curve=one.curve) if one else run
        for run, one in (
            (run, own.get((run.arm, run.number, run.seed)) if run.stage == FRESH else None) for run in record.runs
        )
    ]
    return replace(record, runs=record.runs.replace(rows))


def _list_words(values: Any, path: str = "") -> dict[str, str]:
    """Return path -> the claim there in a word, such as better, grows or holds."""
    if isinstance(values, Mapping):
        items = [(f"{path}.{key}" if path else str(key), key, value) for key, value in values.items()]
    elif isinstance(values, list):
        items = [(f"{path}[{k}]", None, value) for k, value in enumerate(values)]
    else:
        return {}
    words = {place: value for place, key, value in items if key in _KINDS and isinstance(value, str)}
    return words | {at: word for place, _, value in items for at, word in _list_words(value, place).items()}


def _list_other_words(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    return [
        f"{path.rpartition('.')[0]}: {word} was published, and here it is {after.get(path, 'not said')}"
        for path, word in before.items()
        if after.get(path) != word
    ]
