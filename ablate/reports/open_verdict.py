"""The runs that a verdict still needs, and its limits: cautions for the reader of a report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from ablate.config.errors import ConfigError
from ablate.config.formatting import (
    count_noun,
    format_number,
    format_setting,
    format_settings,
    join_words,
    shorten_paths,
)
from ablate.sweeps.comparison import compare_record, compare_record_effects
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import CHOOSING, SELECTION, Run
from ablate.sweeps.stages import ALL
from ablate.verdict.comparison import Compared, Kind

UNCHECKED: tuple[Kind, ...] = (
    "equivalent",
    "fails more often",
    "fails less often",
    "fails on all seeds",
    "baseline fails on all seeds",
)
"""The verdicts that do not require training either arm at the other's settings."""


def describe_open_verdict(record: SweepRecord) -> Iterator[str]:
    """Yield the missing runs after the search (selection, fresh seeds, crossed runs), and the crashed runs."""
    if not record.spec.confirm.most_seeds:
        return
    compared = compare_record(record)
    yield from _note_selection(record)
    yield from _note_seeds(record, compared)
    with contextlib.suppress(ConfigError):  # of a plugin that is gone
        yield from _note_deleted(record, compared)
    yield from _note_missing(record, compared)
    yield from _note_crashes(record)


def _note_selection(record: SweepRecord) -> Iterator[str]:
    seeds = record.spec.confirm.selection_seeds
    counts = {
        arm: (sum(runs.finished for _, runs in candidates), seeds * len(candidates))
        for arm in record.arms
        if arm not in record.chosen and len(candidates := record.list_candidates(arm)) > 1
    }
    if parts := [f"{arm} has {done} of {planned}" for arm, (done, planned) in counts.items() if done < planned]:
        yield f"The selection is not finished: {join_words(parts)} runs, so its settings are not chosen yet."


def _note_seeds(record: SweepRecord, compared: Mapping[str, Compared]) -> Iterator[str]:
    confirm, baselines = record.spec.confirm, record.spec.baselines
    seeds = {arm: len(record.fresh(arm).outcomes()) for arm in record.arms}
    undecided = {arm for arm in seeds if arm != baselines[arm] and (arm not in compared or not compared[arm].decided)}
    undecided |= {baselines[arm] for arm in undecided}
    if not all(effect.decided for effect in compare_record_effects(record).values()):
        undecided = {*seeds}
    lost = {arm for arm in seeds if arm in compared and compared[arm].kind == "could not be trained"}
    for baseline in () if record.spec.cells else {*baselines.values()}:
        if record.best(baseline) is None and record.target(baseline) <= record.search(baseline).finished:
            lost.add(baseline)
    wanted = {
        arm: confirm.most_seeds if arm in undecided or not confirm.is_sequential else confirm.first_seeds
        for arm in seeds
        if arm not in lost
    }
    if any(seeds[arm] < n for arm, n in wanted.items()):
        per_arm = join_words(f"{arm} {n}" for arm, n in seeds.items())
        planned = count_noun(confirm.most_seeds, "fresh seed")
        up_to = "at most " if confirm.is_sequential else ""
        yield f"The confirmation is not finished: of {up_to}{planned} {per_arm} are done."


def _note_deleted(record: SweepRecord, compared: Mapping[str, Compared]) -> Iterator[str]:
    """Yield the fresh seeds that were looked at and are no longer in the storage."""
    gone = {
        arm: [seed for seed in record.spec.fresh_seeds(c.looks.sizes[-1]) if seed not in c.outcomes]
        for arm, c in compared.items()
        if c.looks
    }
    if parts := [f"{arm} {join_words(map(str, seeds))}" for arm, seeds in gone.items() if seeds]:
        yield (
            f"Fresh seeds that were looked at are missing in the storage: {join_words(parts)}. The verdict is over "
            "those that are left; `ablate sweep` trains the others again."
        )


def _note_missing(record: SweepRecord, compared: Mapping[str, Compared]) -> Iterator[str]:
    """Yield the arms that are still to be trained at the settings of others."""
    for c in compared.values():
        for loser, winner in c.missing:
            done = c.crossing.versus.seeds if c.crossing and c.crossing.versus else 0
            seeds = count_noun(c.versus.seeds if c.versus else 0, "seed")
            yield (
                f"{loser} is still to be trained at the settings of {winner}: {done} of {seeds} are done. Until then "
                "nothing is claimed about the two."
            )
    for name, effect in compare_record_effects(record).items():
        if effect.missing:
            pairs = join_words(f"{loser} at those of {winner}" for loser, winner in effect.missing)
            yield f"Cells are still to be trained at the settings of others: {pairs}. Until then {name} is not claimed."


def _note_crashes(record: SweepRecord) -> Iterator[str]:
    """Yield runs that crashed; unlike seeds that diverged or got stuck, they are not outcomes."""
    for stage in ALL[1:]:
        for arm in record.arms:
            if n := len(record.runs.select(arm, stage.name, status="failed")):
                yield (
                    f"{count_noun(n, stage.noun)} of {arm} crashed, which is not an outcome: `ablate sweep` retries "
                    f"{'it' if n == 1 else 'them'}."
                )


def describe_luck(record: SweepRecord) -> Iterator[str]:
    """Yield claims about arms that ended at different values of a shared parameter, if neither was trained at the
    other's: their results there are unknown. And claims that the choice of a loser's settings may explain."""
    compared, base = compare_record(record), record.settled(record.spec.compared_with)
    yield from _describe_luck_of_cells(record)
    if record.spec.cells:
        return
    yield from _describe_luck_of_losers(record, compared)
    for arm, c in compared.items():
        settled = record.settled(arm)
        if c.kind not in UNCHECKED or settled is None or base is None:
            continue
        pairs = {path: (settled.params.get(path), base.params.get(path)) for path in record.spec.search}
        if different := [
            f"{path} {format_setting(ours)} and {format_setting(theirs)}"
            for path, (ours, theirs) in pairs.items()
            if ours != theirs
        ]:
            yield (
                f"{arm} and {record.spec.compared_with} were tested at different settings ({join_words(different)}). "
                f"Their verdict ({c.kind}) holds only for these settings: on fresh seeds neither was trained at the "
                "other's."
            )


def _describe_luck_of_losers(record: SweepRecord, compared: Mapping[str, Compared]) -> Iterator[str]:
    """Yield the losers of which one run, at settings that no fresh seed was trained at, did better than all fresh seeds
    of a winner: few seeds chose the settings, other ones may be better, and no interval covers that."""
    base, direction = record.spec.compared_with, record.spec.objective.direction
    winners: dict[str, list[str]] = {}
    for arm, c in compared.items():
        if c.kind in ("better", "worse"):
            winner, loser = (arm, base) if c.kind == "better" else (base, arm)
            winners.setdefault(loser, []).append(winner)
    for loser, ahead in winners.items():
        for settings, runs in _list_untested(record, loser).items():
            best = record.runs.replace(runs).find_best(direction)
            assert best is not None
            beaten = [
                arm for arm in ahead if record.runs.replace([*record.fresh(arm), best]).find_best(direction) is best
            ]
            if beaten:
                yield (
                    f"The settings of {loser} may not be its best: at {settings}, where no fresh seed was trained, "
                    f"{count_noun(len(runs), 'completed run')} ended at "
                    f"{join_words(format_number(run.value) for run in runs)}, and {format_number(best.value)} is "
                    f"better than all fresh seeds of {join_words(beaten)}. The intervals leave out the luck of that "
                    "choice."
                )


def _list_untested(record: SweepRecord, arm: str) -> dict[str, list[Run]]:
    """Return each of the settings of `arm` without a fresh seed -> its completed runs there."""
    paths = list(record.spec.space(arm))
    names = shorten_paths(paths)

    def describe(params: Mapping[str, Any]) -> str:
        return format_settings({path: params[path] for path in paths if path in params}, names)

    settled = record.settled(arm)
    own = settled.params if settled else {}
    tested = {describe(own), *(describe(run.params) for run in record.runs.select(arm) if run.stage not in CHOOSING)}
    untested: dict[str, list[Run]] = {}
    for run in (*record.search(arm), *record.runs.select(arm, SELECTION)):
        if run.status == "completed" and run.value is not None and describe(run.params) not in tested:
            untested.setdefault(describe(run.params), []).append(run)
    return untested


def _describe_luck_of_cells(record: SweepRecord) -> Iterator[str]:
    """Yield claims about effects whose cells were tested at different settings, and not at each other's."""
    for name, effect in compare_record_effects(record).items():
        cells = {cell: record.settled(cell) for cell in effect.contrast.weights}
        points = {tuple(t.params.get(path) for path in record.spec.search) for t in cells.values() if t}
        if effect.kind in ("equivalent", "additive", "fails more often", "fails less often") and len(points) > 1:
            yield (
                f"The cells of {name} were tested at different settings of {join_words(record.spec.search)}. What is "
                f"said of it ({effect.kind}) holds there: no cell was trained at another's settings."
            )
