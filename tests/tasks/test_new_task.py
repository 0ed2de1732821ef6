"""A task of one's own is one file: that of docs/reference/plugins.md goes through every verb."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import ablate
from ablate.cli import main
from ablate.config.errors import ConfigError
from ablate.estimate.gpus import GPUS
from ablate.estimate.plan import Assumed, plan
from ablate.experiment.tree import Experiment
from ablate.reports.labels import label_metric, name_items, name_validation_item
from ablate.scheduler.storage import read_sweep
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.verdict_summary import find_bounds, name_unit
from ablate.tasks import tasks
from ablate.training.module import TrainingModule
from ablate.training.procedures import Hooks, Place
from ablate.training.train import train
from ablate.training.trained import open_trained

PAGE = Path(ablate.__file__).parents[1] / "docs" / "reference" / "plugins.md"
SIZE = {"kind": "vit", "hidden": 16, "layers": 1, "heads": 2}


@pytest.fixture
def settings(registries, tmp_path, monkeypatch):
    """Those of a short training of the page's task."""
    monkeypatch.chdir(tmp_path)
    (body,) = re.findall(r'```python title="my_task.py"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.S)
    Path("my_task.py").write_text(body, encoding="utf-8")
    trainer = {"max_steps": 6, "val_check_interval": 3, "batch_size": 8, "val_samples": 40}
    return {"plugins": "my_task.py", "model": SIZE, "task": "rotations", "trainer": trainer}


def test_it_trains_and_its_metrics_are_those_of_the_whole_validation_set(store, settings):
    run = Experiment.from_mapping(settings)
    result = train(run)
    source = open_trained(result.run_id)
    corpus = run.data.load(store).limit_validation(40)
    images, _ = corpus.val.__getitems__(range(40))
    turned = torch.cat([torch.rot90(images, k, (2, 3)) for k in range(4)])
    logits, truth = source.model()(turned), torch.arange(4).repeat_interleave(40)
    expected = {
        "val/loss": F.cross_entropy(logits, truth).item(),
        "val/turn_accuracy": (logits.argmax(1) == truth).float().mean().item(),
    }
    assert result.metrics == pytest.approx(expected, rel=1e-5)
    assert source.inputs == (0, (1, 8, 8))


def test_an_interrupted_run_goes_on_to_the_same_numbers(store, settings):
    run = Experiment.from_mapping(settings)
    asked = iter(range(1, 100))
    part = train(run, hooks=Hooks(asked_to_stop=lambda: next(asked) == 4))
    assert part.status == "interrupted"
    assert train(run, Place(run_id=part.run_id)).metrics == train(run).metrics


def test_a_sweep_compares_its_objective_and_calls_a_run_stuck_by_its_trivial_loss(store, settings, capsys):
    tree = {
        "name": "turns", "plugins": ["my_task.py"],
        "experiment": {part: settings[part] for part in ("model", "task", "trainer")},
        "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}}, "search": {"optimizer.lr": [1e-9]},
        "budget": {"trials": 1}, "confirm": {"seeds": 2},
    }  # fmt: skip
    spec = Sweep.from_tree(tree)
    assert (spec.objective.metric, spec.objective.direction) == ("val/turn_accuracy", "maximize")
    assert Sweep.from_tree({**tree, "objective": {"metric": "val/loss"}}).objective.direction == "minimize"
    Path("turns.yaml").write_text(json.dumps(tree))
    assert main(["sweep", "turns.yaml", "--dry-run"]) == 0
    assert main(["sweep", "turns.yaml", "--workers", "1"]) == 0
    capsys.readouterr()
    assert main(["report", "turns", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sweep"] == "turns"
    record = read_sweep("turns")
    assert record.trivial_loss == pytest.approx(math.log(4))
    assert name_items(spec) == "images"
    assert name_validation_item(spec) == "image"
    assert label_metric("val/turn_accuracy", spec) == "val/turn_accuracy (share of turns)"
    assert label_metric("val/loss", spec) == "val/loss (nats per turn)"
    assert find_bounds(spec) == (0.0, 1.0)
    assert name_unit(spec) == "val/turn_accuracy"


def test_it_is_listed_planned_and_counted_for_all_four_turns(store, settings, capsys):
    assert main(["list", "tasks", "plugins=my_task.py", "--json"]) == 0
    rows = {row["task"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["rotations"]["a sweep compares"] == "val/turn_accuracy"
    assert list(rows)[:2] == ["language_modeling", "image_classification"]
    own, plain = (
        plan(Experiment.from_mapping(settings, more), Assumed(GPUS["h100-80gb"]))
        for more in ({}, {"task": "image_classification"})
    )
    ratio = own.counts.forward_flops / plain.counts.forward_flops
    assert ratio == pytest.approx(4, rel=0.02)  # the heads are of another size
    assert own.memory.parts["activations"] > 3 * plain.memory.parts["activations"]


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"model": "llama", "data": "topics"}, r"task.kind: is for images, and model llama takes tokens"),
        ({"task": "rotation"}, r"unknown task 'rotation'.*Did you mean rotations\?"),
        ({"task": "language_modeling"}, r"task.kind: is for tokens, and model vit takes images.*image_classification"),
        ({"task.turns": 3}, r"task.turns"),
    ],
)
def test_what_does_not_fit_is_told(settings, more, text):
    with pytest.raises(ConfigError, match=text):
        Experiment.from_mapping(settings, more)


def test_a_family_without_heads_is_refused(settings, monkeypatch):
    from ablate.models import models

    monkeypatch.setattr(models["vit"], "takes_head", False)
    with pytest.raises(ConfigError, match=r"model\.kind: takes no head of another task, and rotations needs its own"):
        Experiment.from_mapping(settings)


def test_a_task_of_none_is_that_of_the_data(settings):
    for given in ({}, {"task": None}):
        assert Experiment.from_mapping({"model": "vit-digits"}, given).task == tasks.parse("image_classification")
    assert Experiment.from_mapping({}).task.kind == "language_modeling"


def test_means_over_unequal_batches_and_nested_targets_are_exact(registries, tmp_path):
    """Two accumulated batches with different numbers of targets: the gradient is that of the mean over all of them."""
    from ablate.data import IGNORED, Corpus, Samples

    kind = tasks["image_classification"]

    class Padded(kind):
        def build_metrics(self, corpus):
            return None

        def validate_batch(self, model, inputs, targets, metrics):
            return self.compute_loss(model, inputs, targets)

        def count_targets(self, inputs, targets):
            return (targets["class"] != IGNORED).sum()

        def run_blank(self, model, inputs):
            super().run_blank(model, inputs["image"])

        def compute_loss(self, model, inputs, targets):
            logits = model(inputs["image"])
            return F.cross_entropy(logits, targets["class"], reduction="sum") / len(logits)

    task = Padded()
    generator = torch.Generator().manual_seed(0)
    classes = torch.tensor([IGNORED if i < 3 else i % 3 for i in range(8)])
    images = torch.randn(8, 1, 8, 8, generator=generator)
    samples = [({"image": image}, {"class": number}) for image, number in zip(images, classes, strict=True)]
    data = Samples(samples, task.collate)
    run = Experiment.from_mapping({"model": SIZE, "trainer": {"batch_size": 8, "accumulate": 2}})
    object.__setattr__(run, "task", task)
    corpus = Corpus(data, data, "", 3, (1, 8, 8), None, "", padded=True)
    module = TrainingModule(run, corpus)
    for batch in (data.__getitems__(range(4)), data.__getitems__(range(4, 8))):
        (module.training_step(batch, 0) / 2).backward()
        module.on_after_backward()
    grads = [p.grad.clone() for p in module.model.parameters()]
    module.zero_grad()
    F.cross_entropy(module.model(images), classes).backward()
    for ours, parameter in zip(grads, module.model.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad, rtol=1e-4, atol=1e-6)
    module.on_validation_epoch_start()
    for batch in (data.__getitems__(range(5)), data.__getitems__(range(5, 8)), data.__getitems__([])):
        with torch.no_grad():
            module.validation_step(batch, 0)
    total, count = module._sums[0].tolist()
    assert count == 5
    assert total / count == pytest.approx(F.cross_entropy(module.model(images), classes).item(), rel=1e-6)
