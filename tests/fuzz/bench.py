"""What the fuzzers damage: a folder with whole files of every kind that the command line reads."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import torch
import yaml
from fuzz.calls import call

from ablate import tracking
from ablate.experiment.tree import Experiment
from ablate.scheduler.storage import open_storage
from ablate.sweeps.spec.sweep import Sweep
from benchmarks.simulation.losses import Valley
from benchmarks.simulation.sweeps import simulate

SIZES = {
    "llama": {"model": {"hidden": 16, "layers": 2, "heads": 2, "mlp": 32}, "data": {"kind": "topics", "seq_len": 16}},
    "lns": {
        "model": {"hidden": 16, "layers": 2, "heads": 2, "mlp": 32},
        "norm": "lns",
        "data": {"kind": "topics", "seq_len": 16},
    },
    "vit": {"model": {"kind": "vit", "hidden": 16, "layers": 2, "heads": 2}},
}
TINY = [
    "model.hidden=16", "model.layers=1", "model.heads=2", "trainer.max_steps=2", "trainer.batch_size=2",
    "trainer.val_check_interval=2", "schedule.warmup_steps=1", "data.val_fraction=0.0005",
]  # fmt: skip
SWEEP = {
    "name": "kept",
    "experiment": {"model": {"hidden": 16, "layers": 2, "heads": 2}, "trainer": {"max_steps": 12}},
    "arms": {"a": {"norm": "pre"}, "b": {"norm": "post"}},
    "search": {"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True}},
    "sampler": "random",
    "budget": {"trials": 3},
    "confirm": {"seeds": 3},
}


class Bench:
    """A folder with whole files; `fresh` gives a place for a damaged one. Its store is the one that is used."""

    def __init__(self, folder: Path, store: Path | None = None) -> None:
        self.folder, self._number = folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.update(ABLATE_STORE=str(store or folder / "store"), HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
        for name in ("MLFLOW_TRACKING_URI", "ABLATE_STORAGE"):
            os.environ.pop(name, None)
        os.chdir(folder)
        tracking.client.cache_clear()

    def fresh(self, name: str) -> Path:
        """A path that nothing is at, in a folder of its own; what was made in earlier ones is deleted."""
        shutil.rmtree(self.folder / f"case{self._number}", ignore_errors=True)
        self._number += 1
        place = self.folder / f"case{self._number}" / name
        place.parent.mkdir(parents=True)
        return place

    def checkpoint(self, family: str) -> Path:
        """A checkpoint of random weights."""
        file = self.folder / family / "last.ckpt"
        if not file.exists():
            file.parent.mkdir()
            experiment = Experiment.from_mapping(SIZES[family])
            shape = (1, 8, 8) if family == "vit" else (16,)
            torch.manual_seed(0)
            model = experiment.model.build(experiment.norm, experiment.init, 10 if family == "vit" else 256, shape)
            state = {f"model.{name}": value for name, value in model.state_dict().items()}
            torch.save({"state_dict": state, "experiment": experiment.to_tree(), "global_step": 3}, file)
        return file

    def export(self, family: str, form: str) -> Path:
        """An exported folder."""
        folder = self.folder / f"{family}-{form}"
        if not folder.exists():
            call(["export", str(self.checkpoint(family)), "--to", form, "--output", str(folder)])
        return folder

    def file(self, name: str) -> Path:
        """A file of data, a tokenizer, or word pairs, by its name."""
        place = self.folder / "files" / name
        if not place.exists():
            place.parent.mkdir(exist_ok=True)
            _WRITERS[name](place)
        return place

    def database(self, name: str) -> Path:
        """optuna.db with a sweep, or mlflow.db with a run."""
        file = self.folder / "databases" / name
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            if name == "optuna.db":
                source = file.with_suffix(".open")
                spec = Sweep.from_tree(SWEEP)
                simulate(spec, Valley({"a": 2.0, "b": 2.1}), open_storage(f"sqlite:///{source}"))
            else:
                source = Path(os.environ["ABLATE_STORE"]) / name
                tracking.Tracker.start("kept", "a run", {}).end("completed")
            with closing(sqlite3.connect(source)) as opened, closing(sqlite3.connect(file)) as copy:
                opened.backup(copy)  # all of it in one file
        return file


def _write_rows(place: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    table = pa.table({"text": [f"this is the text number {i} of several" for i in range(60)]})
    if place.suffix == ".parquet":
        pyarrow.parquet.write_table(table, place)
    else:
        with pa.OSFile(str(place), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)


def _write_tokenizer(place: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<eos>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(["the quick brown fox", "jumps over the lazy dog"], trainer)
    tokenizer.save(str(place))


def _write_sentencepiece(place: Path) -> None:
    import sentencepiece

    text = [f"the quick brown fox number {i} jumps over the lazy dog" for i in range(50)]
    with place.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text), model_writer=file, vocab_size=60, model_type="bpe", minloglevel=2
        )


def _write_image(place: Path) -> None:
    from PIL import Image

    Image.effect_mandelbrot((16, 16), (-2, -1, 1, 1), 20).save(place)


TEXT = "\n".join(f"line {i} of a text that is long enough to be cut" for i in range(200))
PAIRS = [{"prompt": f"is it {n}?", "chosen": "yes", "rejected": "no"} for n in range(30)]
TALKS = [
    {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "yes"}]} for n in range(30)
]
_WRITERS = {
    "text.txt": lambda place: place.write_text(TEXT),
    "text.txt.gz": lambda place: place.write_bytes(gzip.compress(TEXT.encode())),
    "text.jsonl": lambda place: place.write_text("\n".join(json.dumps({"text": f"text {i} " * 9}) for i in range(60))),
    "text.parquet": _write_rows,
    "text.arrow": _write_rows,
    "tokenizer.json": _write_tokenizer,
    "tokenizer.model": _write_sentencepiece,
    "image.png": _write_image,
    "image.jpg": _write_image,
    "image.gif": _write_image,
    "image.tif": _write_image,
    "pairs.json": lambda place: place.write_text(json.dumps(PAIRS)),
    "talks.json": lambda place: place.write_text(json.dumps(TALKS)),
    "words.csv": lambda place: place.write_text("".join(f"cat{i},dog{i},{i}.5\n" for i in range(20))),
    "sweep.yaml": lambda place: place.write_text(yaml.safe_dump(SWEEP)),
    "experiment.yaml": lambda place: place.write_text(Experiment().to_yaml()),
}
FILES = tuple(_WRITERS)
