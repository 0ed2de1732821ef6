"""Updates, batches and whole sets without a single target: no loss, a gradient of zero, and a refusal before a run."""

from typing import ClassVar, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from ablate import tracking
from ablate.config.errors import DataError
from ablate.data import IGNORED, Corpus, Samples, UserDataset, data_kinds
from ablate.experiment.tree import Experiment
from ablate.scheduler.own_runs import RUNNER
from ablate.sweeps.spec.sweep import Sweep
from ablate.training.module import TrainingModule
from ablate.training.train import train

VIT = {"kind": "vit", "hidden": 8, "layers": 1, "heads": 1, "patch_size": 4}
LLAMA = {"kind": "llama", "hidden": 8, "layers": 1, "heads": 1, "mlp": 8}
TASKS = {
    "language_modeling": (LLAMA, (6,), (6,)),
    "image_classification": (VIT, (1, 8, 8), ()),
    "image_segmentation": (VIT, (1, 8, 8), (8, 8)),
}
"""Task -> model, shape of an input, of its targets."""


def build(task, accumulate=1):
    """A module of `task`, and two batches of two samples: one wholly ignored, one with some targets."""
    model, shape, aims = TASKS[task]
    settings = {"model": model, "trainer": {"batch_size": 2 * accumulate, "accumulate": accumulate}}
    data = {"data": {"kind": "glyphs", "targets": "mask"}} if task == "image_segmentation" else {}
    experiment = Experiment.from_mapping({**settings, **data})
    assert experiment.task.kind == task
    torch.manual_seed(0)
    inputs = torch.randint(5, (4, *shape)) if len(shape) == 1 else torch.randn(4, *shape)
    targets = torch.randint(5, (4, *aims))
    targets[:2] = IGNORED
    targets[3].view(-1)[:1] = IGNORED
    corpus = Corpus(Samples([], None), Samples([], None), "", 5, shape, None, "", padded=True)
    return TrainingModule(experiment, corpus), (inputs[:2], targets[:2]), (inputs[2:], targets[2:])


def backward(module, *batches):
    for batch in batches:
        (module.training_step(batch, 0) / len(batches)).backward()
        module.on_after_backward()
    return [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("task", TASKS)
def test_an_update_without_targets_has_a_gradient_of_zero_and_no_loss(task):
    module, nothing, _ = build(task)
    gradients = backward(module, nothing)
    assert gradients
    assert not any(gradient.any() for gradient in gradients)
    assert module.train_loss_scale == 0


@pytest.mark.parametrize("task", TASKS)
def test_a_batch_without_targets_leaves_an_update_to_the_others(task):
    module, nothing, some = build(task, accumulate=2)
    gradients = backward(module, nothing, some)
    module.zero_grad()
    inputs, targets = some
    logits = module.model(inputs)
    F.cross_entropy(logits.movedim(-1, 1) if task == "language_modeling" else logits, targets).backward()
    for ours, parameter in zip(gradients, module.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("task", TASKS)
def test_a_validation_batch_without_targets_changes_no_mean(task):
    module, nothing, some = build(task)
    means = []
    for batches in ([some], [nothing, some, nothing]):
        module.on_validation_epoch_start()
        with torch.no_grad():
            for batch in batches:
                module.validation_step(batch, 0)
        module.on_validation_epoch_end()
        means.append(module.val_metrics)
    assert means[0] == means[1]
    assert all(np.isfinite(value) for value in means[0].values())


def draw_masks(root, ignored, count=8):
    """root/images and root/masks of 8 x 8 with two classes; those whose numbers are `ignored` have masks of 255."""
    random = np.random.default_rng(len(root.name))  # sets have other images
    for name in ("images", "masks"):
        (root / name).mkdir(parents=True)
    for number in range(count):
        Image.fromarray(random.integers(0, 255, (8, 8, 3), np.uint8)).save(root / "images" / f"{number}.png")
        mask = np.full((8, 8), 255, np.uint8) if number in ignored else random.integers(0, 2, (8, 8), np.uint8)
        Image.fromarray(mask).save(root / "masks" / f"{number}.png")


def build_run(root, **trainer):
    return Experiment.from_mapping({
        "model": VIT,
        "data": {"kind": "mask_folder", "root": str(root), "mask_classes": 2, "image_size": 8, "val_fraction": 0.25},
        "trainer": {"max_steps": 8, "batch_size": 1, "log_every_n_steps": 1, **trainer},
    })  # fmt: skip


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_with_such_updates_completes_and_logs_no_loss_of_them(store, tmp_path, accumulate):
    draw_masks(tmp_path / "half", ignored=range(0, 8, 2))
    run = build_run(tmp_path / "half", batch_size=accumulate, accumulate=accumulate)
    corpus = run.data.load(tracking.cache_folder())
    batches = iter(corpus.train.batches(accumulate, run.seed))
    with_targets = [step for step in range(1, 9) if (next(batches)[1] != IGNORED).any()]
    assert 0 < len(with_targets) < 8
    result = train(run)
    assert (result.status, result.step) == ("completed", 8)
    logged = {
        key: [m.value for m in tracking.client().get_metric_history(result.run_id, f"train/{key}")]
        for key in ("loss", "grad_norm")
    }
    assert len(logged["loss"]) == len(with_targets)
    assert [step for step, norm in enumerate(logged["grad_norm"], 1) if norm > 0] == with_targets
    assert np.isfinite(result.metrics["val/loss"])


@pytest.mark.parametrize(("side", "text"), [("train", "masks to train on"), ("val", "validation set has no targets")])
def test_a_set_without_targets_is_refused_before_the_run(store, tmp_path, side, text):
    for name in ("train", "val"):
        draw_masks(tmp_path / name, ignored=range(8) if name == side else ())
    run = build_run(tmp_path)
    with pytest.raises(DataError, match=text):
        train(run)
    tree = run.to_tree() | {"seed": 0}
    sweep = {"name": "s", "experiment": {key: tree[key] for key in ("model", "data", "trainer")}}
    sweep |= {"arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}}, "search": {"optimizer.lr": [1e-3, 1e-2]}}
    with pytest.raises(DataError, match=text):
        RUNNER.prepare(Sweep.from_tree(sweep))
    assert tracking.client().search_experiments(filter_string="name = 'train'") == []


class Labelled(UserDataset):
    """Images of 8 x 8 with the labels that a test sets."""

    kind: Literal["labelled"] = "labelled"
    task: ClassVar[str] = "image_classification"
    classes: ClassVar[int] = 3
    labels: ClassVar[tuple[list[int], list[int]]]

    def build(self):
        return tuple([(torch.full((1, 8, 8), float(i)), label) for i, label in enumerate(part)] for part in self.labels)


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (([0, 1], [IGNORED] * 3), "The validation set has no targets: in its 3 items, all are ignored"),
        (([IGNORED] * 2, [0]), "The training set has no targets: in its 2 items, all are ignored"),
    ],
)
def test_a_plugins_labels_may_be_ignored_but_not_all(store, registries, monkeypatch, labels, text):
    data_kinds.register(Labelled)
    monkeypatch.setattr(Labelled, "labels", labels, raising=False)
    run = {"model": VIT, "data": {"kind": "labelled"}, "trainer": {"max_steps": 2, "batch_size": 2}}
    with pytest.raises(DataError, match=text):
        train(Experiment.from_mapping(run))
    monkeypatch.setattr(Labelled, "labels", ([0, IGNORED, 2], [IGNORED, 1]))
    result = train(Experiment.from_mapping(run))
    assert result.status == "completed"
    assert result.metrics["val/accuracy"] in (0.0, 1.0)


def test_whether_targets_of_a_plugin_may_be_ignored_is_read_from_them(tmp_path, monkeypatch):
    monkeypatch.setattr(Labelled, "labels", ([0, 1], [2]), raising=False)
    assert not Labelled().load(tmp_path).padded
    monkeypatch.setattr(Labelled, "identify", lambda self: "1")  # nothing is read
    assert Labelled().load(tmp_path).padded
    monkeypatch.undo()
    monkeypatch.setattr(Labelled, "labels", ([0, IGNORED], [2]), raising=False)
    assert Labelled().load(tmp_path).padded
    monkeypatch.setattr(Labelled, "labels", ([0, 1], [2]))
    stack = UserDataset.collate
    monkeypatch.setattr(Labelled, "collate", lambda self, samples: stack(self, samples))  # which might pad
    assert Labelled().load(tmp_path).padded
