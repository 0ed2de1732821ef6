"""Runs of Ablate's own trainer: what a sweep of them reads and checks before the first, and how a worker trains one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from ablate import tracking
from ablate.config.errors import ConfigError, Problem
from ablate.estimate.inputs import build_skeleton
from ablate.experiment.extensions import load_extensions
from ablate.experiment.metrics import is_score, list_parts
from ablate.experiment.trainable import Trainable
from ablate.experiment.tree import Experiment, require_own
from ablate.scheduler.devices import cap_memory, read_sharing
from ablate.scheduler.donors import pin_donors
from ablate.scheduler.queue import Queue
from ablate.scheduler.runners import Runner, fingerprint_settings
from ablate.sweeps.spec.metrics_validation import describe_unknown
from ablate.sweeps.spec.references import find_own_donor, parse_reference
from ablate.sweeps.spec.speed_validation import check_reachable
from ablate.sweeps.spec.sweep import Sweep
from ablate.tracking import remote_files
from ablate.training.named import check_named
from ablate.training.procedures import Hooks, Place, Result
from ablate.training.rungs import build_rung
from ablate.training.runs import fingerprint_inputs
from ablate.training.train import check_corpus, choose_procedure, train
from ablate.training.trainer import check_ranks

if TYPE_CHECKING:
    from ablate.data import Corpus, DataConfig
    from ablate.models import ModelConfig
    from ablate.tasks import Task

logger = logging.getLogger(__name__)


def _list_data(spec: Sweep, arm: str) -> list[DataConfig]:
    """Return the data of `arm`, and those that it searches."""
    searched = [{path: value} for path, values in spec.corners(arm).items() for value in values]
    return [
        spec.own_base(arm).data,
        *(require_own(spec.at(arm, point)).data for point in searched if next(iter(point)).startswith("data.")),
    ]


def check_objective(metric: str, experiment: Experiment) -> list[Problem]:
    """Return the problem if runs of `experiment` do not report `metric`, or a part of it. Raises AblateError if
    downstream tasks cannot be loaded, which is tried only if the metric may be a score of one."""
    known = experiment.metrics
    if not {*list_parts(metric)} <= {*known}:
        known += count_score_items(experiment)
    missing = [part for part in list_parts(metric) if part not in known]
    if not missing:
        return []
    text = describe_unknown(metric, missing, [*known])
    if any(map(is_score, missing)):
        tasks = ", ".join(experiment.evaluation.tasks) or "none"
        text += f" Scores eval/TASK/NAME are those of evaluation.tasks: {tasks}."
    return [Problem("objective.metric", text, metric)]


def count_score_items(experiment: Experiment) -> dict[str, int]:
    """Return score on a downstream task -> its questions, of the tasks that runs of `experiment` are scored on in
    training. Raises AblateError if one of them cannot be loaded."""
    items: dict[str, int] = {}
    for extension in load_extensions(experiment):
        items |= extension.count_items(experiment)
    return items


def _starts_from_sweep(experiment: Experiment) -> bool:
    """Return whether the source run or reward model of `experiment` is looked up in the storage."""
    return any(parse_reference(name) for name in experiment.list_references().values())


class OwnRunner(Runner):
    """Training by Ablate's own trainer."""

    spoils = True

    def prepare(self, spec: Sweep) -> dict[DataConfig, Corpus]:
        """Return the data of all arms. Checks them, the name of the objective, and what is named for the trainer."""
        corpora: dict[DataConfig, Corpus] = {}
        trivial: dict[str, float | None] = {}
        for arm in spec.all_arms:
            base = spec.own_base(arm)
            if problems := check_objective(spec.objective.metric, base):
                raise ConfigError(problems, f"sweep {spec.name}")
            searched = [(path, value) for path, values in spec.corners(arm).items() for value in values]
            points = [{path: value} for path, value in searched if path.startswith("trainer.")]
            for trained in [base, *(require_own(spec.at(arm, point)) for point in points)]:
                check_ranks(trained.trainer, f"sweep {spec.name}")
                if problems := check_named(trained):
                    raise ConfigError(problems, f"sweep {spec.name}")
                if trained.trainer.copy_to:
                    remote_files.check_url(trained.trainer.copy_to)
            for data in _list_data(spec, arm):
                if data not in corpora:
                    corpora[data] = data.load(tracking.cache_folder())
            check_corpus(base, corpora[base.data])
            build_skeleton(base, corpora[base.data].classes, corpora[base.data].shape)
            if spec.target is not None:
                validated = corpora[base.data].limit_validation(base.validation.samples)
                trivial[arm] = base.task.measure_trivial_loss(validated, base.model)
        if problems := list(check_reachable(spec, trivial)):
            raise ConfigError(problems, f"sweep {spec.name}")
        return corpora

    def fingerprint(self, spec: Sweep, prepared: Mapping[DataConfig, Corpus]) -> dict[str, str]:
        """Raises AblateError if weights from which arms start are missing or do not fit; those of sweeps are looked up
        later."""
        inputs = fingerprint_settings(spec)
        for arm in spec.all_arms:
            base = spec.own_base(arm)
            if not _starts_from_sweep(base):
                base = choose_procedure(base).pin(base, prepared[base.data])
            for data in _list_data(spec, arm):
                inputs |= fingerprint_inputs(base.model_copy(update={"data": data}), prepared[data])
        return inputs

    def describe_arms(
        self, spec: Sweep, prepared: Mapping[DataConfig, Corpus], before: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """Return sizes of validation, and losses of models that have learned nothing, which are not counted again where
        they are known from `before`."""
        first = spec.own_base(next(iter(spec.all_arms)))
        if first.procedure == "training":
            logger.info(f"validation: {first.validation.describe(prepared[first.data].count_validation_items())}")
        trivial_losses: dict[tuple[DataConfig, Task, ModelConfig, int | None], float | None] = {}
        known: dict[str, dict[str, Any]] = {}
        for arm in spec.all_arms:
            base = spec.own_base(arm)
            corpus = prepared[base.data].limit_validation(base.validation.samples)
            alike = base.data, base.task, base.model, base.validation.samples
            is_known = "trivial_loss" in before[arm]
            if not is_known and alike not in trivial_losses:
                trivial_losses[alike] = base.task.measure_trivial_loss(corpus, base.model)
            known[arm] = {
                "validation_items": choose_procedure(base).count_validation_items(base, corpus),
                "initial_loss": base.task.initial_loss(corpus.classes),
                **({} if is_known or (loss := trivial_losses[alike]) is None else {"trivial_loss": loss}),
            }
            if scores := [part for part in list_parts(spec.objective.metric) if is_score(part)]:
                counts = count_score_items(base)
                known[arm]["score_items"] = {score: counts[score] for score in scores}
        return known

    def check_donors(self, queue: Queue, prepared: Mapping[DataConfig, Corpus]) -> None:
        """Raises SweepError if a source run is missing, ConfigError if one does not fit."""
        for arm in queue.spec.all_arms:
            base = queue.spec.own_base(arm)
            if find_own_donor(queue.spec, arm) is None and _starts_from_sweep(base):
                base = require_own(pin_donors(base, queue.storage, f"{queue.prefix}{arm}"))
                choose_procedure(base).pin(base, prepared[base.data])

    def settle(self, threads: int) -> None:
        import ablate.training.fit  # noqa: F401 - seconds, before a trial is taken

        torch.set_num_threads(threads)

    def train(self, experiment: Trainable, place: Place, hooks: Hooks, updates: int | None) -> Result:
        own = require_own(experiment)
        cap_memory(read_sharing())
        return train(own, place, hooks, build_rung(choose_procedure(own), updates) if updates else None)


RUNNER = OwnRunner(Experiment)
