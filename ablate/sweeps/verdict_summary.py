"""The verdict on each arm in a few words, which `ablate status`, the live display and the report show first."""

from __future__ import annotations

from collections.abc import Mapping

from ablate.config.formatting import UNBOUNDED, count_noun, format_settings, join_words, shorten_paths
from ablate.experiment.metrics import describe_metric, shorten_metric
from ablate.sweeps.comparison import compare_record, compare_record_effects, plan_record
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FRESH
from ablate.sweeps.search_edges import name_edges
from ablate.sweeps.spec.sweep import Sweep
from ablate.tasks import Metric
from ablate.verdict.comparison import Compared
from ablate.verdict.effects import Effect
from ablate.verdict.sequential import LEAST
from ablate.verdict.statements import format_estimate, summarise_effects
from ablate.verdict.summary import summarise

_MANY = 5  # arms above which they are named by verdict, without their differences


def find_bounds(spec: Sweep) -> tuple[float, float]:
    """Return the least and the most that the objective can be."""
    known = describe_own(spec.objective.metric, spec)
    return known.bounds if known else UNBOUNDED


def find_difference_bounds(spec: Sweep) -> tuple[float, float]:
    """Return the smallest and the largest possible difference of two values of the objective."""
    low, high = find_bounds(spec)
    return low - high, high - low


def describe_own(metric: str, spec: Sweep) -> Metric | None:
    """Return unit and bounds of a metric; None if they are unknown, as those of another program always are: its
    accuracy may be in percent."""
    return describe_metric(metric, spec.task) if spec.is_own else None


def name_unit(spec: Sweep) -> str:
    """Return the unit of the objective in a sentence; without one its name, in parentheses if it is in words."""
    metric = spec.objective.metric
    known, name = describe_own(metric, spec), shorten_metric(metric)
    return (known and known.unit) or (name if name == metric else f"({name})")


def name_verdict(record: SweepRecord, arm: str, compared: Mapping[str, Compared]) -> str:
    """Return the verdict of an arm in a word or two."""
    c = compared[arm]
    if c.kind == "baseline":
        kinds = {compared[other].kind for other, base in record.spec.baselines.items() if base == arm}
        if "baseline fails on all seeds" in kinds:
            return "baseline, fails on all seeds"
        if "baseline could not be trained" in kinds:
            return "baseline, could not be trained"
        return "baseline" if record.runs.select(stage=FRESH) else "baseline, could not be trained"
    if c.kind == "baseline fails on all seeds":
        return f"trained although {record.spec.baselines[arm]} trained on no seed"
    if c.kind == "cell":
        return "cell of the design"
    return c.name_kind()


def tell_verdict(record: SweepRecord, arm: str, compared: Mapping[str, Compared]) -> str:
    """Return the verdict of an arm, and the ends of the searched ranges at which it stands: there it is not tuned."""
    return ", ".join(filter(None, [name_verdict(record, arm, compared), name_edges(record, arm)]))


def tell_arm(record: SweepRecord, arm: str, compared: Mapping[str, Compared]) -> str:
    """Return 'post worse (mean +0.100 ± 0.021, n = 5; failed on 1 of 6 seeds)'."""
    bounds = find_difference_bounds(record.spec)
    return f"{arm} {tell_verdict(record, arm, compared)}{_tell_figures(compared[arm], bounds)}"


def summarise_verdict(record: SweepRecord) -> str:
    """Return the verdict so far on all arms in one line: 'Verdict against pre: post worse (mean +0.100 ± 0.021, n = 5);
    mix inconclusive with 5 seeds (mean -0.010 ± 0.034, n = 3; failed on 2 of 5 seeds).'"""
    compared, baseline = compare_record(record), record.spec.compared_with
    if not compared:
        if not record.spec.confirm.most_seeds:
            return "No verdict: this sweep has no fresh seeds (confirm.seeds)."
        return "No verdict yet: no fresh seed has ended."
    head = f"Verdict{' so far' if is_open(record) else ''} {record.spec.equal_cost}".rstrip()
    if effects := compare_record_effects(record):
        return _summarise_design(record, compared, effects, head)
    others = {arm: c for arm, c in compared.items() if c.kind != "baseline"}
    if not others:
        alone = [f"{arm} failed on {c.failures.describe() if c.failures else 'no seed'}" for arm, c in compared.items()]
        it = "it" if len(compared) == 1 else "them"
        return f"No verdict, as there is nothing to compare {it} with: {join_words(alone)}."
    if all(c.kind == "figures" for c in others.values()):
        if record.spec.confirm.most_seeds < LEAST:
            return f"No verdict against {baseline}: it needs at least {LEAST} fresh seeds (confirm.seeds)."
        return f"No verdict yet against {baseline}: {_count_ended(compared)}."
    if any(cell.point for cell in record.spec.cells.values()):
        return f"{head}. {_summarise_grid(record, compared)}"
    if len(others) > _MANY:
        groups: dict[str, list[str]] = {}
        for arm in sorted(others, key=lambda arm: not others[arm].decided):
            failed = _tell_failures(others[arm])
            groups.setdefault(tell_verdict(record, arm, compared), []).append(arm + (f" ({failed})" if failed else ""))
        told = "; ".join(f"{name}: {join_words(arms)}" for name, arms in groups.items())
        seeds = sorted({c.versus.seeds for c in others.values() if c.versus}) or [0]
        n = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
        against = f"{head} against {_tell_baseline(record, compared)}"
        return f"{against}: {len(others)} arms, n = {n}. {told[0].upper()}{told[1:]}."
    told = "; ".join(tell_arm(record, arm, compared) for arm in others)
    return f"{head} against {_tell_baseline(record, compared)}: {told}."


def _tell_baseline(record: SweepRecord, compared: Mapping[str, Compared]) -> str:
    """Return the baseline, with its own failures, as an arm that fails as well is not worse for that, and the ends of
    its ranges at which it stands."""
    name = record.spec.compared_with
    failed, edges = _tell_failures(compared[name]), name_edges(record, name)
    told = [*([f"which {failed}"] if failed else []), *([f"which is {edges}"] if edges else [])]
    return f"{name}, {join_words(told)}" if told else name


def _tell_failures(c: Compared) -> str:
    known = c.failures
    return f"failed on {known.failed} of {count_noun(known.n, 'seed')}" if known and known.failed else ""


def _tell_figures(c: Compared, bounds: tuple[float, float]) -> str:
    """Return ' (mean +0.100 ± 0.021, n = 3; failed on 2 of 5 seeds)'; no difference without an interval."""
    parts = [_tell_failures(c)]
    if (d := c.difference) is not None:
        told = f"mean {format_estimate(d, sign=True, bounds=bounds)}, " if d.interval else "no interval, "
        parts.insert(0, f"{told}n = {d.n}")
    text = "; ".join(filter(None, parts))
    return f" ({text})" if text else ""


def _count_ended(compared: Mapping[str, Compared]) -> str:
    """Return '3 of 6 runs on fresh seeds have ended, 1 of them failed'."""
    outcomes = [outcome for c in compared.values() for outcome in c.outcomes.values()]
    failed = sum(not outcome.trained for outcome in outcomes)
    text = f"{len(outcomes)} of {sum(c.planned for c in compared.values())} runs on fresh seeds have ended"
    return f"{text}, {failed} of them failed" if failed else text


def _summarise_design(
    record: SweepRecord, compared: Mapping[str, Compared], effects: Mapping[str, Effect], head: str
) -> str:
    """Return one line on the effects of a factorial."""
    text = summarise_effects(effects, name_unit(record.spec))
    if not text:
        return f"No verdict yet on the effects: {_count_ended(compared)}."
    edges = {cell: edges for cell in compared if (edges := name_edges(record, cell))}
    told = "; ".join(f"{cell} is {place}" for cell, place in edges.items())
    return f"{head}. {text}" + (f" Not tuned: {told}." if told else "")


def _summarise_grid(record: SweepRecord, compared: Mapping[str, Compared]) -> str:
    """Return one sentence on all arms at all points of a grid."""
    spec, cells = record.spec, record.spec.cells
    short = shorten_paths(path for cell in cells.values() for path in cell.point)
    names, places = {}, dict[str, list[str]]()
    for arm in compared:
        places.setdefault(f"at {format_settings(dict(cells[arm].shared), short)}", []).append(arm)
        extra = {path: value for path, value in cells[arm].point.items() if path not in spec.search}
        names[arm] = cells[arm].arm + (f" ({format_settings(extra, short)})" if extra else "")
    return summarise(compared, places, names=names, baseline=spec.compared_with, unit=name_unit(spec))


def is_open(record: SweepRecord) -> bool:
    """Return whether runs are missing that may change the verdict."""
    if any(arm not in record.chosen and record.best(arm) and not record.fresh(arm) for arm in record.arms):
        return True
    wanted = plan_record(record).seeds
    done = {arm: len(record.fresh(arm).outcomes()) for arm in wanted}
    claims = [*compare_record(record).values(), *compare_record_effects(record).values()]
    return any(claim.open for claim in claims) or any(done[arm] < count for arm, count in wanted.items())
