"""`ablate align`: each method on constructed preferences, what is measured, and what is refused."""

import importlib
import json
import re
import shutil
from typing import get_args

import pytest
import torch
from conftest import TINY

from ablate import tracking
from ablate.addons.post_training.alignment import recipe
from ablate.cli import build_parser, main
from ablate.config.errors import AblateError
from ablate.data import data_kinds
from ablate.experiment.parts import AlignConfig
from ablate.experiment.tree import Experiment
from ablate.training.train import train
from ablate.training.trained import open_trained

trl = pytest.importorskip("trl")


VERB = next(action for action in build_parser()._actions if action.dest == "verb").choices["align"]
PATHS = {
    action.option_strings[0].removeprefix("--").replace("-", "_"): action.dest
    for action in VERB._actions
    if "." in action.dest or action.dest == "seed"
}
"""Option -> the setting that it is."""


@pytest.fixture(scope="session")
def _starts(tmp_path_factory, _empty_database):
    """A store with a run of each of two placements, trained for a moment, with a context of 48 bytes; placement ->
    run."""
    store = tmp_path_factory.mktemp("starts") / "mlruns"
    store.mkdir()
    shutil.copy(_empty_database, store / "mlflow.db")
    data = {"data": {"kind": "topics", "seq_len": 48, "val_fraction": 0.001}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABLATE_STORE", str(store))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        tracking.client.cache_clear()
        runs = {norm: train(Experiment.from_mapping(TINY, {**data, "norm": norm})).run_id for norm in ("pre", "mix")}
        tracking.client.cache_clear()
    return store, runs


@pytest.fixture
def run(_starts, monkeypatch):
    """run(placement) -> a run of that store, which alignments are added to."""
    store, runs = _starts
    monkeypatch.setenv("ABLATE_STORE", str(store))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tracking.client.cache_clear()
    yield lambda norm="pre": runs[norm]
    tracking.client.cache_clear()


def align(start, method, pairs, reward=None, **options):
    """A short alignment; `options` are those of the command line."""
    options = {"template": "plain", "batch_size": 4, "length": 8, "answers": 2, "steps": 2, "lr": 1e-3, **options}
    settings = {"align.method": method, **{PATHS[name]: value for name, value in options.items()}}
    return recipe.align(start, start, pairs, settings, reward)


@pytest.mark.parametrize("norm", ["pre", "mix"])  # transformers' own code, and ours
def test_two_steps_of_each_method(run, pairs, norm, capsys):
    from transformers import AutoModelForCausalLM

    start = run(norm)
    words = ["--pairs", pairs, "--template", "plain", "--steps", "2", "--batch-size", "4", "--lr", "1e-3", "--json"]
    short = ["--length", "8", "--answers", "2"]

    def told(method, *more):
        assert main(["align", start, "--method", method, *words, *short, *more]) == 0
        return json.loads(capsys.readouterr().out)

    reward = told("reward")
    found = {"reward": reward, "dpo": told("dpo"), "rloo": told("rloo", "--reward", reward["run_id"])}
    assert set(found["reward"]["metrics"]) == {"align/accuracy", "align/margin"}
    assert set(found["dpo"]["metrics"]) == {"align/accuracy", "align/margin", "align/kl"}
    assert set(found["rloo"]["metrics"]) == {"align/kl", "align/reward", "align/start_reward", "align/win_rate"}
    for method, one in found.items():
        assert "27 training pairs, 3 held out" in one["told"]
        stored = tracking.client().get_run(one["run_id"]).data
        assert one["metrics"].items() <= stored.metrics.items()
        steps = [point.step for point in tracking.client().get_metric_history(one["run_id"], "train/loss")]
        assert steps == [4, 8]  # pairs or answers
        assert (stored.params["align.method"], stored.params["warm_start.from"]) == (method, start)
        assert stored.params["warm_start.sha256"]
        assert stored.tags["ablate.status"] == "completed"
    loaded = AutoModelForCausalLM.from_pretrained(found["dpo"]["folder"], trust_remote_code=True)
    with torch.no_grad():
        assert loaded(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 256)


def test_dpo_separates_a_constructed_pair(run, pairs):
    found = align(run(), "dpo", pairs, steps=60, lr=3e-3)
    assert found.metrics["align/accuracy"] == 1
    assert found.metrics["align/margin"] > 1
    assert found.metrics["align/kl"] > 0
    curve = tracking.client().get_metric_history(found.run_id, "train/rewards/margins")
    assert curve[-1].value > 1 > curve[0].value


def test_a_reward_model_prefers_what_was_chosen(run, pairs):
    found = align(run(), "reward", pairs, steps=40, lr=3e-3)
    assert found.metrics["align/accuracy"] == 1
    assert found.metrics["align/margin"] > 0.5


def test_longer_is_better_makes_answers_longer_in_50_steps_of_rloo(store, tiny_settings, pairs, tmp_path):
    """From a model that was fine-tuned to answer with one to six letters."""
    rows = [{"instruction": f"is it {n}?", "output": "a" * (1 + n % 6)} for n in range(60)]
    (tmp_path / "sft.json").write_text(json.dumps(rows))
    data = {"kind": "instructions", "files": str(tmp_path / "sft.json"), "template": "plain", "seq_len": 48}
    short = {"trainer.max_steps": 100, "trainer.val_check_interval": 100, "optimizer.lr": 1e-2}
    start = train(Experiment.from_mapping({**tiny_settings, "data": data}, short)).run_id

    def longer(prompts, answers):
        return [float(len(answer)) for answer in answers]

    options = {"steps": 50, "lr": 3e-3, "batch_size": 16, "answers": 4, "length": 16, "beta": 0.0}
    found = align(start, "rloo", pairs, longer, **options).metrics
    assert 1 <= found["align/start_reward"] <= 6
    assert found["align/reward"] > found["align/start_reward"] + 2
    assert found["align/win_rate"] > 0.8
    assert found["align/kl"] > 0


def test_pairs_longer_than_the_context_are_counted(run, tmp_path):
    rows = [{"prompt": "a?", "chosen": "yes" * n, "rejected": "no"} for n in (1, 2, 3, 4, 5, 6, 7, 8, 20, 30)]
    (tmp_path / "long.json").write_text(json.dumps(rows))
    found = align(run(), "dpo", str(tmp_path / "long.json"), batch_size=2)
    learnt, held = map(int, re.search(r"(\d) training pairs, (\d) held out, 2 left out", found.told).groups())
    assert learnt + held == 8
    assert "because their prompt and the longer answer exceed 48 tokens" in found.told
    (tmp_path / "long.json").write_text(json.dumps([rows[0], *rows[-2:]]))
    with pytest.raises(AblateError, match=r"[01] of 2 training pairs and"):
        align(run(), "dpo", str(tmp_path / "long.json"))


def test_mistakes_are_told(run, pairs, tmp_path, vit_settings, monkeypatch, capsys):
    start, vit = run(), train(Experiment.from_mapping(vit_settings)).run_id

    def said(model, *words, method="dpo", given=pairs):
        assert main(["align", model, "--method", method, "--template", "plain", "--pairs", given, *words]) == 2
        return capsys.readouterr().err

    assert "is for image classification; align is for language models" in said(vit)
    assert "rloo needs a reward model: ablate align RUN --method reward" in said(start, method="rloo")
    assert "There is no reward model nothing" in said(start, "--reward", "nothing", method="rloo")
    assert "the method reward uses neither beta" in said(start, "--beta", "0.1", method="reward")
    assert "trainer.batch_size: must be a multiple of align.answers (4) (given: 6)" in said(
        start, "--batch-size", "6", "--reward", "x", method="rloo"
    )
    assert "There is no file" in said(start, given=str(tmp_path / "none.json"))
    (tmp_path / "wrong.json").write_text('[{"question": "a", "chosen": "b", "rejected": "c"}]')
    assert "entry 1: no prompt" in said(start, given=str(tmp_path / "wrong.json"))

    plain_import = importlib.import_module

    def without(name, *more):
        if name == "trl":
            raise ModuleNotFoundError("No module named 'trl'", name="trl")
        return plain_import(name, *more)

    monkeypatch.setattr("ablate.config.lazy.importlib.import_module", without)
    assert "pip install '.[rlhf]'" in said(start)


def test_the_help_tells_the_defaults_and_choices_of_the_configuration(run):
    """Which only the configuration and the recipe set: an option that is not typed is left out."""
    source = open_trained(run())
    flat = recipe.build_experiment(source, "RUN", "hub/pairs", {"align.method": "dpo"}).flat()
    for option, path in PATHS.items():
        action = next(action for action in VERB._actions if action.dest == path)
        assert action.default is None
        if told := re.search(r"\(default: (.*)\)$", action.help):
            default = {"TRL's": None}.get(told[1], told[1])
            assert (default if default is None else type(flat[path])(default)) == flat[path], option
    fields = {
        "align.method": AlignConfig.model_fields["method"],
        "data.template": data_kinds["preferences"].model_fields["template"],
    }
    for path, field in fields.items():
        action = next(action for action in VERB._actions if action.dest == path)
        assert set(action.choices) == set(get_args(field.annotation))
