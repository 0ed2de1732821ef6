"""One training step of the named sizes on a device: ours, compiled, as a trial makes it in Lightning, against the
peer's model in a plain loop, and against the same compiled; and every placement against `pre`."""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import peers
import torch
from detected import detect_gpu
from peers import plain_step
from timing import Pairs, Turns, alternating, between
from torch import nn
from torch.optim import Optimizer

from ablate import Experiment
from ablate.data import BatchDataset, Corpus
from ablate.estimate.flops import count
from ablate.estimate.gpus import GIB
from ablate.estimate.inputs import build_skeleton
from ablate.training.module import TrainingModule

SIZES = ("llama-71m", "llama-130m", "llama-250m", "llama-1b", "vit-tiny", "vit-small")
VOCABULARY = 32000
SKIP = 4  # updates of each side that are not timed: warm-up, compilation
COLUMNS = ("model", "length", "batch", "ours/s", "MFU", "GiB", "plain: ratio", "MFU", "GiB",
           "compiled: ratio", "MFU", "GiB")  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What is trained."""

    model: str
    seq: int
    """Tokens of a sequence; of no meaning for images."""
    batch: int
    """Sequences or images of an update."""
    precision: str
    device: str
    norm: str = "pre"

    @property
    def images(self) -> bool:
        return self.model.startswith("vit")

    @property
    def items(self) -> int:
        """Tokens or images of an update."""
        return self.batch if self.images else self.batch * self.seq

    def experiment(self, steps: int = 1, compiled: bool = False) -> Experiment:
        data: dict[str, Any] = {"kind": "random_images"} if self.images else {
            "kind": "random_tokens", "vocabulary": VOCABULARY, "seq_len": self.seq
        }  # fmt: skip
        trainer = {"max_steps": steps, "batch_size": self.batch, "precision": self.precision, "compile": compiled}
        tree = {"model": self.model, "norm": self.norm, "data": data | {"rows": 2 * self.batch}}
        return Experiment.from_mapping({**tree, "trainer": trainer | {"val_check_interval": steps}})

    def flops(self) -> float:
        """Of one update, forwards and backwards, as `ablate plan` counts them."""
        shape = (3, peers.PIXELS, peers.PIXELS) if self.images else (self.seq,)
        model = build_skeleton(self.experiment(), peers.CLASSES if self.images else VOCABULARY, shape)
        return count(model, shape).training_flops * self.items


class Device:
    """Where it is trained: waits for it, and knows the most memory that each side has had of it."""

    def __init__(self, kind: str) -> None:
        self.kind, self.peaks = kind, dict[str, float]()
        self.sides: dict[str, tuple[nn.Module, Optimizer]] = {}
        self._at: tuple[str, int] | None = None

    def synchronize(self) -> None:
        if self.kind == "cuda":
            torch.cuda.synchronize()

    def turn(self, name: str | None) -> None:
        """The turn of `name` begins, or ends. No side keeps its gradients while others are at work, and what others
        hold is not counted."""
        if self._at:
            side, others = self._at
            if self.kind == "cuda":
                self.peaks[side] = max(self.peaks.get(side, 0), torch.cuda.max_memory_allocated() - others)
            for parameter in self.sides[side][0].parameters():
                parameter.grad = None
            self._at = None
        if name:
            others = 0
            if self.kind == "cuda":
                torch.cuda.reset_peak_memory_stats()
                others = torch.cuda.memory_allocated() - held(*self.sides[name])
            self._at = (name, others)

    def room(self) -> None:
        """Gives back what the last case held."""
        self.sides.clear()
        self.peaks.clear()
        torch.compiler.reset()
        gc.collect()
        if self.kind == "cuda":
            torch.cuda.empty_cache()


def held(model: nn.Module, optimizer: Optimizer) -> int:
    """Bytes of parameters, buffers, gradients and moments."""
    tensors = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]
    tensors += [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
    return sum(t.nbytes for t in tensors if t.device.type != "cpu")


def against_peers(case: Case, device: Device, rounds: int, segment: int, compiled: bool) -> Turns:
    """Ours in Lightning, in turns with the peer's plain loop and the same compiled, which share one model."""
    experiment = case.experiment(SKIP + rounds * segment + 1, compiled)
    corpus = experiment.data.load(Path())
    batch = _batch(case, corpus)
    torch.manual_seed(0)
    size: Any = experiment.model
    model, loss = peers.vit(size) if case.images else peers.llama(size, VOCABULARY, case.seq)
    model.to(case.device, torch.bfloat16 if case.precision == "bf16-true" else None)
    optimizer, bf16 = peers.adamw(model), case.precision == "bf16-mixed"
    sides = {"plain": plain_step(model, loss, batch, bf16, optimizer)}
    if compiled:
        sides["compiled"] = plain_step(model, torch.compile(loss), batch, bf16, optimizer)
    device.sides |= dict.fromkeys(sides, (model, optimizer))
    turns = Turns(sides, segment, SKIP, device.synchronize, device.turn)
    _fit(experiment, corpus, turns, device)
    return turns


def _fit(experiment: Experiment, corpus: Corpus, turns: Turns, device: Device) -> None:
    """Trains as a trial does, but for MLflow and checkpoints."""
    from lightning.pytorch import LightningModule, Trainer

    from ablate.training.callbacks import Curves, Stop
    from ablate.training.loaders import Loaders
    from ablate.training.trainer import build_trainer

    class InTurns(Curves):
        def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            super().on_train_start(trainer, pl_module)
            device.sides["ours"] = (pl_module, trainer.optimizers[0])

        def on_train_batch_end(self, trainer: Trainer, *given: Any) -> None:
            super().on_train_batch_end(trainer, *given)
            turns()
            if trainer.global_step == experiment.trainer.max_steps - 1:
                raise Stop("completed", "")  # without the validation after the last update

    module = _build_module(experiment, corpus, bool(experiment.trainer.compile))
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Stop):
        trainer = build_trainer(experiment, str(experiment.trainer.precision), [InTurns(None)], Path(folder))
        trainer.fit(module, Loaders(experiment, corpus))


def _batch(case: Case, corpus: Corpus) -> tuple[torch.Tensor, torch.Tensor]:
    """One batch, on the device and in the arithmetic of the case."""
    assert isinstance(corpus.train, BatchDataset)
    inputs, targets = (part.to(case.device) for part in corpus.train.__getitems__(range(case.batch)))
    return inputs.bfloat16() if case.images and case.precision == "bf16-true" else inputs, targets


def _build_module(experiment: Experiment, corpus: Corpus, compiled: bool) -> TrainingModule:
    torch.manual_seed(0)
    return TrainingModule(experiment, corpus, compiled)


def placement_against_pre(case: Case, device: Device, rounds: int, segment: int, compiled: bool) -> Pairs:
    """The step of a placement, in turns with that of `pre`, both in a plain loop."""

    def step(norm: str) -> Callable[[], None]:
        experiment = replace(case, norm=norm).experiment()
        corpus = experiment.data.load(Path())
        module = _build_module(experiment, corpus, False).to(case.device)
        if case.precision == "bf16-true":
            module.bfloat16()
        batch = _batch(case, corpus)
        loss = torch.compile(module.loss) if compiled else module.loss
        return plain_step(module, loss, batch, case.precision == "bf16-mixed", experiment.optimizer.build(module.model))

    return alternating(step(case.norm), step("pre"), rounds, segment, SKIP, device.synchronize)


def cases(sizes: list[str], seqs: list[int], tokens: int, images: int, precision: str, device: str) -> Iterator[Case]:
    """Each size at each length; images have one."""
    for size in sizes:
        for seq in [0] if size.startswith("vit") else seqs:
            yield Case(size, seq, images if seq == 0 else max(1, tokens // seq), precision, device)


def fitting(case: Case, device: Device, run: Callable[[Case], Any]) -> tuple[Case, Any]:
    """What `run` makes of the case, with half of the batch again and again where it does not fit."""
    while True:
        try:
            return case, run(case)
        except torch.OutOfMemoryError:
            if case.batch == 1:
                raise
        case = replace(case, batch=case.batch // 2)
        device.room()


def tabulate(given: Any) -> None:
    """Measures and prints one table, and with `given.placements` another."""
    device, gpu = Device(given.device), detect_gpu() if given.device == "cuda" else None
    name = torch.cuda.get_device_name() if given.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{name}, torch {torch.__version__}, {given.precision}; {given.pairs} rounds of {given.segment} updates")
    print("ratio = the peer's time / ours, median (quartiles)\n")
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), "ablate-inductor"))
    todo = list(cases(given.sizes, given.seq, given.tokens, given.images, given.precision, given.device))
    rounds, segment, compiled = given.pairs, given.segment, not given.eager

    def told(case: Case, side: str, seconds: list[float]) -> list[str]:
        """The share of the peak, and the memory."""
        speed = case.flops() * segment / statistics.median(seconds)
        memory = f"{device.peaks[side] / GIB:.2f}" if side in device.peaks else "-"
        return [f"{speed / gpu.flops(case.precision):.1%}" if gpu else "-", memory]

    for wanted in todo:
        case, turns = fitting(wanted, device, lambda case: against_peers(case, device, rounds, segment, compiled))
        rate = case.items * segment / statistics.median(turns.ours)
        row = [case.model, case.seq or peers.PIXELS, case.batch, f"{rate:,.0f}", *told(case, "ours", turns.ours)]
        for side in ("plain", "compiled"):
            if side not in turns.theirs:
                row += ["-", "-", "-"]
                continue
            spread = turns.pairs(side).spread()
            row += [f"{spread.median:.2f} ({between(spread.quartiles)})", *told(case, side, turns.theirs[side])]
        print(f"| {' | '.join(map(str, row))} |", flush=True)
        device.room()
    if given.placements:
        columns = ("model", "length", "batch", "placement", "time of pre / its time", "95 % of the median")
        print(f"\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for wanted in todo:
        for norm in given.placements or ():
            case, pairs = fitting(
                replace(wanted, norm=norm),
                device,
                lambda c: placement_against_pre(c, device, rounds, segment, compiled),
            )
            spread = pairs.spread()
            times = f"{spread.median:.3f} ({between(spread.quartiles, 3)}) | {between(spread.interval, 3)}"
            print(f"| {case.model} | {case.seq or peers.PIXELS} | {case.batch} | {norm} | {times} |", flush=True)
            device.room()
