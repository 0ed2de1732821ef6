"""What a sweep will do and cost, before it does it."""

from __future__ import annotations

import os
import time

import torch

from ablate.config import Experiment
from ablate.data import Corpus
from ablate.sweeping import audit
from ablate.sweeping.opening import check, refuse_changes, trial_items
from ablate.sweeping.records import FINISHED, SweepRecord, finished, left
from ablate.sweeping.search import shown
from ablate.sweeping.spec import Sweep
from ablate.sweeping.study import known_sweeps, read_sweep, storage_url
from ablate.sweeping.worker import share
from ablate.tasks import tasks
from ablate.words import duration, listed, plural, settings

_MEASURED_STEPS, _MEASURING_SECONDS = 6, 8.0


def plan(spec: Sweep, workers: int, storage: str | None, fresh: bool = False) -> str:
    """The resolved plan as text: arms, trials, tokens, estimated time. Trains a few updates to estimate the time.

    Raises what `sweep` would raise before its first trial: ConfigError, DataError, and SweepError for a changed file.
    """
    corpora = check(spec)
    found = None if fresh else _found(spec, storage)
    base = spec.base(next(iter(spec.all_arms)))
    corpus = corpora[base.data]
    unit = tasks[base.data.task].unit
    lines = [
        f"sweep {spec.name}: {spec.objective.direction} {spec.objective.metric}",
        f"data  {corpus.description}",
        "",
    ]
    trials = items = 0
    seconds = _seconds_per_trial(base, corpus, workers)
    for arm in spec.all_arms:
        config = spec.base(arm).trainer
        cost = trial_items(spec.base(arm), corpora[spec.base(arm).data])
        known = found.trials.get(arm, []) if found else []
        done = finished(known)
        search = left(spec, arm, [t for t in known if t.status in FINISHED], cost, seconds)  # the others are run again
        seeds = max(0, spec.confirm.seeds - finished(found.confirmed.get(arm, ()) if found else ()))
        trials, items = trials + search + seeds, items + (search + seeds) * cost
        searched = ", ".join(f"{path} {shown(entry)}" for path, entry in spec.space(arm).items()) or "nothing"
        already = f" ({done} done)" if done else ""
        lines.append(
            f"arm {arm}: {plural(done + search, 'trial')}{already} of {config.max_steps} updates = {cost:,} {unit} each"
        )
        lines.append(f"    searches {searched}")
        if starts := spec.starts(arm):
            lines.append(f"    starting from {'; '.join(settings(point, {}) for point in starts)}")
    if len(spec.all_arms) > 1:
        others = "; ".join(str(confound) for confound in audit.confounds(spec)) or "nothing"
        lines.append(f"compares {listed(audit.factor(spec))}; besides it the arms differ in {others}")
    if spec.confirm.seeds:
        again = ", ".join(map(str, spec.fresh_seeds()))
        lines.append(f"then the best of each arm on the fresh seeds {again}")
    total = "not estimated: the model does not fit the memory of this machine"
    if seconds is not None:
        total = f"about {duration(trials * seconds / min(workers, max(1, trials)))} with {workers} at a time"
    if spec.confirm.seeds == 1:
        lines.append("    one seed gives no interval and no p-value; five give intervals worth reading")
    limits = [
        f"{count:,g} {what}" for what, count in ((unit, spec.budget.tokens), ("hours", spec.budget.hours)) if count
    ]
    if limits:
        lines.append(f"each arm ends at {' or '.join(limits)} if that is earlier; its first trial is always run")
    lines += ["", f"sampler {spec.sampler.kind}, pruner {spec.pruner.kind}"]
    lines += [f"to do: {plural(trials, 'trial')}, {items:,} {unit}; {total}"]
    return "\n".join(lines)


def _found(spec: Sweep, storage: str | None) -> SweepRecord | None:
    """What there is of the sweep; None of a new one. Raises SweepError where it was started with another file."""
    if spec.name not in known_sweeps(storage_url(storage)):
        return None
    record = read_sweep(spec.name, storage)
    refuse_changes(record.spec, spec, record.generation, record.plugins)
    return record


def _seconds_per_trial(experiment: Experiment, corpus: Corpus, workers: int) -> float | None:
    """Seconds of a trial, from a few updates and a validation batch here; None where it would not fit in memory."""
    from ablate.training.speed import choose_speed

    with torch.device("meta"):
        model = experiment.model.build(experiment.norm, experiment.init, corpus.classes, corpus.shape)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**34
    if 16 * model.parameter_count() * workers > 0.8 * memory:
        return None
    threads = torch.get_num_threads()
    torch.set_num_threads(share(workers))
    try:
        speed = choose_speed(experiment, corpus)
        task = tasks[experiment.data.task](experiment, corpus)
        optimizer = experiment.optimizer.build(task.model)
        begin, took = time.perf_counter(), []
        for batch in corpus.train.batches(experiment.trainer.batch_size, seed=0):
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=speed.precision == "bf16-mixed"):
                loss = task.loss(*batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            took.append(time.perf_counter() - start)
            if len(took) >= _MEASURED_STEPS or time.perf_counter() - begin > _MEASURING_SECONDS:
                break
    finally:
        torch.set_num_threads(threads)
    config = experiment.trainer
    step = min(took)
    validations = -(-config.max_steps // config.validation_interval)
    validated = len(corpus.val) + sum(len(part.data) for part in corpus.val_sets.values())
    batches = validated / config.batch_size
    return 1.5 + step * (config.max_steps + validations * batches / 3)  # a forward pass is a third of an update
