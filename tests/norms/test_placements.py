"""Placements, against their formulas written as plain functions that share nothing with `ablate.norms`.

The real attention and MLP are replaced by toys, so that what is compared is the wiring alone: on its own, and in the
blocks of both families.
"""

import itertools
from fractions import Fraction

import pytest
import torch
from torch import nn

from ablate.config import Experiment
from ablate.models import models
from ablate.norms import Site, norm_layers, placements

DIM, DEPTH = 16, 6

# ---------------------------------------------------------------------------------- the formulas, nth counted from 1


def pre(x, f, norms, nth, L):
    return x + f(norms[0](x))


def post(x, f, norms, nth, L):
    return norms[0](x + f(x))


def deepnorm(x, f, norms, nth, L):
    return norms[0](pow(2 * L, 1 / 4) * x + f(x))


def lns(x, f, norms, nth, L):
    return x + f(norms[0](x) / pow(nth, 1 / 2))


def mixed(first, second, count):
    def rule(x, f, norms, nth, L):
        return (first if nth <= count else second)(x, f, norms, nth, L)

    return rule


FORMULAS = {"pre": pre, "post": post, "deepnorm": deepnorm, "lns": lns, "mix": mixed(post, pre, DEPTH // 4)}
VARIANTS = [
    ({"norm": "mix", "norm.alpha": 0.5}, mixed(post, pre, 3)),
    ({"norm": "mix", "norm.alpha": 0}, pre),
    ({"norm": "mix", "norm.alpha": 1}, post),
    ({"norm": "mix", "norm.first_layers": 0}, pre),
    ({"norm": "mix", "norm.first_layers": 2}, mixed(post, pre, 2)),
    ({"norm": "mix", "norm.first_layers": DEPTH}, post),
    ({"norm": "mix", "norm.alpha": 0.5, "norm.first": "deepnorm"}, mixed(deepnorm, pre, 3)),
    ({"norm": "mix", "norm.alpha": 0.5, "norm.second": "lns"}, mixed(post, lns, 3)),
    ({"norm": "mix", "norm.first_layers": 4, "norm.first": "lns", "norm.second": "deepnorm"}, mixed(lns, deepnorm, 4)),
    (
        {"norm": {"kind": "mix", "alpha": 0.8, "first": {"kind": "mix", "first_layers": 2, "first": "deepnorm"}}},
        mixed(deepnorm, pre, 2),
    ),
]
CASES = [pytest.param({"norm": kind}, FORMULAS.get(kind), id=kind) for kind in placements] + [
    pytest.param(settings, rule, id=f"mix-{i}") for i, (settings, rule) in enumerate(VARIANTS)
]


def rmsnorm(x, p):
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * p["weight"]


def layernorm(x, p):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * p["weight"] + p["bias"]


NORMS = {"rmsnorm": rmsnorm, "layernorm": layernorm}


class Toy(nn.Module):
    """tanh(x W): a sublayer of which neither the scale nor the shift of the input can be pulled out."""

    def __init__(self, seed):
        super().__init__()
        self.weight = nn.Parameter(
            torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / DIM**0.5
        )

    def forward(self, x, *_):
        return torch.tanh(x @ self.weight)


class Bare(nn.Module):
    """The wiring of one layer without a model family."""

    def __init__(self, norm, index):
        super().__init__()
        site = Site(index, DEPTH, lambda: norm.layer.build(DIM))
        self.attn_residual, self.mlp_residual = norm.wire(site)

    def forward(self, x):
        x = self.attn_residual(x, self.attn)
        return self.mlp_residual(x, self.mlp)


def layers_of(stack, settings):
    """The layers of the wiring alone or of a model family, with toys for sublayers and random norm weights."""
    family = "llama" if stack == "wiring" else stack
    sizes = {"model": {"kind": family, "hidden": DIM, "layers": DEPTH, "heads": 2}}
    experiment = Experiment.from_mapping(sizes, settings)
    if stack == "wiring":
        layers = [Bare(experiment.norm, i) for i in range(DEPTH)]
    else:
        shape = (8,) if experiment.model.task == "language_modeling" else (1, 8, 8)
        model = experiment.model.build(experiment.norm, experiment.init, 5, shape)
        layers = next(
            list(m) for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential) and len(m) == DEPTH
        )
    generator = torch.Generator().manual_seed(3)
    for i, layer in enumerate(layers):
        layer.attn, layer.mlp = Toy(10 * i), Toy(10 * i + 1)
        layer.double()
        with torch.no_grad():
            for residual in (layer.attn_residual, layer.mlp_residual):
                for p in residual.parameters():
                    p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return layers


def forward(stack, layers, x):
    for layer in layers:
        x = layer(x, None) if stack == "llama" else layer(x)
    return x


def norms_of(residual, layer_kind):
    """The norms of a residual as functions of our own with its parameters."""
    if layer_kind not in NORMS:
        pytest.fail(f"write the formula of {layer_kind} into NORMS")
    parts = [dict(m.named_parameters(recurse=False)) for m in residual.modules()]
    return [lambda x, p=p: NORMS[layer_kind](x, p) for p in parts if p]


def reference(layers, rule, layer_kind, x):
    for nth, layer in enumerate(layers, start=1):
        for residual, toy in ((layer.attn_residual, layer.attn), (layer.mlp_residual, layer.mlp)):
            x = rule(x, lambda h, w=toy.weight: torch.tanh(h @ w), norms_of(residual, layer_kind), nth, len(layers))
    return x


@pytest.mark.parametrize("layer_kind", norm_layers)
@pytest.mark.parametrize("stack", ["wiring", *models])
@pytest.mark.parametrize(("settings", "rule"), CASES)
def test_outputs_and_gradients_equal_the_formula(settings, rule, stack, layer_kind):
    if rule is None:
        pytest.fail(f"write the formula of {settings['norm']} into FORMULAS")
    layers = layers_of(stack, {**settings, "norm.layer": layer_kind})
    x = torch.randn(2, 5, DIM, generator=torch.Generator().manual_seed(4), dtype=torch.float64).requires_grad_()
    weight = torch.randn(2, 5, DIM, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    outputs = forward(stack, layers, x), reference(layers, rule, layer_kind, x)
    torch.testing.assert_close(*outputs, atol=1e-10, rtol=1e-10)
    variables = [x, *(p for layer in layers for p in layer.parameters())]
    assert len(variables) >= 1 + DEPTH * 4  # input, two sublayers and at least two norms a layer
    ours, theirs = (torch.autograd.grad((y * weight).sum(), variables) for y in outputs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("pair", itertools.combinations(sorted(FORMULAS), 2), ids="-".join)
def test_the_formulas_can_be_told_apart(pair):
    """What the test above rests on: with these toys, no two placements agree to 1e-10."""
    layers = layers_of("wiring", {})
    x = torch.randn(2, 5, DIM, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    one, other = (reference(layers, FORMULAS[kind], "rmsnorm", x) for kind in pair)
    assert (one - other).abs().max() > 0.01


# ---------------------------------------------------------------------------------------------------- Mix-LN


def kinds_of(norm, depth):
    return [norm.at(index, depth).kind for index in range(depth)]


def mix(**fields):
    return placements["mix"](**fields)


@pytest.mark.parametrize(
    ("alpha", "depth", "count"),
    [
        (0.25, 12, 3),
        (0.25, 24, 6),
        (0.25, 32, 8),
        (0.0625, 32, 2),  # LLaMA-7B
        (0.33, 24, 7),
        (1 / 3, 24, 8),
        (0.167, 24, 4),
        (0.417, 24, 10),
        (0.29, 100, 29),  # 0.29 * 100 is 28.999999999999996
        (1 / 12, 12, 1),
        (0.0833, 12, 0),
        (0.99, 12, 11),
        (0.9999, 24, 23),
        (0.1, 4, 0),
        (0, 12, 0),
        (1, 12, 12),
    ],
)
def test_mix_switches_at_the_floor(alpha, depth, count):
    assert kinds_of(mix(alpha=alpha), depth) == ["post"] * count + ["pre"] * (depth - count)


def test_mix_counts_as_exact_arithmetic_does():
    for depth in range(1, 81):
        for percent in range(101):
            assert mix(alpha=percent / 100).switch(depth) == percent * depth // 100, (percent, depth)
        for count in range(depth + 1):
            assert mix(alpha=float(Fraction(count, depth))).switch(depth) == count


def test_mix_by_count():
    assert kinds_of(mix(first_layers=7), 24) == ["post"] * 7 + ["pre"] * 17
    assert kinds_of(mix(first_layers=0), 3) == ["pre"] * 3
    assert mix(first_layers=7).alpha is None


def test_mix_is_a_quarter_by_default():
    assert mix().alpha == 0.25
    assert kinds_of(mix(), 4) == ["post", "pre", "pre", "pre"]


def test_mix_of_a_mix_splits_the_whole_depth():
    inner = {"kind": "mix", "first_layers": 1, "first": "deepnorm", "second": "lns"}
    assert kinds_of(mix(alpha=0.5, first=inner), 4) == ["deepnorm", "lns", "pre", "pre"]


@pytest.mark.parametrize(("alpha", "whole"), [(0, "pre"), (1, "post")])
@pytest.mark.parametrize("family", models)
def test_mix_at_its_ends_is_the_whole(tiny, family, alpha, whole):
    _, ends, inputs = tiny(family, {"norm": "mix", "norm.alpha": alpha})
    _, plain, _ = tiny(family, {"norm": whole})
    assert ends.state_dict().keys() == plain.state_dict().keys()
    assert torch.equal(ends(inputs), plain(inputs))


@pytest.mark.parametrize("kind", placements)
@pytest.mark.parametrize("family", models)
def test_any_placement_can_be_mixed(tiny, family, kind):
    """Mixed into all layers it is the placement itself, its initialisation included."""
    _, plain, inputs = tiny(family, {"norm": kind})
    for settings in ({"norm.alpha": 1, "norm.first": kind}, {"norm.alpha": 0, "norm.second": kind}):
        _, mixed_model, _ = tiny(family, {"norm": "mix", **settings})
        for (name, a), b in zip(plain.state_dict().items(), mixed_model.state_dict().values(), strict=True):
            assert torch.equal(a, b), name
        assert torch.equal(mixed_model(inputs), plain(inputs))


# ---------------------------------------------------------------------------------------------------- factors


def scaled_by(kind, index, depth, f):
    """What a residual of `kind` with the identity for a norm makes of ones."""
    residual, _ = placements[kind]().wire(Site(index, depth, nn.Identity))
    return residual(torch.ones(1, dtype=torch.float64), f).item()


@pytest.mark.parametrize(("depth", "alpha"), [(2, 2**0.5), (8, 2.0), (32, 64**0.25), (80, 3.5565588200778455)])
def test_deepnorm_alpha_follows_the_depth(depth, alpha):
    """The published code has (2 * 32)^(1/4) for every depth."""
    for index in (0, depth - 1):
        assert scaled_by("deepnorm", index, depth, lambda x: 0 * x) == pytest.approx(alpha, rel=1e-15)
        assert scaled_by("deepnorm", index, depth, lambda x: x) == pytest.approx(alpha + 1, rel=1e-15)


@pytest.mark.parametrize("index", [0, 1, 3, 8, 99])
def test_lns_scales_by_the_layer_counted_from_one(index):
    """The published code turns it into the identity by a comparison of upper with lower case."""
    for depth in (100, 200):
        assert scaled_by("lns", index, depth, lambda x: x) == pytest.approx(1 + 1 / (index + 1) ** 0.5, rel=1e-15)


@pytest.mark.parametrize("family", models)
def test_lns_of_one_layer_is_pre(tiny, family):
    for depth, same in [(1, True), (2, False)]:
        size = {"model.layers": depth}
        _, ours, inputs = tiny(family, {"norm": "lns", **size})
        _, pre_model, _ = tiny(family, {"norm": "pre", **size})
        assert ours.state_dict().keys() == pre_model.state_dict().keys()  # the factor is no parameter and no buffer
        assert torch.equal(ours(inputs), pre_model(inputs)) == same


@pytest.mark.parametrize("kind", placements)
@pytest.mark.parametrize("family", models)
def test_factors_survive_the_meta_device(tiny, family, kind):
    experiment, model, inputs = tiny(family, {"norm": kind, "model.layers": 4})
    shape = (12,) if experiment.model.task == "language_modeling" else (1, 8, 8)
    with torch.device("meta"):
        empty = experiment.model.build(experiment.norm, experiment.init, 11, shape)
    assert all(p.is_meta for p in empty.parameters())
    filled = empty.to_empty(device="cpu").double()
    with torch.no_grad():
        for tensor in [*filled.parameters(), *filled.buffers()]:
            tensor.fill_(float("nan"))
    filled.load_state_dict(model.state_dict())
    assert torch.equal(filled(inputs), model(inputs))


# ---------------------------------------------------------------------------------------------------- the final norm


@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize("kind", placements)
@pytest.mark.parametrize("family", models)
def test_final_norm(tiny, family, kind, final_norm):
    _, model, inputs = tiny(family, {"norm": kind, "norm.layer": "rmsnorm", "norm.final_norm": final_norm})
    inner = getattr(model, "vit", model)
    stack, head, norm = (
        (inner.blocks, inner.head, inner.norm) if family == "vit" else (inner.layers, inner.lm_head, inner.norm)
    )
    assert (len(list(norm.parameters())) > 0) == final_norm
    if final_norm:
        nn.init.uniform_(norm.weight)
    caught = []
    stack[-1].register_forward_hook(lambda module, given, output: caught.append(output))
    logits = model(inputs)
    x = caught[0][:, 0] if family == "vit" else caught[0]
    if final_norm:
        x = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight
    expected = x @ head.weight.T + (0 if head.bias is None else head.bias)
    torch.testing.assert_close(logits, expected, atol=1e-12, rtol=1e-12)
