"""nGPT against the numbers of NVIDIA's code, the lengths of its weights in training, and what it refuses."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from ablate.config.errors import ConfigError
from ablate.experiment.tree import Experiment
from ablate.models import head

ORACLE = json.loads((Path(__file__).parent / "oracles.json").read_text(encoding="utf-8"))["ngpt"]


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def near(value, numbers):
    torch.testing.assert_close(value, tensor(numbers), rtol=0, atol=1e-10)


def names_of_theirs():
    """Our name -> what gives it of their weights."""
    given = {name.removeprefix("transformer."): tensor(value) for name, value in ORACLE["weights"].items()}
    ours = {
        "embed_tokens.weight": given["wte.weight"],
        "lm_head.weight": given["lm_head.weight"],
        "logit_scale.weight": given["sz"],
    }
    for i in range(2):
        layer = {name.removeprefix(f"h.{i}."): value for name, value in given.items() if name.startswith(f"h.{i}.")}
        fused = torch.cat([layer[f"{name}.weight"] for name in ("query", "key", "value")])
        swapped = [torch.cat(layer[name].chunk(2)[::-1]) for name in ("c_fc.weight", "suv")]  # they hold up, then gate
        ours |= {
            f"layers.{i}.{name}": value
            for name, value in {
                "attn.qkv_proj.weight": fused,
                "attn.o_proj.weight": layer["att_c_proj.weight"],
                "attn.unit.scale.weight": layer["sqk"],
                "attn_residual.rate.weight": layer["attn_alpha"],
                "mlp.gate_up_proj.weight": swapped[0],
                "mlp.scale.weight": swapped[1],
                "mlp.down_proj.weight": layer["mlp_c_proj.weight"],
                "mlp_residual.rate.weight": layer["mlp_alpha"],
            }.items()
        }
    return ours


def test_it_computes_what_nvidias_code_does():
    """Without a rotation, since theirs is none. The loss is also that of logits in parts."""
    sizes = {"hidden": 4, "layers": 2, "heads": 2, "mlp": 16}
    experiment = Experiment.from_mapping({"model": sizes, "norm": "ngpt"})
    model = experiment.build_model(7, (3,)).double()
    model.load_state_dict(names_of_theirs())
    experiment.norm.after_update(model, 1)
    outputs = ORACLE["outputs"]
    near(model.embed_tokens.weight.detach(), outputs["normalised"]["transformer.wte.weight"])
    near(model.layers[0].attn.o_proj.weight.detach(), outputs["normalised"]["transformer.h.0.att_c_proj.weight"])
    gate, up = model.layers[0].mlp.gate_up_proj.weight.detach().chunk(2)
    near(torch.cat([up, gate]), outputs["normalised"]["transformer.h.0.c_fc.weight"])
    near(model.layers[1].mlp.down_proj.weight.detach(), outputs["normalised"]["transformer.h.1.mlp_c_proj.weight"])
    still = torch.stack([torch.ones(3, 1, 2), torch.zeros(3, 1, 2)])
    model.rotary.forward = lambda position: still
    states = []
    for layer in model.layers:
        layer.register_forward_hook(lambda module, given, output: states.append(output.detach()))
    tokens, targets = (torch.tensor(ORACLE["inputs"][name]) for name in ("tokens", "targets"))
    logits = model(tokens)
    near(logits.detach(), outputs["logits"])
    near(torch.stack(states), outputs["hidden_after_layer"])
    F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    near(model.layers[0].attn_residual.rate.weight.grad, outputs["grad_attn_alpha_0"])
    near(model.layers[1].attn.unit.scale.weight.grad, outputs["grad_sqk_1"])
    assert model(tokens, targets).item() == pytest.approx(outputs["loss"], abs=1e-6)  # which is in float32


def lengths(model):
    """The largest difference of a length from 1, of all vectors of the hidden state's width."""
    columns = ("o_proj.weight", "down_proj.weight")
    matrices = {name: p.detach() for name, p in model.named_parameters() if p.ndim == 2}
    assert len(matrices) == 2 + 4 * len(model.layers)
    return max(((p.T if name.endswith(columns) else p).norm(dim=1) - 1).abs().max() for name, p in matrices.items())


@pytest.mark.parametrize("rows", [1, 100])
def test_the_fused_loss_is_that_of_the_logits(tiny, monkeypatch, rows):
    """Its gradients too, whether it is computed at once or in parts."""
    monkeypatch.setattr(head, "count_rows_at_once", lambda vocabulary: rows)
    _, model, tokens = tiny("llama", {"norm": "ngpt"})
    logits = model.float()(tokens).flatten(0, 1)
    plain = torch.autograd.grad(F.cross_entropy(logits, tokens.flatten()), [*model.parameters()])
    fused = torch.autograd.grad(model(tokens, tokens), [*model.parameters()])
    torch.testing.assert_close(fused, plain, atol=1e-6, rtol=1e-5)


def test_fewer_heads_of_keys_are_repeated_ones(tiny):
    """Two heads of keys for four of queries: each is used, with the factors of both its queries."""
    _, model, tokens = tiny("llama", {"norm": "ngpt", "model.heads": 4, "model.kv_heads": 2})
    _, whole, _ = tiny("llama", {"norm": "ngpt", "model.heads": 4})
    state = model.state_dict()
    for name in [name for name in state if "qkv_proj" in name]:
        q, k, v = state[name].split([16, 8, 8])
        state[name] = torch.cat([q, *(x.view(2, 4, 16).repeat_interleave(2, 0).flatten(0, 1) for x in (k, v))])
    whole.load_state_dict(state)
    torch.testing.assert_close(model(tokens), whole(tokens))


def test_frozen_weights_stay(tiny):
    experiment, model, _ = tiny("llama", {"norm": "ngpt"})
    frozen = model.embed_tokens.weight.requires_grad_(False).mul_(3)
    before = frozen.clone()
    experiment.norm.after_update(model, 1)
    assert torch.equal(model.embed_tokens.weight, before)
    assert lengths(model) == pytest.approx(2)


REFUSED = {
    "norm.qk": {"norm.qk": "rmsnorm"},
    "norm.layer.kind": {"norm.layer": "layernorm"},
    "norm.kind": {"norm": {"kind": "mix", "first": "ngpt"}},
    "norm.base": {"norm": {"kind": "gpas", "base": "ngpt"}},
    "init.kind": {"init": "scaled"},
    "parametrization.kind": {"parametrization": {"kind": "mup", "base.hidden": 8}},
    "model.tie_embeddings": {"model.tie_embeddings": True},
    "model.attention.temperature": {"model.attention.temperature": True},
    "model.attention.qk_clip": {"model.attention.qk_clip": 100.0},
    "model.attention.gate": {"model.attention.gate": "headwise"},
    "lora": {"warm_start": {"from": "RUN", "copy": ["all"]}, "lora": {}},
}


@pytest.mark.parametrize("path", REFUSED)
def test_what_does_not_fit_is_refused(tiny, path):
    with pytest.raises(ConfigError) as refused:
        tiny("llama", {"norm": "ngpt"} | REFUSED[path])
    assert [problem.path for problem in refused.value.problems] == [path], refused.value


def test_a_vit_refuses_it(tiny):
    with pytest.raises(ConfigError, match="placement ngpt asks for weights, queries and keys of length 1"):
        tiny("vit", {"norm": "ngpt"})
