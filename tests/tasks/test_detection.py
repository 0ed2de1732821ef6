"""The plugin of docs/reference/detection.md: matching by hand, batches of its own in training, plan and resume."""

import itertools
import re
import sys
from pathlib import Path

import pytest
import torch

import ablate
from ablate.config import plugins
from ablate.estimate.memory import Meter, resolve_setup
from ablate.experiment.tree import Experiment
from ablate.tasks import tasks
from ablate.training.procedures import Hooks, Place
from ablate.training.train import train
from ablate.training.trained import open_trained

PAGE = Path(ablate.__file__).parents[1] / "docs" / "reference" / "detection.md"


@pytest.fixture
def settings(registries, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (body,) = re.findall(r'```python title="my_detection.py"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.S)
    Path("my_detection.py").write_text(body, encoding="utf-8")
    trainer = {"max_steps": 4, "val_check_interval": 2, "batch_size": 8, "val_samples": 8}
    model = {"kind": "vit", "hidden": 16, "layers": 1, "heads": 2, "patch_size": 8}
    return {
        "plugins": "my_detection.py",
        "model": model,
        "data": {"kind": "rectangles", "count": 64},
        "trainer": trainer,
    }


def test_it_trains_and_goes_on_to_the_same_numbers(store, settings):
    run = Experiment.from_mapping(settings)
    assert run.task.kind == "detection"
    asked = iter(range(1, 100))
    part = train(run, hooks=Hooks(asked_to_stop=lambda: next(asked) == 3))
    whole = train(run)
    assert set(whole.metrics) == {"val/loss", "val/box_accuracy"}
    assert train(run, Place(run_id=part.run_id)).metrics == whole.metrics
    assert open_trained(whole.run_id).inputs == (2, (1, 32, 32))
    meter = Meter(run, 2, (1, 32, 32))
    assert meter.memory(resolve_setup(run, 1, 1)).parts["activations"] > 0


def test_the_matching_is_the_cheapest_of_all(settings):
    run = Experiment.from_mapping(settings)
    module = sys.modules[type(run.task).__module__]
    random = torch.Generator().manual_seed(0)
    logits, boxes = torch.randn(5, 3, generator=random), torch.rand(5, 4, generator=random)
    target = {"boxes": torch.rand(4, 4, generator=random), "classes": torch.tensor([1, module.NONE, 0, 1])}
    predicted, matched = module.match(logits, boxes, target)
    there = [0, 2, 3]

    def cost(rows):
        pairs = zip(rows, there, strict=True)
        return sum(
            5 * (boxes[p] - target["boxes"][t]).abs().sum() - logits[p].softmax(-1)[target["classes"][t]]
            for p, t in pairs
        )

    best = min(itertools.permutations(range(5), 3), key=cost)
    assert dict(zip(matched.tolist(), predicted.tolist(), strict=True)) == dict(zip(there, best, strict=True))


def test_samples_are_padded_and_an_empty_batch_keeps_its_shape(settings):
    run = Experiment.from_mapping(settings)
    corpus = run.data.load(Path())
    images, targets = corpus.train.__getitems__(range(16))
    assert images.shape == (16, 1, 32, 32)
    assert targets["boxes"].shape == (16, 3, 4)
    assert (targets["classes"] == -1).any()
    assert len(corpus.train.__getitems__([])[1]["classes"]) == 0
    assert "detection" in tasks
    assert plugins.hash_files(["my_detection.py"])
