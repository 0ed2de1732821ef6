"""`ablate align`: each method on constructed preferences, what is measured, and what is refused."""

import importlib
import json
import math

import pytest
import torch

from ablate import tracking
from ablate.cli import main
from ablate.config import Experiment
from ablate.errors import AblateError
from ablate.recipes import align_measures as measures
from ablate.recipes.align import How, align
from ablate.training.train import train

trl = pytest.importorskip("trl")


@pytest.fixture
def pairs(tmp_path):
    """Yes is better than no, whatever is asked."""
    rows = [{"prompt": f"is it {n}?", "chosen": "yes", "rejected": "no"} for n in range(30)]
    (tmp_path / "pairs.json").write_text(json.dumps(rows))
    return str(tmp_path / "pairs.json")


@pytest.fixture
def run(store, tiny_settings):
    """run(placement) -> the run of a model that was trained for a moment, with a context of 48 bytes."""
    data = {"data": {"kind": "topics", "seq_len": 48, "val_fraction": 0.01}}
    return lambda norm="pre": train(Experiment.from_mapping(tiny_settings, {**data, "norm": norm})).run_id


def how(method, pairs, **more):
    settings = {"template": "plain", "batch_size": 4, "length": 8, "answers": 2, "steps": 2, "lr": 1e-3}
    return How(method, pairs, **{**settings, **more})


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
    assert set(found["reward"]["metrics"]) == {"accuracy", "margin"}
    assert set(found["dpo"]["metrics"]) == {"accuracy", "margin", "kl"}
    assert set(found["rloo"]["metrics"]) == {"kl", "reward", "start_reward", "win_rate"}
    for method, one in found.items():
        assert "27 pairs to learn from, 3 held out" in one["told"]
        stored = tracking.client().get_run(one["run_id"]).data
        assert {f"final/{name}": value for name, value in one["metrics"].items()}.items() <= stored.metrics.items()
        steps = [point.step for point in tracking.client().get_metric_history(one["run_id"], "train/loss")]
        assert steps == [1, 2]
        assert (stored.params["method"], stored.params["from"]) == (method, start)
        assert stored.tags["ablate.status"] == "completed"
    loaded = AutoModelForCausalLM.from_pretrained(found["dpo"]["folder"], trust_remote_code=True)
    with torch.no_grad():
        assert loaded(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 256)


def test_dpo_separates_a_constructed_pair(run, pairs):
    found = align(run(), how("dpo", pairs, steps=60, lr=3e-3))
    assert found.metrics["accuracy"] == 1
    assert found.metrics["margin"] > 1
    assert found.metrics["kl"] > 0
    curve = tracking.client().get_metric_history(found.run_id, "train/rewards/margins")
    assert curve[-1].value > 1 > curve[0].value


def test_a_reward_model_prefers_what_was_chosen(run, pairs):
    found = align(run(), how("reward", pairs, steps=40, lr=3e-3))
    assert found.metrics["accuracy"] == 1
    assert found.metrics["margin"] > 0.5


def test_longer_is_better_makes_answers_longer_in_50_steps_of_rloo(store, tiny_settings, pairs, tmp_path):
    """From a model that was fine-tuned to answer with one to six letters."""
    rows = [{"instruction": f"is it {n}?", "output": "a" * (1 + n % 6)} for n in range(60)]
    (tmp_path / "sft.json").write_text(json.dumps(rows))
    data = {"kind": "instructions", "files": str(tmp_path / "sft.json"), "template": "plain", "seq_len": 48}
    short = {"trainer.max_steps": 100, "trainer.val_check_interval": 100, "optimizer.lr": 1e-2}
    start = train(Experiment.from_mapping({**tiny_settings, "data": data}, short)).run_id

    def longer(prompts, answers):
        return [float(len(answer)) for answer in answers]

    wanted = how("rloo", pairs, steps=50, lr=3e-3, batch_size=16, answers=4, length=16, beta=0.0)
    found = align(start, wanted, reward=longer).metrics
    assert 1 <= found["start_reward"] <= 6
    assert found["reward"] > found["start_reward"] + 2
    assert found["win_rate"] > 0.8
    assert found["kl"] > 0


def test_the_same_seed_gives_the_same_numbers(run, pairs):
    start = run()
    first, again, other = (align(start, how("dpo", pairs, seed=seed)).metrics for seed in (1, 1, 2))
    assert first == again
    assert first != other


class Table(torch.nn.Module):
    """A bigram model of three tokens, the last of which ends."""

    device = "cpu"

    def __init__(self, rows):
        super().__init__()
        self.rows = torch.tensor(rows, dtype=torch.float64).log()

    def forward(self, input_ids, **ignored):
        return type("Out", (), {"logits": self.rows[input_ids]})


def test_log_probabilities_are_those_of_the_next_token():
    model = Table([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [1 / 3, 1 / 3, 1 / 3]])
    ids = torch.tensor([[0, 1, 2]])
    found = measures.log_probabilities(model, ids, torch.ones_like(ids))
    assert found[0, 0].tolist() == pytest.approx([math.log(p) for p in (0.5, 0.25, 0.25)])
    assert found[0, 1].tolist() == pytest.approx([math.log(p) for p in (0.1, 0.2, 0.7)])


def test_the_divergence_is_summed_up_to_the_end(monkeypatch):
    """By hand: from token 0 the policy gives token 1, then the end; what is behind it does not count."""
    policy = Table([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [1 / 3, 1 / 3, 1 / 3]])
    start = Table([[1 / 3, 1 / 3, 1 / 3], [0.25, 0.5, 0.25], [0.1, 0.1, 0.8]])
    inside = torch.tensor([[False, True, True, False]])
    monkeypatch.setattr(measures, "answered", lambda *given: (torch.tensor([[0, 1, 2, 2]]), inside))
    monkeypatch.setattr(measures, "_padded", lambda *given: {"attention_mask": torch.ones(1, 1, dtype=torch.int64)})
    wanted = sum(p * math.log(p / q) for p, q in zip((0.5, 0.25, 0.25), (1 / 3,) * 3, strict=True))
    wanted += sum(p * math.log(p / q) for p, q in zip((0.1, 0.2, 0.7), (0.25, 0.5, 0.25), strict=True))
    assert measures.divergence(policy, start, None, ["a"], 3, 0) == pytest.approx(wanted)


def test_a_tie_is_half_a_win():
    assert measures.win_rate([1.0, 2.0, 3.0, 0.0], [0.0, 2.0, 4.0, -1.0]) == (1 + 0.5 + 0 + 1) / 4


def test_pairs_longer_than_the_context_are_counted(run, tmp_path):
    rows = [{"prompt": "a?", "chosen": "yes" * n, "rejected": "no"} for n in (1, 2, 3, 20, 30)]
    (tmp_path / "long.json").write_text(json.dumps(rows))
    found = align(run(), how("dpo", str(tmp_path / "long.json"), batch_size=2))
    assert "2 pairs to learn from, 1 held out, 2 left out that are longer than 48 tokens" in found.told
    (tmp_path / "long.json").write_text(json.dumps(rows[2:]))
    with pytest.raises(AblateError, match=r"Of 3 pairs of .*long.json 1 fit the model's context of 48 tokens"):
        align(run(), how("dpo", str(tmp_path / "long.json")))


def test_mistakes_are_told(run, pairs, tmp_path, vit_settings, monkeypatch, capsys):
    start, vit = run(), train(Experiment.from_mapping(vit_settings)).run_id

    def said(model, *words, method="dpo", given=pairs):
        assert main(["align", model, "--method", method, "--pairs", given, *words]) == 2
        return capsys.readouterr().err

    assert "is for image classification; align is for language models" in said(vit)
    assert "rloo needs a reward model: ablate align RUN --method reward" in said(start, method="rloo")
    assert "There is no reward model nothing" in said(start, "--reward", "nothing", method="rloo")
    assert "--batch-size 6 must be a multiple of --answers 4" in said(
        start, "--batch-size", "6", "--reward", "x", method="rloo"
    )
    assert "There is no file" in said(start, given=str(tmp_path / "none.json"))
    (tmp_path / "wrong.json").write_text('[{"question": "a", "chosen": "b", "rejected": "c"}]')
    assert "entry 1: no question" in said(start, given=str(tmp_path / "wrong.json"))

    plain_import = importlib.import_module

    def without(name, *more):
        if name == "trl":
            raise ModuleNotFoundError("No module named 'trl'", name="trl")
        return plain_import(name, *more)

    monkeypatch.setattr("ablate.extras.importlib.import_module", without)
    assert "pip install 'ablate[rlhf]'" in said(start)
