"""Placements, against their formulas written as plain functions that share nothing with `ablate`: whole models of both
families, with every norm layer, outputs and gradients."""

import itertools
from fractions import Fraction

import pytest
import torch
from norms import reference
from norms.cases import NORMED, RESIDUAL, WIRED, list_placements, mark_rest, sensible, shaken, takes
from torch import nn

from ablate.config.errors import ConfigError
from ablate.experiment.tree import Experiment
from ablate.norms import Site, norm_layers, placements

DIM, DEPTH, HEADS = 16, 4, 2
MIXES = [
    ({"norm": "mix", "norm.alpha": 0.5}, ["post"] * 2 + ["pre"] * 2),
    ({"norm": "mix", "norm.alpha": 0}, ["pre"] * 4),
    ({"norm": "mix", "norm.alpha": 1}, ["post"] * 4),
    ({"norm": "mix", "norm.first_layers": 3}, ["post"] * 3 + ["pre"]),
    ({"norm": "mix", "norm.alpha": 0.5, "norm.first": "deepnorm"}, ["deepnorm"] * 2 + ["pre"] * 2),
    (
        {"norm": "mix", "norm.first_layers": 1, "norm.first": "hybrid", "norm.second": "subln"},
        ["hybrid"] + ["subln"] * 3,
    ),
    ({"norm": "mix", "norm.alpha": 0.25, "norm.first": "b2t", "norm.second": "admin"}, ["b2t"] + ["admin"] * 3),
    (
        {"norm": {"kind": "mix", "alpha": 0.8, "first": {"kind": "mix", "first_layers": 2, "first": "deepnorm"}}},
        ["deepnorm"] * 2 + ["pre"] * 2,
    ),
    (
        {
            "norm.kind": "by_depth",
            "norm.ranges": {
                "last": {"placement": "sandwich"},
                "first": {"until": 0.25, "placement": "peri"},
                "middle": {"until": 0.75, "placement": {"kind": "mix", "alpha": 0.5, "second": "lns"}},
            },
        },
        ["peri", "post", "lns", "sandwich"],
    ),
]
PARTS = {
    "deepnorm-residual-only": ({"norm": {"kind": "deepnorm", "scale_init": False}}, ["deepnorm"] * DEPTH),
    "deepnorm-init-only": ({"norm": {"kind": "deepnorm", "scale_residual": False}}, ["post"] * DEPTH),
    "deepnorm-published": (
        {"norm": {"kind": "deepnorm", "published_code": True}},
        ["deepnorm_of_the_published_code"] * DEPTH,
    ),
    "minimax-init-only": (
        {"norm": {"kind": "minimax", "scale_residual": False, "scale_init": True}},
        ["minimax_without_the_factor"] * DEPTH,
    ),
    **{
        f"lns_{name}": ({"norm": {"kind": "lns", **fields}}, [f"lns_{name}"] * DEPTH)
        for name, fields in {
            "before_norm": {"position": "before_norm"},
            "after_sublayer": {"position": "after_sublayer"},
            "after_residual": {"position": "after_residual"},
            "after_attn": {"position": "after_sublayer", "sublayers": "attn"},
            "after_mlp": {"position": "after_sublayer", "sublayers": "mlp"},
        }.items()
    },
}
SCHEMES = {
    **{kind: ({"norm": kind}, [kind] * DEPTH) for kind in placements},
    **PARTS,
    "hybrid_star": ({"norm": {"kind": "hybrid", "first": "pre"}}, ["hybrid_star"] * DEPTH),
    "siamese_hybrid": ({"norm": {"kind": "siamese", "variant": "hybrid_pre"}}, ["siamese_hybrid"] * DEPTH),
    "group": ({"norm": "group"}, ["pre"] * DEPTH),
    "mix": ({"norm": "mix"}, ["post", "pre", "pre", "pre"]),
    "by_depth": ({"norm": "by_depth"}, ["post", "pre", "pre", "pre"]),
    **{f"mix-{i}": case for i, case in enumerate(MIXES)},
}
PAIRS = list(itertools.product(SCHEMES, norm_layers))
DAILY = [(scheme, layer) for scheme, layer in PAIRS if layer == "rmsnorm" or scheme in ("pre", "post", "hc")]
every_family = pytest.mark.parametrize("family", RESIDUAL)


def distance(a, b):
    """The largest difference, relative to the largest value where that is above 1."""
    return ((a - b).abs().max() / b.abs().max().clamp(min=1)).item()


def rule_of(kinds):
    """One formula for a layer, from each layer's placement."""
    for kind in kinds:
        if kind not in reference.LAYERS:
            pytest.fail(f"write the formula of {kind} into LAYERS of tests/norms/reference.py")

    def rule(x, attn, mlp, n, s, nth, L):
        return reference.LAYERS[kinds[nth - 1]](x, attn, mlp, n, s, nth, L)

    return rule


def expected(experiment, model, inputs, kinds):
    """The logits by the formulas."""
    layer = experiment.norm.layer
    if layer.kind not in reference.NORMS:
        pytest.fail(f"write the formula of {layer.kind} into NORMS of tests/norms/reference.py")
    norm = experiment.norm
    qk = (norm.qk.kind, norm.qk.model_dump(), norm.qk_over) if norm.has_qk_norm else None
    weights = reference.Weights(model.named_parameters(), layer.kind, layer.model_dump(), qk)
    forward = reference.MODELS[experiment.model.kind]
    embedded, final = kinds[0] == "peri", experiment.norm.final_norm
    return forward(inputs, weights, DEPTH, HEADS, kinds, rule_of(kinds), embedded, final)


@pytest.mark.parametrize(("scheme", "layer"), mark_rest(PAIRS, DAILY))
@every_family
def test_outputs_and_gradients_equal_the_formula(tiny, family, scheme, layer):
    if not sensible(family, layer):
        pytest.skip("refused by the configuration, see test_combinations_without_sense_are_refused")
    if not takes(family, scheme) or (scheme == "ngpt" and layer not in ("rmsnorm", "none")):
        pytest.skip("refused by the configuration, see tests/norms/test_ngpt.py")
    if scheme == "sandwich_scaled" and layer == "none":
        pytest.skip("refused by the configuration: it has no gain to start")
    if scheme in ("deepnorm-published", "keel") and layer in ("none", "centernorm"):
        pytest.skip(
            "factors above 1 without re-scaling: the outputs explode, and with them the differences of rounding"
        )
    settings, kinds = SCHEMES[scheme]
    if scheme != "group":
        half = {"norm.layer.p": 0.5} if layer == "prmsnorm" else {}  # a sixteenth of these few features would be one
        settings = {**settings, "norm.layer": layer, **half}
    experiment, model, inputs = tiny(
        family, {**settings, "model.layers": DEPTH, "model.heads": HEADS}, updates=reference.UPDATES
    )
    shaken(model, 0.1)
    outputs = model(inputs), expected(experiment, model, inputs, kinds)
    assert distance(*outputs) < 1e-10
    weight = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    ours, theirs = (torch.autograd.grad((y * weight).sum(), list(model.parameters())) for y in outputs)
    for (name, _), a, b in zip(model.named_parameters(), ours, theirs, strict=True):
        assert distance(a, b) < 1e-10, name
        assert a.abs().max() > 0, name


QK_NORMED = [
    *((scheme, "rmsnorm") for scheme in SCHEMES if scheme in NORMED or scheme not in placements),
    *(("pre", layer) for layer in norm_layers if layer != "none"),
]


@pytest.mark.parametrize("over", ["head", "width"])
@pytest.mark.parametrize(("scheme", "layer"), QK_NORMED)
@every_family
def test_the_norm_of_queries_and_keys_equals_the_formula(tiny, family, scheme, layer, over):
    settings, kinds = SCHEMES[scheme]
    if not sensible(family, layer) or {*kinds} & {*reference.QKV_NORMED}:
        pytest.skip("refused by the configuration, see test_combinations_without_sense_are_refused")
    own = {"p": 0.5} if layer == "prmsnorm" else {"groups": 2} if layer == "groupnorm" else {}
    settings = {**settings, "norm.qk": {"kind": layer, **own}, "norm.qk_over": over}
    experiment, model, inputs = tiny(
        family, {**settings, "model.layers": DEPTH, "model.heads": HEADS}, updates=reference.UPDATES
    )
    shaken(model, 0.1)
    with torch.no_grad():
        outputs = model(inputs), expected(experiment, model, inputs, kinds)
    assert distance(*outputs) < 1e-10


@every_family
def test_the_placements_can_be_told_apart(tiny, family):
    """What the test above rests on: no two placements give the same outputs, but for those that are the same."""
    outputs = {}
    for kind in list_placements(family):
        given = {"norm": kind, "model.layers": DEPTH, "init.std": 0.3}
        _, model, inputs = tiny(family, given, updates=reference.UPDATES)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name.endswith(("scale", "omega")):
                    p.copy_(torch.linspace(0.3, 0.9, len(p)))
                elif name.endswith((".g", ".alpha", ".base", ".query")):  # of those that begin as Pre-LN
                    p.add_(torch.linspace(0.3, 0.9, p.numel(), dtype=p.dtype).view_as(p))
        outputs[kind] = model(inputs)
    for a, b in itertools.combinations(outputs, 2):
        same = {a, b} == {"mix", "by_depth"}
        assert ((outputs[a] - outputs[b]).abs().max() < 1e-3) == same, (a, b)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm.layer": "batchnorm"}, r"norm\.layer\.kind: its statistics include future tokens"),
        ({"norm.qk": "batchnorm"}, r"norm\.qk\.kind: its statistics include future tokens"),
        ({"norm": "hybrid", "norm.qk": "rmsnorm"}, r"norm\.qk: placement hybrid norms queries and keys itself"),
        ({"norm": {"kind": "mix", "first": "hybrid"}, "norm.qk": "rmsnorm"}, "placement hybrid norms queries"),
        ({"norm.qk": {"kind": "groupnorm", "groups": 16}}, r"norm\.qk\.groups: must divide the 8 features"),
        ({"norm": "group", "norm.layer.groups": 3}, r"norm\.layer\.groups: must divide the 16 features .*given: 3"),
        ({"norm": "hybrid", "norm.layer": {"kind": "groupnorm", "groups": 16}}, "must divide the 8 features"),
        ({"norm": "subln", "norm.layer": {"kind": "groupnorm", "groups": 16}, "model.mlp": 40}, "must divide the 40"),
        (
            {"model": {"kind": "vit", "hidden": 16, "heads": 2}, "init": "scaled_embedding"},
            "no token embedding of its own",
        ),
        ({"init": "scaled_embedding", "model.tie_embeddings": True}, "no token embedding of its own"),
        ({"norm": {"kind": "mix", "first_layers": 9}}, r"norm\.first_layers: the model has 4 layers"),
        (
            {"norm": {"kind": "deepnorm", "published_code": True, "scale_residual": False, "scale_init": False}},
            r"norm\.published_code: changes nothing",
        ),
        (
            {"norm": {"kind": "by_depth", "ranges": {"a": {"placement": {"kind": "mix", "first_layers": 9}}}}},
            r"norm\.ranges\.a\.placement\.first_layers: the model has 4 layers",
        ),
        (
            {"norm": {"kind": "by_depth", "ranges": {"a": {"placement": "pre", "until": 0.5}}}},
            "the last range must end at 1",
        ),
        (
            {"norm": {"kind": "by_depth", "ranges": {"a": {"placement": "pre"}, "b": {"placement": "post"}}}},
            "two ranges end at the same place",
        ),
        (
            {"norm": {"kind": "by_depth", "ranges": {"a": {"placement": {"kind": "pre", "final_norm": False}}}}},
            "set final_norm on norm itself",
        ),
    ],
)
def test_combinations_without_sense_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Experiment.from_mapping({"model": {"hidden": DIM, "layers": DEPTH, "heads": HEADS}}, settings)


def test_a_boundary_of_by_depth_can_be_searched():
    base = Experiment.from_mapping({"norm": "by_depth"})
    moved = Experiment.from_mapping(base.to_tree(), {"norm.ranges.shallow.until": 0.5})
    assert [moved.norm.at(i, 4).kind for i in range(4)] == ["post", "post", "pre", "pre"]
    assert Experiment.from_mapping(moved.to_tree()) == moved


# ---------------------------------------------------------------------------------------------------- Mix-LN


def kinds_of(norm, depth):
    return [norm.at(index, depth).kind for index in range(depth)]


def mix(**fields):
    return placements["mix"](**fields)


@pytest.mark.parametrize(
    ("alpha", "depth", "count"),
    [
        (0.0625, 32, 2),  # LLaMA-7B
        (0.167, 24, 4),
        (0.417, 24, 10),
        (0.29, 100, 29),  # 0.29 * 100 is 28.999999999999996
        (0.0833, 12, 0),
        (0.9999, 24, 23),
    ],
)
def test_mix_switches_at_the_floor(alpha, depth, count):
    assert kinds_of(mix(alpha=alpha), depth) == ["post"] * count + ["pre"] * (depth - count)


def test_mix_is_a_quarter_by_default():
    assert mix().alpha == 0.25
    assert kinds_of(mix(), 4) == ["post", "pre", "pre", "pre"]


def test_mix_counts_as_exact_arithmetic_does():
    for depth in range(1, 81):
        for percent in range(101):
            assert mix(alpha=percent / 100).switch(depth) == percent * depth // 100, (percent, depth)
        for count in range(depth + 1):
            assert mix(alpha=float(Fraction(count, depth))).switch(depth) == count


@pytest.mark.parametrize(("family", "kind"), WIRED)
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
    residual, _ = placements[kind]().wire(Site(index, depth, 1, nn.Identity))
    return residual(torch.ones(1, dtype=torch.float64), f).item()


@pytest.mark.parametrize(("depth", "alpha"), [(2, 2**0.5), (8, 2.0), (32, 64**0.25), (80, 3.5565588200778455)])
def test_deepnorm_alpha_follows_the_depth(depth, alpha):
    """The published code has (2 * 32)^(1/4) for every depth."""
    for index in (0, depth - 1):
        assert scaled_by("deepnorm", index, depth, lambda x: 0 * x) == pytest.approx(alpha, rel=1e-15)
        assert scaled_by("deepnorm", index, depth, lambda x: x) == pytest.approx(alpha + 1, rel=1e-15)


@pytest.mark.parametrize("depth", [2, 32, 80])
def test_the_published_code_has_the_factor_of_32_layers_at_every_depth(depth):
    residual, _ = placements["deepnorm"](published_code=True).wire(Site(0, depth, 1, nn.Identity))
    assert residual(torch.ones(1, dtype=torch.float64), lambda x: 0 * x).item() == 2.8284271247461903


def test_the_parts_of_deepnorm_are_those_of_deepnorm_and_without_both_it_is_post_ln(tiny):
    _, post, inputs = tiny("llama", {"norm": "post"})
    _, neither, _ = tiny("llama", {"norm": {"kind": "deepnorm", "scale_residual": False, "scale_init": False}})
    assert all(torch.equal(a, b) for a, b in zip(post.parameters(), neither.parameters(), strict=True))
    assert torch.equal(post(inputs), neither(inputs))
    _, whole, _ = tiny("llama", {"norm": "deepnorm"})
    _, scaled, _ = tiny("llama", {"norm": {"kind": "deepnorm", "scale_init": False}})
    _, started, _ = tiny("llama", {"norm": {"kind": "deepnorm", "scale_residual": False}})
    assert all(torch.equal(a, b) for a, b in zip(post.parameters(), scaled.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), started.parameters(), strict=True))
    scaled.load_state_dict(whole.state_dict())
    assert torch.equal(scaled(inputs), whole(inputs))
    assert not torch.equal(started(inputs), whole(inputs))


# ---------------------------------------------------------------------------------------------------- the final norm


@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize("kind", NORMED)
@pytest.mark.parametrize("family", RESIDUAL)
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
    x = model.close(caught[0])
    x = x[:, 0] if family == "vit" else x
    if final_norm:
        x = x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight
    expected = x @ head.weight.T + (0 if head.bias is None else head.bias)
    torch.testing.assert_close(logits, expected, atol=1e-12, rtol=1e-12)
