"""The plan of an experiment: parameters, FLOPs, memory, transfers, time and disk on GPUs, from the configuration alone;
whether data is read fast enough; and advice for a device that is out of memory."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ablate.config.errors import ConfigError, DataError, Problem
from ablate.config.formatting import format_bytes, format_count
from ablate.data import BatchDataset, Corpus
from ablate.estimate.flops import Counts, Work, estimate_work
from ablate.estimate.gpus import GIB, GPU, GPUS
from ablate.estimate.inputs import find_inputs
from ablate.estimate.memory import PARTS, RESERVE, Memory, Meter, Setup, resolve_setup, subtract_reserve
from ablate.estimate.transfers import OVERLAP, REACHED, Network, Transfers, plan_transfers
from ablate.experiment.trainer import MOST_WORKERS
from ablate.experiment.tree import Experiment

_BATCHES, _SECONDS, _SAMPLES = 8, 2.0, 32
_rates: dict[str, float] = {}  # by the configuration of the data: the arms of a sweep share it


def measure_rate(data: BatchDataset, seed: int) -> float:
    """Return the number of samples per second that one process reads, measured on a few small batches after the first,
    which opens files, or on those that start within two seconds."""
    batches = iter(data.batches(_SAMPLES, seed))
    next(batches)
    begin = time.perf_counter()
    read, seconds = 0, 0.0
    while read < _BATCHES and seconds < _SECONDS:
        next(batches)
        read, seconds = read + 1, time.perf_counter() - begin
    return read * _SAMPLES / max(seconds, 1e-9)


def describe_loading(experiment: Experiment, corpus: Corpus, taken: float) -> str:
    """Return a sentence on how many processes must read the data for a GPU that processes so many items a second, and
    whether that many are configured; "" for data in memory, or data that cannot be read now."""
    if not corpus.train.count_workers(MOST_WORKERS):
        return ""
    key = experiment.data.model_dump_json()
    if key not in _rates:
        with contextlib.suppress(DataError):
            _rates[key] = measure_rate(corpus.train, experiment.seed) * experiment.task.count_items(corpus.shape)
    if key not in _rates:
        return ""
    rate, chosen, unit = _rates[key], experiment.trainer.num_workers, experiment.unit
    needed = math.ceil(taken / rate)
    most = corpus.train.count_workers(MOST_WORKERS if chosen == "auto" else max(1, chosen))
    text = (
        f"One process reads {format_count(rate)} {unit} a second here (measured on a few batches), and a GPU processes "
        f"{format_count(taken)} according to the plan, so each GPU needs {needed} such processes. "
    )
    if needed > most:
        text += (
            f"trainer.num_workers={chosen} starts at most {most}: loading will be the bottleneck, and the run takes "
            "longer."
        )
    elif chosen == "auto":
        text += "trainer.num_workers=auto starts one for each core but one."
    else:
        text += f"trainer.num_workers={chosen} is enough."
    return text


ALTERNATIVES = 3  # settings that fit and are shown


@dataclass(frozen=True)
class Assumed:
    """The assumptions of a plan."""

    gpu: GPU
    devices: int | None = None
    """GPUs of one node. None: trainer.devices, or 1."""
    nodes: int | None = None
    """None: trainer.nodes, or 1."""
    mfu: float | None = None
    """Model FLOPs utilisation, without waiting for other GPUs. None: by size, see `assume_utilisation`."""
    network: float | None = None
    """Gbit/s and direction of a machine. None: by GPU."""

    def find_network(self, setup: Setup) -> Network:
        """Return the bandwidths that are reached."""
        bits = self.gpu.network * setup.devices / setup.nodes if self.network is None else self.network * 1e9
        return Network(self.gpu.link * REACHED, bits / 8 * REACHED)

    def describe(self, work: Work, setup: Setup) -> list[tuple[str, str, str]]:
        """Return name, value and source of what the time is computed from."""
        gpu, network = self.gpu, self.find_network(setup)
        known = GPUS.get(gpu.name, GPU("", 0, 0, 0))
        peak = "data sheet" if work.peak in (known.bf16, known.float32) else "--gpu-flops"
        rows = [
            ("peak of a GPU", f"{work.peak / 1e12:,.0f} TFLOPS", peak),
            ("utilisation", f"{work.utilisation:.0%}", "--mfu" if self.mfu else "published trainings; --mfu"),
        ]
        if setup.devices == 1:
            return rows
        link = "data sheet" if known.name else "assumed: PCIe 4.0"
        rows.append(
            ("in a machine", f"{gpu.link / 1e9:,.0f} GB/s a GPU", "--gpu-link" if gpu.link != known.link else link)
        )
        if setup.nodes > 1:
            cards = "data sheet of the DGX" if known.network >= 200e9 else "assumed"
            bits = f"{network.machine / REACHED * 8 / 1e9:,.0f} Gbit/s a machine"
            rows.append(("between machines", bits, "--network" if self.network else cards))
        return [*rows, ("reached of these", f"{REACHED:.0%}", "assumed"), ("overlap", OVERLAP, "assumed")]


STEPWISE = (
    "The model computes the tokens of a sequence one after another, and the assumed utilisation is that of models that "
    "compute them at once: the run takes many times as long. Time a short run, and give its utilisation by --mfu."
)
"""A note on the time of a recurrence."""


@dataclass(frozen=True)
class Fitting:
    """A setup that fits."""

    words: tuple[str, ...]
    """`key=value` words that change the planned setup to this one."""
    setup: Setup
    memory: Memory
    slower: float
    """Factor on the time of a step, by its FLOPs; transfers are not counted."""


DRAWN, DRAWN_SHARDED = 1.2e8, 3e7
"""Initial weights that a process draws in a second, measured on one core of a Xeon (a LLaMA of 71M); for fsdp each is
drawn twice."""
CHECKPOINTS = 3
"""Checkpoints of a run that are on the disk at once: the last, the previous, and one that is being written."""
UNMEASURED = (
    "No figure was measured on a GPU, as Ablate has not run on one yet: memory is simulated and compared with training "
    "on CPUs, the rest is from data sheets or assumed. Latencies, stragglers and small micro-batches make it longer."
)


@dataclass(frozen=True)
class Way:
    """One way to share a run among the planned GPUs."""

    setup: Setup
    memory: Memory
    transfers: Transfers
    """Of an update."""
    computes: float
    """Seconds in which an update computes."""
    gpu_hours: float
    """Hours of all GPUs, waiting included."""

    @property
    def waiting(self) -> float:
        """The share of the hours in which GPUs wait for transfers."""
        return self.transfers.waits / (self.computes + self.transfers.waits)


@dataclass(frozen=True)
class Plan:
    """The needs of one training run."""

    model: str
    counts: Counts
    unit: str
    """tokens or images."""
    setup: Setup
    """As configured."""
    assumed: Assumed
    work: Work
    memory: Memory
    ways: tuple[Way, ...]
    """How the run is started: as configured, or as the first setup that fits. Then other ways to share it."""
    checkpoint: float
    """Bytes of a checkpoint."""
    data: int | None
    """Bytes of the prepared data; None if they are not known beforehand."""
    fitting: tuple[Fitting, ...]
    """Setups that fit if this one does not, the cheapest first."""
    validation: str
    """The number and size of the run's validations."""
    validation_share: float | None
    """Upper bound on validation's share of the run's compute; None if it is unknown."""
    notes: tuple[str, ...]
    """Notes on assumptions."""

    @property
    def fits(self) -> bool:
        """Whether the run fits the memory of each device."""
        return self.memory.fits(self.assumed.gpu.memory)

    @property
    def more(self) -> tuple[str, ...]:
        """The `key=value` words with which the run is started, as it does not fit without them."""
        return self.fitting[0].words if self.fitting else ()

    @property
    def drawing(self) -> float:
        """Seconds in which each process draws the initial weights on its core."""
        return self.counts.total / (DRAWN_SHARDED if self.ways[0].setup.strategy == "fsdp" else DRAWN)

    @property
    def host(self) -> float:
        """Bytes of the host's memory in which the processes of a machine do so."""
        setup, counts = self.ways[0].setup, self.counts
        whole = max(counts.block, counts.embedding + counts.head) if setup.strategy == "fsdp" else counts.total
        return 4 * whole * setup.devices / setup.nodes

    @property
    def items_per_second(self) -> float:
        """Tokens or images per second of all devices."""
        return self.work.items / (self.gpu_hours * 3600) * self.setup.devices

    @property
    def gpu_hours(self) -> float:
        """Hours of all GPUs, in which they compute or wait for each other, without validation."""
        return self.ways[0].gpu_hours

    @property
    def validated_gpu_hours(self) -> float | None:
        """The hours including validation, at most its share of the computation; None if that is unknown."""
        return None if self.validation_share is None else self.gpu_hours / (1 - self.validation_share)

    @property
    def days(self) -> float:
        """Days of the training of one run."""
        return self.gpu_hours / self.setup.devices / 24

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON. Memory in bytes."""
        counts = self.counts
        return {
            "model": self.model,
            "parameters": {
                "total": counts.total, "embedding": counts.embedding, "head": counts.head, "non_embedding": counts.rest,
                "frozen": counts.frozen,
            },
            "flops": {"per": self.unit[:-1], "forward": counts.forward_flops, "training": counts.training_flops},
            "gpu": asdict(self.assumed.gpu) | {"usable": subtract_reserve(self.assumed.gpu.memory)},
            "setup": asdict(self.setup) | {"micro_batch": self.setup.micro_batch},
            "memory": {**self.memory.parts, "peak": self.memory.peak, "host": self.memory.host},
            "fits": self.fits,
            "would_fit": [
                {"settings": list(f.words), "peak": f.memory.peak, "slower": f.slower} for f in self.fitting
            ],
            "mfu": self.work.utilisation,
            f"{self.unit}_per_second": self.items_per_second,
            self.unit: self.work.items,
            "validation": self.validation,
            "validation_share": self.validation_share,
            "days": self.days,
            "gpu_hours": self.gpu_hours,
            "gpu_hours_computing": self.gpu_hours * (1 - self.ways[0].waiting),
            "gpu_hours_with_validation": self.validated_gpu_hours,
            "ways": [
                {"setup": asdict(way.setup), "fits": way.memory.fits(self.assumed.gpu.memory), "peak": way.memory.peak,
                 **asdict(way.transfers), "gpu_hours": way.gpu_hours} for way in self.ways
            ],
            "assumptions": [
                dict(zip(("name", "value", "source"), row, strict=True))
                for row in self.assumed.describe(self.work, self.setup)
            ],
            "measured_on_a_gpu": False,
            "disk": {"checkpoint": self.checkpoint, "checkpoints_at_once": CHECKPOINTS, "data": self.data},
            "preparation": {"seconds_drawing_weights": self.drawing, "host_memory_per_machine": self.host},
            "notes": list(self.notes),
        }  # fmt: skip


def plan(experiment: Experiment, assumed: Assumed) -> Plan:
    """Return the plan of one run. Raises ConfigError for an alignment and if the batch cannot be divided over the
    devices, DataError if the vocabulary is unknown."""
    if experiment.procedure != "training":
        text = "cannot be planned: the plan traces a training step, and an alignment also generates answers"
        raise ConfigError([Problem("align", text)])
    setup = resolve_setup(experiment, assumed.devices, assumed.nodes)
    inputs = find_inputs(experiment)
    work = estimate_work(experiment, (inputs.classes, inputs.shape), assumed.gpu, assumed.mfu)
    assert work is not None
    meter = Meter(experiment, inputs.classes, inputs.shape)
    memory = meter.memory(setup)
    fitting = () if memory.fits(assumed.gpu.memory) else find_fitting(setup, meter, assumed.gpu.memory)
    validation = experiment.validation
    data, corpus = experiment.data, inputs.corpus
    sizes = [*corpus.count_validation_items()] if corpus else data.most_val_sizes
    complete = Plan(
        model=f"{experiment.model.title}, {experiment.norm.kind} with {experiment.norm.layer.kind}",
        counts=meter.counts,
        unit=experiment.unit,
        setup=setup,
        assumed=assumed,
        work=work,
        memory=memory,
        ways=list_ways([one.setup for one in fitting] or [setup], meter, assumed, work, setup.checkpointing),
        checkpoint=meter.checkpoint(setup.precision, setup.averaged),
        data=data.count_prepared_bytes(inputs.classes),
        fitting=fitting,
        validation=validation.describe(sizes),
        validation_share=validation.bound_share(sizes),
        notes=(inputs.note,) if inputs.note else (),
    )
    loading = inputs.corpus and describe_loading(experiment, inputs.corpus, complete.items_per_second / setup.devices)
    notes = (loading or "", STEPWISE if experiment.model.unrolls else "")
    return replace(complete, notes=(*complete.notes, *filter(None, notes)))


def list_ways(setups: Sequence[Setup], meter: Meter, assumed: Assumed, work: Work, recomputed: bool) -> tuple[Way, ...]:
    """Return the ways to share a run: `setups`, and on several GPUs others like the first. `recomputed`: whether its
    `work` is with activation checkpointing."""
    updates = meter.experiment.trainer.max_steps
    rate = work.peak * work.utilisation * setups[0].devices * updates  # FLOPs of all GPUs, for each second of an update
    passes = (work.flops - work.update_flops) / rate / (meter.slowdown if recomputed else 1)
    updating = work.update_flops / rate
    first, counts, network, ways = setups[0], meter.counts, assumed.find_network(setups[0]), []
    plain = replace(first, offload=False, once=False)
    inside = [first.devices // first.nodes] if 1 < first.nodes < first.devices else []
    shared = [("fsdp", shard) for shard in (0, *inside)] if first.shardable else []
    others = [replace(plain, strategy=strategy, shard=shard) for strategy, shard in (*shared, ("ddp", 0))]
    if first.shards > 1:  # each batch that is accumulated gathers the weights once more
        parts = (n for n in range(1, first.accumulate) if first.batch_size % (n * first.devices) == 0)
        fewer = [replace(first, accumulate=n) for n in parts]
        others += [way for way in fewer if meter.memory(way).fits(assumed.gpu.memory)][:1]
    for setup in dict.fromkeys([*setups, *(others if first.devices > 1 else ())]):
        factor = meter.slowdown if setup.checkpointing else 1
        forward, update = counts.forward_flops / counts.training_flops / factor, meter.update(setup.half)
        computes = passes * factor + updating
        sent = plan_transfers(setup, counts, network, passes * factor, forward, update, updating)
        whole = (computes + sent.waits) * updates * setup.devices / 3600
        ways.append(Way(setup, meter.memory(setup), sent, computes, whole))
    return tuple(ways)


def find_fitting(setup: Setup, meter: Meter, capacity: float) -> tuple[Fitting, ...]:
    """Return the setups that fit: for each combination of strategy, checkpointing and offloading, the one with the
    largest micro-batch; fewest changes and least recomputation first."""
    fitting: dict[tuple[str, int, bool, bool, bool], Fitting] = {}
    for other in setup.alternatives():
        kind = (other.strategy, other.shard, other.checkpointing, other.offload, other.once)
        if kind in fitting or (other.offload and any(not one.setup.offload for one in fitting.values())):
            continue
        if meter.states(other) > subtract_reserve(capacity):  # without a look at the activations, which takes time
            continue
        memory = meter.memory(other)
        if memory.fits(capacity):
            slower = meter.slowdown if other.checkpointing and not setup.checkpointing else 1.0
            fitting[kind] = Fitting(tuple(setup.words(other)), other, memory, slower)
    return tuple(sorted(fitting.values(), key=lambda f: (f.slower, len(f.words)))[:ALTERNATIVES])


def describe_disk(checkpoint: float, data: int | None, kept: str = "1 after it") -> dict[str, str]:
    """Return name -> text of what a launch needs on disks; `kept`: how many checkpoints stay."""
    prepared = "not known before it is read" if data is None else "nothing is prepared"
    if data:
        prepared = f"about {format_bytes(data)}, prepared once, by the first process, in ABLATE_STORE"
    size = format_bytes(round(checkpoint))
    return {"checkpoint": f"{size}; up to {CHECKPOINTS} while a run trains, {kept}", "data on disk": prepared}


SECONDS = 30.0  # that advice may take
_SHOWN = 2  # settings that fit


def advise(
    experiment: Experiment, precision: str, classes: int, shape: tuple[int, ...], devices: int, seconds: float = SECONDS
) -> str:
    """Return one line: the planned memory of each of `devices` by parts, the usable memory, and the nearest settings
    that fit. "" if the plan does not support the setting, fails, or takes more than so many seconds: it must not hide
    the error that it explains."""

    def plan() -> str:
        setup = replace(resolve_setup(experiment, devices, 1), precision=precision)
        gpu, capacity = detect_capacity()
        meter = Meter(experiment, classes, shape, gpu=gpu)
        memory = meter.memory(setup)
        parts = ", ".join(f"{name} {memory.parts[name] / GIB:.2f}" for name in PARTS)
        usable = subtract_reserve(capacity) / GIB
        start = f"By the plan a device needs {memory.peak / GIB:.2f} GiB ({parts}) of {usable:.2f}"
        if memory.fits(capacity):
            return f"{start}: it fits, so another program uses memory of the device."
        if not (fitting := find_fitting(setup, meter, capacity)):
            return f"{start}, and no setting makes it fit."
        ways = " or ".join(f"{' '.join(f.words)} ({f.memory.peak / GIB:.2f} GiB)" for f in fitting[:_SHOWN])
        return f"{start}. Settings that fit: {ways}."

    results: list[str] = []

    def run() -> None:
        with contextlib.suppress(BaseException):  # whatever it is, the error that is explained matters more
            results.append(plan())

    thread = threading.Thread(target=run, name="advice", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no memory for a thread
        return ""
    thread.join(seconds)
    return results[0] if results else ""


def detect_capacity() -> tuple[bool, float]:
    """Return whether models are on a GPU here, and the memory of the GPU or else of the machine, in bytes."""
    import torch

    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda: 1.0)()  # of a worker that shares it
        return True, total if share >= 1 else share * total + RESERVE
    known = hasattr(os, "sysconf")
    return False, float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) if known else 16 * GIB
