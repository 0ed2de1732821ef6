"""The GRU language model, against torch's GRU and against equations written out by hand."""

import pytest
import torch
import torch.nn.functional as F
from norms import reference
from norms.cases import shaken
from torch import nn

from ablate.config.errors import ConfigError
from ablate.experiment.tree import Experiment
from ablate.norms import norm_layers
from ablate.optim.groups import assign_roles
from ablate.optim.muon import list_fused

LAYERS = [layer for layer in norm_layers if layer != "batchnorm"]
PLAIN = {"norm.layer": "none", "init.std": 0.5}


def test_without_norms_it_is_torchs(tiny):
    """`n = tanh(W_in x + b_in + r * (W_hn h + b_hn))`: the reset gate is on the recurrent sum. The biases of torch's
    recurrent side have no counterpart."""
    _, model, tokens = tiny("gru", PLAIN)
    shaken(model, 0.3)
    theirs = nn.GRU(16, 16, num_layers=3, batch_first=True).double()
    with torch.no_grad():
        for i, layer in enumerate(model.layers):
            bias = torch.cat([layer.gates_bias.bias, layer.candidate_bias.bias])
            values = {"weight_ih": layer.input.weight, "weight_hh": layer.recurrent.weight, "bias_ih": bias}
            for name, value in {**values, "bias_hh": torch.zeros(48)}.items():
                getattr(theirs, f"{name}_l{i}").copy_(value)
    states, _ = theirs(model.embed_tokens.weight[tokens])
    torch.testing.assert_close(model(tokens), states @ model.lm_head.weight.T, atol=1e-12, rtol=1e-12)


def by_hand(model, tokens, layer, settings):
    """The logits by the equations of Ba et al. 2016, with the complement of their update gate."""
    w = dict(model.named_parameters())

    def normed(name, x):
        own = {key[len(name) + 1 :]: value for key, value in w.items() if key.startswith(f"{name}.")}
        return reference.NORMS[layer](x, own, settings)

    x = F.one_hot(tokens, 11).double() @ w["embed_tokens.weight"]
    x = w["embed_scale.scale"] * x if layer in reference.ELEMENTWISE else x
    for i in range(3):
        at, h, states = f"layers.{i}", torch.zeros(len(tokens), 16, dtype=torch.float64), []
        W, U = w[f"{at}.input.weight"], w[f"{at}.recurrent.weight"]
        b_gates, b_new = (w.get(f"{at}.{name}_bias.bias", 0.0) for name in ("gates", "candidate"))
        for t in range(tokens.shape[1]):
            from_x, from_h = x[:, t] @ W.T, h @ U.T
            gates = normed(f"{at}.gates_input_norm", from_x[:, :32]) + b_gates
            gates = gates + normed(f"{at}.gates_recurrent_norm", from_h[:, :32])
            r, z = 1 / (1 + torch.exp(-gates[:, :16])), 1 / (1 + torch.exp(-gates[:, 16:]))
            new = normed(f"{at}.candidate_input_norm", from_x[:, 32:]) + b_new
            new = torch.tanh(new + r * normed(f"{at}.candidate_recurrent_norm", from_h[:, 32:]))
            h = z * h + (1 - z) * new
            states.append(h)
        x = torch.stack(states, 1)
    return x @ w["lm_head.weight"].T


@pytest.mark.parametrize("layer", LAYERS)
def test_outputs_and_gradients_equal_the_equations(tiny, layer):
    own = {"prmsnorm": {"norm.layer.p": 0.25}, "groupnorm": {"norm.layer.groups": 2}}.get(layer, {})
    experiment, model, tokens = tiny("gru", {"norm.layer": layer, "init.std": 0.5, **own})
    shaken(model, 0.2)
    outputs = model(tokens), by_hand(model, tokens, layer, experiment.norm.layer.model_dump())
    torch.testing.assert_close(*outputs, atol=1e-10, rtol=1e-10)
    weight = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((y * weight).sum(), list(model.parameters())) for y in outputs)
    for (name, _), a, b in zip(model.named_parameters(), ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9, msg=name)
        assert a.abs().max() > 0, name


def test_every_neuron_has_one_shift_at_its_input(tiny):
    """That of the layer where it has one, so that arms do not differ in it."""
    for layer, own in (
        ("rmsnorm", True),
        ("none", True),
        ({"kind": "layernorm", "bias": False}, True),
        ("layernorm", False),
    ):
        _, model, _ = tiny("gru", {"norm.layer": layer})
        names = {name for name, _ in model.named_parameters() if name.startswith("layers.0")}
        assert ("layers.0.gates_bias.bias" in names) == own
        assert ("layers.0.gates_input_norm.bias" in names) == (not own)


def test_a_norm_before_the_head_is_there_where_it_is_asked_for(tiny):
    _, plain, _ = tiny("gru")
    _, model, tokens = tiny("gru", {"norm.final_norm": True})
    assert set(model.state_dict()) - set(plain.state_dict()) == {"norm.weight"}
    x = plain.embed_tokens.weight[tokens]
    for layer in plain.layers:
        x = layer(x)
    x = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(model(tokens), x @ plain.lm_head.weight.T, atol=1e-12, rtol=1e-12)


def test_without_layers_it_is_a_bigram_model(tiny):
    experiment, model, tokens = tiny("gru", {"model.layers": 0})
    torch.testing.assert_close(model(tokens), model.embed_tokens.weight[tokens] @ model.lm_head.weight.T)
    assert experiment.model.layer_parameters() == 0


def test_with_targets_it_is_the_loss(tiny):
    _, model, tokens = tiny("gru")
    logits, loss = model(tokens), model(tokens, tokens)
    torch.testing.assert_close(loss, F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()))


def test_each_gate_is_a_matrix_of_its_own(tiny):
    """For the initialisation, and for Muon, which orthogonalises each."""
    _, model, _ = tiny("gru", {"init.std": 0.3})
    roles = [p.role for p in model.projections() if p.layer == 1]
    assert roles == [f"{side}_{gate}" for side in ("input", "recurrent") for gate in ("reset", "update", "candidate")]
    rows = list_fused(model)
    assert [fused.rows for fused in rows.values()] == [[16, 16, 16]] * 6
    assert list(rows) == [m.weight for layer in model.layers for m in (layer.input, layer.recurrent)]


def test_matrices_are_drawn_by_init_and_biases_are_zero():
    experiment = Experiment.from_mapping(
        {"model": {"kind": "gru", "hidden": 128}, "init": {"kind": "normal", "std": 0.1, "embedding_std": 1}}
    )
    torch.manual_seed(0)
    model = experiment.build_model(50, (12,))
    for projection in model.projections():
        expected = 1.0 if projection.role == "embedding" else 0.1
        assert projection.weight.std().item() == pytest.approx(expected, rel=0.04), projection.role
    assert all(not p.any() for name, p in model.named_parameters() if name.endswith("bias"))


def test_roles_of_its_parameters(tiny):
    _, model, _ = tiny("gru", {"model.layers": 1})
    assert assign_roles(model) == {
        "embed_tokens.weight": "embedding",
        "lm_head.weight": "head",
        "layers.0.input.weight": "matrices",
        "layers.0.recurrent.weight": "matrices",
        "layers.0.gates_bias.bias": "biases",
        "layers.0.candidate_bias.bias": "biases",
        **{
            f"layers.0.{of}_{side}_norm.weight": "norms"
            for of in ("gates", "candidate")
            for side in ("input", "recurrent")
        },
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"norm": "post"},
            r"norm\.kind: placement post is for layers with residual connections, which model gru does not",
        ),
        ({"norm": {"kind": "mix", "alpha": 0.5}}, r"norm\.kind: placement mix is for layers with residual connections"),
        (
            {"norm": "library"},
            r"norm\.kind: library keeps what a library has built, and model gru is not from a library",
        ),
        ({"norm.layer": "batchnorm"}, r"norm\.layer\.kind: its statistics include future tokens"),
        ({"norm.layer": {"kind": "groupnorm", "groups": 32}}, r"norm\.layer\.groups: must divide the 16 features"),
        ({"norm.qk": "rmsnorm"}, "asks for norms on queries and keys .*, which model gru does not offer"),
        ({"init": "scaled"}, r"init\.kind: differs from normal in matrices that write to a residual stream"),
        ({"init": "scaled_embedding"}, r"init\.kind: differs from normal"),
        ({"model.heads": 4}, r"model\.heads: unknown key"),
        ({"data": "digits"}, r"data\.kind: "),
    ],
)
def test_what_makes_no_sense_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Experiment.from_mapping({"model": {"kind": "gru", "hidden": 16, "layers": 1}}, settings)


def test_a_wiring_of_residuals_refuses_norms_on_summed_inputs():
    for model in ("llama", "vit", {"kind": "hf", "config": "gpt2"}):
        with pytest.raises(
            ConfigError, match=r"norm\.kind: summed_inputs norms the layers of a model without residual"
        ):
            Experiment.from_mapping({"model": model, "norm": "summed_inputs"})
    with pytest.raises(ConfigError, match=r"norm\.kind: summed_inputs norms the layers"):
        Experiment.from_mapping({"norm": {"kind": "mix", "alpha": 0.5, "second": "summed_inputs"}})


def test_its_placement_is_named_for_what_it_is():
    experiment = Experiment.from_mapping({"model": "gru"})
    assert experiment.norm.kind == "summed_inputs"
    assert experiment.norm.layer.kind == "rmsnorm"
    assert not experiment.norm.final_norm
    assert Experiment.from_mapping(experiment.to_tree()) == experiment
