"""The choice of how ranks share a run (one, ddp, fsdp), and the check that an experiment fits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.config.errors import Problem
from ablate.distributed import ranks
from ablate.models import ModelConfig, models
from ablate.models.attention_config import WithAttention

if TYPE_CHECKING:
    from ablate.experiment.trainer import TrainerConfig
    from ablate.experiment.tree import Experiment


def sharing_of(config: TrainerConfig) -> str:
    """Return how the ranks train: "one" for a single rank, otherwise "ddp" or "fsdp"."""
    if ranks.world_size() == 1:
        return "one"
    return "ddp" if config.strategy == "auto" else config.strategy


def validate_sharing(experiment: Experiment) -> list[Problem]:
    """Return the problems of distributing `experiment` over these ranks."""
    size = experiment.trainer.tensor_parallel
    problems = []
    if size > 1 and (plan := experiment.model.tensor_plan()) is None:
        accepted = ", ".join(kind for kind in models if models[kind].tensor_plan is not ModelConfig.tensor_plan)
        text = f"model {experiment.model.title} does not support tensor parallelism. Accepted: {accepted}"
        problems.append(Problem("trainer.tensor_parallel", text, size))
    elif size > 1:
        assert plan is not None
        text = f"must be a multiple of trainer.tensor_parallel ({size})"
        divided = plan.divided.items()
        problems += [Problem(f"model.{field}", text, value) for field, value in divided if value % size]
        placed = {experiment.norm.at(i, experiment.model.layers) for i in range(experiment.model.layers)}
        if experiment.norm.has_qk_norm or any(one.inner_norm or one.qkv_norm or one.on_sphere for one in placed):
            text = "the placement or norm.qk normalises tensors that are split over the ranks: remove one of the two"
            problems.append(Problem("trainer.tensor_parallel", text, size))
        if isinstance(experiment.model, WithAttention) and (options := experiment.model.attention.find_set()):
            text = f"does not split model.attention ({', '.join(options)}) over the ranks: remove one of the two"
            problems.append(Problem("trainer.tensor_parallel", text, size))
    return problems
