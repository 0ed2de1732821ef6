"""One experiment, from its configuration to its result."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sized
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ablate import tracking
from ablate.config import plugins
from ablate.config.errors import ConfigError, DataError, OutOfMemory, Problem
from ablate.config.extras import library
from ablate.distributed import groups, ranks
from ablate.estimate import formulas
from ablate.experiment.tree import Experiment
from ablate.post_training import warm_start
from ablate.tracking import provenance, remote_files
from ablate.training.precision import Speed, choose_speed
from ablate.training.runs import copied, plugin_tag, run_folder, run_name
from ablate.training.trainer import build_trainer, check_ranks, what_needs_less

if TYPE_CHECKING:
    from lightning.pytorch import Callback, Trainer

    from ablate.config.merging import Tree
    from ablate.data import Corpus
    from ablate.diagnostics.callback import LayerDiagnostics
    from ablate.models import Model
    from ablate.tasks import Task
    from ablate.training.callbacks import Validations
    from ablate.training.checkpoints import Checkpoint, Earlier
    from ablate.training.loaders import Loaders


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    status: str
    """completed, diverged, pruned or interrupted."""
    metrics: dict[str, float]
    """Those of the last validation: val/loss and the task's own."""
    step: int
    """Optimizer updates made."""
    run_id: str | None
    """The MLflow run."""
    seconds: float
    """Wall-clock seconds of this process, preparation included."""
    reason: str = ""
    """Why it ended early."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Parameters, corpus fingerprint, hardware, precision, package versions: tags of the run."""
    items_per_update: int = 1
    """Tokens or images of one update."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Place:
    """Where a run belongs in MLflow: `experiment`, its parent run, its name and extra tags; or `run_id`, to continue
    one."""

    experiment: str = "train"
    name: str = ""
    parent: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    run_id: str | None = None


@dataclass(frozen=True)
class Hooks:
    """What a caller hears of a run while it goes, and may say."""

    started: Callable[[str, str, Earlier], None] | None = None
    """Given the run's id, a line that describes the run, and how far it got earlier, before the next update."""
    progress: Callable[[int, float], None] | None = None
    """Given the number of updates and the training loss, every `log_every_n_steps`."""
    decide: Callable[[int, Mapping[str, float]], bool] | None = None
    """Given the number of updates and the metrics after each validation; False ends the run as pruned."""
    asked_to_stop: Callable[[], bool] | None = None
    """Looked at after every update; true ends the run as interrupted."""


class Ended(NamedTuple):
    """How a procedure ended."""

    status: str
    reason: str
    step: int
    """Optimizer updates made."""
    metrics: dict[str, float]
    """Those of the last validation."""
    facts: dict[str, Any]
    """Further tags of the run."""


@dataclass(frozen=True)
class Procedure:
    """What is done with an experiment between its data and its result; what is tracked around it is always the same."""

    pinned: Callable[[Experiment, Corpus], Experiment]
    """The experiment with the SHA-256 of what it starts from. Raises AblateError where that does not fit."""
    speed: Callable[[Experiment, Corpus], Speed]
    """In which arithmetic."""
    run: Callable[[Experiment, Corpus, Speed, tracking.Tracker, Hooks], Ended]
    """Does it, for an MLflow run that is open."""


def train(
    experiment: Experiment, place: Place = Place(), hooks: Hooks = Hooks(), procedure: Procedure | None = None
) -> Result:
    """Trains `experiment`, tracked in MLflow, and returns how it ended. `procedure` is how, if not by Lightning:
    `ablate.training.procedures.run` chooses.

    A run that diverges, is pruned or is interrupted is a result; an error of the data or the store is raised
    as an AblateError. Given `place.run_id`, an interrupted run goes on from its last checkpoint, with the numbers
    that it would have had. On rank 0 of a group (see `ablate.ranks`) all ranks train it together.
    """
    from ablate.parallel import strategies
    from ablate.training.checkpoints import PREVIOUS, alone, remove

    begin = time.perf_counter()
    if procedure is None and experiment.align:
        raise ConfigError([Problem("align", "is not for train: ablate.training.procedures.run takes every experiment")])
    procedure = procedure or LIGHTNING
    check_ranks(experiment.trainer)
    if found := strategies.problems(experiment):
        raise ConfigError(found)
    if experiment.trainer.copy_to:
        remote_files.check(experiment.trainer.copy_to)
    corpus = experiment.data.load(tracking.cache_folder())
    if not place.run_id:
        experiment = procedure.pinned(experiment, corpus)
    speed = procedure.speed(experiment, corpus)
    surroundings = _surroundings(experiment, corpus, speed)
    with contextlib.ExitStack() as held:
        if place.run_id:
            held.enter_context(alone(run_folder(place.run_id)))
        tracker = _open_run(experiment, place, surroundings)
        folder = run_folder(tracker.run_id)
        if not place.run_id:
            held.enter_context(alone(folder))
        try:
            status, reason, step, metrics, facts = procedure.run(experiment, corpus, speed, tracker, hooks)
            if status == "completed" and experiment.trainer.copy_to and not place.parent:  # a sweep copies its best
                tracker.tags({"ablate.copy": copied(experiment, tracker.run_id)})
        except OutOfMemory as error:
            told = OutOfMemory(f"{error} {_less_memory(experiment, corpus, speed)}")
            tracker.end("failed", reason_of(told))
            raise told from error
        except BaseException as error:
            stopped = isinstance(error, (ranks.Lost, KeyboardInterrupt))
            tracker.end("interrupted" if stopped else "failed", reason_of(error))
            raise
        tracker.tags(facts)
        tracker.end(status, reason)
        if status != "interrupted":
            remove(folder / PREVIOUS)
    seconds = time.perf_counter() - begin
    items = formulas.items_per_update(experiment)
    return Result(status, metrics, step, tracker.run_id, seconds, reason, {**surroundings, **facts}, items)


def _less_memory(experiment: Experiment, corpus: Corpus, speed: Speed) -> str:
    """What the plan says of the memory, or, where there is none, which settings need less."""
    from ablate.estimate.advice import advice

    classes = getattr(experiment.model, "vocab_size", None) or corpus.classes
    told = advice(experiment, speed.precision, classes, corpus.shape, ranks.world_size())
    return told or what_needs_less(experiment.trainer)


def reason_of(error: BaseException) -> str:
    """The kind and the first line of an error."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"


def _surroundings(experiment: Experiment, corpus: Corpus, speed: Speed) -> dict[str, Any]:
    """With what a run is made: data, hardware, versions, arithmetic."""
    return {
        **provenance.environment(),
        **{f"version.{package}": version for package, version in plugins.installed().items()},
        **({"ablate.plugins": plugin_tag(experiment)} if experiment.plugins else {}),
        **({"version.peft": library("peft", "hf").__version__} if experiment.lora else {}),
        "ablate.corpus": corpus.fingerprint,
        "ablate.corpus_description": corpus.description,
        "ablate.epochs": _epochs(experiment, corpus),
        "ablate.precision": speed.precision,
        "ablate.compile": str(speed.compile).lower(),
        "ablate.speed": speed.why,
        "ablate.threads": torch.get_num_threads(),
        "ablate.ranks": ranks.world_size(),
    }


def _epochs(experiment: Experiment, corpus: Corpus) -> str:
    """How often the run goes through its training data; nobody knows how long a stream is."""
    if not isinstance(corpus.train, Sized):
        return "streamed"
    trainer = experiment.trainer
    return f"{trainer.max_steps * trainer.batch_size / len(corpus.train):.3g}"


def _open_run(experiment: Experiment, place: Place, surroundings: Mapping[str, Any]) -> tracking.Tracker:
    texts = {**plugins.copies(experiment.plugins), "config.yaml": experiment.to_yaml()}
    if place.run_id:
        tracker = tracking.Tracker.resume(place.run_id)
        if tracker.has("config.yaml"):  # the last thing written below
            return tracker
    else:
        tags = {**surroundings, **place.tags, "ablate.status": "running", "ablate.seed": experiment.seed}
        tracker = tracking.Tracker.start(place.experiment, place.name or run_name(experiment), tags, place.parent)
    tracker.params(experiment.flat())
    for name, text in texts.items():
        tracker.text(text, name)
    return tracker


def _pinned(experiment: Experiment, corpus: Corpus) -> Experiment:
    return warm_start.pinned(experiment, corpus.classes, corpus.shape)


def _run(experiment: Experiment, corpus: Corpus, speed: Speed, tracker: tracking.Tracker, hooks: Hooks) -> Ended:
    """Trains by Lightning."""
    from ablate.training.checkpoints import CHECKPOINT, Earlier, newest

    folder = run_folder(tracker.run_id)
    checkpoint, before = newest(folder) or (None, Earlier())
    before.check(experiment)
    threads = torch.get_num_threads()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    costs = formulas.facts(_blank(experiment, corpus), experiment)
    with groups.together(_train_along, experiment.to_tree(), speed, folder, checkpoint, threads):
        with groups.ready():
            prepared = _prepare(experiment, corpus, speed, folder, tracker, hooks, checkpoint is None)
        parameters = sum(p.numel() for p in prepared.task.model.parameters())
        if hooks.started:
            epochs = _epochs(experiment, corpus)
            still = costs.get("ablate.parameters.frozen", 0)
            frozen = f", {still:,} of them frozen" if still else ""
            text = f"{parameters:,} parameters{frozen}; {corpus.description}; {epochs} epochs; {speed.why}"
            hooks.started(tracker.run_id, text, before)
        status, reason = _fit(prepared, checkpoint)
    if prepared.diagnostics and status != "interrupted":
        prepared.diagnostics.publish(folder, tracker)
    own = prepared.trainer.global_step * costs["ablate.flops_per_update"]
    facts = {
        "ablate.parameters": parameters,
        "ablate.checkpoint": str(folder / CHECKPOINT),
        **costs,
        "ablate.flops": own + costs["ablate.flops_before"],  # of all stages
    }
    if torch.cuda.is_available():  # of this process, since the run began
        facts["ablate.peak_memory_bytes"] = torch.cuda.max_memory_allocated()
    return Ended(status, reason, prepared.trainer.global_step, prepared.validations.metrics, facts)


LIGHTNING = Procedure(_pinned, choose_speed, _run)


def _blank(experiment: Experiment, corpus: Corpus) -> Model:
    """The model without weights, with what is frozen and adapted."""
    with torch.device("meta"):
        model = experiment.model.build(experiment.norm, experiment.init, corpus.classes, corpus.shape)
    warm_start.restrict(model, experiment)
    return model


@dataclass(frozen=True)
class _Prepared:
    """What one rank trains with."""

    trainer: Trainer
    task: Task
    loaders: Loaders
    validations: Validations
    checkpoint: Checkpoint
    diagnostics: LayerDiagnostics | None = None


def _prepare(
    experiment: Experiment,
    corpus: Corpus,
    speed: Speed,
    folder: Path,
    tracker: tracking.Tracker | None,
    hooks: Hooks,
    begins: bool,
) -> _Prepared:
    """`begins`: not from a checkpoint."""
    from ablate.parallel import strategies
    from ablate.tasks import tasks
    from ablate.training.callbacks import Curves, Interrupt, Validations
    from ablate.training.checkpoints import Checkpoint
    from ablate.training.loaders import Loaders

    random.seed(experiment.seed)
    np.random.seed(experiment.seed)
    torch.manual_seed(experiment.seed)
    if corpus.classes > (limit := getattr(experiment.model, "vocab_size", None) or corpus.classes):
        raise DataError(
            f"The tokenizer has {corpus.classes} tokens and model.vocab_size is {limit}. Leave it out or raise it."
        )
    if speed.compile:
        torch.compiler.reset()  # one process may train many: each is compiled anew, as in a process of its own
    model, recipes = strategies.built(experiment, corpus)
    copied = warm_start.begin(model, experiment, recipes, copies=begins)
    if experiment.trainer.activation_checkpointing:
        strategies.checkpoint_activations(model)
    strategy = strategies.strategy(experiment, speed, recipes)
    task = tasks[experiment.data.task](experiment, corpus, recipes is None and speed.compile, model)
    task.copied = copied
    curves = Curves(tracker, hooks.progress)
    validations = Validations(curves, hooks.decide)
    checkpoint = Checkpoint(folder, tracker)
    callbacks: list[Callback] = [curves, validations, checkpoint]
    if experiment.trainer.ema_decay is not None:
        from ablate.training.averaging import WeightAverage

        callbacks.insert(0, WeightAverage(task, corpus, experiment.trainer.ema_decay))
    diagnostics = None
    if experiment.trainer.diagnose.names and experiment.model.layers:
        from ablate.diagnostics.callback import LayerDiagnostics

        callbacks.insert(callbacks.index(validations), diagnostics := LayerDiagnostics(task, corpus, curves))
    if experiment.evaluation.tasks:
        from ablate.evaluation.callback import Downstream

        callbacks.append(Downstream(experiment, curves))
    if hooks.asked_to_stop or ranks.world_size() > 1:
        callbacks.append(Interrupt(hooks.asked_to_stop or (lambda: False), checkpoint.save))
    trainer = build_trainer(experiment.trainer, speed.precision, callbacks, folder, strategy)
    return _Prepared(trainer, task, Loaders(experiment, corpus), validations, checkpoint, diagnostics)


def _fit(prepared: _Prepared, checkpoint: Path | None) -> tuple[str, str]:
    """(status, reason) of training, from a checkpoint where one is given."""
    from ablate.parallel import strategies
    from ablate.training.callbacks import Stop
    from ablate.training.loaders import plain

    trainer, task, loaders = prepared.trainer, prepared.task, prepared.loaders
    loaded = checkpoint and strategies.loadable(checkpoint, task.experiment, task)
    try:
        trainer.fit(task, loaders, ckpt_path=None if loaded is None else str(loaded), weights_only=True)
        if prepared.validations.step < task.experiment.trainer.max_steps:
            trainer.validate(task, loaders, verbose=False)
        prepared.checkpoint.finish(trainer)
    except Stop as stop:
        prepared.checkpoint.finish(trainer)
        return stop.status, stop.reason
    except DataError as error:
        raise plain(error) from error
    except SystemExit:  # what Lightning makes of Ctrl-C
        raise KeyboardInterrupt from None
    except (MemoryError, RuntimeError) as error:  # torch's own is a RuntimeError, on the CPU of no further kind
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and "can't allocate memory" not in str(error):
            raise
        raise OutOfMemory(f"Out of memory: {reason_of(error)}") from error
    return "completed", ""


def _train_along(tree: Tree, speed: Speed, folder: Path, checkpoint: Path | None, threads: int) -> None:
    """What the ranks above 0 do while rank 0 trains: the same on their parts of each batch, and nothing else."""
    torch.set_num_threads(threads)
    with groups.ready():
        experiment = Experiment.from_mapping(tree)
        corpus = experiment.data.load(tracking.cache_folder())
        prepared = _prepare(experiment, corpus, speed, folder, None, Hooks(), checkpoint is None)
    _fit(prepared, checkpoint)
