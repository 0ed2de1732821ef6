"""Models shared among ranks by the project's own strategy, without Lightning's Trainer around it."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils._python_dispatch import _disable_current_modes

from ablate.parallel.strategies import build_model, build_strategy

CLASSES = 11
SHAPES = {"language_modeling": (12,), "image_classification": (1, 8, 8)}  # of one input, by task


def share(experiment, device="cpu", compiled=False, precision="32-true", classes=CLASSES, shape=None):
    """(model, strategy) of `experiment`, whose trainer says how, among the ranks of this process's group."""
    corpus = SimpleNamespace(classes=classes, shape=shape or SHAPES[experiment.model.task])
    model, recipes = build_model(experiment, corpus)
    strategy = build_strategy(experiment, corpus, precision, compiled, recipes, model)
    holder = nn.Module()
    holder.model = model
    strategy.connect(holder)
    strategy.parallel_devices = [torch.device(device)]
    sizes = (strategy._data_parallel_size, strategy._tensor_parallel_size)
    names = ("data_parallel", "tensor_parallel")
    with _disable_current_modes():  # the mesh is of numbers, also where tensors have none
        strategy._device_mesh = init_device_mesh(torch.device(device).type, sizes, mesh_dim_names=names)
    strategy.shard(model)
    strategy.model_to_device()
    return model, strategy
