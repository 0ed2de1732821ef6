"""An alignment as a run like any other: what is tracked, how it ends, what it starts from and is judged by."""

import json
import shutil
from importlib.metadata import version

import pytest
import torch
from stored_facts import read_facts

from ablate import tracking
from ablate.addons.post_training.alignment.measures import hash_reward, load_reward
from ablate.addons.post_training.alignment.run import build_procedure
from ablate.cli import main
from ablate.config.errors import AblateError, ConfigError
from ablate.experiment.tree import Experiment
from ablate.tracking.tracker import STEP_METRIC
from ablate.training.procedures import Hooks, Place
from ablate.training.runs import run_folder
from ablate.training.train import LIGHTNING, choose_procedure, train
from ablate.training.trained import open_trained

pytest.importorskip("trl")


def length(prompts, answers):
    return [float(len(answer)) for answer in answers]


def history(run_id, metric):
    return [(point.step, point.value) for point in tracking.client().get_metric_history(run_id, metric)]


def test_what_is_heard_and_tracked(aligned):
    heard = {"started": [], "progress": [], "validation": []}
    hooks = Hooks(
        started=lambda run_id, text, before: heard["started"].append((run_id, text, before.updates)),
        progress=lambda step, loss: heard["progress"].append(step),
        decide=lambda step, metrics: heard["validation"].append((step, dict(metrics))) or True,
    )
    experiment = aligned("reward")
    result = train(experiment, Place("aligning", "one"), hooks)
    assert (result.status, result.step, result.items_per_update) == ("completed", 4, 4)
    ((run_id, text, before),) = heard["started"]
    assert (run_id, before) == (result.run_id, 0)
    assert "27 training pairs, 3 held out" in text
    assert heard["progress"] == [1, 2, 3, 4]
    assert [step for step, _ in heard["validation"]] == [2, 4]
    assert heard["validation"][-1][1] == result.metrics
    assert list(result.metrics) == experiment.metrics == ["align/accuracy", "align/margin"]
    for name, value in result.metrics.items():
        assert history(run_id, name)[-1] == (16, value)  # against the pairs seen
    assert history(run_id, STEP_METRIC)[-1] == (16, 4)
    rates = [value for _, value in history(run_id, "train/lr")]  # the experiment's own schedule
    assert rates[-1] < max(rates) <= 1e-3
    stored = tracking.client().get_run(run_id)
    assert stored.data.tags["ablate.status"] == "completed"
    assert stored.data.params["warm_start.sha256"]
    assert read_facts(run_id)["version.trl"] == version("trl")
    assert (run_folder(run_id) / "hf" / "model.safetensors").exists()


@pytest.mark.parametrize("method", ["reward", "dpo", "rloo"])
def test_one_that_was_stopped_begins_again_and_ends_as_if_it_had_not_been(aligned, method):
    experiment = aligned(method)
    how = build_procedure(length) if method == "rloo" else build_procedure()
    whole = train(experiment, procedure=how)
    stopped = train(experiment, hooks=Hooks(asked_to_stop=lambda: True), procedure=how)
    assert (stopped.status, stopped.step) == ("interrupted", 1)
    assert not (run_folder(stopped.run_id) / "hf").exists()
    again = train(experiment, Place(run_id=stopped.run_id), procedure=how)
    assert (again.status, again.run_id) == ("completed", stopped.run_id)
    assert again.metrics == whole.metrics
    for name in ("train/loss", *whole.metrics):
        assert history(again.run_id, name) == history(whole.run_id, name)


def test_batches_may_be_accumulated(aligned):
    result = train(
        aligned("rloo", {"trainer.accumulate": 2, "trainer.max_steps": 2}), procedure=build_procedure(length)
    )
    assert (result.status, result.step, result.items_per_update) == ("completed", 2, 4)
    assert [step for step, _ in history(result.run_id, "train/loss")] == [4, 8]


def test_the_command_line_runs_one_and_goes_on_with_one(aligned, tmp_path, capsys):
    experiment = aligned("reward", {"trainer.max_steps": 2})
    (tmp_path / "align.yaml").write_text(experiment.to_yaml())
    assert main(["train", str(tmp_path / "align.yaml")]) == 0
    told = capsys.readouterr().out
    assert "27 training pairs, 3 held out" in told
    assert "update 2/2: align/accuracy " in told
    stopped = train(experiment, hooks=Hooks(asked_to_stop=lambda: True)).run_id
    assert main(["train", "--resume", stopped]) == 0
    assert tracking.client().get_run(stopped).data.tags["ablate.status"] == "completed"


def test_measuring_in_between_changes_nothing(aligned):
    often, once = (
        train(aligned("rloo", {"trainer.val_check_interval": every}), procedure=build_procedure(length))
        for every in (1, 4)
    )
    assert often.metrics == once.metrics
    assert history(often.run_id, "train/loss") == history(once.run_id, "train/loss")


def test_a_run_that_diverges_or_is_pruned_is_a_result(aligned):
    wild = train(aligned("dpo", {"optimizer.lr": 1e38, "schedule.warmup_steps": 0}))
    assert wild.status == "diverged"
    assert "not finite" in wild.reason
    pruned = train(aligned("reward"), hooks=Hooks(decide=lambda step, metrics: False))
    assert (pruned.status, pruned.step) == ("pruned", 2)
    assert not (run_folder(pruned.run_id) / "hf").exists()


def test_the_reward_model_is_pinned(aligned, tmp_path, monkeypatch):
    import transformers

    judge = train(aligned("reward")).run_id
    policy = train(aligned("rloo", {"align.reward": judge}))
    assert tracking.client().get_run(policy.run_id).data.params["align.reward_sha256"] == hash_reward(judge)
    assert set(policy.metrics) == {"align/kl", "align/reward", "align/start_reward", "align/win_rate"}
    with pytest.raises(ConfigError, match=r"align.reward_sha256: the weights of .* have changed"):
        train(aligned("rloo", {"align.reward": judge, "align.reward_sha256": "0" * 64}))
    elsewhere = shutil.copytree(run_folder(judge) / "hf", tmp_path / "judge")
    (elsewhere / "modeling_ablate.py").write_text("raise SystemExit('code of somebody else was run')")
    config = json.loads((elsewhere / "config.json").read_text())
    names = {"AutoConfig": "Config", "AutoModelForSequenceClassification": "ForSequenceClassification"}
    auto_map = {auto: f"modeling_ablate.Ablate{name}" for auto, name in names.items()}
    (elsewhere / "config.json").write_text(json.dumps({**config, "model_type": "ablate", "auto_map": auto_map}))
    with pytest.raises(ConfigError, match=r"align\.reward: comes with its own code, which is only run on request"):
        train(aligned("rloo", {"align.reward": str(elsewhere)}))
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    with pytest.raises(SystemExit, match="code of somebody else was run"):
        load_reward(str(elsewhere), trusted=True)
    with pytest.raises(AblateError, match="There is no reward model nothing"):
        train(aligned("rloo", {"align.reward": "nothing"}))
    with pytest.raises(ConfigError, match="rloo needs a reward model"):
        train(aligned("rloo"))


@pytest.mark.parametrize("norm", ["pre", "mix"])
def test_a_policy_is_a_run_to_export_to_evaluate_and_to_start_from(aligned, tiny_settings, norm):
    from transformers import AutoModelForCausalLM

    data = {"data": {"kind": "topics", "seq_len": 48, "val_fraction": 0.001}}
    before = train(Experiment.from_mapping(tiny_settings, data, {"trainer.max_steps": 2, "norm": norm})).run_id
    policy = train(aligned("dpo", {"norm": norm, "warm_start.from": before}))
    found = open_trained(policy.run_id)
    assert (found.run_id, found.experiment.align.method) == (policy.run_id, "dpo")
    theirs = AutoModelForCausalLM.from_pretrained(policy.facts["ablate.folder"], trust_remote_code=True).eval()
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        ours = found.model()(tokens)
        torch.testing.assert_close(ours, theirs(tokens).logits, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(ours, open_trained(before).model()(tokens), atol=1e-3)
    again = train(aligned("dpo", {"norm": norm, "warm_start.from": policy.run_id, "trainer.max_steps": 1}))
    assert again.status == "completed"


def test_training_is_told_by_its_experiment_that_it_is_an_alignment(aligned):
    assert choose_procedure(aligned("dpo")).load_run is not LIGHTNING.load_run
    assert not choose_procedure(aligned("dpo")).resumes  # TRL's trainers keep nothing of a run that was stopped


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"trainer.batch_size": 6}, r"trainer.batch_size: must be a multiple of align.answers \(4\)"),
        ({"warm_start.freeze": "embedding"}, "align starts from a whole model and trains all of it"),
        ({"data": "topics"}, "align needs data.kind=preferences"),
        ({"trainer.strategy": "fsdp"}, "trainer.strategy: align does not support this: leave it at auto"),
        ({"trainer.precision": "bf16-true"}, "must be auto, 32-true or bf16-mixed with align"),
        ({"evaluation.tasks": "piqa"}, "evaluation.tasks: cannot be combined with align"),
        ({"align.method": "reward", "align.beta": 0.1}, "the method reward uses neither beta nor another reward model"),
        ({"align.method": "ppo"}, "align.method: must be 'reward', 'dpo' or 'rloo'"),
    ],
)
def test_what_does_not_fit_together_is_told(aligned, settings, text):
    with pytest.raises(ConfigError, match=text):
        aligned("rloo", settings)
