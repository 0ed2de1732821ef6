"""How the ranks of a group share a run: whole models on parts of each batch (ddp), or the model itself as well (fsdp).

Models know nothing of it but `Model.blocks`, their layers. With fsdp each of these is a unit that is gathered while it
computes; the model is built on the meta device and given its weights unit by unit, so that no rank ever holds it whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from ablate.config.errors import ConfigError, Problem
from ablate.distributed import ranks
from ablate.models import Model, ModelConfig
from ablate.parallel import sharded
from ablate.parallel.deferred import Recipes, deferred, materialize

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from ablate.data import Corpus
    from ablate.experiment.trainer import TrainerConfig
    from ablate.experiment.tree import Experiment
    from ablate.tasks import Task
    from ablate.training.precision import Speed

CONVERTED = "converted.tmp"  # a checkpoint of one kind made of one of the other


def sharing(config: TrainerConfig) -> str:
    """How the ranks that there are train: as "one", by "ddp" or by "fsdp". A single one has nothing to share."""
    if ranks.world_size() == 1:
        return "one"
    return "ddp" if config.strategy == "auto" else config.strategy


def built(experiment: Experiment, corpus: Corpus) -> tuple[Model, Recipes | None]:
    """The model, with its weights; for fsdp on the meta device, with what its weights will be."""

    def build() -> Model:
        return experiment.model.build(experiment.norm, experiment.init, corpus.classes, corpus.shape)

    return deferred(build) if sharing(experiment.trainer) == "fsdp" else (build(), None)


def checkpoint_activations(model: Model) -> None:
    """From here on each block keeps its input alone, and computes the rest again in the backward pass."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

    blocks = set(model.blocks())
    apply_activation_checkpointing(model, check_fn=lambda module: module in blocks)


class Ddp(DDPStrategy):
    """Each rank has the whole model, and trains on its part of each batch. Gradients are summed in float32, whatever
    the parameters are in."""

    def __init__(self, experiment: Experiment, speed: Speed, recipes: Any = None) -> None:
        self.narrow = speed.precision == "bf16-true"
        # Where it looks for unused parameters, DDP keeps its first layout of the gradients in buckets. Otherwise it
        # changes that after the first update, and a run that goes on would add up more than two ranks in another order.
        super().__init__(find_unused_parameters=True)

    def configure_ddp(self) -> None:
        super().configure_ddp()
        if self.narrow:
            assert isinstance(self.model, DistributedDataParallel)
            # as a lambda: torch takes annotations that are text, as they are here, for wrong ones
            self.model.register_comm_hook(None, lambda state, bucket: mean_in_float32(state, bucket))

    def save_checkpoint(self, *args: Any, **more: Any) -> None:  # a full disk stops all ranks, and none waits
        ranks.first(lambda: super(Ddp, self).save_checkpoint(*args, **more))


def mean_in_float32(state: None, bucket: GradBucket) -> Future[Tensor]:
    """For DDP: the mean of the ranks' gradients, which bfloat16 would round after each addition."""
    narrow = bucket.buffer()
    work = torch.distributed.all_reduce(narrow.float().div_(ranks.world_size()), async_op=True)
    done: Future[Any] = work.get_future()
    return done.then(lambda future: narrow.copy_(future.value()[0]))


def policies(precision: str) -> tuple[MixedPrecisionPolicy, MixedPrecisionPolicy]:
    """In what FSDP2 gathers the weights of a layer, and those of embedding, final norm and head.

    Under autocast (bf16-mixed) the layers come in bfloat16: of float32 ones autocast would keep a bfloat16 copy of all
    layers until the backward pass, and there would be nothing left of sharding them. The hidden state stays in float32,
    as without sharding.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy

    rest = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    if precision != "bf16-mixed":
        return rest, rest
    return MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False), rest


class Fsdp(ModelParallelStrategy):
    """Each rank has a shard of every weight, gradient and moment (torch's `fully_shard`, FSDP2), and trains on its part
    of each batch. With tensor parallelism, `trainer.tensor_parallel` ranks share each matrix of a block and the part of
    the batch.

    Gradients are summed in float32, whatever the parameters are in.
    """

    def __init__(self, experiment: Experiment, speed: Speed, recipes: Recipes) -> None:
        self.precision = speed.precision
        self.trainer_config, self.model_config = experiment.trainer, experiment.model
        self.optimizer_config, self.groups = experiment.optimizer, list[list[str]]()
        self.recipes, self.compiled = recipes, speed.compile
        self.dtype = torch.bfloat16 if speed.precision == "bf16-true" else None
        self.writer: sharded.Writer | None = None
        self._sharded = False
        own = experiment.trainer.tensor_parallel
        super().__init__(data_parallel_size=ranks.world_size() // own, tensor_parallel_size=own)

    def shard(self, model: Model) -> None:
        """Gives the model its weights, one unit after another, of which this rank keeps its shard."""
        if self._sharded:  # to validate once more
            return
        from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

        assert self.lightning_module is not None
        self.groups = sharded.parameter_names(self.lightning_module, self.optimizer_config.groups(model))
        made: dict[int, nn.Parameter] = {}
        offload = self.trainer_config.cpu_offload and self.root_device.type != "cpu"
        settings: dict[str, Any] = {
            "mesh": self.device_mesh["data_parallel"],
            "offload_policy": CPUOffloadPolicy() if offload else OffloadPolicy(),
        }
        of_block, of_rest = policies(self.precision)
        blocks = list(model.blocks())
        if self.compiled:  # a block at a time: what gathers its weights stands between two of them
            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 2 * len(blocks))
        for block in blocks:
            materialize(block, self.recipes, made, self.dtype)
            if self.trainer_config.tensor_parallel > 1:
                inner = getattr(block, "_checkpoint_wrapped_module", block)
                _share_matrices(inner, self.model_config, self.device_mesh["tensor_parallel"])
            if self.compiled:
                block.forward = torch.compile(block.forward)
            fully_shard(block, mp_policy=of_block, **settings)
        materialize(model, self.recipes, made, self.dtype)
        for head in model.heads() if self.compiled else ():
            head.forward = torch.compile(head.forward)
        fully_shard(model, mp_policy=of_rest, **settings)
        self._sharded = True

    def model_to_device(self) -> None:
        assert self.lightning_module is not None
        if not self.trainer_config.cpu_offload:
            super().model_to_device()
            return
        for module in self.lightning_module.modules():  # the parameters stay where they are
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(self.root_device)

    def on_validation_start(self) -> None:
        """The running averages of a norm are those of rank 0, as with ddp."""
        assert self.lightning_module is not None
        ranks.unify(self.lightning_module)
        super().on_validation_start()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Begins to write the folder `filepath`; `finish` ends it."""
        state = {"state_dict": checkpoint.pop("state_dict"), "optimizer_0": checkpoint.pop("optimizer_states")[0]}
        checkpoint["tensor_parallel"] = self.trainer_config.tensor_parallel
        self.writer = self.writer or sharded.Writer()
        self.writer.begin(state, checkpoint, Path(filepath))

    def finish(self) -> None:
        """Returns when the folder that `save_checkpoint` has begun is on the disk, with the sums of its files. Raises
        OSError where it could not be written."""
        if self.writer:
            self.writer.finish()

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        path, own = Path(checkpoint_path), self.trainer_config.tensor_parallel
        assert self.lightning_module is not None
        if path.is_dir():
            if (before := sharded.read(path)["tensor_parallel"]) != own:
                text = f"the checkpoint was written with {before}: go on with that, or with trainer.strategy=ddp"
                raise ConfigError([Problem("trainer.tensor_parallel", text, own)])
            return super().load_checkpoint(path, weights_only)
        content: dict[str, Any] = torch.load(path, map_location="cpu", mmap=True, weights_only=weights_only)
        change = fused_rows(self.model_config, own, regrouped)
        sharded.load_whole(content, self.groups, self.lightning_module, self.optimizers[0], change)
        return content


# ---------------------------------------------------------------------------------------------------- tensor parallel


@dataclass(frozen=True)
class TensorPlan:
    """How one kind of model is shared by the ranks that have its matrices together."""

    styles: Callable[[], dict[str, Any]]
    """Module of a layer -> torch's style."""
    fused: Callable[[Any], dict[str, list[int]]]
    """Of a model's configuration: the end of a weight's name -> the rows of the matrices that are fused in it."""
    counts: tuple[str, ...]
    """Attributes of `attn` that count what a rank has its part of."""
    problems: Callable[[Any, int], list[tuple[str, str, Any]]]
    """Of a model's configuration and the ranks: (field, message, given)."""


def _llama_styles() -> dict[str, Any]:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    inner = {"qkv_proj": ColwiseParallel, "o_proj": RowwiseParallel}
    mlp = {"gate_up_proj": ColwiseParallel, "down_proj": RowwiseParallel}
    return {f"attn.{name}": style() for name, style in inner.items()} | {
        f"mlp.{name}": style() for name, style in mlp.items()
    }


def _llama_fused(config: Any) -> dict[str, list[int]]:
    width = config.hidden // config.heads
    kv = (config.kv_heads or config.heads) * width
    return {"qkv_proj.weight": [config.hidden, kv, kv], "gate_up_proj.weight": [config.mlp, config.mlp]}


def _llama_problems(config: Any, size: int) -> list[tuple[str, str, Any]]:
    given = {"heads": config.heads, "kv_heads": config.kv_heads or config.heads, "mlp": config.mlp}
    return [
        (f"model.{k}", f"must be a multiple of trainer.tensor_parallel ({size})", n)
        for k, n in given.items()
        if n % size
    ]


TENSOR_PLANS = {"llama": TensorPlan(_llama_styles, _llama_fused, ("heads", "kv_heads"), _llama_problems)}
"""By kind of model."""


def _share_matrices(block: Any, config: Any, mesh: Any) -> None:
    """Each rank of `mesh` gets some of the heads of a layer and some of its MLP's features, so that attention and MLP
    each need one sum over the ranks."""
    from torch.distributed.tensor.parallel import parallelize_module

    plan, size = TENSOR_PLANS[config.kind], mesh.size()
    with torch.no_grad():
        for name, weight in block.named_parameters():
            for end, sizes in plan.fused(config).items():
                if name.endswith(end):
                    weight.copy_(regrouped(weight, sizes, size))
    for name in plan.counts:
        setattr(block.attn, name, getattr(block.attn, name) // size)
    parallelize_module(block, mesh, plan.styles())


def regrouped(weight: Tensor, sizes: list[int], parts: int) -> Tensor:
    """Rows of fused matrices of so many rows, in an order in which the rows of each of `parts` ranks stand together."""
    split = [matrix.chunk(parts) for matrix in weight.split(sizes)]
    return torch.cat([matrix[part] for part in range(parts) for matrix in split])


def ungrouped(weight: Tensor, sizes: list[int], parts: int) -> Tensor:
    """The reverse of `regrouped`."""
    split = weight.split([size // parts for _ in range(parts) for size in sizes])
    return torch.cat([split[part * len(sizes) + matrix] for matrix in range(len(sizes)) for part in range(parts)])


def fused_rows(config: ModelConfig, parts: int, how: Callable[[Tensor, list[int], int], Tensor]) -> sharded.Change:
    """What does `how` to the weights that are fused."""
    fused = TENSOR_PLANS[config.kind].fused(config) if parts > 1 else {}

    def change(name: str, weight: Tensor) -> Tensor:
        sizes = next((sizes for end, sizes in fused.items() if name.endswith(end)), None)
        return weight if sizes is None else how(weight, sizes, parts)

    return change


# ---------------------------------------------------------------------------------------------------- what is used


_STRATEGIES: dict[str, Callable[[Experiment, Speed, Any], Strategy | None]] = {
    "one": lambda experiment, speed, recipes: None,
    "ddp": Ddp,
    "fsdp": Fsdp,
}


def strategy(experiment: Experiment, speed: Speed, recipes: Recipes | None) -> Strategy | None:
    """Lightning's strategy for these ranks; None: what Lightning takes for one process."""
    return _STRATEGIES[sharing(experiment.trainer)](experiment, speed, recipes)


def loadable(checkpoint: Path, experiment: Experiment, task: Task) -> Path:
    """`checkpoint`, or what is made of it beside it where it is sharded and the model that goes on is not."""
    if not checkpoint.is_dir() or sharing(experiment.trainer) == "fsdp":
        return checkpoint

    def convert() -> Path:
        change = fused_rows(experiment.model, sharded.read(checkpoint)["tensor_parallel"], ungrouped)
        groups = sharded.parameter_names(task, experiment.optimizer.groups(task.model))
        torch.save(sharded.consolidated(checkpoint, change, groups), file)
        return file

    file = checkpoint.with_name(CONVERTED)
    return ranks.first(convert)


def problems(experiment: Experiment) -> list[Problem]:
    """What is wrong with how `experiment` is to be shared by these ranks."""
    size = experiment.trainer.tensor_parallel
    found = []
    if size > 1 and (plan := TENSOR_PLANS.get(experiment.model.kind)) is None:
        text = f"there is no plan for model {experiment.model.kind}. Accepted: {', '.join(TENSOR_PLANS)}"
        found.append(Problem("trainer.tensor_parallel", text, size))
    elif size > 1:
        assert plan is not None
        found += [Problem(*item) for item in plan.problems(experiment.model, size)]
        placed = {experiment.norm.at(i, experiment.model.layers) for i in range(experiment.model.layers)}
        if any(one.inner_norm or one.qkv_norm for one in placed):
            text = "the placement norms what the ranks have parts of: leave it out"
            found.append(Problem("trainer.tensor_parallel", text, size))
    return found
