"""A run that goes on reads what it began with: other data or another tokenizer is refused."""

import json

import pytest

from ablate import tracking
from ablate.cli import main
from ablate.experiment.tree import Experiment
from ablate.tracking.facts import read_texts
from ablate.training.procedures import Hooks, Place
from ablate.training.runs import load_experiment
from ablate.training.train import INPUTS, train


@pytest.fixture
def settings(store, tmp_path, tiny_settings):
    """Of a run on a text of several documents, with a tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["a", "b", "c", "[UNK]", "</s>"])}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "train.txt").write_text("a b c a b " * 300)
    files = {"files": str(tmp_path / "train.txt"), "tokenizer": str(tmp_path / "tokenizer.json")}
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
def test_a_run_is_not_resumed_on_other_data(settings, tmp_path, capsys, changed):
    run = start(settings)
    CHANGES[changed](tmp_path)
    assert main(["train", "--resume", run]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"Run {run} began with other data or another model. What changed: " in told
    assert f"{changed} " in told
    assert f": SHA-256 {next(v for k, v in read_texts(run, INPUTS).items() if k.startswith(changed))} -> " in told
    assert tracking.client().get_run(run).data.tags["ablate.status"] == "interrupted"  # as before


def test_a_run_on_the_same_data_is_resumed(settings):
    run = start(settings)
    assert train(load_experiment(run, {}), Place(run_id=run)).status == "completed"
