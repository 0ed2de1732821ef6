"""Peak memory of one rank of FSDP2 and of DDP on the CPU, over gloo, against what `ablate plan` says.

    torchrun --standalone --nproc-per-node 2 benchmarks/memory_fsdp.py

A small LLaMA, in which the gathered layers weigh much; gloo takes buffers of its own besides. Measured is what torch's
profiler sees the allocator hand out in the third update, with the shards that are there before it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from ablate import Experiment
from ablate.estimate.memory import Meter, Setup
from ablate.estimate.tracing import checkpoint_layers
from ablate.parallel.strategies import precision_policies

SHAPE, CLASSES, SIZE = (64,), 1000, {"kind": "llama", "hidden": 256, "mlp": 688, "layers": 8, "heads": 4}


def update(model: Any, optimizer: torch.optim.Optimizer, setup: Setup) -> None:
    """One update of random tokens, in the order of Lightning."""
    wrapped = isinstance(model, DistributedDataParallel)
    blocks = list((model.module if wrapped else model).blocks())
    for number in range(setup.accumulate):
        last = number == setup.accumulate - 1
        if not wrapped:
            model.set_requires_gradient_sync(last or not setup.once)
        with contextlib.ExitStack() as stack:
            if wrapped and not last:
                stack.enter_context(model.no_sync())
            if setup.checkpointing:
                stack.enter_context(checkpoint_layers(blocks))
            tokens, targets = (torch.randint(CLASSES, (setup.micro_batch, *SHAPE)) for _ in range(2))
            with torch.autocast("cpu", torch.bfloat16, enabled=setup.precision == "bf16-mixed"):
                value = model(tokens, targets)
            if number == 0:
                optimizer.zero_grad()
            (value / setup.accumulate).backward()
            del value
    optimizer.step()


def measured(experiment: Experiment, setup: Setup) -> float:
    """Bytes of this rank at its peak."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    of_block, of_rest = precision_policies(setup.precision)
    model: Any = experiment.model.build(experiment.norm, experiment.init, CLASSES, SHAPE)
    optimizer = None
    if setup.strategy == "ddp":
        optimizer = experiment.optimizer.build(model)
        model = DistributedDataParallel(model, find_unused_parameters=True, gradient_as_bucket_view=True)
    else:
        for layer in model.blocks():
            fully_shard(layer, mesh=mesh, mp_policy=of_block)
        fully_shard(model, mesh=mesh, mp_policy=of_rest)
        optimizer = experiment.optimizer.build(model)
    for _ in range(2):
        update(model, optimizer, setup)
    shards = sum((p.to_local() if hasattr(p, "to_local") else p).numel() for p in model.parameters())
    # weights, two moments, and gradients; of DDP the buckets that these are views of
    kept = 16 * shards
    gc.collect()  # or the model of the case before goes while this one is measured
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        update(model, optimizer, setup)
    results: Any = seen.profiler
    events = [(e.start_ns(), e.nbytes()) for e in results.kineto_results.events() if e.name() == "[memory]"]
    return kept + float(np.cumsum([size for _, size in sorted(events)]).max())


def main() -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.parse_args()
    if not dist.is_torchelastic_launched():
        start = "torchrun --standalone --nproc-per-node 2 benchmarks/memory_fsdp.py"
        print(f"benchmarks/memory_fsdp.py compares processes that torchrun starts: {start}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    experiment = Experiment.from_mapping({"model": SIZE})
    cases = [("fsdp", 1, False), ("fsdp", 4, False), ("fsdp", 4, True), ("ddp", 1, False), ("ddp", 4, False)]
    for strategy, accumulate, once in cases:
        for precision in ("32-true", "bf16-mixed"):
            for checkpointing in (False, True) if accumulate == 1 else (False,):
                for batch in (2, 16):
                    size = ranks * accumulate * batch
                    setup = Setup(strategy, ranks, precision, size, accumulate, checkpointing, offload=False, once=once)
                    found = measured(experiment, setup)
                    plan = Meter(experiment, CLASSES, SHAPE, gpu=False).memory(setup)
                    if dist.get_rank() == 0:
                        mode = "checkpointed" if checkpointing else "eager"
                        how = f", {accumulate} accumulated" if accumulate > 1 else ""
                        how += ", summed once per update" if once else ""
                        ratio = plan.peak / found
                        print(
                            f"{strategy} {precision} {mode} batch {batch}{how}: measured {found / 2**20:.1f} MiB, "
                            f"predicted / measured {ratio:.2f}",
                            flush=True,
                        )
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
