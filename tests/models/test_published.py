"""Published architectures, against `transformers`' own with the same weights."""

import pytest
import torch
from transformers import Olmo2Config, Olmo2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from ablate.config.errors import ConfigError
from ablate.experiment.tree import Experiment

HIDDEN, MLP, HEADS, LAYERS, VOCAB = 32, 44, 4, 3, 53
NORMS = {  # of a layer: theirs -> ours
    "qwen3": {"input_layernorm": "attn_residual.norm", "post_attention_layernorm": "mlp_residual.norm"},
    "olmo2": {"post_attention_layernorm": "attn_residual.norm", "post_feedforward_layernorm": "mlp_residual.norm"},
}
CASES = [
    pytest.param("qwen3", {"head_dim": 12, "kv_heads": 2}, id="qwen3"),
    pytest.param("qwen3", {"head_dim": 8, "kv_heads": 4, "tie_embeddings": True}, id="qwen3-tied"),
    pytest.param("olmo2", {"kv_heads": 4}, id="olmo2"),
    pytest.param("olmo2", {"kv_heads": 2}, id="olmo2-grouped"),
]


def build_theirs(kind, settings):
    config, model = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "olmo2": (Olmo2Config, Olmo2ForCausalLM)}[kind]
    own = {"head_dim": settings["head_dim"]} if kind == "qwen3" else {}
    fields = config(
        hidden_size=HIDDEN, intermediate_size=MLP, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=settings["kv_heads"], vocab_size=VOCAB, rms_norm_eps=1e-6, pad_token_id=None,
        rope_theta={"qwen3": 1e6, "olmo2": 5e5}[kind], tie_word_embeddings=settings.get("tie_embeddings", False),
        attn_implementation="eager", **own,
    )  # fmt: skip
    torch.manual_seed(3)
    theirs = model(fields).eval()
    with torch.no_grad():
        for p in theirs.parameters():  # far from the initial weights, so that nothing is near the identity
            p.add_(torch.randn_like(p) * (0.2 if p.ndim == 2 else 0.3))
    return theirs


def by_our_names(kind, state):
    ours = {name: state[f"model.{name}"] for name in ("embed_tokens.weight", "norm.weight")}
    ours["lm_head.weight"] = state["lm_head.weight"]
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        attn, mlp = f"{at}self_attn.", f"{at}mlp."
        layer = {
            "attn.qkv_proj.weight": torch.cat([state[f"{attn}{x}_proj.weight"] for x in "qkv"]),
            "attn.qkv_norm.q.weight": state[f"{attn}q_norm.weight"],
            "attn.qkv_norm.k.weight": state[f"{attn}k_norm.weight"],
            "attn.o_proj.weight": state[f"{attn}o_proj.weight"],
            "mlp.gate_up_proj.weight": torch.cat([state[f"{mlp}{x}_proj.weight"] for x in ("gate", "up")]),
            "mlp.down_proj.weight": state[f"{mlp}down_proj.weight"],
            **{f"{name}.weight": state[f"{at}{theirs}.weight"] for theirs, name in NORMS[kind].items()},
        }
        ours |= {f"layers.{i}.{name}": value for name, value in layer.items()}
    return ours


@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_logits_and_gradients_are_those_of_transformers(kind, settings):
    theirs = build_theirs(kind, settings)
    sizes = {"kind": kind, "hidden": HIDDEN, "mlp": MLP, "heads": HEADS, "layers": LAYERS, **settings}
    experiment = Experiment.from_mapping({"model": sizes})
    ours = experiment.model.build(experiment.norm, experiment.init, VOCAB, (21,)).eval()
    ours.load_state_dict(by_our_names(kind, theirs.state_dict()))
    assert ours.parameter_count() == sum(p.numel() for p in theirs.parameters())
    tokens = torch.randint(VOCAB, (2, 21), generator=torch.Generator().manual_seed(2))
    logits = ours(tokens), theirs(tokens).logits
    torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-5)
    for out in logits:
        out.square().mean().backward()
    grads = by_our_names(kind, {n: p.grad for n, p in theirs.named_parameters(remove_duplicate=False)})
    for name, p in ours.named_parameters():
        torch.testing.assert_close(p.grad, grads[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("kind", "placement", "over"), [("qwen3", "pre", "head"), ("olmo2", "olmo2", "width"), ("llama", "pre", None)]
)
def test_its_norms_are_defaults_that_another_placement_keeps(kind, placement, over):
    plain = Experiment.from_mapping({"model": kind}).norm
    assert plain.kind == placement
    assert plain.has_qk_norm == (over is not None)
    if over:
        other = Experiment.from_mapping({"model": kind, "norm": "lns"}).norm
        assert (other.kind, other.qk, other.qk_over) == ("lns", plain.qk, over)
        assert not Experiment.from_mapping({"model": kind, "norm.qk": "none"}).norm.has_qk_norm


def test_a_published_size_has_its_number_of_parameters():
    """Qwen3-0.6B: 0.44B parameters without the embedding, as its card says."""
    experiment = Experiment.from_mapping({"model": "qwen3-0.6b"})
    assert experiment.model.layer_parameters() == 28 * (1024 * (2048 + 2 * 1024) + 2048 * 1024 + 3 * 1024 * 3072)
    assert round(experiment.model.layer_parameters() / 1e9, 2) == 0.44


def test_a_head_of_odd_width_is_refused():
    with pytest.raises(ConfigError, match=r"model\.head_dim: must be even"):
        Experiment.from_mapping({"model": {"kind": "qwen3", "head_dim": 7}})
