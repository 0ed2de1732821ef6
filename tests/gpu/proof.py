"""A process that trains on one CUDA device that is not there, by the project's own code, and writes what it has seen
into the file that it is given."""

import contextlib
import json
import sys
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from gpu import fake_cuda  # before torch

# isort: split

import ablate  # noqa: F401 - before torchvision, which it repairs

# isort: split

import torch
from gpu.cases import SHARED, STEPS, UPDATES
from gpu.fake_cuda import CUDA, one_device
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from norms.cases import settings_of
from shared_models import CLASSES, SHAPES, share
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.testing._internal.distributed.fake_pg import FakeStore

from ablate.distributed import ranks
from ablate.experiment.tree import Experiment
from ablate.models import models
from ablate.norms.residuals import lift_factors
from ablate.parallel import deferred, strategies
from ablate.training import fit
from ablate.training.module import TrainingModule
from ablate.training.precision import Speed
from ablate.training.procedures import Hooks

RANKS = 64


class FakeAccelerator(Accelerator):
    """Lightning's word for the device."""

    def setup_device(self, device): ...

    def teardown(self): ...

    def get_device_stats(self, device):
        return {}

    parse_devices = staticmethod(lambda devices: devices)
    get_parallel_devices = staticmethod(lambda devices: [CUDA])
    auto_device_count = staticmethod(lambda: 1)
    is_available = staticmethod(lambda: True)
    name = staticmethod(lambda: "cuda")


class OneDevice(SingleDeviceStrategy):
    """The strategy of one GPU; the model stays there when training has ended."""

    def teardown(self): ...


class Watch(Callback):
    """Tells the recorder what is going on, and finds what is left on the CPU."""

    def __init__(self, recorder):
        self.recorder, self.elsewhere, self.states = recorder, {}, []

    def on_train_start(self, trainer, task):
        self.elsewhere["parameters"] = left_behind([*task.named_parameters(), *task.named_buffers()])

    def on_train_batch_start(self, trainer, task, batch, batch_idx):
        self.recorder.phase = f"batch {batch_idx + 1}"

    def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx):
        self.recorder.phase = "between"

    def on_validation_batch_start(self, trainer, task, batch, batch_idx, dataloader_idx=0):
        self.recorder.phase = "validation"

    def on_validation_batch_end(self, trainer, task, outputs, batch, batch_idx, dataloader_idx=0):
        self.recorder.phase = "between"
        own = [(f"{name}.{key}", value) for name, part in task.named_modules() for key, value in vars(part).items()]
        self.elsewhere["validation"] = left_behind(own)

    def on_train_end(self, trainer, task):
        states = [state.items() for state in trainer.optimizers[0].state.values()]
        self.elsewhere["optimizer"] = left_behind([pair for state in states for pair in state])


def left_behind(tensors):
    """The names of those that are not on the device."""
    return sorted({name for name, value in tensors if isinstance(value, torch.Tensor) and value.device != CUDA})


class Repeated:
    """Batches of a task, of these sizes."""

    def __init__(self, task, sizes):
        self.task, self.sizes = task, sizes

    def __len__(self):
        return len(self.sizes)

    def __iter__(self):
        return (build_batch(self.task, size) for size in self.sizes)


def build_batch(task, size, device="cpu"):
    shape = (size, *SHAPES[task])
    if task == "language_modeling":
        return torch.zeros(shape, dtype=torch.int64, device=device), torch.zeros(
            shape, dtype=torch.int64, device=device
        )
    return torch.zeros(shape, device=device), torch.zeros(size, dtype=torch.int64, device=device)


class Batches(LightningDataModule):
    """Enough of them, and a validation whose last is smaller."""

    def __init__(self, task):
        super().__init__()
        self.task = task

    def train_dataloader(self):
        return Repeated(self.task, [4] * 2 * UPDATES)

    def val_dataloader(self):
        return [Repeated(self.task, [4, 3])]


class FakeCorpus(SimpleNamespace):
    """A corpus without data."""

    def limit_validation(self, count):
        return self


def build_corpus(task, padded=False):
    return FakeCorpus(classes=CLASSES, shape=SHAPES[task], val_sets={}, bytes_per_token=2.0, padded=padded)


def train(tree, precision, settings=None, padded=False):
    """What is seen of a few updates by Lightning, with the project's callbacks."""
    experiment = Experiment.from_mapping(tree, settings or {})
    speed = Speed(precision, compile=False, why="")
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(strategies, "build_strategy", build_strategy):
        corpus = build_corpus(experiment.model.task, padded)
        prepared = fit._prepare(experiment, corpus, speed, Path(folder), None, Hooks(), updates=None)
        prepared.trainer.callbacks.remove(prepared.checkpoint)  # there are no numbers to write
        with one_device() as recorder:
            watch = Watch(recorder)
            prepared.trainer.callbacks.append(watch)
            prepared.trainer.fit(prepared.module, Batches(experiment.model.task))
    return {"waits": recorder.waits, "products": recorder.products, "elsewhere": watch.elsewhere}


def build_strategy(*args):
    return OneDevice(CUDA, accelerator=FakeAccelerator())


TRAINER = {"batch_size": 4, "max_steps": UPDATES, "val_check_interval": UPDATES - 1, "gradient_clip_val": 1.0}


def train_case(family, kind, layer, precision):
    layers = 2 if kind in ("lns", "mix", "by_depth") else 1  # those that are alike in one layer
    size = {"hidden": 16, "layers": layers, "heads": 2} if models[family].has_residuals else models[family].example
    size = {"kind": family, **size, **({"drop_path": 0.1} if family == "vit" else {})}
    return train({"model": size, "trainer": TRAINER}, precision, settings_of(kind, layer))


def train_otherwise(**trainer):
    """What the cases leave out: an average of the weights; padded sequences in accumulated batches."""
    size = {"kind": "llama", "hidden": 16, "layers": 2, "heads": 2}
    return train({"model": size, "trainer": {**TRAINER, **trainer}}, "bf16-mixed", padded="accumulate" in trainer)


def control():
    """What the recorder says of a step that waits in every way."""
    with one_device() as recorder:
        model = torch.nn.Linear(2, 2).to("cuda")
        recorder.phase = "step"
        model(torch.zeros(1, 2, device="cuda")).sum().backward()
        if model.weight.grad.sum().item() > 0:
            model.bias.cpu()
        with contextlib.suppress(DynamicOutputShapeException):
            torch.nonzero(model.weight)
    return recorder.waits


def explain(family):
    """The breaks in the graph of a task's loss, and why."""
    torch.manual_seed(0)
    size = {"kind": family, "hidden": 16, "layers": 2, "heads": 2}
    experiment = Experiment.from_mapping({"model": size, "norm": "lns"})
    module = TrainingModule(experiment, build_corpus(experiment.model.task))
    with torch.autocast("cpu", torch.bfloat16):
        explained = torch._dynamo.explain(module.loss)(*build_batch(experiment.model.task, 4))
    return {"graphs": explained.graph_count, "breaks": [str(reason) for reason in explained.break_reasons]}


# ---------------------------------------------------------------------------------------------------- 64 ranks


FSDP = {"strategy": "fsdp", "batch_size": RANKS}


def share_on_device(experiment, precision, **more):
    """The project's sharding, and the share of each rank."""
    with mock.patch.object(strategies, "materialize", materialize):
        model, _ = share(experiment, "cuda:0", precision=precision, **more)
    shards = [parameter.to_local() for parameter in model.parameters()]
    return model, {"parameters": sum(map(torch.numel, shards)), "devices": sorted({str(p.device) for p in shards})}


def materialize(module, recipes, parameters, dtype):
    """As the project does; then what `fully_shard` does by itself, and cannot with fake tensors: to the device."""
    deferred.materialize(module, recipes, parameters, dtype)
    module.to(CUDA)
    for key, value in parameters.items():
        _, parameters[key] = fake_cuda._converted.get((id(value), CUDA, value.dtype), (value, value))


def share_case(family, precision, layers):
    """The collectives of one update of a model that 64 ranks share, and what waits in it."""
    settings = {"model": {"kind": family, "hidden": 16, "layers": layers, "heads": 2}, "norm": "lns", "trainer": FSDP}
    with one_device() as recorder:
        experiment = Experiment.from_mapping(settings)
        task = experiment.model.task
        model, own = share_on_device(experiment, precision)
        for block in model.blocks():  # as where it is compiled
            lift_factors(block)
        inputs, targets = build_batch(task, 2, CUDA)
        optimizer = experiment.optimizer.build(model)
        recorder.phase = "update"
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16-mixed"):
            output = model(inputs, targets) if task == "language_modeling" else model(inputs)
        output.float().sum().backward()
        optimizer.step()
    found = {name: getattr(recorder, name).get("update", {}) for name in ("waits", "products", "collectives")}
    return {**own, **found}


def share_seven():
    """What each of 64 ranks has of LLaMA-7B."""
    model = {"kind": "llama-7b", "vocab_size": 32000}
    with one_device():
        experiment = Experiment.from_mapping({"model": model, "trainer": FSDP})
        return share_on_device(experiment, "bf16-mixed", classes=32000, shape=(256,))[1]


# ---------------------------------------------------------------------------------------------------- all of it


def attempt(function, *args, **more):
    """Its result, or what went wrong."""
    try:
        return function(*args, **more)
    except Exception:
        return {"error": traceback.format_exc()[-6000:]}


def main(out):
    results = {
        "control": attempt(control),
        "steps": {name: attempt(train_case, *case) for name, case in STEPS.items()},
        "averaged": attempt(train_otherwise, ema_decay=0.9),
        "padded": attempt(train_otherwise, accumulate=2),
        "explained": {family: attempt(explain, family) for family in ("llama", "vit")},
    }
    torch.distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    ranks.group = SimpleNamespace(rank=0, size=RANKS)
    results["seven"] = attempt(share_seven)
    results["shared"] = {name: attempt(share_case, *case) for name, case in SHARED.items()}
    Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
