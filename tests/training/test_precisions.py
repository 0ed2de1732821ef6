"""Every addition to a run, in every precision, with both families: two updates and a validation."""

import math

import pytest
import torch
from norms.cases import PROFILED

from ablate.experiment.tree import Experiment
from ablate.training.fit import _fit, _prepare
from ablate.training.precision import Speed
from ablate.training.procedures import Hooks

ADDED = {
    "plain": {},
    "ema": {"trainer.ema_decay": 0.9},
    "diagnose": {"trainer.diagnose.what": ["all"], "trainer.diagnose.interval": 1, "trainer.diagnose.tokens": 64},
    "admin": {**PROFILED["vit"], "init.std": 0.3},  # of either family
    "lora": {"lora.rank": 2, "warm_start.from": "RUN", "warm_start.copy": ["all"]},
}
PRECISIONS = ("bf16-mixed", "bf16-true")
TWO = {"trainer.max_steps": 2, "trainer.val_check_interval": 1, "trainer.log_every_n_steps": 1}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Data configuration -> its corpus, loaded once."""
    loaded = {}

    def load(experiment):
        key = experiment.data.model_dump_json()
        if key not in loaded:
            loaded[key] = experiment.data.load(tmp_path_factory.mktemp("cache"))
        return loaded[key]

    return load


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "added", [pytest.param(added, marks=[pytest.mark.addons] if added == "lora" else []) for added in ADDED]
)
def test_every_addition_trains_in_every_precision(family_settings, added, precision, corpora, trained_once, tmp_path):
    settings = dict(ADDED[added])
    if "warm_start.from" in settings:
        settings["warm_start.from"] = trained_once(Experiment.from_mapping(family_settings, TWO)).run_id
    run = Experiment.from_mapping(family_settings, {**TWO, **settings, "trainer.precision": precision})
    prepared = _prepare(run, corpora(run), Speed(precision, False, ""), tmp_path, None, Hooks(), True)
    assert _fit(prepared, None) == ("completed", "")
    metrics = prepared.validations.metrics
    assert all(math.isfinite(value) for value in metrics.values())
    assert ("val/ema/loss" in metrics) == (added == "ema")
    wanted = torch.bfloat16 if precision == "bf16-true" else torch.float32
    assert {p.dtype for p in prepared.module.parameters()} == {wanted}
