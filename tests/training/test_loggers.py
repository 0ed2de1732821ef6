"""Logs beside MLflow: they have every metric that it gets, go on with a resumed run, and end no run where they fail."""

import csv
import os

import pytest
import yaml

from ablate import tracking
from ablate.experiment.observers import loggers
from ablate.experiment.tree import Experiment
from ablate.tracking.facts import read_facts
from ablate.training.procedures import Hooks, Place
from ablate.training.runs import load_experiment
from ablate.training.train import train


def read_csv(store, run_id):
    """Metric -> [(updates, value)] of the CSV log."""
    metrics = {}
    with (store / "logs" / "csv" / run_id / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value and name != "step":
                    metrics.setdefault(name, []).append((int(row["step"]), float(value)))
    return metrics


def read_tensorboard(store, run_id):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(store / "logs" / "tensorboard" / run_id), {"scalars": 0})
    events.Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


READERS = {"csv": read_csv, "tensorboard": read_tensorboard}
INSTALLED = [pytest.param(k, marks=pytest.mark.skipif(bool(loggers[k]().validate()), reason=k)) for k in READERS]


def read_mlflow(run_id, per_update):
    """Metric -> [(updates, value)] of the run in MLflow."""
    client = tracking.client()
    names = client.get_run(run_id).data.metrics
    histories = {name: client.get_metric_history(run_id, name) for name in names}
    return {name: [(m.step // per_update, m.value) for m in history] for name, history in histories.items()}


def assert_complete(log, run_id):
    """The log has each metric of MLflow with the same values; of speeds, which a killed run measures again, others."""
    for name, points in read_mlflow(run_id, 128).items():
        assert [step for step, _ in log[name]] == [step for step, _ in points] or name == tracking.STEP_METRIC
        assert dict(log[name]) == pytest.approx(dict(points), rel=10 if "second" in name else 1e-6)


@pytest.mark.parametrize("kind", INSTALLED)
def test_a_log_has_what_mlflow_has_and_changes_no_number(store, trained_once, tiny_settings, kind):
    alone = trained_once(Experiment.from_mapping(tiny_settings))
    result = train(Experiment.from_mapping(tiny_settings, {"trainer.loggers": kind}))
    assert result.metrics == alone.metrics
    log = READERS[kind](store, result.run_id)
    assert_complete(log, result.run_id)
    assert log["trainer/tokens"][-1] == (12, 12 * 128)
    settings = yaml.safe_load((store / "logs" / kind / result.run_id / "hparams.yaml").read_text())
    assert settings["model.hidden"] == 16


@pytest.mark.parametrize("kind", INSTALLED)
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_a_resumed_run_continues_its_log_and_has_no_update_twice(store, tiny_settings, kind, killed):
    experiment = Experiment.from_mapping(tiny_settings, {"trainer.loggers": kind})
    started, asked = [], iter(range(100))

    def die(updates, loss):
        if killed and updates == 10:  # two updates after the last checkpoint
            raise SystemError

    hooks = Hooks(
        started=lambda run_id, *_: started.append(run_id),
        progress=die,
        asked_to_stop=lambda: next(asked) == 6 and not killed,
    )
    try:
        part = train(experiment, hooks=hooks)
        rest = train(load_experiment(part.run_id, {}), Place(run_id=part.run_id))
    except SystemError:
        rest = train(experiment, Place(run_id=started[0]))
    assert (rest.status, rest.run_id) == ("completed", started[0])
    log = READERS[kind](store, rest.run_id)
    assert [step for step, _ in log["train/loss"]] == [1, 2, 4, 6, 8, 10, 12]
    assert [step for step, _ in log["val/loss"]] == [4, 8, 12]
    assert_complete(log, rest.run_id)


def test_another_log_can_be_added_where_a_run_goes_on(store, tiny_settings):
    asked = iter(range(100))
    hooks = Hooks(asked_to_stop=lambda: next(asked) == 6)
    part = train(Experiment.from_mapping(tiny_settings), hooks=hooks)
    rest = train(load_experiment(part.run_id, {"trainer.loggers": ["csv"]}), Place(run_id=part.run_id))
    assert [step for step, _ in read_csv(store, rest.run_id)["train/loss"]] == [8, 10, 12]


@pytest.mark.parametrize("when", ["build", "log_metrics", "finalize"])
def test_a_log_that_fails_ends_no_run(store, trained_once, tiny_settings, monkeypatch, caplog, when):
    from lightning.pytorch.loggers import CSVLogger

    def fail(*arguments, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*((loggers["csv"], "build") if when == "build" else (CSVLogger, when)), fail)
    alone = trained_once(Experiment.from_mapping(tiny_settings))
    result = train(Experiment.from_mapping(tiny_settings, {"trainer.loggers": "csv"}))
    assert (result.status, result.metrics) == ("completed", alone.metrics)
    (warning,) = [record.message for record in caplog.records if "A log is given up" in record.message]
    assert "the log csv: OSError: [Errno 28] No space left on device. The run goes on" in warning
    assert "No space left" in read_facts(result.run_id)["ablate.left_out"]


def test_what_a_log_draws_at_random_disturbs_nothing(store, trained_once, vit_settings, monkeypatch):
    import torch

    csv_log, settings = loggers["csv"], {"model.drop_path": 0.3}
    plain = csv_log.build
    monkeypatch.setattr(csv_log, "build", lambda self, place: (torch.rand(5), plain(self, place))[1])
    alone = trained_once(Experiment.from_mapping(vit_settings, settings))
    assert train(Experiment.from_mapping(vit_settings, settings, {"trainer.loggers": "csv"})).metrics == alone.metrics


def test_no_password_is_written_to_a_log(store, tiny_settings):
    address = "s3://user:very-secret-word@host/runs"
    tracking.remember_address("postgresql://user:very-secret-word@host/db")
    from ablate.training.loggers import RunLogger

    experiment = Experiment.from_mapping(tiny_settings, {"trainer.loggers": "csv", "trainer.copy_to": address})
    RunLogger(experiment, tracking.Tracker("abc"), 128, 0).close("completed")
    (file,) = (store / "logs" / "csv" / "abc").glob("hparams.yaml")
    assert "trainer.copy_to" in file.read_text()
    assert "very-secret-word" not in file.read_text()


@pytest.mark.skipif(bool(loggers["wandb"]().validate()), reason="wandb")
def test_wandb_writes_offline_and_each_run_gets_its_own(store, tiny_settings, monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    experiment = Experiment.from_mapping(tiny_settings, {"trainer.loggers": "wandb", "trainer.max_steps": 2})
    results = [train(experiment) for _ in range(2)]
    assert "WANDB_MODE" not in os.environ
    for result in results:
        (folder,) = (store / "logs" / "wandb").glob(f"offline-run-*-{result.run_id}")
        assert (folder / f"run-{result.run_id}.wandb").stat().st_size > 1000
        assert not list(folder.rglob("wandb-metadata.json"))  # the command line may have a password
        assert "ablate.left_out" not in read_facts(result.run_id)
