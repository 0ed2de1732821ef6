"""MLflow's system metrics: on request alone."""

import threading

import pytest

from ablate import tracking
from ablate.config.errors import AblateError
from ablate.tracking import system_metrics


def test_they_are_off_unless_mlflow_s_own_variable_asks_for_them(monkeypatch):
    monkeypatch.delenv(system_metrics.SWITCH, raising=False)
    assert not system_metrics.check_wanted()
    monkeypatch.setenv(system_metrics.SWITCH, "true")
    assert system_metrics.check_wanted()
    monkeypatch.setattr(system_metrics, "find_spec", lambda name: None)
    with pytest.raises(AblateError, match=r"pip install '\.\[system\]'"):
        system_metrics.check_wanted()


def test_a_run_has_them_while_it_goes(store, monkeypatch):
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.01")
    sampled, publish = threading.Event(), SystemMetricsMonitor.publish_metrics
    monkeypatch.setattr(SystemMetricsMonitor, "publish_metrics", lambda *a: (publish(*a), sampled.set()))
    tracker = tracking.Tracker.start("watched", "one", {})
    with system_metrics.watch_system(tracker, True):
        tracker.log_metrics({"train/loss": 2.0}, 1)
        tracker.flush()
        assert sampled.wait(60)
    first, *others = tracking.client().get_run(tracker.run_id).data.metrics
    assert first == "train/loss"  # what Compare opens with
    assert "system/cpu_utilization_percentage" in others
