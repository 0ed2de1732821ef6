"""LLaMA, against transformers' LlamaForCausalLM with the same weights."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ablate.experiment.tree import Experiment

HIDDEN, MLP, HEADS, LAYERS, VOCAB = 32, 44, 4, 3, 53

CASES = [
    pytest.param({}, 21, id="plain"),
    pytest.param({}, 1, id="one-token"),
    pytest.param({"model.kv_heads": 2}, 21, id="two-kv-heads"),
    pytest.param({"model.kv_heads": 1}, 21, id="one-kv-head"),
    pytest.param({"model.rope_base": 500.0}, 21, id="rope-base"),
    pytest.param({"model.rope_base": 500000.0, "model.kv_heads": 2}, 70, id="rope-base-long"),
    pytest.param({"model.tie_embeddings": True}, 21, id="tied"),
    pytest.param({"norm.layer.eps": 0.1}, 21, id="eps"),
]


def ours(settings):
    sizes = {"model": {"kind": "llama", "hidden": HIDDEN, "mlp": MLP, "heads": HEADS, "layers": LAYERS}}
    experiment = Experiment.from_mapping(sizes, {"norm": "pre", "norm.layer": "rmsnorm"}, settings)
    return experiment.model.build(experiment.norm, experiment.init, VOCAB, (21,)).eval()


def theirs(settings):
    config = LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=MLP,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=settings.get("model.kv_heads", HEADS),
        vocab_size=VOCAB,
        rms_norm_eps=settings.get("norm.layer.eps", 1e-6),
        rope_theta=settings.get("model.rope_base", 10000.0),
        tie_word_embeddings=settings.get("model.tie_embeddings", False),
        max_position_embeddings=128,
        attn_implementation="eager",
    )
    torch.manual_seed(3)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():  # far from the initial weights, so that nothing is near the identity
            p.add_(torch.randn_like(p) * (0.2 if p.ndim == 2 else 0.3))
    return model


def as_ours(tensors):
    """transformers' tensors by our names: query, key and value in one matrix, gate and up in another."""
    found = {
        "embed_tokens.weight": tensors["model.embed_tokens.weight"],
        "norm.weight": tensors["model.norm.weight"],
        "lm_head.weight": tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]),
    }
    for i in range(LAYERS):
        layer = {
            name.removeprefix(f"model.layers.{i}."): t for name, t in tensors.items() if f"model.layers.{i}." in name
        }
        attn = [layer.pop(f"self_attn.{part}_proj.weight") for part in "qkv"]
        mlp = [layer.pop(f"mlp.{part}_proj.weight") for part in ("gate", "up")]
        found |= {
            f"layers.{i}.attn.qkv_proj.weight": torch.cat(attn),
            f"layers.{i}.attn.o_proj.weight": layer.pop("self_attn.o_proj.weight"),
            f"layers.{i}.mlp.gate_up_proj.weight": torch.cat(mlp),
            f"layers.{i}.mlp.down_proj.weight": layer.pop("mlp.down_proj.weight"),
            f"layers.{i}.attn_residual.norm.weight": layer.pop("input_layernorm.weight"),
            f"layers.{i}.mlp_residual.norm.weight": layer.pop("post_attention_layernorm.weight"),
        }
        assert not layer
    return found


def pair(settings, length):
    reference, model = theirs(settings), ours(settings)
    model.load_state_dict(as_ours(reference.state_dict()))
    tokens = torch.randint(VOCAB, (2, length), generator=torch.Generator().manual_seed(4))
    return model, reference, tokens


@pytest.mark.parametrize(("settings", "length"), CASES)
def test_logits_equal_transformers(settings, length):
    model, reference, tokens = pair(settings, length)
    with torch.no_grad():
        expected = reference(tokens).logits
        assert expected.std() > 0.5
        torch.testing.assert_close(model(tokens), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("settings", "length"), CASES)
def test_gradients_equal_transformers(settings, length):
    model, reference, tokens = pair(settings, length)
    weight = torch.randn(2, length, VOCAB, generator=torch.Generator().manual_seed(5)) / length
    for logits in (model(tokens), reference(tokens).logits):
        (logits * weight).sum().backward()
    expected = as_ours({name: p.grad for name, p in reference.named_parameters()})
    for name, p in model.named_parameters():
        limit = 1e-4 * max(1.0, expected[name].abs().max().item())
        torch.testing.assert_close(p.grad, expected[name], atol=limit, rtol=0, msg=lambda m, name=name: f"{name}: {m}")


def test_the_comparison_sees_the_rotary_base():
    reference = theirs({"model.rope_base": 500.0})
    model = ours({"model.rope_base": 10000.0})
    model.load_state_dict(as_ours(reference.state_dict()))
    tokens = torch.randint(VOCAB, (2, 21), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        assert (model(tokens) - reference(tokens).logits).abs().max() > 0.1


def test_parameters_equal_transformers():
    for settings in ({}, {"model.kv_heads": 2}, {"model.tie_embeddings": True}):
        assert ours(settings).parameter_count() == theirs(settings).num_parameters()


def test_autocast_stays_near_float32():
    model, reference, tokens = pair({"model.kv_heads": 2}, 21)
    with torch.no_grad():
        exact = reference(tokens).logits
        with torch.autocast("cpu", torch.bfloat16):
            rough = model(tokens).float()
    assert 0 < (rough - exact).abs().mean() < 0.05 * exact.std()


def test_a_vocabulary_of_ones_own():
    config = Experiment.from_mapping({"model.vocab_size": 77})
    assert config.model.build(config.norm, config.init, VOCAB, (21,)).lm_head.weight.shape == (77, 128)
    config = Experiment.from_mapping({})
    assert config.model.build(config.norm, config.init, VOCAB, (21,)).lm_head.weight.shape == (VOCAB, 128)
