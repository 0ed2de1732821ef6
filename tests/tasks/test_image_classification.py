"""The loss of soft targets and the shares of right guesses, by hand."""

import pytest
import torch
import torch.nn.functional as F

from ablate.config.errors import ConfigError
from ablate.data import Corpus
from ablate.data.images.augment import Timm
from ablate.data.images.batches import MemoryImages
from ablate.distributed import ranks
from ablate.experiment.tree import Experiment
from ablate.training.module import TrainingModule

SETTINGS = {"model": {"kind": "vit", "hidden": 8, "layers": 1, "heads": 2}}


def task(classes, *settings):
    images = MemoryImages(torch.zeros(1, 1, 8, 8), torch.zeros(1, dtype=torch.int64), ("a",))
    corpus = Corpus(images, images, "", classes, (1, 8, 8), None, "")
    return TrainingModule(Experiment.from_mapping(SETTINGS, *settings), corpus)


def values(module):
    """The metrics so far, which are then reset."""
    metrics = module.task.compute_metrics(0.0, module.metrics, None)
    module.metrics.reset()
    return metrics


def test_label_smoothing_is_that_of_torch():
    made = task(7)
    images, labels = torch.randn(5, 1, 8, 8), torch.tensor([0, 6, 3, 3, 1])
    soft = Timm(label_smoothing=0.1).soften(labels, 7)
    expected = F.cross_entropy(made.model(images), labels, label_smoothing=0.1)
    torch.testing.assert_close(made.loss(images, soft), expected)
    torch.testing.assert_close(made.loss(images, labels), F.cross_entropy(made.model(images), labels))
    assert Timm().soften(labels, 7) is labels


def test_top1_and_top5_by_hand():
    made = task(7)
    logits = torch.randn(40, 7, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(40) % 7
    for part in (slice(0, 11), slice(11, 40)):
        made.metrics.update(logits[part], labels[part])
    order = [sorted(range(7), key=lambda c: -row[c].item()) for row in logits]
    top1 = sum(guesses[0] == label for guesses, label in zip(order, labels.tolist(), strict=True)) / 40
    top5 = sum(label in guesses[:5] for guesses, label in zip(order, labels.tolist(), strict=True)) / 40
    assert 0 < top1 < top5 < 1
    assert values(made) == pytest.approx({"accuracy": top1, "accuracy_top5": top5})
    made.metrics.update(torch.eye(7), torch.arange(7))
    assert values(made) == {"accuracy": 1.0, "accuracy_top5": 1.0}


def test_five_classes_have_no_top5():
    made = task(5)
    made.metrics.update(torch.eye(5), torch.zeros(5, dtype=torch.int64))
    assert values(made) == pytest.approx({"accuracy": 0.2})


def test_the_part_of_a_rank_must_be_even_for_mixing(monkeypatch):
    mixing = {"data": {"kind": "image_folder", "root": "x", "augment": {"kind": "timm", "mixup": 0.8}}}
    task(7, mixing, {"trainer.batch_size": 6})
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
    with pytest.raises(ConfigError, match=r"data.augment.mixup: mixes .* has 3: .* the number of ranks"):
        task(7, mixing, {"trainer.batch_size": 6})
