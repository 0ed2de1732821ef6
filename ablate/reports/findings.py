"""Sentences on a sweep, with the necessary cautions: a search on one seed has no winner, and a verdict has limits and
may need further runs.
"""

from __future__ import annotations

import contextlib
import statistics
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
from ablate.experiment.metrics import describe_metric, is_score, list_parts
from ablate.reports.labels import name_items, name_validation_item
from ablate.sweeps.comparison import compare_record, compare_record_effects, list_claims
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import CHOOSING, FINISHED, Run
from ablate.sweeps.spec import audit
from ablate.sweeps.stages import ALL
from ablate.verdict.comparison import Claim, Compared
from ablate.verdict.effects import CLAIMS as EFFECT_CLAIMS

CLAIMS: tuple[str, ...] = (
    *EFFECT_CLAIMS,
    "equivalent",
    "equivalent on most seeds",
    "additive",
    "additive on most seeds",
    "fails on all seeds",
    "baseline fails on all seeds",
)
"""The verdicts that compare settings."""


def describe_open_verdict(record: SweepRecord) -> Iterator[str]:
    """Yield the missing runs after the search (selection, fresh seeds, challenges), and the crashed runs."""
    if not record.spec.confirm.most_seeds:
        return
    compared = compare_record(record)
    yield from _note_selection(record)
    yield from _note_seeds(record, compared)
    with contextlib.suppress(ConfigError):  # of a plugin that is gone
        yield from _note_deleted(record, compared)
    yield from _note_missing(record)
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


def _note_missing(record: SweepRecord) -> Iterator[str]:
    """Yield a sentence on the arms that may still try other settings."""
    open_claims = {name: claim.open for name, claim in list_claims(record).items() if claim.open}
    if arms := dict.fromkeys(arm for own in open_claims.values() for arm in own):
        names = join_words(open_claims)
        yield f"{join_words(arms)} may still try other settings. Until then nothing is claimed of {names}."


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
    """Yield claims about arms that ended at different values of a shared parameter, if neither was challenged: their
    results at other values are unknown. And claims that the choice of a loser's settings may explain."""
    compared, base = compare_record(record), record.settled(record.spec.compared_with)
    yield from _describe_luck_of_cells(record)
    if record.spec.cells:
        return
    yield from _describe_luck_of_losers(record, compared)
    for arm, c in compared.items():
        settled = record.settled(arm)
        if c.kind not in CLAIMS or _is_challenged(c) or settled is None or base is None:
            continue
        pairs = {path: (settled.params.get(path), base.params.get(path)) for path in record.spec.search}
        if different := [
            f"{path} {format_setting(ours)} and {format_setting(theirs)}"
            for path, (ours, theirs) in pairs.items()
            if ours != theirs
        ]:
            yield (
                f"{arm} and {record.spec.compared_with} were tested at different settings ({join_words(different)}). "
                f"Their verdict ({c.kind}) holds only for these settings: neither was tried at the other's before it."
            )


def _is_challenged(claim: Claim) -> bool:
    """Return whether a claim takes other settings of the arms that lost into account; one on failures does not."""
    return bool(claim.challenge and claim.challenge.rivals) and "fails" not in claim.kind


def _describe_luck_of_losers(record: SweepRecord, compared: Mapping[str, Compared]) -> Iterator[str]:
    """Yield the losers of which one run, at settings that no fresh seed was trained at, did better than all fresh seeds
    of a winner: few seeds chose the settings, other ones may be better, and no interval covers that."""
    base, direction = record.spec.compared_with, record.spec.objective.direction
    winners: dict[str, list[str]] = {}
    for arm, c in compared.items():
        if c.kind.startswith(("better", "worse")) and not _is_challenged(c):
            winner, loser = (arm, base) if c.kind.startswith("better") else (base, arm)
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
    for run in record.runs.select(arm, CHOOSING):
        if run.status == "completed" and run.value is not None and describe(run.params) not in tested:
            untested.setdefault(describe(run.params), []).append(run)
    return untested


def _describe_luck_of_cells(record: SweepRecord) -> Iterator[str]:
    """Yield claims about effects whose cells were tested at different settings, and not challenged."""
    for name, effect in compare_record_effects(record).items():
        cells = {cell: record.settled(cell) for cell in effect.contrast.weights}
        points = {tuple(t.params.get(path) for path in record.spec.search) for t in cells.values() if t}
        if effect.kind in CLAIMS and not _is_challenged(effect) and len(points) > 1:
            yield (
                f"The cells of {name} were tested at different settings of {join_words(record.spec.search)}. What is "
                f"said of it ({effect.kind}) holds there: no cell was tried at another's settings before."
            )


FEW_ITEMS = 100  # validation items below which the report warns
AT_ONCE, EARLY = 20, 0.05
"""Updates, and share of the updates of a run, within which an arm that diverges at every setting may have a fault."""
FEW_SETTINGS = 3


def describe_search(record: SweepRecord) -> str:
    """Return the best value of each arm, best first, with n, and the limits of this evidence."""
    objective = record.spec.objective
    best = {arm: trial for arm in record.arms if (trial := record.best(arm)) is not None}
    if not best:
        return "No trial has completed yet, so there is nothing to compare."
    finished = {arm: record.search(arm).finished for arm in best}
    same = len(set(finished.values())) == 1
    ordered = sorted(best, key=lambda arm: (best[arm].value or 0.0) * objective_sign(record))
    parts = [
        f"{arm} {format_number(best[arm].value)}" + ("" if same else f" (of {count_noun(finished[arm], 'trial')})")
        for arm in ordered
    ]
    head = f"Best of {count_noun(finished[ordered[0]], 'trial')}" if same else "Best of each arm"
    better = "lower" if objective.direction == "minimize" else "higher"
    text = f"{head}: {', '.join(parts)} ({record.spec.objective.title}, {better} is better)."
    if missing := [arm for arm in record.arms if arm not in best]:
        text += f" No trial of {join_words(missing)} has completed."
    if lost := [arm for arm in missing if record.search(arm).finished >= record.target(arm)]:
        text += f" Within the budget {join_words(lost)} could not be trained."
    seeds = collect_seeds(record)
    where = "one seed" if len(seeds) <= 1 else f"{len(seeds)} seeds"
    if len(record.arms) == 1:
        return (
            f"{text} It is the best of several trials on {where}, so it is optimistic: confirm it on fresh seeds first."
        )
    return (
        f"{text} Each value is the best of several trials on {where}, so it is optimistic: such differences between "
        "arms are not evidence. Confirm on fresh seeds before claiming a winner."
    )


def list_cautions(record: SweepRecord) -> list[str]:
    """Return warnings about the table: unfinished, unequal or failed trials, a small validation set."""
    return [
        *list_unfinished(record),
        *_note_unequal(record),
        *_note_rungs(record),
        *_note_coinciding(record),
        *_note_failures(record),
        *_note_early_divergence(record),
        *_note_ignored_seeds(record),
        *_note_few_items(record),
        *describe_luck(record),
    ]


def list_unfinished(record: SweepRecord) -> list[str]:
    """Return the runs that are missing before the verdict is final."""
    if record.deleted:  # it cannot go on
        return [record.describe_deleted()]
    return [*_note_unfinished(record), *describe_open_verdict(record)]


# ---------------------------------------------------------------------------------------------------- parts


def objective_sign(record: SweepRecord) -> int:
    """Return 1 if less is better, -1 if more is better."""
    return 1 if record.spec.objective.direction == "minimize" else -1


def list_completed(record: SweepRecord, arm: str) -> list[Run]:
    """Return the trials of `arm` that have a value."""
    return [t for t in record.search(arm) if t.status == "completed" and t.value is not None]


def median_seconds(record: SweepRecord, arm: str) -> float | None:
    """Return the median wall-clock seconds of the completed trials of `arm`, which made all updates."""
    seconds = [t.seconds for t in record.search(arm) if t.status == "completed" and t.seconds is not None]
    return statistics.median(seconds) if seconds else None


def collect_seeds(record: SweepRecord) -> set[Any]:
    """Return the seeds that completed trials were trained with."""
    return {run.seed for arm in record.arms for run in list_completed(record, arm)}


def _note_unfinished(record: SweepRecord) -> Iterator[str]:
    short = {arm: (record.search(arm).finished, record.target(arm)) for arm in record.arms}
    parts = [f"{arm} has {done} of {target}" for arm, (done, target) in short.items() if done < target]
    if parts:
        yield f"The sweep is not finished: {join_words(parts)} trials. Run `ablate sweep` again to continue."


def _note_rungs(record: SweepRecord) -> Iterator[str]:
    """Yield which arms took more tokens than their rungs plan, as more settings went on."""
    more = []
    for arm, trials in ((arm, record.search(arm)) for arm in record.arms) if record.spec.method.staged else ():
        rungs = record.spec.plan_rungs(arm)
        ended = [len(trial.rungs) + (trial.status in ("completed", "diverged")) for trial in trials]
        went = {number: sum(count > number for count in ended) for number in range(1, len(rungs))}
        # to the last rung one more may go, which candidates have shown to be better
        over = [n for n in went if went[n] > rungs[n].settings + (n == len(rungs) - 1)]
        if over:
            planned = sum(rung.trained for rung in rungs) * record.spec.base(arm).items_per_update
            took = sum(trial.items for trial in trials)
            parts = f"{went[over[0]]} settings for {rungs[over[0]].settings} from rung {over[0]}"
            more.append(f"{arm} ({parts}; {took:,} {name_items(record.spec)} for {planned:,})")
    if more:
        yield (
            f"More settings went on from a rung than planned: {join_words(more)}. Few had learned there, or one "
            "that had failed came late; in the first case a longer first rung (search.first) tells settings apart."
        )


def _note_unequal(record: SweepRecord) -> Iterator[str]:
    counts = {arm: record.search(arm).finished for arm in record.arms}
    if len(set(counts.values())) > 1:
        per_arm = join_words(f"{arm} {count}" for arm, count in counts.items())
        yield (
            f"Arms have unequal numbers of finished trials ({per_arm}): more trials find a better best by chance alone."
        )


def _note_coinciding(record: SweepRecord) -> Iterator[str]:
    if record.spec.cells:  # no point of which is the best
        return
    settled = {arm: [trial.params] for arm in record.arms if (trial := record.settled(arm))}
    with contextlib.suppress(ConfigError):  # of a plugin that is gone
        yield from (f"At their best, {text}" for text in audit.describe_coinciding(record.spec, settled))


def _note_failures(record: SweepRecord) -> Iterator[str]:
    for arm, trials in ((arm, record.search(arm)) for arm in record.arms):
        if failed := [t for t in trials if t.status == "failed"]:
            yield f"{count_noun(len(failed), 'trial')} of {arm} failed, left out of all comparisons."


def _note_early_divergence(record: SweepRecord) -> Iterator[str]:
    """Yield a note for each arm of which every run diverged at once, whatever its settings: that may be a fault."""
    parts: dict[str, list[str]] = {}  # arm -> its cells, if they are a grid
    for name in record.arms:
        parts.setdefault(record.spec.find_arm(name), []).append(name)
    for arm, names in parts.items():
        runs = [run for name in names for run in record.runs.select(name, status=FINISHED)]
        count = len({repr(sorted({**run.params, "seed": 0}.items())) for run in runs})
        if count < FEW_SETTINGS or any(run.status != "diverged" for run in runs):
            continue
        last = max(run.step for run in runs)
        if last <= max(AT_ONCE, EARLY * (record.spec.base(names[0]).length or 0)):
            yield (
                f"All {len(runs)} runs of {arm} diverged within {count_noun(last, 'update')}, at all {count} settings: "
                "that may be a fault and no outcome. Before it is claimed, train one with trainer.compile=false "
                "trainer.precision=32-true, and look at its initialisation."
            )


def _note_ignored_seeds(record: SweepRecord) -> Iterator[str]:
    """Yield a sentence if runs that differ in their seed alone ended at the same value, to the last digit, and it is
    not certain that the seed reaches all that chance decides."""
    same = {}
    for arm in () if record.spec.is_own else record.arms:
        values: dict[str, dict[int, float | None]] = {}
        for run in record.runs.select(arm, status="completed"):
            settings = {path: value for path, value in run.params.items() if path != "seed"}
            values.setdefault(repr(sorted(settings.items())), {})[run.seed] = run.value
        alike = [own for own in values.values() if len(own) > 1]
        if alike and all(len({*own.values()}) == 1 for own in alike):
            same[arm] = max(map(len, alike))
    if same:
        told = join_words(f"{arm} ({count} seeds)" for arm, count in same.items())
        yield (
            f"The value is the same to the last digit on all seeds of {told}: they seem to ignore their seed. "
            "Then the seeds are one run, repeated, and no interval or p-value here means anything. "
            f"{record.spec.kind.seeding}"
        )


def _note_few_items(record: SweepRecord) -> Iterator[str]:
    count, metric = record.validation_items, record.spec.objective.metric
    if few := {score: questions for score, questions in record.score_items.items() if questions < FEW_ITEMS}:
        told = join_words(f"{score} ({questions})" for score, questions in few.items())
        yield (
            f"Scores of fewer than {FEW_ITEMS} questions: {told}. Differences between settings may be noise of so few. "
            "Raise evaluation.limit, or take more tasks."
        )
    if count is None or count >= FEW_ITEMS or all(map(is_score, list_parts(metric))):
        return
    noun, known = name_validation_item(record.spec), describe_metric(metric)
    change = 1 / (count * len(list_parts(metric)))  # of a mean, by way of one of its parts
    name = record.spec.objective.title
    step = f" (one {noun} changes {name} by {change:.2g})" if known and known.counts_samples else ""
    yield (
        f"The validation set has only {count_noun(count, noun)}{step}: differences between settings may be noise of so "
        "small a set. Enlarge it with data.val_fraction or a larger validation set."
    )
