"""A model that was trained for a moment, and pairs of which the longer answer is the better one."""

import pytest

from ablate.experiment.tree import Experiment
from ablate.training.train import train


@pytest.fixture
def started(store, tiny_settings):
    """The run of a model with a context of 48 bytes."""
    data = {"data": {"kind": "topics", "seq_len": 48, "val_fraction": 0.001}}
    return train(Experiment.from_mapping(tiny_settings, data, {"trainer.max_steps": 4})).run_id


@pytest.fixture
def aligned(started, pairs, tiny_settings):
    """aligned(method, {dotted path: value}) -> the experiment that aligns that model in four updates."""

    def build(method, settings=None):
        return Experiment.from_mapping(
            {"model": tiny_settings["model"]},
            {
                "data": {"kind": "preferences", "files": pairs, "template": "plain", "seq_len": 48},
                "warm_start": {"from": started, "copy": "all"},
                "align": {"method": method, "length": 6, "measured": 2},
                "trainer": {"max_steps": 4, "batch_size": 4, "val_check_interval": 2, "log_every_n_steps": 1},
                "optimizer.lr": 1e-3,
            },
            settings or {},
        )

    return build
