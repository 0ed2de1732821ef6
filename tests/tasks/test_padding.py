"""The loss of padded documents: the true mean over the tokens of an update, however they are spread."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

from ablate import tracking
from ablate.config.errors import ConfigError
from ablate.data import IGNORED
from ablate.experiment.tree import Experiment
from ablate.scheduler.own_runs import RUNNER
from ablate.sweeps.spec.sweep import Sweep
from ablate.training.module import TrainingModule
from ablate.training.procedures import Hooks, Place
from ablate.training.train import train

LINES = [json.dumps({"text": f"{number} " + "some words " * (number % 7)}) for number in range(80)]


@pytest.fixture
def experiment(tmp_path, tiny_settings):
    (tmp_path / "a.jsonl").write_text("\n".join(LINES))
    (tmp_path / "wiki.txt").write_text("other words here " * 30)
    base = {
        **tiny_settings,
        "data": {"kind": "text", "files": str(tmp_path / "a.jsonl"), "layout": "documents", "seq_len": 24},
        "trainer": {**tiny_settings["trainer"], "batch_size": 8, "precision": "32-true", "log_every_n_steps": 1},
    }
    return lambda **settings: Experiment.from_mapping(base, settings)


def history(run_id, key):
    return [metric.value for metric in tracking.client().get_metric_history(run_id, key)]


def plain_training(experiment, corpus):
    """(losses, gradient norms) of the same updates by a loop without padding: each document at its own length."""
    torch.manual_seed(experiment.seed)
    task = TrainingModule(experiment, corpus)
    optimizer = experiment.optimizer.build(task.model)
    schedule = experiment.schedule.build(optimizer, experiment.trainer.max_steps)
    batches = iter(corpus.train.batches(experiment.trainer.batch_size, experiment.seed))
    losses, norms = [], []
    for _ in range(experiment.trainer.max_steps):
        inputs, targets = next(batches)
        total, count = torch.zeros(()), 0
        for row, aims in zip(inputs, targets, strict=True):
            length = int((aims != IGNORED).sum())
            total = total + F.cross_entropy(task.model(row[None, :length])[0], aims[:length], reduction="sum")
            count += length
        loss = total / count
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.get_total_norm([p.grad for p in task.parameters()]).item())
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return losses, norms


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_losses_and_gradients_are_those_of_documents_at_their_own_length(store, experiment, accumulate):
    trained = experiment(**{"trainer.accumulate": accumulate})
    losses, norms = plain_training(trained, trained.data.load(tracking.cache_folder()))
    result = train(trained)
    assert history(result.run_id, "train/loss") == pytest.approx(losses, rel=1e-5)
    assert history(result.run_id, "train/grad_norm") == pytest.approx(norms, rel=1e-5)


def test_validation_on_several_sets(store, experiment, tmp_path):
    sets = {"wiki": {"files": str(tmp_path / "wiki.txt")}, "same": {"files": str(tmp_path / "a.jsonl")}}
    trained = experiment(
        **{
            "data.val_files": str(tmp_path / "wiki.txt"),
            "data.val_sets.wiki.files": sets["wiki"]["files"],
            "trainer.max_steps": 2,
        }
    )
    result = train(trained).metrics
    assert result["val/wiki/loss"] == pytest.approx(result["val/loss"], rel=1e-6)
    assert result["val/wiki/perplexity"] == pytest.approx(result["val/perplexity"], rel=1e-5)
    assert result["val/perplexity"] == pytest.approx(math.exp(result["val/loss"]), rel=1e-4)
    assert result["val/wiki/bits_per_byte"] == pytest.approx(result["val/wiki/loss"] / math.log(2), rel=1e-6)
    assert set(result) == set(trained.metrics)
    assert trained.data.load(tmp_path / "cache").val_sets.keys() == {"wiki"}


def test_validation_is_the_mean_over_tokens(store, experiment):
    trained = experiment(**{"trainer.max_steps": 1, "trainer.batch_size": 4})
    corpus = trained.data.load(tracking.cache_folder())
    result = train(trained)
    model = TrainingModule(trained, corpus)
    folder = store / "runs" / result.run_id / "last.ckpt"
    model.load_state_dict(torch.load(folder, weights_only=True)["state_dict"])
    inputs, targets = corpus.val.__getitems__(range(len(corpus.val)))
    kept = targets != IGNORED
    with torch.no_grad():
        losses = F.cross_entropy(model.model(inputs)[kept], targets[kept], reduction="none").double()
    assert result.metrics["val/loss"] == pytest.approx(losses.mean().item(), rel=1e-6)
    assert not kept.all()


def test_a_run_that_was_interrupted_ends_with_the_same_numbers(store, experiment):
    settings = {"data.val_fraction": 0.3, "trainer.accumulate": 2}
    whole = train(experiment(**settings))
    asked = iter(range(100))
    part = train(experiment(**settings), hooks=Hooks(asked_to_stop=lambda: next(asked) == 5))
    assert part.status == "interrupted"
    rest = train(experiment(**settings, **{"trainer.num_workers": 1}), Place(run_id=part.run_id))
    assert rest.metrics == whole.metrics
    assert history(part.run_id, "train/loss") == history(whole.run_id, "train/loss")
    states = [
        torch.load(store / "runs" / run.run_id / "last.ckpt", weights_only=True)["state_dict"] for run in (whole, rest)
    ]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_a_further_validation_set_can_be_the_objective_of_a_sweep(store, experiment, tmp_path):
    tree = {
        "name": "domains",
        "experiment": {
            "model": {"hidden": 16, "layers": 2, "heads": 2, "mlp": 32},
            "data": {
                "kind": "text",
                "files": str(tmp_path / "a.jsonl"),
                "seq_len": 24,
                "val_sets": {"wiki": {"files": str(tmp_path / "wiki.txt")}},
            },
        },
        "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
        "search": {"optimizer.lr": [1e-3, 1e-2]},
        "objective": {"metric": "val/wiki/perplexity"},
    }
    assert {len(corpus.val_sets["wiki"].data) for corpus in RUNNER.prepare(Sweep.from_tree(tree)).values()} == {
        511 // 25
    }
    tree["objective"] = {"metric": "val/wikis/loss"}
    with pytest.raises(ConfigError, match=r"unknown metric. Accepted: .*val/wiki/loss, val/wiki/perplexity"):
        RUNNER.prepare(Sweep.from_tree(tree))
