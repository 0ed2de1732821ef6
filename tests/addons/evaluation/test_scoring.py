"""Scores of models whose answers are known, and against lm-evaluation-harness' own model on an exported checkpoint."""

import json
import math
import random
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ablate.config.errors import AblateError, DataError
from ablate.data.text.tokenizers import load_tokenizer
from ablate.experiment.tree import Experiment

pytest.importorskip("lm_eval")
from evaluation.conftest import QUESTIONS

from ablate.addons.evaluation.scoring import score, score_hf
from ablate.addons.evaluation.tasks import load_tasks
from ablate.verdict.questions import Score

BYTES = load_tokenizer("bytes")


def test_a_model_that_prefers_the_first_answer_has_the_known_score(task_data, likes):
    # first answers begin with "#", second ones with "@", which here is out of the question
    found = score(likes({"@": -900.0}), BYTES, load_tasks(["piqa"], task_data), length=128)["piqa"]
    first = [float(question["label"] == 0) for question in QUESTIONS]
    assert [question.values["acc"] for question in found.questions] == first
    assert found.metrics["acc"] == sum(first) / len(first) == 0.6
    assert found.stderr["acc"] == pytest.approx(math.sqrt(0.6 * 0.4 / 4))
    assert (found.cut, found.long, found.shots) == (0, 0, 0)
    other = score(likes({"#": -900.0}), BYTES, load_tasks(["piqa"], task_data), length=128)["piqa"]
    assert [question.values["acc"] for question in other.questions] == [1 - value for value in first]
    assert [q.id for q in other.questions] == [q.id for q in found.questions]
    assert Score.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_a_log_likelihood_is_the_sum_over_the_answer(task_data, tiny_model):
    found = score(tiny_model, BYTES, load_tasks(["piqa"], task_data), length=128, limit=2)["piqa"]
    assert len(found.questions) == 2
    for question, given in zip(found.questions, QUESTIONS, strict=False):
        for answer, value in zip(("sol1", "sol2"), question.loglikelihoods, strict=True):
            before, after = f"Question: {given['goal']}\nAnswer:", f" {given[answer]}"
            tokens = torch.tensor([list((before + after).encode())])
            with torch.no_grad():
                logs = F.log_softmax(tiny_model(tokens[:, :-1])[0], -1)
            picked = logs.gather(1, tokens[0, 1:, None])[len(before.encode()) - 1 :]
            assert value == pytest.approx(picked.sum().item(), rel=1e-5)
        length = [len(given[answer]) for answer in ("sol1", "sol2")]
        best = int(np.argmax(np.array(question.loglikelihoods) / length))
        assert question.values["acc_norm"] == float(best == given["label"])


@pytest.fixture
def tiny_model():
    experiment = Experiment.from_mapping({"model": {"hidden": 32, "mlp": 44, "layers": 2, "heads": 2}, "norm": "mix"})
    torch.manual_seed(0)
    model = experiment.model.build(experiment.norm, experiment.init, 256, (128,))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def test_what_does_not_fit_is_counted_and_scored_whole(task_data, likes):
    # evenly likely bytes: a log-likelihood counts them, so nothing of an answer may be missing
    found = score(likes({}), BYTES, load_tasks(["piqa"], task_data), length=16)["piqa"]
    for question, given in zip(found.questions, QUESTIONS, strict=True):
        counts = [len(given[answer]) + 1 for answer in ("sol1", "sol2")]  # and a space
        assert question.loglikelihoods == pytest.approx([-n * math.log(256) for n in counts], rel=1e-5)
    long = [any(len(given[answer]) + 1 > 16 for answer in ("sol1", "sol2")) for given in QUESTIONS]
    assert found.long == sum(long) == 2
    assert found.cut == 5


def test_solved_examples_come_first(task_data, likes):
    loaded = load_tasks(["piqa"], task_data, 2)
    found = score(likes({}), BYTES, loaded, length=2000)["piqa"]
    assert found.shots == 2
    for request in loaded["tasks"]["piqa"].instances:
        context = request.args[0]
        assert context.count("Question:") == 3
        assert context.count(request.doc["goal"]) == 1  # never among its own examples


def test_training_may_go_on(task_data, tiny_model):
    loaded = load_tasks(["piqa"], task_data, 1)
    tiny_model.train()
    tiny_model.layers[1].eval()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    score(tiny_model, BYTES, loaded, length=64)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[:2]
    assert torch.equal(torch.get_rng_state(), states[2])
    assert tiny_model.training
    assert not tiny_model.layers[1].training


@pytest.mark.parametrize("kind", ["pre", "b2t"])
def test_it_is_what_the_harness_finds_on_the_exported_checkpoint(kind, task_data, tmp_path, monkeypatch):
    import transformers
    from export.cases import checkpoint
    from lm_eval.evaluator import evaluate
    from lm_eval.models.huggingface import HFLM

    from ablate.addons.export.run import export

    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    file, ours = checkpoint(tmp_path, {"norm": kind, "data.seq_len": 48}, classes=256, shape=(48,))
    export(str(file), "hf", tmp_path / "out")
    path = str(tmp_path / "out")
    found = score(ours, BYTES, load_tasks(["piqa"], task_data), length=48, batch_size=3)["piqa"]
    theirs = HFLM(pretrained=path, trust_remote_code=True, device="cpu", batch_size=2)
    told = evaluate(theirs, load_tasks(["piqa"], task_data), bootstrap_iters=100)
    assert found.metrics == {name: told["results"]["piqa"][f"{name},none"] for name in ("acc", "acc_norm")}
    errors = {name: told["results"]["piqa"][f"{name}_stderr,none"] for name in ("acc", "acc_norm")}
    assert found.stderr == pytest.approx(errors)
    samples = told["samples"]["piqa"]
    assert [question.id for question in found.questions] == [sample["doc_hash"] for sample in samples]
    for question, sample in zip(found.questions, samples, strict=True):
        assert question.loglikelihoods == pytest.approx([value for value, _ in sample["filtered_resps"]], rel=1e-5)
        assert question.values == {"acc": sample["acc"], "acc_norm": sample["acc_norm"]}
    assert found.cut > 0
    if kind == "b2t":  # with code of its own
        with pytest.raises(AblateError, match=r"Add --trust-remote-code if you trust it\."):
            score_hf(path, load_tasks(["piqa"], task_data))
    by_folder = score_hf(path, load_tasks(["piqa"], task_data), trust_remote_code=kind == "b2t")["piqa"]
    assert by_folder.metrics == found.metrics
    assert by_folder.cut == found.cut


def test_mistakes_are_told(task_data, likes, tmp_path, monkeypatch):
    def said(*tasks, **options):
        with pytest.raises(AblateError) as caught:
            score(likes({}), BYTES, load_tasks(tasks, **options), length=32)
        return str(caught.value)

    assert "Did you mean piqa?" in said("piqaa", task_data=task_data)
    assert "not enough for --shots 6" in said("piqa", task_data=task_data, shots=6)
    with pytest.raises(DataError, match="There are no questions of allenai/winogrande"):
        score(likes({}), BYTES, load_tasks(["winogrande"], task_data), length=32)
    (tmp_path / "nowhere").mkdir()
    with pytest.raises(AblateError, match="nowhere is not a model that transformers can load"):
        score_hf(str(tmp_path / "nowhere"), load_tasks(["piqa"], task_data))
    monkeypatch.setitem(sys.modules, "lm_eval.tasks", None)
    assert "pip install '.[eval]'" in said("piqa", task_data=task_data)
