"""Supervised fine-tuning: all of a pre-trained model, on answers alone."""

import json

import pytest
import torch
from stored_facts import read_facts

from ablate import tracking
from ablate.config.building import json_schema
from ablate.config.errors import ConfigError
from ablate.data import IGNORED
from ablate.experiment.tree import Experiment
from ablate.training.procedures import Hooks, Place
from ablate.training.runs import load_experiment
from ablate.training.train import train
from ablate.training.trained import open_trained


@pytest.fixture
def answers(tmp_path):
    """The settings of instructions whose answers are told from the question."""
    rows = [{"instruction": f"{n} or {n + 1}?", "input": "", "output": "yes" if n % 2 else "no"} for n in range(60)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    return {"kind": "instructions", "files": str(tmp_path / "rows.json"), "template": "plain", "seq_len": 16}


@pytest.mark.parametrize("norm", ["pre", "mix"])
@pytest.mark.addons
def test_a_pre_trained_model_learns_to_answer(trained_once, tiny_settings, answers, norm):
    tree = {**tiny_settings, "norm": norm}
    donor = trained_once(Experiment.from_mapping(tree)).run_id
    tuned = {"data": answers, "warm_start": {"from": donor, "copy": "all"}, "optimizer.lr": 1e-2}
    result = train(Experiment.from_mapping({**tree, "data": answers}, {**tuned, "trainer.max_steps": 60}))
    assert result.status == "completed"
    source = open_trained(result.run_id)
    assert source.experiment.data.kind == "instructions"
    corpus = source.experiment.data.load(tracking.cache_folder())
    inputs, targets = corpus.val.__getitems__(range(len(corpus.val)))

    def loss(run):
        with torch.no_grad():
            logits = open_trained(run).model()(inputs).double().log_softmax(-1)
        there = targets != IGNORED
        return float(-logits[there].gather(-1, targets[there][:, None]).mean())

    assert result.metrics["val/loss"] == pytest.approx(loss(result.run_id), rel=1e-4)
    assert loss(result.run_id) < loss(donor) / 2


@pytest.mark.addons
def test_an_interrupted_one_goes_on_bit_by_bit(trained_once, tiny_settings, answers):
    donor = trained_once(Experiment.from_mapping(tiny_settings)).run_id
    packed = {**answers, "layout": "packed", "seq_len": 40}
    wanted = Experiment.from_mapping(
        {**tiny_settings, "data": packed}, {"warm_start": {"from": donor, "copy": "all"}, "trainer.accumulate": 2}
    )
    whole = train(wanted)
    asked = iter(range(1, 1000))
    part = train(wanted, hooks=Hooks(asked_to_stop=lambda: next(asked) == 5))
    assert part.status == "interrupted"
    rest = train(load_experiment(part.run_id, {}), Place(run_id=part.run_id))
    assert rest.metrics == whole.metrics
    a, b = open_trained(whole.run_id).state, open_trained(rest.run_id).state
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_what_was_cut_is_in_the_tags_of_the_run(store, tiny_settings, answers):
    run = train(Experiment.from_mapping({**tiny_settings, "data": {**answers, "seq_len": 9}})).run_id
    told = read_facts(run)["ablate.corpus_description"]
    assert "answers cut" in told


def test_fields_are_set_by_their_paths_and_described_in_the_schema(answers):
    given = Experiment.from_mapping({"data": "instructions", "data.files": "a.json", "data.columns.output": "reply"})
    assert given.data.columns.output == "reply"
    assert "Rows may omit it or leave it empty." in json.dumps(json_schema(Experiment))
    with pytest.raises(ConfigError, match="instructions is for language modeling, model vit"):
        Experiment.from_mapping({"model": {"kind": "vit"}, "data": answers})


def test_a_preset_gives_way():
    data = Experiment.from_mapping({"data": "commonsense170k", "data.seq_len": 512}).data
    assert (data.dataset, data.tokenizer, data.template, data.seq_len) == (
        "zwhe99/commonsense_170k", "t5-base", "alpaca", 512
    )  # fmt: skip
