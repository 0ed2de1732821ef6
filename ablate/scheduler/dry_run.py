"""The plan of a sweep and its cost, before it runs."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.config.errors import AblateError, ConfigError, DataError, Problem
from ablate.config.formatting import (
    count_noun,
    format_count,
    format_duration,
    format_number,
    format_range,
    format_settings,
    join_words,
)
from ablate.config.lazy import postpone_collection, postpone_imports
from ablate.data import Corpus
from ablate.distributed.ranks import count_cores
from ablate.experiment.tree import Experiment
from ablate.scheduler.devices import pick_devices, share_cores
from ablate.scheduler.donors import apply_settings, take_over
from ablate.scheduler.preparation import check_workers, pick_generation
from ablate.scheduler.runners import load_runner
from ablate.scheduler.storage import explain_damage, list_generations, open_existing, read_sweep, storage_url
from ablate.sweeps.plans import describe_kept, describe_power, format_hours
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import SEARCH, SELECTION
from ablate.sweeps.search.methods import Rung
from ablate.sweeps.search.space import format_entry
from ablate.sweeps.spec import audit
from ablate.sweeps.spec.design import list_levels
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.metrics_validation import describe_readings
from ablate.sweeps.spec.parts import TakenOver
from ablate.sweeps.spec.scale import describe_scale
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.stages import ALL, Left, count_left, count_unassigned, describe_stages

if TYPE_CHECKING:
    from ablate.data import DataConfig

with postpone_imports():
    import torch

    from ablate.estimate import flops, inputs, memory
    from ablate.estimate import plan as estimates

_MEASURED_STEPS, _MEASURING_SECONDS = 6, 8.0
_MOST_FLOPS, _MOST_WEIGHTS = 2e11, 4e8  # an update, and drawing weights, that take a CPU seconds


def plan(spec: Sweep, workers: int, storage: str | None, fresh: bool = False) -> str:
    """Return the resolved plan as text: arms, trials, tokens, estimated time. Trains a few updates to estimate the
    time. Raises the errors that `sweep` would raise before its first trial: ConfigError, DataError, and SweepError for
    a changed file.
    """
    check_workers(spec, workers)
    spec, runner = take_over(spec, storage_url(storage)), load_runner(spec.kind)
    corpora = runner.prepare(spec)
    spec, record = _find_generation(spec, storage, fresh, runner.fingerprint(spec, corpora))
    if not spec.is_own:
        return _format_plan(spec, "", record, count_left(spec, record), _describe_limit(spec, record, workers))
    base = spec.own_base(next(iter(spec.all_arms)))
    busy, corpus = _describe_load(), corpora[base.data]
    times = None if base.procedure != "training" else _measure_trial(base, corpus, workers)
    left = count_left(spec, record)
    todo = {arm: runs.whole for arm, runs in left.items()}
    trials, whole = sum(runs.sure for runs in left.values()), sum(todo.values())
    if base.procedure != "training":
        total = _describe_gpu_hours(spec, todo)
    elif times is None:
        total = f"too large to be timed here; {_describe_gpu_hours(spec, todo)}"
    else:
        ends = (format_duration(whole * time / min(workers, max(1, trials))) for time in times)
        total = f"about {format_range(*ends)} with {workers} at a time"
        if torch.cuda.is_available():  # what workers that share one take from each other is not known
            total += f", by updates of one trial alone on {torch.cuda.get_device_name()}"
        total += busy
    warnings = list(describe_outlying_gradients(measure_initial_gradients(spec, corpora)))
    return _format_plan(spec, corpus.description, record, left, total, corpus, warnings)


def _describe_limit(spec: Sweep, record: SweepRecord | None, workers: int) -> str:
    """Return the time that is left by the time limits of runs whose length is not known."""
    limits = {arm: spec.base(arm).time_limit_seconds for arm in spec.all_arms}
    if None in limits.values():
        return "the time of a run is not known"
    runs = count_left(spec, record)
    most = sum(left.whole * (limits[arm] or 0.0) for arm, left in runs.items())
    return f"at most {format_duration(most / workers)} with {workers} at a time, by the time limit"


def plan_or_outline(spec: Sweep, workers: int, storage: str | None, fresh: bool = False) -> tuple[str, str]:
    """Return the plan and ''; if the data of a sweep is missing, its outline and a message on the missing data."""
    try:
        with postpone_collection():
            return plan(spec, workers, storage, fresh), ""
    except DataError as error:
        return outline(spec), str(error)


def outline(spec: Sweep) -> str:
    """Return the plan of a new sweep as text, without its data and on any machine: the cost is in GPU hours."""
    if spec.settings_from and not spec.taken_over:
        nothing: dict[str, Any] = {arm: {} for arm in spec.own_arms}
        spec = apply_settings(spec, TakenOver(sweep=spec.settings_from, settings=nothing, seeds=[]))
    left = count_left(spec)
    if not spec.is_own:
        return _format_plan(spec, "", None, left, _describe_limit(spec, None, 1))
    todo = {arm: runs.whole for arm, runs in left.items()}
    data = dict.fromkeys(spec.own_base(arm).data for arm in spec.all_arms)
    needed = "; ".join(
        f"{d.kind} {format_settings(d.model_dump(mode='json', exclude_defaults=True), {})}".strip() for d in data
    )
    return _format_plan(spec, f"{needed} (needed; not checked here)", None, left, _describe_gpu_hours(spec, todo))


def plan_files(
    folder: str, overrides: Mapping[str, Any], *, factor: float = 1.0, model: bool = False
) -> Iterator[tuple[Path, list[str], AblateError | None]]:
    """Return (file, the outline of each of its sweeps, its error) for every sweep file in `folder`. Raises ConfigError
    if there is none."""
    files = sorted(Path(folder).glob("*.yaml"))
    if not files:
        raise ConfigError([Problem("--all", f"this folder has no YAML file in {folder}/")], "the command line")
    for file in files:
        try:
            yield file, [*map(outline, load_sweeps(file, overrides, factor=factor, model=model))], None
        except AblateError as error:
            yield file, [], error


def describe_cost(spec: Sweep) -> str:
    """Return the cost of a new sweep, in the format of the headers of sweeps/, without pruning: the minimum, and the
    maximum with all seeds that may be added, all extensions of the ranges and all challenges."""
    items = {arm: spec.own_base(arm).items for arm in spec.all_arms}
    left = count_left(spec)
    least = {arm: runs.whole for arm, runs in left.items()}
    most = {arm: runs.whole + sum(runs.more.values()) for arm, runs in left.items()}
    each, unit = max(items.values()), spec.base(next(iter(spec.all_arms))).unit
    unassigned = sum(count_unassigned(spec).values())
    most[max(spec.all_arms, key=lambda arm: items[arm])] += unassigned  # of the dearest arm
    sure = sum(runs.sure for runs in left.values())
    trainings = format_range(str(sure), str(sum(runs.at_most for runs in left.values()) + unassigned))
    hours = format_range(_format_hours(spec, least), _format_hours(spec, most))
    estimate = f"{hours} H100 hours" if hours else "H100 hours not estimated"
    return f"{trainings} trainings of {format_count(each)} {unit}, {estimate}"


def _format_hours(spec: Sweep, todo: Mapping[str, float]) -> str:
    """Return the hours of an H100 as text; '' if no formula gives them."""
    hours = 0.0
    for arm, number in todo.items():
        if (one := flops.estimate_work(spec.own_base(arm))) is None:
            return ""
        hours += number * one.gpu_hours
    return format_hours(hours)


def _describe_gpu_hours(spec: Sweep, todo: Mapping[str, float]) -> str:
    one = flops.estimate_work(spec.own_base(next(iter(spec.all_arms))))
    if one is None:
        return "the time of an alignment is not estimated"
    hours = _format_hours(spec, todo)
    return f"{hours} hours of an H100 at {one.utilisation:.0%} of its peak (assumed), without validation and transfers"


def _format_plan(
    spec: Sweep,
    data: str,
    record: SweepRecord | None,
    left: Mapping[str, Left],
    total: str,
    corpus: Corpus | None = None,
    warnings: Sequence[str] = (),
) -> str:
    base = spec.base(next(iter(spec.all_arms)))
    unit = base.unit
    lines = [f"sweep {spec.name}: {spec.objective.direction} {spec.objective.metric}"]
    lines += [f"data  {data}"] if data else []
    if isinstance(base, Experiment) and base.procedure == "training":
        sizes = corpus.count_validation_items() if corpus else base.data.most_val_sizes
        lines.append(f"validation  {base.validation.describe(sizes)}")
        classes, shape = (corpus.classes, corpus.shape) if corpus else flops.guess_inputs(base)
        precision, averaged = flops.choose_precision(base.trainer), base.trainer.ema_decay is not None
        checkpoint = memory.Meter(base, classes, shape).checkpoint(precision, averaged)
        disk = estimates.describe_disk(checkpoint, base.data.count_prepared_bytes(classes), describe_kept(spec))
        lines += [f"{name}  {text}" for name, text in disk.items()]
    lines += [text] if (text := describe_readings(spec.without_grid())) else []
    lines += [describe_scale(spec)] if spec.scale else []
    lines += [one.describe() for one in (spec.taken_over, spec.spent) if one]
    if spec.designed:
        levels = {name: list_levels(name, component) for name, component in (spec.components or {}).items()}
        parts = ", ".join(f"{name} ({', '.join(own)})" for name, own in levels.items())
        lines.append(f"design {spec.design}: {parts}")
    lines.append("")
    for arm in () if spec.cells else spec.all_arms:
        done = record.search(arm).finished if record else 0
        searched = ", ".join(f"{path} {format_entry(entry)}" for path, entry in spec.space(arm).items()) or "nothing"
        already = f" ({done} done)" if done else ""
        most = "at most " if spec.method.staged else ""
        length = f"{most}{spec.base(arm).describe_length()}"
        lines.append(f"arm {arm}: {count_noun(done + left[arm].runs[SEARCH], 'trial')}{already} of {length} each")
        lines.append(f"    searches {searched}{_describe_points(spec, arm)}")
        lines += _describe_rungs(spec, arm)
        if spec.fixed:
            lines.append(f"    starting from {'; '.join(format_settings(point, {}) for point in spec.fixed)}")
    lines += _describe_grid(spec) if spec.cells else _describe_unequal(spec)
    if len(spec.own_arms) > 1:
        factor = join_words(audit.find_factor(spec))
        others = "; ".join(str(confound) for confound in audit.find_confounds(spec))
        both = f"in {factor}, and also in {others}" if factor and others else f"only in {factor or others}"
        lines.append(f"the arms differ {both}")
        plain = spec.without_grid()
        points = {arm: plain.list_points(arm) for arm in plain.all_arms}
        lines += [f"    {text}" for text in dict.fromkeys(audit.describe_coinciding(spec, points))]
        lines += [f"    {text}" for text in warnings]
    lines += dict.fromkeys(text for arm in spec.all_arms for text in spec.base(arm).list_cautions())
    lines += describe_stages(spec)
    lines += _describe_speed(spec)
    bases = [spec.base(arm) for arm in spec.all_arms]
    works = [flops.estimate_work(one) for one in bases if isinstance(one, Experiment)] or [None]
    seed_hours = None if None in works else sum(work.gpu_hours for work in works if work)  # of one seed of all arms
    lines += [f"    {line}" for line in describe_power(spec, seed_hours)]
    trials = sum(runs.sure for runs in left.values())
    lengths = [one.items for one in bases]
    each = zip(left.values(), lengths, strict=True)
    all_items = round(sum(runs.whole * (items or 0) for runs, items in each))
    method = [spec.method.describe()] if spec.method.staged else [f"pruner {spec.pruner.kind}"]
    lines += ["", ", ".join([f"sampler {spec.sampler.kind}", *method])]
    if spec.pruner.stops_trials and not spec.sampler.learns_from_pruned:
        lines.append("    this sampler does not learn from pruned trials; tpe does")
    amount = "" if None in lengths else f", {all_items:,} {unit}"
    lines += [f"to do: {count_noun(trials, 'trial')}{amount}; {total}"]
    if selection := sum(one.runs[SELECTION] for one in left.values()):
        lines[-1] += f"; {selection} of them to choose among candidates"
    more = {stage: sum(runs.more[stage] for runs in left.values()) for stage in next(iter(left.values())).more}
    more |= count_unassigned(spec)
    if any(more.values()):
        nouns = {stage.name: f"{'further ' * stage.is_assigned}{stage.noun}" for stage in ALL}
        parts = ", ".join(count_noun(count, nouns[stage]) for stage, count in more.items() if count)
        lines.append(f"at most {sum(more.values())} more: {parts}")
    return "\n".join(lines)


def _describe_speed(spec: Sweep) -> Iterator[str]:
    """Yield the lines of a plan on the cost at which arms are compared, and on the target."""
    if not spec.confirm.most_seeds or not spec.comparisons:
        return
    title, at = spec.objective.title, spec.compare.at
    if at != "end":
        bases = {arm: spec.own_base(arm) for arm in spec.all_arms}
        noun = {"tokens": next(iter(bases.values())).unit, "flops": "FLOPs"}.get(at, at)
        text = f"the arms are compared at equal {noun}, the most that all have reached"
        if at == "tokens":
            least = min(base.items for base in bases.values())
            early = {arm: least / base.items for arm, base in bases.items() if base.items > least}
            text += f": {least:,}"
            if early:
                told = join_words(f"{arm} after {share:.0%} of its updates" for arm, share in early.items())
                text += f"; {told}, on the curve of its validations, before its schedule has ended"
        elif at == "flops":
            text += ", on their curves of validations"
        else:
            text += ", on their curves of validations; with one worker, on a machine that trains nothing else"
        yield text
    if spec.target is not None:
        yield (
            f"a {title} of {spec.target:g}: how soon each arm reaches it is "
            f"{count_noun(spec.count_timed(), 'further comparison')}"
        )


def _describe_rungs(spec: Sweep, arm: str) -> Iterator[str]:
    """Yield the lines of a plan on the rungs of `arm`: the settings that train to each, and the share of the grid's
    tokens."""
    rungs = spec.plan_rungs(arm)
    if not rungs:
        return
    base = spec.own_base(arm)
    for number, rung in enumerate(rungs, 1):
        items = rung.trained * base.items_per_update
        runs = f"{count_noun(rung.settings, 'setting')} to update {rung.updates:,}"
        yield f"    rung {number}: {runs}, {items:,} {base.unit}{_describe_decay(rung, rungs[-1])}"
    if spec.confirm.most_seeds and rungs[-2].settings > rungs[-1].settings:
        more = (rungs[-1].updates - rungs[-2].shared) * base.items_per_update
        yield f"    {more:,} {base.unit} more if another setting of rung {len(rungs) - 1} is chosen, which then goes on"
    total = sum(rung.trained for rung in rungs) * base.items_per_update
    yield (
        f"    in all {total:,} {base.unit}, {spec.find_share(arm):.1%} of those of training all "
        f"{count_noun(rungs[0].settings, 'setting')} to the end; more if few have learned at a rung, where all go on"
    )


def _describe_decay(rung: Rung, last: Rung) -> str:
    """Return how the runs of a rung end before they are compared; the last is the whole run itself."""
    if rung is last:
        return ""
    if not rung.shared:
        return ", each a whole short run"
    return f", compared after a decay of {count_noun(rung.updates - rung.shared, 'update')}"


def _describe_points(spec: Sweep, arm: str) -> str:
    """Return how many points a sampler chooses from; '' for a grid, which tries all, and for a continuous range."""
    if spec.sampler.kind == "grid" or (points := spec.count_points(arm)) is None:
        return ""
    told = f": {count_noun(points, 'point')}"
    if (budget := spec.budget.trials) and budget > points:
        told += f", fewer than the budget of {budget} trials"
    return f"{told}; each is trained once" if spec.trials(arm) == points else told


def _describe_unequal(spec: Sweep) -> Iterator[str]:
    """Yield a line where arms get different numbers of trials, as some have fewer points than the budget allows."""
    counts = {arm: count for arm in spec.all_arms if (count := spec.trials(arm))}
    if len({*counts.values()}) > 1:
        told = join_words(f"{count} for {arm}" for arm, count in counts.items())
        yield f"trials: {told}; the search of an arm ends when all of its points are tried, as none is trained twice"


def _describe_grid(spec: Sweep) -> Iterator[str]:
    """Yield lines on each arm of the file, which is trained at every point of its grid."""
    plain = spec.without_grid()
    for arm in plain.all_arms:
        cells = [name for name, cell in spec.cells.items() if cell.arm == arm]
        each = sorted({(spec.base(name).items or 0, spec.base(name).describe_length()) for name in cells})
        lengths = join_words(dict.fromkeys(text for _, text in each))
        yield f"arm {arm}: {count_noun(len(cells), 'point')} of {lengths} each seed"
        if searched := plain.space(arm):
            yield f"    at {', '.join(f'{path} {format_entry(entry)}' for path, entry in searched.items())}"


def _find_generation(
    spec: Sweep, storage: str | None, fresh: bool, inputs: Mapping[str, str]
) -> tuple[Sweep, SweepRecord | None]:
    """Return a sweep with the seeds that are its own, and its record; None for one that is to begin. Raises the errors
    of `pick_generation`."""
    if (opened := open_existing(storage_url(storage))) is None:
        return spec, None
    with explain_damage(opened):
        is_known = spec.name in list_generations(opened)
        _, spec = pick_generation(spec, opened, fresh, inputs)
    return spec, read_sweep(spec.name, storage) if is_known and not fresh else None


def _describe_load() -> str:
    """Return a note for a time that was measured while other processes used a core or more; otherwise ''."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load < 1:
        return ""
    return f"; longer beside what runs on this machine now (load {load:.1f} on {count_noun(count_cores(), 'core')})"


def _measure_trial(experiment: Experiment, corpus: Corpus, workers: int) -> tuple[float, float] | None:
    """Return the least and the most seconds of a trial, by a few updates here; None if it would not fit in memory, or
    if an update takes long."""
    from ablate.training.timing import time_update  # imports Lightning

    shapes = corpus.classes, corpus.shape
    cost, work = (
        flops.count_by_formula(inputs.build_blank(experiment, *shapes)),
        flops.estimate_work(experiment, shapes),
    )
    on_gpu, memory = estimates.detect_capacity()
    at_once = pick_devices(0, workers).sharing if on_gpu else workers
    if work is None or cost.bytes * at_once > 0.8 * memory:
        return None
    if not on_gpu and (work.flops / experiment.trainer.max_steps > _MOST_FLOPS or cost.trained > _MOST_WEIGHTS):
        return None
    threads = torch.get_num_threads()
    torch.set_num_threads(share_cores(workers))
    try:
        updates = time_update(experiment, corpus, _MEASURED_STEPS, _MEASURING_SECONDS)
    finally:
        torch.set_num_threads(threads)
    share = experiment.validation.compute_share(corpus.count_validation_items())
    least, most = (1.5 + update * experiment.trainer.max_steps / (1 - share) for update in updates)
    return least, most


FACTOR = 10.0
"""The multiple of the others' median, and the inverse part of it, from which on a gradient norm is reported."""


def measure_initial_gradients(spec: Sweep, corpora: Mapping[DataConfig, Corpus]) -> dict[str, float]:
    """Return arm of the file -> norm of its gradient at initialisation, without arms that start from another model,
    those of an alignment, and those that are too large to be measured and cannot be narrowed."""
    from ablate.training.initial_gradient import measure_initial_gradient

    plain = spec.without_grid()
    bases = {arm: plain.own_base(arm) for arm in plain.all_arms}
    norms = {
        arm: measure_initial_gradient(base, corpora[base.data])
        for arm, base in bases.items()
        if base.procedure == "training" and base.warm_start is None and base.lora is None
    }
    return {arm: norm for arm, norm in norms.items() if norm is not None}


def describe_outlying_gradients(norms: Mapping[str, float]) -> Iterator[str]:
    """Yield a sentence for each arm whose gradient norm is not finite, is `FACTOR` times the median of the others', or
    a `FACTOR`th of it; where half of three or more are, one for all. Arms: name -> norm."""
    finite, outlying = {arm: norm for arm, norm in norms.items() if math.isfinite(norm)}, {}
    for arm in [arm for arm in norms if arm not in finite]:
        yield f"WARNING: {arm}: its gradient at initialisation is not finite, so that it cannot train"
    for arm, norm in finite.items():
        others = [other for name, other in finite.items() if name != arm]
        if others and (norm >= FACTOR * (median := statistics.median(others)) or norm * FACTOR <= median):
            outlying[arm] = median
    if len(finite) > 2 and 2 * len(outlying) >= len(finite):  # groups of arms, each far from the median of the others
        least, most = (pick(outlying, key=norms.__getitem__) for pick in (min, max))
        yield (
            "WARNING: the norms of the arms' gradients at initialisation differ widely, from "
            f"{format_number(norms[least])} ({least}) to {format_number(norms[most])} ({most}). Compare their "
            "initialisations with what their sources say"
        )
        return
    for arm, median in outlying.items():
        yield (
            f"WARNING: {arm}: the norm of its gradient at initialisation is {format_number(norms[arm])}, the median of "
            f"the others is {format_number(median)}. Compare its initialisation with what its source says"
        )
