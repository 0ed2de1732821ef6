"""Admin's profiling pass, against variances summed up by hand, and in a training that goes on."""

import math

import pytest
import torch
from norms import reference
from norms.cases import RESIDUAL

from ablate.config.errors import ConfigError
from ablate.experiment.tree import Experiment
from ablate.norms.admin_residual import AdminResidual, profile
from ablate.training import train as training
from ablate.training.procedures import Hooks, Place
from ablate.training.train import train

DEPTH = 3
ADMIN = {"kind": "admin", "start": "profile"}
UNIT = {"llama": {"init.embedding_std": 1.0}, "vit": {"init.std": 0.3}}  # what its profile assumes of the input


def omegas(model):
    return [m.omega.detach() for m in model.modules() if isinstance(m, AdminResidual)]


def profiled_by_hand(experiment, model, inputs):
    """omega_i^2 = Var[x_0] + sum over j < i of Var[f_j], with the omegas before i in force; omega_1 = 1."""
    found, total = [], None

    def rule(x, attn, mlp, n, s, nth, L):
        nonlocal total
        for f, norm in zip((attn, mlp), n, strict=True):
            total = x.detach().var(correction=0) if total is None else total
            omega = math.sqrt(total) if found else 1.0
            found.append(omega)
            y = f(x)
            total = total + y.detach().var(correction=0)
            x = norm(omega * x + y)
        return x

    layer = experiment.norm.layer
    weights = reference.Weights(model.named_parameters(), layer.kind, layer.model_dump())
    kinds = ["admin"] * DEPTH
    reference.MODELS[experiment.model.kind](inputs, weights, DEPTH, 2, kinds, rule, False, True)
    return found


@pytest.mark.parametrize("family", RESIDUAL)
def test_the_profile_is_the_root_of_what_was_added_up_before(tiny, family):
    experiment, model, inputs = tiny(family, {"norm": ADMIN, "init.std": 0.3})
    expected = profiled_by_hand(experiment, model, inputs)
    assert all(torch.equal(omega, torch.ones_like(omega)) for omega in omegas(model))
    experiment.norm.prepare(model, lambda: inputs)
    assert len(omegas(model)) == 2 * DEPTH
    for omega, value in zip(omegas(model), expected, strict=True):
        torch.testing.assert_close(omega, torch.full_like(omega, value), atol=1e-10, rtol=1e-10)
    assert expected[1:] == sorted(expected[1:])
    assert expected[-1] > 1.1 * expected[1]


@pytest.mark.parametrize("family", RESIDUAL)
def test_the_profile_changes_nothing_else(tiny, family):
    _, model, inputs = tiny(
        family, {"norm": ADMIN, **UNIT[family], **({"model.drop_path": 0.5} if family == "vit" else {})}
    )
    before = {name: p.clone() for name, p in model.state_dict().items()}
    state = torch.get_rng_state()
    profile(model.train(), inputs)
    assert torch.equal(state, torch.get_rng_state())
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    moved = {name for name, p in model.state_dict().items() if not torch.equal(p, before[name])}
    assert moved
    assert all(name.endswith("omega") for name in moved)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_in_a_mix_only_the_layers_of_admin_are_profiled(tiny):
    settings = {"norm": "mix", "norm.first_layers": 1, "norm.first": ADMIN, "model.layers": DEPTH, **UNIT["llama"]}
    experiment, model, inputs = tiny("llama", settings)
    experiment.norm.prepare(model, lambda: inputs)
    first, second = omegas(model)
    assert first.eq(1).all()
    assert not second.eq(1).any()


def test_batchnorm_is_profiled_with_the_batch_and_keeps_its_averages(tiny):
    experiment, model, inputs = tiny("vit", {"norm": ADMIN, "norm.layer": "batchnorm", "init.std": 0.3})
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    expected = profiled_by_hand(experiment, model, inputs)  # the reference norms by the batch
    experiment.norm.prepare(model, lambda: inputs)
    assert [omega.unique().item() for omega in omegas(model)] == pytest.approx(expected, rel=1e-9)
    assert before
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_every_part_of_a_mix_of_mixes_is_profiled(tiny):
    admins = {"kind": "mix", "alpha": 0.5, "first": ADMIN, "second": ADMIN}
    ranges = {"a": {"placement": admins, "until": 0.5}, "b": {"placement": {"kind": "mix", "first": "pre"}}}
    settings = {"norm": {"kind": "by_depth", "ranges": ranges}, "model.layers": 4, **UNIT["llama"]}
    experiment, model, inputs = tiny("llama", settings)
    experiment.norm.prepare(model, lambda: inputs)
    first, *rest = omegas(model)
    assert first.eq(1).all()
    assert len(rest) == 3
    assert not any(omega.eq(1).any() for omega in rest)


@pytest.mark.parametrize("depth", [2, 6, 24])
def test_the_closed_form(tiny, depth):
    settings = {"norm": "admin", "model.layers": depth}
    experiment, model, inputs = tiny("llama", settings)
    experiment.norm.prepare(model, lambda: inputs)
    n = 2 * depth
    expected = math.sqrt((n + 1) / math.log(n + 1) - 1)
    assert [omega.unique().item() for omega in omegas(model)] == pytest.approx([expected] * n, rel=1e-6)


def test_a_run_profiles_its_first_batch_once_and_goes_on_without(store, family_settings, monkeypatch):
    unit = UNIT[family_settings["model"].get("kind", "llama")]
    experiment = Experiment.from_mapping(family_settings, {"norm": ADMIN, **unit})
    profiled = []
    monkeypatch.setattr(
        "ablate.norms.admin_residual.profile", lambda model, x: (profiled.append(x.clone()), profile(model, x))
    )
    whole = train(experiment)
    assert len(profiled) == 1
    assert len(profiled[0]) == experiment.trainer.batch_size
    stops = iter([False] * 5 + [True] * 99)
    part = train(experiment, Place(), Hooks(asked_to_stop=lambda: next(stops)))
    assert part.status == "interrupted"
    assert torch.equal(profiled[1], profiled[0])
    rest = train(experiment, Place(run_id=part.run_id))
    assert len(profiled) == 2
    assert (rest.status, rest.metrics) == (whole.status, whole.metrics)
    assert training.run_folder(rest.run_id).exists()


def test_a_profile_that_cuts_the_residual_is_refused_with_what_to_do(tiny):
    """On an embedding of 0.02 omega_2 is about 0.02, and on one of unit variance about 1."""
    experiment, model, inputs = tiny("llama", {"norm": ADMIN})
    with pytest.raises(
        ConfigError, match=r"norm\.start: .* 0\.0[12]\d*, below 0\.1: .*norm\.start=closed_form"
    ) as told:
        experiment.norm.prepare(model, lambda: inputs)
    assert "init.embedding_std=1" in str(told.value)
    experiment, model, inputs = tiny("llama", {"norm": ADMIN, **UNIT["llama"]})
    experiment.norm.prepare(model, lambda: inputs)
    assert [omega.unique().item() for omega in omegas(model)[:2]] == pytest.approx([1, 1], rel=0.1)


def test_a_refused_profile_ends_a_run_in_a_sentence(store, tiny_settings):
    with pytest.raises(ConfigError, match=r"norm\.start: Admin's profile"):
        train(Experiment.from_mapping(tiny_settings, {"norm": ADMIN}))
