"""Training with Lightning: the preparation on every rank, and the fit itself."""

from __future__ import annotations

import contextlib
import logging
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer

from ablate import tracking
from ablate.config.errors import AblateError, StoreError
from ablate.config.merging import Tree
from ablate.data import Corpus
from ablate.distributed import groups
from ablate.estimate.flops import collect_facts
from ablate.experiment.extensions import load_extensions, restrict
from ablate.experiment.tree import Experiment
from ablate.models import Model
from ablate.parallel import compiling, strategies
from ablate.parallel.deferred import Recipes
from ablate.training.averaging import WeightAverage
from ablate.training.callbacks import Checkpoint, Curves, Leave, RunCallback, RunLogger, Stop, Validations
from ablate.training.checkpoints import find_newest
from ablate.training.loaders import Loaders
from ablate.training.module import TrainingModule
from ablate.training.named import build_callbacks, build_loggers
from ablate.training.precision import Speed
from ablate.training.procedures import Earlier, Ended, Hooks
from ablate.training.runs import CHECKPOINT, count_epochs, run_folder, translate_errors
from ablate.training.trainer import PROFILE, build_trainer

logger = logging.getLogger(__name__)


def fit(
    experiment: Experiment,
    corpus: Corpus,
    speed: Speed,
    tracker: tracking.Tracker,
    hooks: Hooks,
    branch: tuple[Path, Path | None, Earlier] | None = None,
) -> Ended:
    """Train `experiment` on all ranks, for an open MLflow run, and return its result.

    `branch`: the folder of a copy of the run, and the checkpoint that it goes on from, with its progress; the run
    itself stays as it is, and logs nothing of the copy.
    """
    if branch:
        folder, checkpoint, before = branch
    else:
        folder = run_folder(tracker.run_id)
        checkpoint, before = find_newest(folder) or (None, Earlier())
        before.check(experiment)
    threads = torch.get_num_threads()
    if torch.cuda.is_available():
        with translate_errors():  # the first use of the GPU, which may have no room for a context
            torch.cuda.reset_peak_memory_stats()
    with groups.run_together(_train_along, experiment.to_tree(), speed, folder, checkpoint, threads, hooks.pause_at):
        with groups.prepare_together():
            updates, logged = before.updates if checkpoint else None, None if branch else tracker
            prepared = _prepare(experiment, corpus, speed, folder, logged, hooks, updates)
            model = prepared.module.model
        costs = collect_facts(model, experiment, corpus.shape)
        parameters = sum(p.numel() for p in model.parameters())
        if hooks.started:
            epochs = count_epochs(experiment, corpus)
            count = costs.get("ablate.parameters.frozen", 0)
            frozen = f", {count:,} of them frozen" if count else ""
            validation = experiment.validation.describe(corpus.count_validation_items())
            text = "\n".join([
                f"  model       {parameters:,} parameters{frozen}",
                f"  data        {corpus.description}; {epochs} epochs",
                f"  validation  {validation}",
                f"  arithmetic  {speed.why}",
            ])  # fmt: skip
            hooks.started(tracker.run_id, text, before)
        status, reason = _fit(prepared, checkpoint)
    if not branch and status not in ("interrupted", "paused"):
        for callback in prepared.extras:
            callback.publish(folder, tracker)
    if not branch and experiment.trainer.profiler:
        try:
            for file in sorted((folder / PROFILE).glob("*")):
                tracker.log_file(file, PROFILE)
        except StoreError as error:  # a store that refuses it does not end the run
            logger.warning(f"\nThe profile stays in {folder / PROFILE}. {error}")
    own = prepared.trainer.global_step * costs["ablate.flops_per_update"]
    seconds = prepared.validations.curves.find_seconds_per_update(prepared.trainer.global_step)
    facts = {
        "ablate.parameters": parameters,
        "ablate.checkpoint": str(folder / CHECKPOINT),
        **speed.list_facts(),
        **costs,
        "ablate.flops": own + costs["ablate.flops_before"],  # of all stages
        **({} if seconds is None else {"ablate.seconds_per_update": seconds}),
    }
    if torch.cuda.is_available():  # of this process, since the run began
        facts["ablate.peak_memory_bytes"] = torch.cuda.max_memory_allocated()
    layers = {name: row for callback in prepared.extras for name, row in callback.list_layers().items()}
    return Ended(status, reason, prepared.trainer.global_step, prepared.validations.metrics, facts, layers)


_SHAPES: Any = dict.fromkeys(("model", "task", "data", "lora"), True) | {
    "trainer": {"batch_size", "accumulate", "precision", "activation_checkpointing", "tensor_parallel"}
}


@dataclass(frozen=True)
class _Prepared:
    """The objects with which one rank trains."""

    trainer: Trainer
    module: TrainingModule
    loaders: Loaders
    validations: Validations
    checkpoint: Checkpoint
    extras: list[RunCallback]
    """Callbacks of the experiment's extensions."""


def _prepare(
    experiment: Experiment,
    corpus: Corpus,
    speed: Speed,
    folder: Path,
    tracker: tracking.Tracker | None,
    hooks: Hooks,
    updates: int | None,
) -> _Prepared:
    """Build everything that one rank needs; `updates`: those of the checkpoint from which the run resumes, None if it
    begins."""
    callbacks: list[Callback] = build_callbacks(experiment)  # first: a run that diverges or is pruned ends in ours
    loggers = build_loggers(experiment, tracker.run_id, updates or 0) if tracker else []
    random.seed(experiment.seed)
    np.random.seed(experiment.seed)
    torch.manual_seed(experiment.seed)
    with translate_errors():
        model, recipes = strategies.build_model(experiment, corpus)
    if speed.compile and recipes is None:
        # these determine the shapes of a model and its batches; equal ones share programs if their placements do
        compiling.keep_programs(experiment.model_dump_json(include=_SHAPES))
    elif speed.compile:  # sharded layers are of one run
        compiling.forget_programs()
    copied = _start(model, experiment, recipes, fills=updates is None)
    strategy = strategies.build_strategy(experiment, corpus, speed.precision, speed.compile, recipes, model)
    if experiment.trainer.activation_checkpointing:
        strategies.checkpoint_activations(model)
    validated = corpus.limit_validation(experiment.validation.samples)
    module = TrainingModule(experiment, validated, recipes is None and speed.compile, model)
    module.copied = copied
    logger = RunLogger(tracker, experiment.trainer.batch_size * module.per_item)
    curves = Curves(hooks.progress)
    validations = Validations(curves, hooks.decide)
    checkpoint = Checkpoint(folder, tracker)
    callbacks += [curves, validations, checkpoint]
    if experiment.trainer.ema_decay is not None:
        callbacks.insert(0, WeightAverage(module, validated, experiment.trainer.ema_decay))
    extras: list[RunCallback] = []
    for extension in load_extensions(experiment):
        added = extension.build_callbacks(module, corpus, curves)
        place = callbacks.index(validations) if extension.precedes_validation else len(callbacks)
        callbacks[place:place] = added
        extras += added
    callbacks.append(Leave(hooks.asked_to_stop, checkpoint.save, hooks.pause_at))
    trainer = build_trainer(experiment, speed.precision, callbacks, folder, strategy, [logger, *loggers])
    if hooks.asked_to_stop:  # answers SIGTERM, on which Lightning would leave a validation without a checkpoint
        trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    logger.count_updates = lambda: trainer.global_step
    return _Prepared(trainer, module, Loaders(experiment, validated), validations, checkpoint, extras)


def _start(model: Model, experiment: Experiment, recipes: Recipes | None, fills: bool) -> frozenset[str]:
    """Restrict the trained parameters of `model` and, if `fills` (a resumed run has its weights), give it its initial
    weights: at once or, on the meta device, by `recipes`. Return the names of the parameters that have them."""
    ids: set[int] = set()
    for extension in load_extensions(experiment) if fills else ():
        ids |= extension.fill(model, experiment, recipes)
    with recipes.record() if recipes else contextlib.nullcontext():
        restrict(model, experiment)
    return frozenset(name for name, parameter in model.named_parameters() if id(parameter) in ids)


def _fit(prepared: _Prepared, checkpoint: Path | None) -> tuple[str, str]:
    """Train, from the `checkpoint` if given, and return (status, reason)."""
    trainer, module, loaders = prepared.trainer, prepared.module, prepared.loaders
    loaded = checkpoint and strategies.make_loadable(checkpoint, module.experiment, module, module.model)
    status, reason = "completed", ""
    with translate_errors():
        try:
            trainer.fit(module, loaders, ckpt_path=None if loaded is None else str(loaded), weights_only=True)
            if (updates := trainer.global_step) < (all_updates := module.experiment.trainer.max_steps):
                text = "runs of different lengths cannot be compared. Set trainer.max_steps, or the pruner of a sweep"
                raise AblateError(f"A callback ended the run after {updates:,} of {all_updates:,} updates: {text}.")
            if prepared.validations.step < all_updates:
                trainer.validate(module, loaders, verbose=False)
            prepared.checkpoint.finish(trainer)
        except Stop as stop:
            trainer.profiler.describe()  # type: ignore[attr-defined] # which Lightning does at the end of a fit alone
            prepared.checkpoint.finish(trainer)
            status, reason = stop.status, stop.reason
        finally:
            if (wandb := sys.modules.get("wandb")) and wandb.run:  # or the next run of this process goes on in it
                wandb.finish()
    return status, reason


def _train_along(
    tree: Tree, speed: Speed, folder: Path, checkpoint: Path | None, threads: int, pause_at: int | None
) -> None:
    """Train on a rank above 0: the same as rank 0 on its part of each batch, and nothing else."""
    torch.set_num_threads(threads)
    with groups.prepare_together():
        experiment = Experiment.from_mapping(tree)
        corpus = experiment.data.load(tracking.cache_folder())
        prepared = _prepare(
            experiment, corpus, speed, folder, None, Hooks(pause_at=pause_at), 0 if checkpoint else None
        )
    _fit(prepared, checkpoint)
