"""Tokens and images per second of one training step, as ratios to a peer in a plain loop, alternating in one run.

    python benchmarks/step.py                       # every case, eager and fast
    python benchmarks/step.py --only llama-512 --pairs 20
    python benchmarks/step.py --only wiring-256 wiring-64 --modes eager --pairs 60 --segment 1

LLaMA against `transformers`' LlamaForCausalLM and ViT-Tiny against timm's `vit_tiny_patch16_224`, both in a plain
float32 loop with fused AdamW. Ours runs as a trial does: through `ablate.train`, in Lightning, with metrics logged to
MLflow. After every few of our updates the peer makes as many; a ratio is the peer's time over ours, so above 1 is
faster than the peer.

The wiring cases measure what it costs that a placement builds the residual connections: our LLaMA of width 256, or 64
as in the demo, against the same model with blocks in which Pre-LN is hard-coded. Both run in the same plain loop, from
the same weights, in turns; the placement is always `pre`, and mode auto is eager.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from timing import Pairs, alternating, between, positive, seconds
from torch import Tensor, nn

from ablate import Experiment
from ablate.data import BatchDataset, Corpus, DataConfig, data_kinds
from ablate.models.llama import Block, LlamaModel
from ablate.norms.layers import RMSNormModule

SEQ, BATCH = 256, 8
IMAGES = 16  # in a batch of 224 x 224
SIZE = {"hidden": 256, "mlp": 688, "layers": 6, "heads": 4}
DEMO = {"hidden": 64, "mlp": 172, "layers": 6, "heads": 2}
SKIP = 3  # updates of each side that are not timed: warm-up, compilation


class Tokens(BatchDataset):
    """Random token ids: what they are does not change the speed."""

    def __init__(self, vocabulary: int) -> None:
        self.ids = torch.randint(vocabulary, (256, SEQ + 1), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        rows = self.ids[list(indices)]
        return rows[:, :-1], rows[:, 1:]


class Images(BatchDataset):
    """Random images."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(0)
        self.images = torch.randn(64, 3, 224, 224, generator=random)
        self.labels = torch.randint(1000, (64,), generator=random)

    def __len__(self) -> int:
        return len(self.images)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.images[list(indices)], self.labels[list(indices)]


@data_kinds.register
class RandomTokens(DataConfig):
    """Random tokens of a given vocabulary."""

    kind: Literal["random_tokens"] = "random_tokens"
    vocabulary: int = 512
    task: ClassVar[str] = "language_modeling"

    def load(self, cache: Path) -> Corpus:
        data = Tokens(self.vocabulary)
        return Corpus(data, data, "random", self.vocabulary, (SEQ,), None, f"random tokens of {self.vocabulary}")


@data_kinds.register
class RandomImages(DataConfig):
    """Random images of 224 x 224 in 1000 classes."""

    kind: Literal["random_images"] = "random_images"
    task: ClassVar[str] = "image_classification"

    def load(self, cache: Path) -> Corpus:
        data = Images()
        return Corpus(data, data, "random", 1000, (3, 224, 224), None, "random images")


def llama_peer(vocabulary: int) -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor]]:
    """transformers' model of the same shape, and its loss."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=SIZE["hidden"], intermediate_size=SIZE["mlp"],
        num_hidden_layers=SIZE["layers"], num_attention_heads=SIZE["heads"], num_key_value_heads=SIZE["heads"],
        max_position_embeddings=SEQ, rms_norm_eps=1e-6, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    return model, lambda tokens, _: model(input_ids=tokens, labels=tokens).loss


def vit_peer() -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor]]:
    """timm's own ViT-Tiny, and its loss."""
    import timm

    model = timm.create_model("vit_tiny_patch16_224")
    return model, lambda images, labels: F.cross_entropy(model(images), labels)


class PreBlock(nn.Module):
    """A layer in which Pre-LN is hard-coded, of the attention and MLP of one of ours."""

    def __init__(self, block: Block, hidden: int) -> None:
        super().__init__()
        self.attn, self.mlp = block.attn, block.mlp
        self.attn_norm, self.mlp_norm = RMSNormModule(hidden, 1e-6), RMSNormModule(hidden, 1e-6)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x), table)
        x = x + self.mlp(self.mlp_norm(x))
        return x


class Alternate:
    """Called after each of our updates; after every `segment` of them lets the peer make as many, and times both."""

    def __init__(self, peer: Callable[[], None], segment: int) -> None:
        self.peer, self.segment = peer, segment
        self.updates = 0
        self.pairs = Pairs()
        self._since = 0.0

    def __call__(self) -> bool:
        self.updates += 1
        if self.updates <= SKIP:
            self.peer()
        elif (self.updates - SKIP) % self.segment == 0:
            self.pairs.ours.append(time.perf_counter() - self._since)
            self.pairs.theirs.append(seconds(self.peer, self.segment))
        if self.updates <= SKIP or (self.updates - SKIP) % self.segment == 0:
            self._since = time.perf_counter()
        return False


def peer_step(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], data: BatchDataset, batch: int
) -> Callable[[], None]:
    """One update of a plain loop."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    inputs, targets = data.__getitems__(range(batch))
    model.train()

    def step() -> None:
        optimizer.zero_grad()
        loss(inputs, targets).backward()
        optimizer.step()

    return step


def wiring(case: str, mode: str, pairs: int, segment: int) -> Pairs:
    """Our LLaMA with the placement `pre`, and the same with hard-coded blocks."""
    size = SIZE if case == "wiring-256" else DEMO
    data = Tokens(512)
    experiment = Experiment.from_mapping({"model": {"kind": "llama", **size}, "norm.kind": "pre"})

    def model(hard_coded: bool) -> nn.Module:
        torch.manual_seed(0)
        built = experiment.model.build(experiment.norm, experiment.init, 512, (SEQ,))
        assert isinstance(built, LlamaModel)
        if hard_coded:
            built.layers = nn.ModuleList(
                PreBlock(block, built.config.hidden) for block in built.layers if isinstance(block, Block)
            )
        return built

    models = [model(hard_coded) for hard_coded in (False, True)]
    inputs = data.__getitems__(range(2))[0]
    if not torch.equal(models[0](inputs), models[1](inputs)):
        raise SystemExit("the two models compute different things; bring PreBlock up to date")
    ours, theirs = (peer_step(m, token_loss(m, mode), data, BATCH) for m in models)
    return alternating(ours, theirs, pairs, segment, skip=SKIP)


def token_loss(model: nn.Module, mode: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The cross-entropy of a language model in a plain loop, in the arithmetic of `mode`."""
    settings = MODES[mode]
    forward = torch.compile(model) if settings.get("compile") else model
    bf16 = settings.get("precision") == "bf16-mixed"

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = forward(tokens)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    return loss


def measure(case: str, mode: str, pairs: int, segment: int, norm: str) -> Pairs:
    """Runs one case and mode; see `CASES` and `MODES`."""
    from ablate.training.train import Hooks, train

    if case.startswith("wiring"):
        return wiring(case, mode, pairs, segment)
    torch.manual_seed(0)
    family, _, vocabulary = case.partition("-")
    steps = SKIP + pairs * segment + 1  # nothing is asked after the last update
    trainer = {"max_steps": steps, "batch_size": BATCH if family == "llama" else IMAGES, **MODES[mode]}
    settings = {"norm.kind": norm, "trainer": {**trainer, "val_check_interval": steps}}
    if family == "llama":
        settings |= {
            "model": {"kind": "llama", **SIZE},
            "data": {"kind": "random_tokens", "vocabulary": int(vocabulary)},
        }
        step = peer_step(*llama_peer(int(vocabulary)), Tokens(int(vocabulary)), BATCH)
    else:
        settings |= {"model": "vit-tiny", "data": {"kind": "random_images"}}
        step = peer_step(*vit_peer(), Images(), IMAGES)
    alternate = Alternate(step, segment)
    train(Experiment.from_mapping(settings), hooks=Hooks(asked_to_stop=alternate))
    return alternate.pairs


CASES = ("llama-512", "llama-32000", "vit-tiny", "wiring-256", "wiring-64")
MODES: dict[str, dict[str, object]] = {
    "eager": {"precision": "32-true", "compile": False},
    "bf16": {"precision": "bf16-mixed", "compile": False},
    "compiled": {"precision": "32-true", "compile": True},
    "fast": {"precision": "bf16-mixed", "compile": True},
    "auto": {},
}


def main() -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    top.add_argument("--modes", nargs="+", choices=list(MODES), default=["eager", "fast"])
    top.add_argument("--pairs", type=positive, default=12, help="timed segments of each side")
    top.add_argument("--segment", type=positive, default=4, help="updates in a segment")
    top.add_argument("--norm", default="pre", help="placement of our model, except in the wiring cases")
    top.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    given = top.parse_args()
    torch.set_num_threads(given.threads)
    print(f"threads {given.threads}; {given.pairs} pairs of {given.segment} updates; ratio = peer's time / ours")
    columns = ("mode", 10), ("ratio", 8), ("quartiles", 18), ("95 % of median", 18), ("range", 18)
    print(f"{'case':14}" + "".join(f"{name:{width}}" for name, width in columns) + f"{'ours/s':>9}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ABLATE_STORE"] = folder
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        for case in given.only:
            for mode in given.modes:
                found = measure(case, mode, given.pairs, given.segment, given.norm)
                spread = found.spread()
                items = given.segment * (IMAGES if case == "vit-tiny" else BATCH * SEQ)
                rate = items / statistics.median(found.ours)
                pairs = (spread.quartiles, spread.interval, spread.range)
                ranges = "".join(f"{between(pair, 3):18}" for pair in pairs)
                print(f"{case:14}{mode:10}{spread.median:<8.3f}{ranges}{rate:9,.0f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
