"""A run that goes on reads what it began with: other data or another tokenizer is refused."""

import json

import pytest

from ablate import tracking
from ablate.cli import main
from ablate.experiment.tree import Experiment
from ablate.tracking.provenance import read_texts
from ablate.training.procedures import Hooks, Place
from ablate.training.runs import INPUTS, load_experiment
from ablate.training.train import train


@pytest.fixture
def settings(store, corpus, tiny_settings):
    """Of a run on a text of several documents, with a tokenizer."""
    files = {"files": str(corpus / "train.txt"), "tokenizer": str(corpus / "tokenizer.json")}
    return {**tiny_settings, "data": {"kind": "text", "seq_len": 8, **files}}


def start(settings):
    """The id of a run that was stopped after three updates."""
    seen = []
    result = train(
        Experiment.from_mapping(settings), hooks=Hooks(asked_to_stop=lambda: len(seen) == 3 or seen.append(0))
    )
    assert result.status == "interrupted"
    return result.run_id


CHANGES = {
    "data text": lambda folder: (folder / "train.txt").write_text("a c b a c " * 301),
    "tokenizer": lambda folder: (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "c"})),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_a_run_is_not_resumed_on_other_data(settings, corpus, capsys, changed):
    run = start(settings)
    CHANGES[changed](corpus)
    assert main(["train", "--resume", run]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"Run {run} began with other data or another model. What changed: " in told
    assert f"{changed} " in told
    assert f": SHA-256 {next(v for k, v in read_texts(run, INPUTS).items() if k.startswith(changed))} -> " in told
    assert tracking.client().get_run(run).data.tags["ablate.status"] == "interrupted"  # as before


def test_a_run_on_the_same_data_is_resumed(settings):
    run = start(settings)
    assert train(load_experiment(run, {}), Place(run_id=run)).status == "completed"
