"""Strategies with which the ranks of a group share a run: whole models on parts of each batch (ddp), or the model
itself as well (fsdp).

Models know nothing of it but `Model.blocks`, their layers. With fsdp each of these is a unit that is gathered while it
computes; the model is built on the meta device and given its weights unit by unit, so that no rank ever holds it whole.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.func import functional_call
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ablate.config.errors import ConfigError, Problem
from ablate.distributed import ranks
from ablate.distributed.matrices import Fused, regroup, ungroup
from ablate.models import Model
from ablate.models.base import strip_wrapper, unwrap
from ablate.norms.residuals import lift_factors
from ablate.optim.muon import list_fused
from ablate.parallel import sharded
from ablate.parallel.compiling import allow_programs
from ablate.parallel.deferred import Recipes, defer_weights, materialize
from ablate.parallel.sharing import sharing_of
from ablate.parallel.tensor import change_fused_rows, share_matrices
from ablate.tasks import Task

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from ablate.data import Corpus
    from ablate.experiment.tree import Experiment


class _Loss(nn.Module):
    """The loss of a model as a module, which can be called with other weights."""

    def __init__(self, model: Model, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, inputs: Any, targets: Any) -> Tensor:
        return self.task.compute_loss(self.model, inputs, targets)


def leaves_unused(model: Model, task: Task, classes: int, shape: tuple[int, ...]) -> bool:
    """Return whether some trained parameter of `model` gets no gradient in a step; also true if a step cannot be
    computed without values, as for a placement that depends on them. The model itself is not changed."""
    training, loss = model.training, _Loss(model, task)
    weights = {
        name: torch.empty_like(value, device="meta", requires_grad=value.requires_grad)
        for name, value in chain(loss.named_parameters(), loss.named_buffers())
    }
    try:
        model.train()
        with torch.device("meta"):
            batch = task.build_batch(2, shape, classes)
            functional_call(loss, weights, batch).backward()
    except Exception:  # of a plugin, or of an operation that the meta device does not have
        return True
    finally:
        model.train(training)
    return any(value.grad is None for value in weights.values() if value.requires_grad)


CONVERTED = "converted.tmp"  # a checkpoint of one kind made of one of the other


def build_model(experiment: Experiment, corpus: Corpus) -> tuple[Model, Recipes | None]:
    """Return the model with its weights; for fsdp on the meta device, with the recipes of its weights."""
    build = functools.partial(experiment.build_model, corpus.classes, corpus.shape)
    return defer_weights(build) if sharing_of(experiment.trainer) == "fsdp" else (build(), None)


def checkpoint_activations(model: Model) -> None:
    """Let each block store only its input, and recompute the rest in the backward pass."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

    blocks = set(model.blocks())
    apply_activation_checkpointing(model, check_fn=lambda module: module in blocks)


class Ddp(DDPStrategy):
    """Each rank has the whole model, and trains on its part of each batch. Gradients are summed in float32, whatever
    the type of the parameters."""

    def __init__(self, precision: str, find_unused: bool) -> None:
        self.narrow = precision == "bf16-true"
        super().__init__(find_unused_parameters=find_unused, gradient_as_bucket_view=True)

    def configure_ddp(self) -> None:
        super().configure_ddp()
        if self.narrow:
            assert isinstance(self.model, DistributedDataParallel)
            # as a lambda: torch takes annotations that are text, as they are here, for wrong ones
            self.model.register_comm_hook(None, lambda state, bucket: average_in_float32(state, bucket))

    def save_checkpoint(self, *args: Any, **more: Any) -> None:  # a full disk stops all ranks, and none waits
        ranks.run_on_first(lambda: super(Ddp, self).save_checkpoint(*args, **more))


def must_find_unused(model: Model, experiment: Experiment, corpus: Corpus) -> bool:
    """Return whether DDP has to look in each update for parameters of `model` without a gradient.

    Where it looks, it keeps its first layout of the gradients in buckets. Otherwise it changes that after the first
    update, and a run that goes on adds up more than two ranks in another order: on the CPU, where that would show, it
    always looks.
    """
    return not torch.cuda.is_available() or leaves_unused(model, experiment.task, corpus.classes, corpus.shape)


def average_in_float32(state: None, bucket: GradBucket) -> Future[Tensor]:
    """For DDP: the mean of the ranks' gradients, which bfloat16 would round after each addition."""
    narrow = bucket.buffer()
    work = torch.distributed.all_reduce(narrow.float().div_(ranks.world_size()), async_op=True)
    done: Future[Any] = work.get_future()
    return done.then(lambda future: narrow.copy_(future.value()[0]))


def precision_policies(precision: str) -> tuple[MixedPrecisionPolicy, MixedPrecisionPolicy]:
    """Return the types in which FSDP2 gathers the weights of a layer, and those of embedding, final norm and head.

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
    the batch. With `trainer.fsdp.shard` so many ranks share a copy, and there are several copies (hybrid sharding).

    Gradients are summed in float32, whatever the parameters are in.
    """

    def __init__(self, experiment: Experiment, precision: str, compiled: bool, recipes: Recipes) -> None:
        self.precision = precision
        self.trainer_config, self.model_config = experiment.trainer, experiment.model
        self.optimizer_config, self.groups = experiment.optimizer, list[list[str]]()
        self.recipes, self.compiled = recipes, compiled
        self.dtype = torch.bfloat16 if precision == "bf16-true" else None
        self.writer: sharded.Writer | None = None
        self._sharded = False
        own = experiment.trainer.tensor_parallel
        data = ranks.world_size() // own
        self.shards = experiment.trainer.fsdp.shard or data
        self.copies = data // self.shards
        super().__init__(data_parallel_size=data, tensor_parallel_size=own)

    def shard(self, model: Model) -> None:
        """Load the model's weights, one unit after another; this rank keeps its shard of each."""
        if self._sharded:  # to validate once more
            return
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

        assert self.lightning_module is not None
        self.groups = sharded.name_parameters(self.lightning_module, self.optimizer_config.build_groups(model))
        model.fused_matrices = self._name_fused(model)
        parameters: dict[int, nn.Parameter] = {}
        data, parts = self.device_mesh["data_parallel"], self.device_mesh["tensor_parallel"]
        if self.copies > 1:
            sizes = (self.copies, self.shards, parts.size())
            mesh = init_device_mesh(self.root_device.type, sizes, mesh_dim_names=("copies", "shards", "parts"))
            data, parts = mesh["copies", "shards"], mesh["parts"]
        offload = self.trainer_config.cpu_offload and self.root_device.type != "cpu"
        settings: dict[str, Any] = {
            "mesh": data,
            "offload_policy": CPUOffloadPolicy() if offload else OffloadPolicy(),
        }
        of_block, of_rest = precision_policies(self.precision)
        blocks = list(model.blocks())
        if self.compiled:  # a block at a time: what gathers its weights stands between two of them
            allow_programs(4 * len(blocks))  # one for training, three for validation: whole batches, smaller, one item
        for block in blocks:
            materialize(block, self.recipes, parameters, self.dtype)
            if self.trainer_config.tensor_parallel > 1:
                share_matrices(unwrap(block), self.model_config, parts)
            if self.compiled:
                lift_factors(block)  # so that layers that differ in these alone share a program
                block.forward = torch.compile(block.forward)
            fully_shard(block, mp_policy=of_block, **settings)
        materialize(model, self.recipes, parameters, self.dtype)
        for head in model.heads() if self.compiled else ():
            head.forward = torch.compile(head.forward)
        fully_shard(model, mp_policy=of_rest, **settings)
        self._sharded = True

    def _name_fused(self, model: Model) -> dict[str, Fused]:
        """Return the parameters of the whole model in which matrices are fused by name, with these."""
        fused, parts = list_fused(model), self.trainer_config.tensor_parallel
        return {
            strip_wrapper(name): replace(fused[parameter], parts=parts)
            for name, parameter in model.named_parameters()
            if parameter in fused
        }

    def model_to_device(self) -> None:
        assert self.lightning_module is not None
        if not self.trainer_config.cpu_offload:
            super().model_to_device()
            return
        for module in self.lightning_module.children():
            if next(module.parameters(), None) is None:  # metrics, whose states are no buffers
                module.to(self.root_device)
        for module in self.lightning_module.modules():  # the parameters stay where they are
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.to(self.root_device)

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Use this context for all but the last of several accumulated batches: gradients are summed over copies of the
        model once per update, and if they are so over shards too, each device keeps its own within."""
        assert self.lightning_module is not None
        model: Any = self.lightning_module.model
        once = self.trainer_config.gradient_sync == "update"
        model.set_requires_gradient_sync(not once)
        model.set_requires_all_reduce(self.copies == 1)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)
            model.set_requires_all_reduce(True)

    def on_validation_start(self) -> None:
        """The running averages of a norm are those of rank 0, as with ddp."""
        assert self.lightning_module is not None
        ranks.unify(self.lightning_module)
        super().on_validation_start()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return this rank's shards on their device: the writer copies them to the host once."""
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        assert self.model is not None
        return get_model_state_dict(self.model)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return this rank's shards of the optimizer's state."""
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

        assert self.model is not None
        return get_optimizer_state_dict(self.model, getattr(optimizer, "_optimizer", optimizer))

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Start writing the folder `filepath`; `finish` completes it."""
        state = {"state_dict": checkpoint.pop("state_dict"), "optimizer_0": checkpoint.pop("optimizer_states")[0]}
        checkpoint["tensor_parallel"] = self.trainer_config.tensor_parallel
        self.writer = self.writer or sharded.Writer()
        self.writer.begin(state, checkpoint, Path(filepath))

    def finish(self) -> None:
        """Wait until the folder that `save_checkpoint` started is on the disk, with the checksums of its files. Raises
        OSError if it could not be written."""
        if self.writer:
            self.writer.finish()

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        path, own = Path(checkpoint_path), self.trainer_config.tensor_parallel
        assert self.lightning_module is not None
        if path.is_dir():
            if (before := sharded.read(path)["tensor_parallel"]) != own:
                text = f"the checkpoint was written with {before}: resume with that, or with trainer.strategy=ddp"
                raise ConfigError([Problem("trainer.tensor_parallel", text, own)])
            return super().load_checkpoint(path, weights_only)
        content: dict[str, Any] = torch.load(path, map_location="cpu", mmap=True, weights_only=weights_only)
        change = change_fused_rows(self.model_config, own, regroup)
        sharded.load_whole(content, self.groups, self.lightning_module, self.optimizers[0], change)
        return content


# ---------------------------------------------------------------------------------------------------- what is used


def build_strategy(
    experiment: Experiment, corpus: Corpus, precision: str, compiled: bool, recipes: Recipes | None, model: Model
) -> Strategy | None:
    """Return Lightning's strategy with which these ranks train `model`; None: Lightning's default for one process."""
    if recipes is not None:
        return Fsdp(experiment, precision, compiled, recipes)
    if sharing_of(experiment.trainer) == "ddp":
        return Ddp(precision, must_find_unused(model, experiment, corpus))
    return None


def make_loadable(checkpoint: Path, experiment: Experiment, module: LightningModule, model: Model) -> Path:
    """Provide `checkpoint`, or a whole one made beside it if it is sharded and the model that goes on is not."""
    if not checkpoint.is_dir() or sharing_of(experiment.trainer) == "fsdp":
        return checkpoint

    def convert() -> Path:
        change = change_fused_rows(experiment.model, sharded.read(checkpoint)["tensor_parallel"], ungroup)
        groups = sharded.name_parameters(module, experiment.optimizer.build_groups(model))
        torch.save(sharded.consolidate(checkpoint, change, groups), file)
        return file

    file = checkpoint.with_name(CONVERTED)
    return ranks.run_on_first(convert, slow=True)
