"""The measurements in training: what they log, and that training does not notice them."""

import json

import pytest
import torch
from norms.cases import PROFILED

from ablate import tracking
from ablate.config.errors import ConfigError
from ablate.diagnostics.measures import Layers, measurements
from ablate.experiment.trainer import DiagnoseConfig
from ablate.experiment.tree import Experiment
from ablate.training.procedures import Hooks, Place
from ablate.training.runs import load_experiment
from ablate.training.train import train

EVERY = {"trainer.diagnose.what": "all", "trainer.diagnose.interval": 4, "trainer.diagnose.tokens": 64}


def history(run_id, key):
    return [(m.step, m.value) for m in tracking.client().get_metric_history(run_id, key)]


def weights(store, run_id):
    return torch.load(store / "runs" / run_id / "last.ckpt", weights_only=True)["state_dict"]


def numbers(run_id):
    file = tracking.client().download_artifacts(run_id, "layers/training.json")
    with open(file) as opened:
        return json.load(opened)


def stop_after(updates):
    """Hooks that interrupt a run after so many updates."""
    steps = []
    return Hooks(
        progress=lambda step, _: steps.append(step), asked_to_stop=lambda: bool(steps) and steps[-1] >= updates
    )


def check_unnoticed(store, plain, measured):
    assert measured.metrics == plain.metrics
    a, b = weights(store, plain.run_id), weights(store, measured.run_id)
    assert all(torch.equal(a[key], b[key]) for key in a)
    losses = [history(run.run_id, "train/loss") for run in (plain, measured)]
    assert losses[0] == losses[1]


def test_training_does_not_notice_them(store, trained):
    check_unnoticed(store, *trained("llama", "measured"))


@pytest.mark.parametrize("settings", [PROFILED["llama"], {"norm.layer": "batchnorm", "model.drop_path": 0.3}])
def test_nor_do_random_numbers_averages_and_accumulated_batches(store, tiny_settings, vit_settings, settings):
    """Admin looks at the first batch, BatchNorm keeps averages, drop path draws random numbers."""
    tree = vit_settings if "model.drop_path" in settings else tiny_settings
    if tree is vit_settings:
        settings = {**settings, "trainer.accumulate": 2}
    plain, measured = (train(Experiment.from_mapping(tree, settings, more)) for more in ({}, EVERY))
    check_unnoticed(store, plain, measured)


def test_a_run_that_is_resumed_thrice_has_measured_what_the_uninterrupted_one_has(store, trained, tiny_settings):
    whole = trained("measured")
    experiment, place = Experiment.from_mapping(tiny_settings, EVERY), Place()
    for at in (1, 6, 8):  # before, between and at updates after which it is measured
        part = train(experiment, place, hooks=stop_after(at))
        assert (part.status, part.step) == ("interrupted", at)
        experiment, place = load_experiment(part.run_id, {}), Place(run_id=part.run_id)
    rest = train(experiment, place)
    assert rest.metrics == whole.metrics
    assert numbers(rest.run_id) == numbers(whole.run_id)


def test_each_layer_has_its_numbers_against_tokens_in_a_file_and_none_among_the_metrics(trained):
    result = trained("measured")
    tokens = 4 * 32
    known = tracking.client().get_run(result.run_id).data.metrics
    assert not [key for key in known if key.startswith("layers")]
    courses = numbers(result.run_id)["history"]
    assert set(courses) == {
        "angular_distance", "loss_increase", "gradient_norm", "jacobian_gain", "variance", "attention_variance",
        "mlp_variance",
    }  # fmt: skip
    assert list(map(int, courses["variance"])) == [0, 4 * tokens, 8 * tokens, 12 * tokens]
    assert list(map(int, courses["gradient_norm"])) == [k * tokens for k in (0, 4, 8, 11)]
    names = {item.path for item in tracking.client().list_artifacts(result.run_id, "layers")}
    assert names == {f"layers/training.{suffix}" for suffix in ("json", "csv", "png")}


def test_the_first_gradient_norms_are_those_of_the_first_backward_pass(trained, tiny_settings):
    run, result = Experiment.from_mapping(tiny_settings, EVERY), trained("measured")
    corpus = run.data.load(tracking.cache_folder())
    torch.manual_seed(run.seed)
    model = run.model.build(run.norm, run.init, corpus.classes, corpus.shape)
    inputs, targets = next(iter(corpus.train.batches(4, run.seed)))
    torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
    first = numbers(result.run_id)["history"]["gradient_norm"]["0"]
    for layer, block in enumerate(Layers(model).blocks):
        expected = torch.cat([p.grad.flatten() for p in block.parameters()]).norm().item()
        assert first[layer] == pytest.approx(expected, rel=1e-5)


def test_off_by_default(trained):
    result = trained("llama")
    assert not tracking.client().list_artifacts(result.run_id, "layers")


def test_what_is_expensive_is_measured_seldom():
    config = DiagnoseConfig(what=("all",))
    every = config.every(config.names, 1000, layers=24, part=0.1)
    assert every["gradients"] == 20  # fifty points
    assert every["angular"] == every["variance"] < every["jacobian"] < every["pruning"] == 1001  # at the end alone
    taken = {name: measurements[name].cost(24) * 0.25 / steps for name, steps in every.items() if name != "gradients"}
    assert sum(taken.values()) < 0.02
    assert DiagnoseConfig(what=("pruning",), interval=7).every(["pruning"], 100, layers=24, part=1.0) == {"pruning": 7}


def test_mistakes_are_told(tiny_settings):
    with pytest.raises(ConfigError, match=r"trainer.diagnose.what: unknown measurement.*Did you mean variance"):
        Experiment.from_mapping(tiny_settings, {"trainer.diagnose.what": ["varianc"]})
    with pytest.raises(ConfigError, match="too expensive in training; ablate diagnose takes it") as refused:
        Experiment.from_mapping(tiny_settings, {"trainer.diagnose.what": ["spectral"]})
    assert "spectral" not in str(refused.value).partition("Accepted:")[2].partition(".")[0]
    with pytest.raises(ConfigError, match="jacobian needs whole weights"):
        Experiment.from_mapping(tiny_settings, {"trainer.diagnose.what": "all", "trainer.strategy": "fsdp"})
