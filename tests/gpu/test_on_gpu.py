"""The same on a GPU, where there is one: runs of every precision, eager and compiled, that never wait between logs."""

import math

import pytest
import torch

from ablate.experiment.tree import Experiment
from ablate.training.callbacks import Curves
from ablate.training.train import train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")


@pytest.fixture
def watched(monkeypatch):
    """Has torch raise where the host waits for the device in an update that does not log."""
    begin, due = Curves.on_train_batch_start, Curves._due

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        begin(self, trainer, module, batch, batch_idx)
        logs = due(trainer, module, trainer.global_step + 1)
        torch.cuda.set_sync_debug_mode("default" if logs else "error")

    def on_train_batch_end(self, trainer, module, *rest):
        torch.cuda.set_sync_debug_mode("default")
        end(self, trainer, module, *rest)

    end = Curves.on_train_batch_end
    monkeypatch.setattr(Curves, "on_train_batch_start", on_train_batch_start)
    monkeypatch.setattr(Curves, "on_train_batch_end", on_train_batch_end)
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
def test_a_run_trains_and_waits_for_nothing(store, family_settings, precision, watched):
    fields = {"trainer.precision": precision, "trainer.compile": False, "trainer.gradient_clip_val": 1.0}
    result = train(Experiment.from_mapping(family_settings, {**fields, "trainer.log_every_n_steps": 6}))
    assert result.status == "completed"
    assert math.isfinite(result.metrics["val/loss"])
    assert result.facts["ablate.peak_memory_bytes"] > 0


def test_compiled_runs_end_where_eager_ones_do(store, family_settings):
    losses = []
    for how in (False, True):
        fields = {"trainer.precision": "32-true", "trainer.compile": how}
        losses.append(train(Experiment.from_mapping(family_settings, fields)).metrics["val/loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
