"""One experiment, from its configuration to its result, tracked in MLflow."""

from __future__ import annotations

import contextlib
import math
import time
from functools import partial
from typing import Any

import torch

from ablate import tracking
from ablate.config import plugins
from ablate.config.errors import ChangedInputsError, ConfigError, DataError, OutOfMemory
from ablate.config.lazy import postpone_collection
from ablate.data import Corpus
from ablate.distributed import ranks
from ablate.estimate.plan import advise
from ablate.experiment.extensions import load_extensions
from ablate.experiment.tree import Experiment
from ablate.parallel.sharing import validate_sharing
from ablate.tracking import provenance, remote_files
from ablate.tracking.provenance import log_facts, pick_shown, read_texts
from ablate.tracking.tracker import Tracker
from ablate.training.checkpoints import PREVIOUS, remove
from ablate.training.company import watch_company
from ablate.training.named import check_named
from ablate.training.precision import Speed, choose_speed
from ablate.training.procedures import Hooks, Place, Procedure, Result, Run
from ablate.training.runs import (
    INPUTS,
    copy_run,
    count_epochs,
    describe_plugins,
    end_with_error,
    fingerprint_inputs,
    list_changed_inputs,
    lock_run,
    name_run,
    open_run,
    run_folder,
)
from ablate.training.trainer import advise_less_memory, check_ranks


def train(
    experiment: Experiment, place: Place | None = None, hooks: Hooks | None = None, procedure: Procedure | None = None
) -> Result:
    """Run `experiment` and return its result, as `ablate.train` does, but show nothing."""
    begin = time.perf_counter()
    place, hooks, procedure = place or Place(), hooks or Hooks(), procedure or choose_procedure(experiment)
    check_ranks(experiment.trainer)
    if problems := [*validate_sharing(experiment), *check_named(experiment)]:
        raise ConfigError(problems)
    if experiment.trainer.copy_to:
        remote_files.check_url(experiment.trainer.copy_to)
    corpus = experiment.data.load(tracking.cache_folder())
    check_corpus(experiment, corpus)
    if not place.run_id:
        experiment = procedure.pin(experiment, corpus)
    inputs = fingerprint_inputs(experiment, corpus)
    if hooks.loaded:
        hooks.loaded(inputs)
    before = read_texts(place.run_id, INPUTS) if place.run_id and tracking.find_active_run(place.run_id) else {}
    if changes := list_changed_inputs(before, inputs):
        raise ChangedInputsError(
            f"Run {place.run_id} began with other data or another model. What changed:\n  "
            + "\n  ".join(changes)
            + "\nRestore it and resume the run, or start another one."
        )
    speed = procedure.choose_speed(experiment)
    made_with = _gather_facts(experiment, corpus, speed)
    with contextlib.ExitStack() as stack:
        if place.run_id:
            stack.enter_context(lock_run(run_folder(place.run_id)))
        tracker = open_run(
            experiment, place, name_run(experiment), made_with, inputs, partial(_log_dataset, experiment, corpus)
        )
        folder = run_folder(tracker.run_id)
        if not place.run_id:
            stack.enter_context(lock_run(folder))
        with end_with_error(tracker):
            run = procedure.load_run()
            met = stack.enter_context(watch_company())
            try:
                status, reason, step, metrics, facts, layers = run(experiment, corpus, speed, tracker, hooks)
            except OutOfMemory as error:
                classes = experiment.model.vocabulary(corpus.classes)
                planned = advise(experiment, speed.precision, classes, corpus.shape, ranks.world_size())
                raise OutOfMemory(f"{error} {planned or advise_less_memory(experiment.trainer)}") from error
            company = None if place.run_id else met()  # what an earlier process of the run met is not known
            facts |= {} if company is None else {"ablate.company": company}
            if status == "completed" and experiment.trainer.copy_to and not place.parent:  # a sweep copies its best
                tracker.set_tags({"ablate.copy": copy_run(experiment, experiment.trainer.copy_to, tracker.run_id)})
        facts = {**made_with, **facts}
        log_facts(tracker, facts)
        loss = metrics.get("val/loss", math.nan)  # at three decimals: columns of metrics show all digits
        tracker.end(status, reason, pick_shown(facts) | ({"ablate.loss": f"{loss:.3f}"} if math.isfinite(loss) else {}))
        if status != "interrupted":
            remove(folder / PREVIOUS)
    seconds = time.perf_counter() - begin
    items = experiment.items_per_update
    return Result(status, metrics, step, tracker.run_id, seconds, reason, facts, items, layers)


def check_corpus(experiment: Experiment, corpus: Corpus) -> None:
    """Raise DataError if the tokenizer has more tokens than the model's vocabulary, or a set has no targets."""
    if corpus.classes > (limit := experiment.model.vocabulary(corpus.classes)):
        raise DataError(
            f"The tokenizer has {corpus.classes} tokens and model.vocab_size is {limit}. Remove model.vocab_size or "
            "increase it."
        )
    if not corpus.padded:
        return
    validated = corpus.limit_validation(experiment.validation.samples)
    further = {f"validation set {name}": part.data for name, part in validated.val_sets.items()}
    for name, data in {"training set": corpus.train, "validation set": validated.val, **further}.items():
        if not any(experiment.task.count_targets(*data.__getitems__([item])) for item in range(len(data))):
            raise DataError(
                f"The {name} has no targets: in its {len(data):,} items, all are ignored. Give data that has some"
                + ("." if data is corpus.train else ", or change what is held out: data.val_fraction, data.split_seed.")
            )


def choose_procedure(experiment: Experiment) -> Procedure:
    """Return the procedure of `experiment`: training with Lightning, unless one of its parts replaces it."""
    procedures = (extension.build_procedure() for extension in load_extensions(experiment))
    return next((procedure for procedure in procedures if procedure is not None), LIGHTNING)


def pin_sources(experiment: Experiment, corpus: Corpus) -> Experiment:
    """Return `experiment` with the SHA-256 of the weights that it starts from. Raises AblateError if they do not
    fit."""
    for extension in load_extensions(experiment):
        experiment = extension.pin(experiment, corpus.classes, corpus.shape)
    return experiment


def _load_fit() -> Run:
    """Import Lightning, which takes seconds."""
    with postpone_collection():
        from ablate.training.fit import fit

    return fit


LIGHTNING = Procedure(
    pin_sources,
    choose_speed,
    _load_fit,
    lambda experiment, corpus: experiment.validation.count_samples(len(corpus.val)),
)
"""Training with Lightning."""


def _gather_facts(experiment: Experiment, corpus: Corpus, speed: Speed) -> dict[str, Any]:
    """Return the facts about the run: data, hardware, versions, precision."""
    return {
        **provenance.describe_environment(),
        **{f"version.{package}": version for package, version in plugins.list_installed().items()},
        **({tracking.PLUGINS: describe_plugins(experiment)} if experiment.plugins else {}),
        **{tag: value for extension in load_extensions(experiment) for tag, value in extension.gather_facts().items()},
        **({"ablate.corpus": corpus.fingerprint} if corpus.fingerprint else {}),
        "ablate.corpus_description": corpus.description,
        "ablate.epochs": count_epochs(experiment, corpus),
        **speed.list_facts(),
        "ablate.threads": torch.get_num_threads(),
        "ablate.ranks": ranks.world_size(),
    }


def _log_dataset(experiment: Experiment, corpus: Corpus, tracker: Tracker) -> None:
    data, profile = experiment.data, {"classes": corpus.classes, "shape of an input": list(corpus.shape)}
    settings = {key: value for key, value in experiment.flat().items() if key.startswith("data.")}
    tracker.log_dataset(data.kind, corpus.fingerprint, corpus.description, settings, profile)
