"""A family of models in a file of one's own: the example of the docs."""

import re
from pathlib import Path

import pytest
import torch
import transformers
from norms.cases import NORMED

from ablate.config.errors import ConfigError
from ablate.experiment.tree import Experiment

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "model-family.md"
CODE = re.search(r'```python title="gpt2.py"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.S)[1]
VOCAB, SEQ = 53, 21


@pytest.fixture
def gpt2(registries, tmp_path):
    """Settings with the plugin, which is gone afterwards."""
    file = tmp_path / "gpt2.py"
    file.write_text(CODE, encoding="utf-8")
    sizes = {"kind": "gpt2", "hidden": 32, "layers": 3, "heads": 4, "positions": 64}
    return {"plugins": [str(file)], "model": sizes}


def build(settings, more):
    experiment = Experiment.from_mapping(settings, more)
    return experiment, experiment.build_model(VOCAB, (SEQ,))


def test_the_example_has_at_most_84_lines_of_code():
    assert len([line for line in CODE.splitlines() if line.strip()]) <= 84


def test_it_is_gpt2_of_transformers(gpt2):
    _, ours = build(gpt2, {"norm.layer.eps": 1e-5})
    config = transformers.GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=32, n_layer=3, n_head=4)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=generator))
    state = theirs.transformer.state_dict()
    weights = {"tokens.weight": state["wte.weight"], "positions.weight": state["wpe.weight"]}
    names = {"attn.c_attn": "attn.qkv", "attn.c_proj": "attn.out", "mlp.c_fc": "mlp.up", "mlp.c_proj": "mlp.down"}
    names |= {"ln_1": "attn_residual.norm", "ln_2": "mlp_residual.norm"}
    for end in ("weight", "bias"):
        weights[f"norm.{end}"] = state[f"ln_f.{end}"]
        for i in range(3):
            for name, own in names.items():
                value = state[f"h.{i}.{name}.{end}"]
                weights[f"layers.{i}.{own}.{end}"] = value.T if value.ndim == 2 else value  # a Conv1D is transposed
    ours.load_state_dict(weights)
    tokens = torch.randint(VOCAB, (2, SEQ), generator=generator)
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", NORMED)
def test_every_placement_trains_all_its_parameters(gpt2, kind):
    _, model = build(gpt2, {"norm": kind, **({} if kind == "hybrid" else {"norm.qk": "rmsnorm"})})
    tokens = torch.randint(VOCAB, (2, SEQ), generator=torch.Generator().manual_seed(2))
    model(tokens, tokens).backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("ask", "settings", "message"),
    [
        (
            "qkv_norm",
            {"norm": "hybrid"},
            r"placement hybrid asks for norms on the queries, keys and values .* model gpt2",
        ),
        ("inner_norm", {"norm": "subln"}, r"placement subln asks for norms before the output projections, which model"),
        ("embedding_norm", {"norm": "peri"}, r"norm\.kind: placement peri asks for a norm after the embedding"),
        ("gains", {"norm": "deepnorm"}, r"placement deepnorm asks for an initialisation by the role"),
        (
            "calibration",
            {"norm": {"kind": "mix", "alpha": 0.5, "first": "admin"}},
            r"placement admin asks for values that are set from",
        ),
        ("qk", {"norm.qk": "rmsnorm"}, r"norm\.qk: norm\.qk=rmsnorm asks for norms on queries and keys"),
        (
            "no_final_norm",
            {"norm.final_norm": False},
            r"norm\.final_norm: norm\.final_norm asks for a head without a norm",
        ),
        ("embedding_scale", {"norm.layer": "dyt"}, r"norm\.layer: norm layer dyt asks for a learnable factor"),
    ],
)
def test_what_a_family_does_not_honour_is_refused_with_both_names(gpt2, ask, settings, message):
    file = Path(gpt2["plugins"][0])
    plain = "honours: ClassVar[frozenset] = frozenset(ASKS) - {"
    file.write_text(CODE.replace(plain, plain + f'"{ask}", '), encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        Experiment.from_mapping(gpt2, settings)
    if ask in ("qkv_norm", "inner_norm"):
        assert re.search(r"Accepted with it: pre, post", str(caught.value))
