"""What GPUs send each other in an update, and how long they wait for it, by bytes over stated bandwidths.

A ring moves the part (n - 1) / n of a tensor through each of its n ranks in an all-gather or a reduce-scatter, and
twice that in an all-reduce (nccl-tests, PERFORMANCE.md). Rings across machines use all network cards of a machine. FSDP
gathers each layer in the forward and in the backward pass, embedding and head once, and scatters the gradients in
float32; hybrid sharding does so inside each machine, and all-reduces the shards between machines once per update (Zhao
et al. 2023, arXiv 2304.11277); DDP all-reduces the gradients once per update. Muon's matrices are gathered in turn,
each on one GPU, and sent back to all that have shards or copies of it, while others are orthogonalised. Latencies,
stragglers and the copies of trainer.cpu_offload are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ablate.estimate.flops import Counts
from ablate.estimate.memory import Setup
from ablate.estimate.updates import Update

REACHED = 0.75
"""The share of the bandwidths that rings reach."""
OVERLAP = "layers' transfers run beside computation; embedding's and head's do not"


@dataclass(frozen=True)
class Network:
    """Bandwidths in one direction, in bytes per second."""

    link: float
    """Of a GPU to the others of its machine."""
    machine: float
    """Of a machine to the others."""


@dataclass(frozen=True)
class Transfers:
    """The transfers of one update."""

    inside: float
    """Bytes that a GPU sends to others of its machine."""
    between: float
    """Bytes that a machine sends to others."""
    seconds: float
    """Time of all of them, one after another."""
    waits: float
    """Time of it that is not hidden behind computation."""


def plan_transfers(
    setup: Setup, counts: Counts, network: Network, seconds: float, forward: float, update: Update, updating: float
) -> Transfers:
    """Return the transfers of an update whose passes compute for so many `seconds`, the share `forward` of them in
    forward passes, and whose `update` itself computes for so many seconds (`updating`)."""
    shards, here = setup.shards, setup.devices // setup.nodes
    copies = setup.devices // shards
    touched = [{rank // here for rank in range(shards * copy, shards * (copy + 1))} for copy in range(copies)]
    shared = [sum(machine in own and len(own) > 1 for own in touched) for machine in range(setup.nodes)]

    def ring(size: float) -> NDArray[np.float64]:
        """Return seconds, bytes inside and bytes between of a ring of each copy's ranks through which `size` bytes
        go. A machine may have ranks of several copies that others have, too."""
        sent = size * (shards - 1) / shards
        inside, between = (0 if shards == len(touched[0]) else sent), sent * max(shared)
        return np.array([max(inside / network.link, between / network.machine), inside, between])

    def reduce(size: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return what gradients of `size` bytes take in each sum within a copy, and once per update between copies: in
        a ring of the ranks that have the same shard."""
        sent = 2 * size / shards * (copies - 1) / copies
        inside = 0 if shards >= here else sent  # else the next rank of the ring is on another machine
        between = sent * min(shards, here) if setup.nodes > 1 else 0
        return ring(size), np.array([max(inside / network.link, between / network.machine), inside, between])

    width, wide = setup.widths
    trained = 4 * (counts.total - counts.frozen) / counts.total  # bytes of a gradient
    ends = counts.embedding + counts.head
    gather, gather_ends = ring(counts.rest * width), ring(ends * wide)
    (scatter, across), (scatter_ends, across_ends) = reduce(counts.rest * trained), reduce(ends * trained)
    batches = setup.accumulate
    sums = 1 if setup.once else batches
    passes = seconds * forward / batches, seconds * (1 - forward) / batches
    middle = gather + scatter * (not setup.once)  # in the backward pass of a batch but the last
    waits = [
        batches * max(0.0, gather[0] - passes[0]),
        (batches - 1) * max(0.0, middle[0] - passes[1]),
        max(0.0, (gather + scatter + across)[0] - passes[1]),
        (batches * gather_ends + sums * scatter_ends + across_ends)[0],
    ]
    turns = _take_turns(setup, network, update)
    waits.append(max(0.0, turns[0] - updating))
    total = turns + batches * (2 * gather + gather_ends) + sums * (scatter + scatter_ends) + across + across_ends
    return Transfers(float(total[1]), float(total[2]), float(total[0]), float(sum(waits)))


def _take_turns(setup: Setup, network: Network, update: Update) -> NDArray[np.float64]:
    """Return seconds, bytes inside of a machine and bytes between machines of taking turns with whole matrices."""
    ranks, shards, here = setup.devices, setup.shards, setup.devices // setup.nodes
    kinds = 2 + update.matrix_states  # weight, gradient and states; a gradient is not sent back
    returned = (kinds - 1) * update.matrices / shards * (ranks - 1) / ranks
    if shards == 1:  # copies are broadcast, in a ring
        inside, between = (0 if ranks == setup.nodes else returned), (returned if setup.nodes > 1 else 0)
    else:
        gathered = kinds * update.matrices / ranks * (shards - 1) / shards
        inside = between = 0.0
        for sent, among in ((gathered, shards), (returned, ranks)):
            far = max(0, among - here) / (among - 1)  # of the others, those on other machines
            inside, between = inside + sent * (1 - far), between + sent * far * here
    return np.array([max(inside / network.link, between / network.machine), inside, between])
