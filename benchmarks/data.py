"""How much faster the loader gives batches than a training step uses them up, alternating in one run.

    python benchmarks/data.py --kind images
    python benchmarks/data.py --kind documents --workers 0 1 --pairs 8

text, documents: windows of 256 tokens and a document in each row, against a training step of the 71M LLaMA with a
vocabulary of 32,000.
images: JPEG files of 500 x 375 pixels in an arrow table, as `datasets` writes ImageNet, decoded and augmented by
ConvNeXt's recipe at 224 pixels, against a training step of ViT-Tiny (a plain float32 loop with fused AdamW). A ratio is
the step's time over the loader's for the same number of images: at 5, the loader could feed five such steps. The step
runs on all cores while the loader waits; the loader on as many as it has processes (0: the training process).
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from timing import Pairs, between, positive, seconds

from ablate import Experiment
from ablate.data import BatchDataset

IMAGES, BATCH = 256, 16
SEQUENCES, VOCABULARY = 4, 32_000
AHEAD = 2  # batches that each worker of a DataLoader reads ahead


@dataclass(frozen=True)
class Case:
    """What is loaded, and what uses it up."""

    data: BatchDataset
    batch: int
    per_item: int
    """Units in one sequence or image."""
    step: Callable[[], object]
    """One training step on `batch` items."""
    unit: str


def jpeg(random: np.random.Generator) -> bytes:
    """A photograph's size in pixels and in bytes (about 100 KB): broad shapes under a little noise."""
    from PIL import Image

    shapes = Image.fromarray(random.integers(0, 256, (12, 16, 3), np.uint8)).resize(
        (500, 375), Image.Resampling.BICUBIC
    )
    noisy = np.asarray(shapes, np.int16) + random.integers(-12, 13, (375, 500, 3))
    buffer = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def images(folder: Path) -> Case:
    """ImageNet's recipe and ViT-Tiny."""
    import datasets

    random = np.random.default_rng(0)
    rows = {
        "image": [{"bytes": jpeg(random), "path": None} for _ in range(IMAGES)],
        "label": [i % 2 for i in range(IMAGES)],
    }
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(1000)})
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(folder / "table"))
    settings = {"model": "vit-tiny", "data": "imagenet", "data.augment": "convnext"}
    experiment = Experiment.from_mapping(settings, {"data.dataset": str(folder / "table")})
    return case(experiment, folder, BATCH, "images")


def text(folder: Path, **data: Any) -> Case:
    """Python's help topics as JSON lines, and the 71M LLaMA."""
    from pydoc_data.topics import topics

    lines = folder / "topics.jsonl"
    lines.write_text("".join(json.dumps({"text": topic}) + "\n" for topic in topics.values()))
    settings = {
        "model": "llama-71m",
        "model.vocab_size": VOCABULARY,
        "data": {"kind": "text", "files": str(lines), **data},
    }
    return case(Experiment.from_mapping(settings), folder, SEQUENCES, "tokens")


def case(experiment: Experiment, folder: Path, batch: int, unit: str) -> Case:
    """What the experiment trains on, and one step of its model on the first batch."""
    corpus = experiment.data.load(folder)
    model = experiment.build_model(corpus.classes, corpus.shape).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    inputs, targets = next(iter(corpus.train.batches(batch, 0)))
    per_item = experiment.task.count_items(corpus.shape)
    if per_item > 1:
        targets = targets.flatten()

    def step() -> None:
        optimizer.zero_grad()
        logits = model(inputs)
        F.cross_entropy(logits.flatten(0, -2), targets).backward()
        optimizer.step()

    return Case(corpus.train, batch, per_item, step, unit)


KINDS: dict[str, Callable[[Path], Case]] = {
    "text": text,
    "documents": partial(text, layout="documents"),
    "images": images,
}


@contextmanager
def batches(case: Case, workers: int) -> Iterator[Iterator[Any]]:
    """Batches without end; the workers end with the context."""
    given: Any = iter(case.data.batches(case.batch, 0, workers=workers))
    try:
        yield given
    finally:
        if workers:
            given._shutdown_workers()


def measure(case: Case, workers: int, pairs: int, segment: int) -> Pairs:
    """Seconds of `segment` batches out of the loader (ours), and of as many steps (theirs)."""
    found = Pairs()
    with batches(case, workers) as given:

        def pull() -> None:
            next(given)

        case.step()
        for _ in range(pairs):
            one = seconds(pull, AHEAD * workers + 1) / (AHEAD * workers + 1)  # what was read ahead is not timed
            found.ours.append(seconds(pull, segment))
            time.sleep(2 * AHEAD * workers * one)  # until the workers have read ahead again, and rest
            found.theirs.append(seconds(case.step, segment))
    return found


def main() -> int:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--kind", choices=list(KINDS), default="images")
    top.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="processes that load the data")
    top.add_argument("--pairs", type=positive, default=8, help="timed segments of each side")
    top.add_argument("--segment", type=positive, default=8, help="batches in a segment")
    top.add_argument("--threads", type=positive, default=os.cpu_count() or 1, help="of the training step")
    given = top.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        case = KINDS[given.kind](Path(folder))
        size = f"{case.batch * case.per_item} {case.unit}"
        print(f"threads {given.threads}; {given.pairs} pairs of {given.segment} batches of {size}")
        columns = ("ratio", 8), ("quartiles", 18), ("95 % of median", 18), ("range", 18)
        print(f"{'workers':10}" + "".join(f"{name:{width}}" for name, width in columns) + f"{case.unit + '/s':>12}")
        for workers in given.workers:
            found = measure(case, workers, given.pairs, given.segment)
            spread = found.spread()
            rate = given.pairs * given.segment * case.batch * case.per_item / sum(found.ours)
            digits = 2 if spread.median < 100 else 0
            ranges = "".join(f"{between(p, digits):18}" for p in (spread.quartiles, spread.interval, spread.range))
            print(f"{workers:<10}{spread.median:<8.{digits}f}{ranges}{rate:12,.0f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
