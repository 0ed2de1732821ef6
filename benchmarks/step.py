"""Tokens and images per second of one training step, as ratios to a peer in a plain loop, alternating in one run.

    python benchmarks/step.py                       # LLaMA at both vocabularies and ViT-Tiny, eager and fast
    python benchmarks/step.py --only llama-512 --pairs 20

LLaMA against `transformers`' LlamaForCausalLM and ViT-Tiny against timm's `vit_tiny_patch16_224`, both in a plain
float32 loop with fused AdamW. Ours runs as a trial does: through `ablate.train`, in Lightning, with metrics logged to
MLflow. After every few of our updates the peer makes as many; a ratio is the peer's time over ours, so above 1 is
faster than the peer.
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
from torch import Tensor, nn

from ablate import Experiment
from ablate.data import BatchDataset, Corpus, DataConfig, data_kinds

SEQ, BATCH = 256, 8
IMAGES = 16  # in a batch of 224 x 224
SIZE = {"hidden": 256, "mlp": 688, "layers": 6, "heads": 4}


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


class Alternate:
    """Called after each of our updates; after every `segment` of them lets the peer make as many, and times both."""

    def __init__(self, peer: Callable[[], None], segment: int, skip: int) -> None:
        self.peer, self.segment, self.skip = peer, segment, skip
        self.updates = 0
        self.ours: list[float] = []
        self.theirs: list[float] = []
        self._since = 0.0

    def __call__(self) -> bool:
        self.updates += 1
        if self.updates <= self.skip:  # warm-up, compilation
            self.peer()
        elif (self.updates - self.skip) % self.segment == 0:
            self.ours.append(time.perf_counter() - self._since)
            start = time.perf_counter()
            for _ in range(self.segment):
                self.peer()
            self.theirs.append(time.perf_counter() - start)
        if self.updates <= self.skip or (self.updates - self.skip) % self.segment == 0:
            self._since = time.perf_counter()
        return False

    def ratios(self) -> list[float]:
        return [theirs / ours for ours, theirs in zip(self.ours, self.theirs, strict=True)]


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


def measure(case: str, mode: str, pairs: int, segment: int, norm: str) -> Alternate:
    """Runs one case and mode; see `CASES` and `MODES`."""
    from ablate.training.train import Hooks, train

    torch.manual_seed(0)
    family, _, vocabulary = case.partition("-")
    skip = 3
    trainer = {"max_steps": skip + pairs * segment, "batch_size": BATCH if family == "llama" else IMAGES, **MODES[mode]}
    settings = {"norm.kind": norm, "trainer": {**trainer, "val_check_interval": trainer["max_steps"]}}
    if family == "llama":
        settings |= {
            "model": {"kind": "llama", **SIZE},
            "data": {"kind": "random_tokens", "vocabulary": int(vocabulary)},
        }
        step = peer_step(*llama_peer(int(vocabulary)), Tokens(int(vocabulary)), BATCH)
    else:
        settings |= {"model": "vit-tiny", "data": {"kind": "random_images"}}
        step = peer_step(*vit_peer(), Images(), IMAGES)
    alternate = Alternate(step, segment, skip)
    train(Experiment.from_mapping(settings), hooks=Hooks(asked_to_stop=alternate))
    return alternate


CASES = ("llama-512", "llama-32000", "vit-tiny")
MODES = {
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
    top.add_argument("--pairs", type=int, default=12, help="timed segments of each side")
    top.add_argument("--segment", type=int, default=4, help="updates in a segment")
    top.add_argument("--norm", default="pre", help="placement of our model")
    top.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    given = top.parse_args()
    torch.set_num_threads(given.threads)
    print(f"threads {given.threads}; {given.pairs} pairs of {given.segment} updates; ratio = peer's time / ours")
    print(f"{'case':14}{'mode':10}{'ratio':>7}  {'quartiles':16}{'range':16}{'ours/s':>10}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ABLATE_STORE"] = folder
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        for case in given.only:
            for mode in given.modes:
                found = measure(case, mode, given.pairs, given.segment, given.norm)
                ratios = sorted(found.ratios())
                low, middle, high = statistics.quantiles(ratios, n=4)
                items = given.segment * (BATCH * SEQ if case.startswith("llama") else IMAGES)
                rate = items / statistics.median(found.ours)
                quartiles, span = f"{low:.2f} ... {high:.2f}", f"{ratios[0]:.2f} ... {ratios[-1]:.2f}"
                print(f"{case:14}{mode:10}{middle:7.3f}  {quartiles:16}{span:16}{rate:10,.0f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
