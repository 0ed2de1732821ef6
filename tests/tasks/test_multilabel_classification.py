"""Several labels of an image: metrics against scikit-learn, the trivial loss by hand, a run on a column of lists."""

import io
import math
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from sklearn.metrics import average_precision_score, f1_score

from ablate.config.errors import DataError
from ablate.experiment.tree import Experiment
from ablate.tasks import tasks
from ablate.training.train import train

TASK = tasks.parse("multilabel_classification")
SIZE = {"kind": "vit", "hidden": 16, "layers": 1, "heads": 2, "patch_size": 4}


def write_table(path, labels):
    """A parquet file of small images with these lists of labels."""
    random, images = np.random.default_rng(0), []
    for _ in labels:
        file = io.BytesIO()
        Image.fromarray(random.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(file, "png")
        images.append({"bytes": file.getvalue(), "path": None})
    pq.write_table(pa.table({"image": images, "labels": labels}), path)
    data = {"kind": "image_files", "files": str(path), "targets": "labels", "image_size": 8, "val_fraction": 0.25}
    return {"model": SIZE, "data": data, "trainer": {"max_steps": 2, "val_check_interval": 2, "batch_size": 4}}


def test_metrics_are_those_of_scikit_learn():
    random = np.random.default_rng(0)
    scores, truth = random.normal(size=(60, 4)), (random.random((60, 4)) < 0.4).astype(np.int64)
    metrics = TASK.build_metrics(SimpleNamespace(classes=4))
    losses = []
    for part in (slice(0, 25), slice(25, 60)):
        logits, targets = torch.from_numpy(scores[part]), torch.from_numpy(truth[part]).float()
        losses.append(TASK.validate_batch(lambda images, logits=logits: logits, logits, targets, metrics))
    expected = {
        "mean_average_precision": average_precision_score(truth, scores, average="macro"),
        "macro_f1": f1_score(truth, scores > 0, average="macro"),
    }
    assert TASK.compute_metrics(0.0, metrics, None) == pytest.approx(expected, rel=1e-5)
    chances = 1 / (1 + np.exp(-scores[:25]))
    by_hand = -(truth[:25] * np.log(chances) + (1 - truth[:25]) * np.log(1 - chances)).mean()
    assert losses[0].item() == pytest.approx(by_hand, rel=1e-5)


def test_a_run_on_a_column_of_lists(store, tmp_path):
    labels = [[], ["cat"], ["cat", "dog"], ["dog"]] * 4
    run = Experiment.from_mapping(write_table(tmp_path / "pets.parquet", labels))
    assert run.task == TASK
    corpus = run.data.load(store)
    assert corpus.classes == 2
    _, targets = corpus.train.__getitems__([0])
    assert targets.shape == (1, 2)
    counts, rows = corpus.train.labels.sum(0), len(corpus.train)
    shares, there = (counts + 1) / (rows + 2), corpus.val.labels.mean(0)
    expected = -(there * shares.log() + (1 - there) * (1 - shares).log()).mean().item()
    assert TASK.measure_trivial_loss(corpus, run.model) == pytest.approx(min(expected, math.log(2)), rel=1e-5)
    result = train(run)
    assert set(result.metrics) == {"val/loss", "val/mean_average_precision", "val/macro_f1"}


def test_a_column_that_holds_no_lists_is_told(tmp_path):
    run = Experiment.from_mapping(write_table(tmp_path / "pets.parquet", ["cat", "dog"] * 8))
    with pytest.raises(DataError, match=r"The column 'labels' .*, not lists of labels. Set data.label_column"):
        run.data.load(tmp_path)
