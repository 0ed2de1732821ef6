"""A group of two ranks trains what one process trains, stops as one, and goes on as if it had not stopped."""

import csv
import json

import numpy as np
import pytest
import torch
from norms.cases import PROFILED
from PIL import Image
from stored_facts import read_facts

from ablate import tracking
from ablate.config.errors import ConfigError
from ablate.distributed import groups, ranks
from ablate.experiment.tree import Experiment
from ablate.training.train import train
from ablate.training.trainer import check_ranks

SCRIPT = """
import json, sys
from pathlib import Path

from ablate.distributed import groups, ranks
from ablate.experiment.tree import Experiment
from ablate.config.errors import DataError
from ablate.training.train import Hooks, Place, train

settings = json.loads(sys.argv[1])
asked = iter(range(1, 1000))


def everything():
    results = {name: train(Experiment.from_mapping(tree)) for name, tree in settings.items()}
    llama = Experiment.from_mapping(settings["llama"])
    results["pruned"] = train(llama, hooks=Hooks(decide=lambda step, metrics: step < 10))
    results["diverged"] = train(Experiment.from_mapping(
        settings["llama"], {"optimizer.lr": 1e4, "schedule.warmup_steps": 0, "trainer.max_steps": 50}
    ))
    try:
        train(Experiment.from_mapping(settings["llama"], {"model.vocab_size": 100}))
    except DataError:  # all ranks meet it, and go on
        pass
    part = train(llama, hooks=Hooks(asked_to_stop=lambda: next(asked) == 7))
    results["part"] = part
    results["rest"] = train(llama, Place(run_id=part.run_id))
    drops = {"model.drop_path": 0.5, "trainer.max_steps": 6, "trainer.val_check_interval": 6}
    drops = Experiment.from_mapping(settings["vit"], drops)
    again = iter(range(1, 1000))
    part = train(drops, hooks=Hooks(asked_to_stop=lambda: next(again) == 3))
    results["drops"] = train(drops)
    results["drops, rest"] = train(drops, Place(run_id=part.run_id))
    Path(sys.argv[2]).write_text(json.dumps({name: result.to_dict() for name, result in results.items()}))
    return 7


with groups.lead() as ending:
    if ending.leads:
        ending.status = everything()
print(f"rank {ranks.rank()} of {ranks.world_size()} ends with {ending.status}", flush=True)
"""


def history(run_id, key):
    return [m.value for m in tracking.client().get_metric_history(run_id, key)]


def weights(store, run_id):
    return torch.load(store / "runs" / run_id / "last.ckpt", weights_only=True)["state_dict"]


@pytest.fixture
def images(tmp_path):
    """A folder of 2 x 12 noisy images."""
    noise = np.random.default_rng(0)
    for number in range(24):
        folder = tmp_path / "images" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 256, (9, 9, 3), np.uint8)).save(folder / f"{number}.png")
    return str(tmp_path / "images")


@pytest.fixture
def settings(tiny_settings, vit_settings, images, tmp_path):
    trainer = {"max_steps": 20, "val_check_interval": 5, "log_every_n_steps": 1, "precision": "32-true"}

    def build(base, **more):
        return {**base, "trainer": {**base["trainer"], **trainer, **more.pop("trainer", {})}, **more}

    lines = (json.dumps({"text": f"{number} " + "some words " * (number % 5)}) for number in range(97))
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    documents = {"kind": "text", "files": str(tmp_path / "lines.jsonl"), "layout": "documents", "seq_len": 32}
    for name in ("images", "masks"):
        (tmp_path / "half" / name).mkdir(parents=True)
    for number in range(8):  # every other mask has no class, so that a rank or an update may have no target
        mask = np.resize([0, 1] if number % 2 else [255], (8, 8)).astype(np.uint8)
        Image.fromarray(mask).save(tmp_path / "half" / "masks" / f"{number}.png")
        Image.new("RGB", (8, 8), (9 * number, 9, 9)).save(tmp_path / "half" / "images" / f"{number}.png")
    half = {"kind": "mask_folder", "root": str(tmp_path / "half"), "mask_classes": 2, "image_size": 8}
    return {
        "documents": build(tiny_settings, data=documents, trainer={"gradient_clip_val": 0.1}),
        "documents accumulated": build(
            tiny_settings, data={**documents, "val_fraction": 0.3}, trainer={"accumulate": 2}
        ),
        "masks": build(vit_settings, data={**half, "val_fraction": 0.5}, trainer={"batch_size": 2}),
        "llama": build(tiny_settings),
        "vit": build(vit_settings),
        "recipe": build(
            vit_settings,
            data={"kind": "image_folder", "root": images, "image_size": 8, "augment": "convnext"},
            trainer={"accumulate": 2, "ema_decay": 0.9},
        ),
        "admin": build(tiny_settings, **PROFILED["llama"], trainer={"accumulate": 2, "gradient_clip_val": 0.1}),
    }


def test_two_ranks_train_what_one_process_trains_and_stop_as_one(store, settings, run_by_two, tmp_path):
    out = tmp_path / "out.json"
    ended = run_by_two(SCRIPT, json.dumps(settings), out)
    assert [status for status, *_ in ended] == [0, 0], ended
    assert [output.splitlines()[-1] for _, output, _ in ended] == [
        "rank 0 of 2 ends with 7", "rank 1 of 2 ends with 7"
    ]  # fmt: skip
    group = json.loads(out.read_text())
    for name, tree in settings.items():
        alone = train(Experiment.from_mapping(tree))
        run_id = group[name]["run_id"]
        for key, count in (("train/loss", 20), ("val/loss", 4)):
            expected = history(alone.run_id, key)
            has_gaps = (name, key) == ("masks", "train/loss")
            assert 0 < len(expected) < count if has_gaps else len(expected) == count
            assert history(run_id, key) == pytest.approx(expected, rel=1e-5)
        assert history(run_id, "train/grad_norm") == pytest.approx(history(alone.run_id, "train/grad_norm"), rel=1e-3)
        assert history(run_id, tracking.STEP_METRIC) == history(alone.run_id, tracking.STEP_METRIC)
        assert group[name]["metrics"] == pytest.approx(alone.metrics, rel=1e-5)
        tags = [read_facts(run)["ablate.ranks"] for run in (run_id, alone.run_id)]
        assert tags == ["2", "1"]
    assert (group["pruned"]["status"], group["pruned"]["step"]) == ("pruned", 10)
    assert group["diverged"]["status"] == "diverged"
    part, rest, whole = group["part"], group["rest"], group["llama"]
    assert (part["status"], part["step"], rest["run_id"]) == ("interrupted", 7, part["run_id"])
    assert rest["metrics"] == whole["metrics"]
    for key in ("train/loss", "train/grad_norm", "val/loss"):
        assert history(rest["run_id"], key) == history(whole["run_id"], key)
    for one, other in ((whole, rest), (group["drops"], group["drops, rest"])):
        a, b = (weights(store, result["run_id"]) for result in (one, other))
        assert all(torch.equal(a[key], b[key]) for key in a)


def test_a_batch_that_the_ranks_cannot_share_is_refused(monkeypatch):
    config = Experiment.from_mapping({}, {"trainer.batch_size": 12, "trainer.accumulate": 2}).trainer
    check_ranks(config)
    monkeypatch.setattr(ranks, "world_size", lambda: 4)
    with pytest.raises(ConfigError, match=r"multiple of 8: 4 ranks, trainer\.accumulate 2\. Set it to 8 or 16 "):
        check_ranks(config)


def test_without_a_group_nothing_is_asked_of_anyone(monkeypatch):
    for name in ("TORCHELASTIC_RUN_ID", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with groups.lead() as ending:
        assert ending.leads
        ending.status = 5
    assert ending.status == 5
    assert (ranks.rank(), ranks.world_size(), ranks.local_size()) == (0, 1, 1)
    assert groups.describe_command() == "ablate"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "1")  # torchrun with one process
    with groups.lead() as ending:
        assert (ending.leads, ranks.world_size()) == (True, 1)
    assert not torch.distributed.is_initialized()


def test_two_ranks_are_logged_and_profiled_without_a_changed_number(trained_by_two, store, tiny_settings):
    watched = {"callbacks": ["LearningRateMonitor"], "loggers": ["CSVLogger"], "profiler": "simple"}
    tree = {**tiny_settings, "trainer": {**tiny_settings["trainer"], **watched}}
    results = trained_by_two({"watched": tree, "plain": tiny_settings})
    result = results["watched"]
    assert result["metrics"] == results["plain"]["metrics"]
    rows = []
    for folder in (result["run_id"], f"{result['run_id']}-from-7"):  # a run that goes on begins another log
        with (store / "logs" / "lightning_logs" / folder / "metrics.csv").open(newline="") as file:
            rows += csv.DictReader(file)
    assert [int(row["step"]) for row in rows if row["train/loss"]] == [1, 2, 4, 6, 8, 10, 12]
    assert any(row["lr-AdamW/pg1"] for row in rows)
