"""Transfers against formulas written out here, for models whose sizes are round numbers."""

from dataclasses import replace

import pytest

from ablate.estimate.flops import Counts
from ablate.estimate.gpus import GPUS
from ablate.estimate.memory import Setup
from ablate.estimate.plan import Assumed
from ablate.estimate.transfers import REACHED, Network, plan_transfers
from ablate.estimate.updates import Update
from ablate.sweeps.plans import plan_file

# a billion parameters in the layers, a tenth of that each in embedding and head
COUNTS = Counts(total=1_200_000_000, embedding=10**8, head=10**8, block=10**8, forward_flops=2e9)
NETWORK = Network(link=400e9, machine=200e9)
ADAMW = Update()
SETUP = Setup("fsdp", 16, "bf16-mixed", 64, 2, False, False, nodes=2)
GB = 1e9


def transfers(setup, seconds=0.0, network=NETWORK, counts=COUNTS, update=ADAMW, updating=0.0):
    return plan_transfers(setup, counts, network, seconds, 1 / 3, update, updating)


def test_fsdp_gathers_twice_and_scatters_once_for_each_batch():
    found = transfers(SETUP)
    of_layers = 2 * 2 * GB + 4 * GB  # two gathers in bfloat16, a sum in float32
    of_ends = 0.2 * (4 * GB + 4 * GB)  # one gather, in float32, and a sum
    assert found.between == found.inside == pytest.approx(2 * (of_layers + of_ends) * 15 / 16)
    assert found.seconds == found.waits == pytest.approx(found.between / 200e9)  # the slower of the two; no computation
    inside = transfers(replace(SETUP, devices=8, nodes=1))
    assert (inside.between, inside.seconds) == (0, pytest.approx(2 * (of_layers + of_ends) * 7 / 8 / 400e9))
    once = transfers(replace(SETUP, once=True))
    assert once.between == pytest.approx((2 * (2 * 2 + 0.2 * 4) + 1.2 * 4) * GB * 15 / 16)


def test_ddp_reduces_gradients_once_per_update():
    found = transfers(replace(SETUP, strategy="ddp"))
    assert found.between == found.inside == pytest.approx(2 * 1.2 * 4 * GB * 15 / 16)
    assert found == transfers(replace(SETUP, strategy="ddp", accumulate=8))
    frozen = replace(COUNTS, frozen=COUNTS.total // 2)
    assert transfers(replace(SETUP, strategy="ddp"), counts=frozen).between == pytest.approx(found.between / 2)


def test_hybrid_sharding_sends_between_machines_what_ddp_sends_and_gathers_inside():
    found = transfers(replace(SETUP, shard=8))
    alone = transfers(replace(SETUP, devices=8, nodes=1))  # each machine by itself
    across = 2 * 1.2 * 4 * GB / 2  # an all-reduce of two copies, whose shards all GPUs of a machine send together
    assert (found.inside, found.between) == (pytest.approx(alone.inside), pytest.approx(across))
    assert found.seconds == pytest.approx(alone.seconds + across / 200e9)


MUON = Update(matrices=4 * GB, largest=0.1 * GB, matrix_states=1.0)


@pytest.mark.parametrize(
    ("strategy", "gathered", "returned"),
    [
        # weight, gradient and momentum of the 15 shards that others have; weight and momentum to as many
        ("fsdp", 3 * 15 / 16, 2 * 15 / 16),
        ("hybrid", 3 * 7 / 8, 2 * 2 * 15 / 16),  # of 8 shards on its machine; two copies of each shard
    ],
)
def test_whole_matrices_are_gathered_in_turn_and_sent_back(strategy, gathered, returned):
    setup = replace(SETUP, shard=8 if strategy == "hybrid" else 0)
    plain, found = transfers(setup), transfers(setup, update=MUON)
    far = {"fsdp": (8 / 15, 8 / 15), "hybrid": (0, 8 / 15)}[strategy]  # of others
    sent = [kinds * 4 * GB / 16 for kinds in (gathered, returned)]  # by each GPU
    across = sum(one * share for one, share in zip(sent, far, strict=True))
    assert found.between - plain.between == pytest.approx(8 * across)  # by a machine
    assert found.inside - plain.inside == pytest.approx(sum(sent) - across)
    seconds = max((sum(sent) - across) / 400e9, 8 * across / 200e9)
    assert found.seconds - plain.seconds == pytest.approx(seconds)
    assert found.waits - plain.waits == pytest.approx(seconds)
    assert transfers(setup, update=MUON, updating=seconds / 2).waits - plain.waits == pytest.approx(seconds / 2)
    assert transfers(setup, update=MUON, updating=2 * seconds).waits == pytest.approx(plain.waits)


def test_copies_are_broadcast_in_a_ring():
    setup = replace(SETUP, strategy="ddp")
    plain, found = transfers(setup), transfers(setup, update=MUON)
    sent = 2 * 4 * GB * 15 / 16  # weight and momentum
    assert (found.inside - plain.inside, found.between - plain.between) == (pytest.approx(sent), pytest.approx(sent))


@pytest.mark.parametrize(
    ("devices", "nodes", "shard", "inside", "between"),
    [
        # of 19.2 GB for two batches within a copy, and 2 x 4.8 GB for the sums between copies, each GPU its shard
        (8, 1, 4, 19.2 * 3 / 4 + 9.6 / 4 / 2, 0),
        (32, 4, 16, 19.2 * 15 / 16, 19.2 * 15 / 16 + 8 * 9.6 / 16 / 2),
        (24, 3, 12, 19.2 * 11 / 12, 2 * 19.2 * 11 / 12 + 8 * 9.6 / 12 / 2),  # the second machine has parts of both
        (16, 2, 4, 19.2 * 3 / 4 + 9.6 / 4 * 3 / 4, 4 * 9.6 / 4 * 3 / 4),
    ],
)
def test_copies_need_not_be_machines(devices, nodes, shard, inside, between):
    found = transfers(replace(SETUP, devices=devices, nodes=nodes, shard=shard))
    assert (found.inside, found.between) == (pytest.approx(inside * GB), pytest.approx(between * GB))


@pytest.mark.parametrize(
    ("precision", "layers", "ends"), [("32-true", 4, 4), ("bf16-mixed", 2, 4), ("bf16-true", 2, 2)]
)
def test_weights_are_gathered_in_the_types_of_the_precision(precision, layers, ends):
    found = transfers(replace(SETUP, precision=precision, accumulate=1))
    assert found.between == pytest.approx((2 * layers + 0.2 * ends + 1.2 * 4) * GB * 15 / 16)


def test_layers_are_hidden_behind_their_pass_and_embedding_and_head_behind_nothing():
    setup = replace(SETUP, accumulate=1)
    ends = 0.2 * 8 * GB * 15 / 16 / 200e9
    gather, scatter = (size * GB * 15 / 16 / 200e9 for size in (2, 4))
    assert transfers(setup, seconds=1e9).waits == pytest.approx(ends)
    third = gather / 2  # the forward pass hides half of its gathers, the backward pass twice as much of its own
    assert transfers(setup, 3 * third).waits == pytest.approx(ends + gather / 2 + scatter)
    assert transfers(replace(setup, strategy="ddp"), 1e9).waits == pytest.approx(2 * 0.2 * 4 * GB * 15 / 16 / 200e9)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "hybrid"])
@pytest.mark.parametrize("work", [0.0, 0.5, 50.0])
def test_more_gpus_never_cost_fewer_gpu_hours(strategy, work):
    """Of work that one GPU does in so many seconds, on machines of eight."""
    sizes = (8, 16, 32, 64, 128)
    shared = {"shard": 8} if strategy == "hybrid" else {"strategy": strategy}
    setups = [replace(SETUP, **shared, devices=n, nodes=n // 8, batch_size=512) for n in sizes]
    waits = [setup.devices * transfers(setup, work / setup.devices).waits for setup in setups]
    assert waits == sorted(waits)
    assert waits[0] < waits[-1]
    assert transfers(replace(SETUP, strategy="one", devices=1, nodes=1)).seconds == 0


def test_the_plan_uses_the_bandwidths_that_it_tells():
    settings = {"model": "llama-9m", "model.vocab_size": 32000, "trainer.batch_size": 512, "trainer.strategy": "fsdp"}
    settings |= {"data.seq_len": 32}
    one, many = (plan_file(None, settings, Assumed(GPUS["h100-80gb"], 8, nodes)) for nodes in (1, 8))
    assert many.gpu_hours > one.gpu_hours > one.work.gpu_hours == many.work.gpu_hours
    assert [(way.setup.strategy, way.setup.shard) for way in many.ways] == [("fsdp", 0), ("fsdp", 8), ("ddp", 0)]
    fsdp, hybrid, ddp = many.ways
    assert fsdp.memory.peak < hybrid.memory.peak < ddp.memory.peak
    network = many.assumed.find_network(many.setup)
    assert (network.link, network.machine) == (450e9 * REACHED, 8 * 400e9 / 8 * REACHED)
    slow = plan_file(None, settings, Assumed(GPUS["h100-80gb"], 8, 8, network=100))
    assert slow.ways[0].transfers.seconds == pytest.approx(32 * many.ways[0].transfers.seconds)
    told = {name: (value, source) for name, value, source in slow.assumed.describe(slow.work, slow.setup)}
    assert told["between machines"] == ("100 Gbit/s a machine", "--network")
    assert told["in a machine"] == ("450 GB/s a GPU", "data sheet")
    (way,) = [way for way in slow.ways if way.setup.shard]
    assert way.transfers.seconds < slow.ways[0].transfers.seconds
