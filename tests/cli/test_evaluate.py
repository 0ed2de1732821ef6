"""`ablate evaluate`: what is printed, what is in MLflow and what the report makes of it."""

import io
import json

import pytest
import torch
from rich.console import Console

from ablate import tracking
from ablate.addons.evaluation.run import Evaluated
from ablate.cli import main
from ablate.cli.evaluate import render, resolve_models
from ablate.experiment.tree import Experiment
from ablate.scheduler import donors, storage
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FRESH, Run
from ablate.sweeps.spec.sweep import Sweep
from ablate.training.train import train
from ablate.verdict.questions import Question, Score

pytest.importorskip("lm_eval")
from evaluation.conftest import QUESTIONS, task_data  # noqa: F401
from run_table import join, put


def test_a_run_gets_its_scores_and_others_are_compared(store, tmp_path, tiny_settings, task_data, capsys):  # noqa: F811
    first, second = (train(Experiment.from_mapping(tiny_settings, {"norm": kind})) for kind in ("pre", "mix"))
    words = ["--tasks", "piqa", "--task-data", str(task_data), "--output", str(tmp_path / "all.json"), "--json"]
    assert main(["evaluate", first.run_id, second.run_id, *words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["model"] for one in told] == [first.run_id, second.run_id]
    metrics = told[0]["tasks"]["piqa"]["metrics"]
    run = tracking.client().get_run(first.run_id)
    assert {name: run.data.metrics[f"eval/piqa/{name}"] for name in ("acc", "acc_norm")} == metrics
    assert run.info.status == "FINISHED"
    assert run.data.tags["ablate.status"] == "completed"
    assert run.data.tags["ablate.evaluated"] == "piqa"
    assert run.data.tags["ablate.evaluated.piqa"] == f"{len(QUESTIONS)} questions, 0 shots"
    history = tracking.client().get_metric_history(first.run_id, "eval/piqa/acc")
    assert [point.step for point in history] == [first.step * first.items_per_update]
    file = tracking.client().download_artifacts(first.run_id, "evaluation/piqa.json")
    with open(file) as opened:
        stored = json.load(opened)
    everything = json.loads((tmp_path / "all.json").read_text())
    assert everything[0]["tasks"]["piqa"]["questions"] == stored["questions"]
    ours, theirs = ([q["values"]["acc"] for q in one["tasks"]["piqa"]["questions"]] for one in everything)
    assert len(ours) == len(QUESTIONS)
    paired = everything[1]["tasks"]["piqa"]["less_first"]["acc"]
    assert paired["mean"] == pytest.approx(sum(theirs) / 5 - sum(ours) / 5)
    assert paired["low"] <= paired["mean"] <= paired["high"]

    assert main(["evaluate", first.run_id, "--tasks", "piqa", "--task-data", str(task_data), "--limit", "2"]) == 0
    said = capsys.readouterr().out
    assert "piqa  acc " in said
    assert "questions of piqa are longer than the context; their beginning was cut off" in said  # a context of 32 bytes


def test_the_comparison_of_models_fits_a_terminal_and_claims_nothing_of_their_arms():
    found = []
    for name, values in {"0" * 32: [0, 0, 0, 1], "1" * 32: [1, 1, 1, 1], "2" * 32: [1, 0, 0, 1]}.items():
        questions = [Question(str(n), {"acc": value}, []) for n, value in enumerate(values)]
        found.append(Evaluated(name, name, {"piqa": Score("piqa", {"acc": sum(values) / 4}, {"acc": 0.2}, questions)}))
    told = io.StringIO()
    render(found, Console(file=told, width=80, force_terminal=True, color_system="standard"))
    rows = [line for line in told.getvalue().splitlines() if "piqa" in line]
    assert not any("\x1b[1m" in row for row in rows)  # an interval over questions says nothing of other seeds
    assert "ablate report compares arms over their seeds" in " ".join(told.getvalue().split())
    for row, model, difference in zip(
        rows, ("00000000", "11111111", "22222222"), (" -", "+0.7500", "+0.2500"), strict=True
    ):
        assert model in row
        assert difference in row


def test_mistakes_are_told(store, tmp_path, vit_settings, tiny_settings, task_data, capsys):  # noqa: F811
    def said(*words):
        assert main(["evaluate", *words, "--tasks", "piqa", "--task-data", str(task_data)]) == 2
        return capsys.readouterr().err

    experiment = Experiment.from_mapping(vit_settings)
    model = experiment.model.build(experiment.norm, experiment.init, 10, (1, 8, 8))
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    file = tmp_path / "last.ckpt"
    torch.save({"state_dict": state, "experiment": experiment.to_tree(), "global_step": 3}, file)
    assert "is for image classification; the tasks are for language models" in said(str(file))
    assert "neither a checkpoint nor a run" in said("nothing")
    assert "sweep" in said("sweep:nothing")


def test_an_experiment_says_what_does_not_fit(vit_settings):
    from ablate.config.errors import ConfigError

    with pytest.raises(ConfigError, match=r"evaluation\.tasks: are for language models"):
        Experiment.from_mapping(vit_settings, {"evaluation.tasks": "piqa"})
    with pytest.raises(ConfigError, match=r"evaluation\.tasks: need whole weights on each device"):
        Experiment.from_mapping({"evaluation.tasks": "piqa", "trainer.strategy": "fsdp"})
    listed = Experiment.from_mapping({"evaluation": {"tasks": ["piqa", "boolq"]}})
    assert listed.evaluation == Experiment.from_mapping({"evaluation.tasks": "piqa, boolq"}).evaluation


def test_an_arm_that_diverged_on_all_fresh_seeds_has_no_model(monkeypatch, caplog, capsys):
    """Its search would flatter it. What stands for another arm is the trial that was chosen, not the best."""
    arms = {"pre": {"norm": "pre"}, "post": {"norm": "post"}}
    spec = Sweep.from_tree({"name": "t", "arms": arms, "budget": {"trials": 1}})

    def run(arm, number, value, seed=0):
        status = "diverged" if value is None else "completed"
        return Run(arm, number, status, {}, value, {}, {}, 1, 1.0, f"{arm}-{number}", "", seed=seed)

    trials = {arm: [run(arm, 0, 2.0), run(arm, 1, 2.1)] for arm in ("pre", "post")}
    lost = [run("post", n, None, seed) for n, seed in enumerate((7, 8))]
    record = SweepRecord("t", 1, spec, join({"search": trials, FRESH: {"post": lost}}), chosen={"pre": 1})
    monkeypatch.setattr(storage, "read_sweep", lambda name, url: record)
    monkeypatch.setattr(donors, "read_sweep", lambda name, url: record)
    assert list(resolve_models("sweep:t", None)) == [("sweep:t/pre", "pre-1")]
    assert "sweep:t/post diverged on all of its 2 fresh seeds: there is no model." in caplog.text
    record = put(record, confirmed={"post": lost, "pre": [run("pre", 1, None, 7)]})
    assert main(["evaluate", "sweep:t", "--tasks", "piqa"]) == 2
    assert "sweep:t: there is no model to evaluate." in capsys.readouterr().err
