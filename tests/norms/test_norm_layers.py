"""Norm layers, against their formulas written out in float64."""

import copy
import itertools
import json
from pathlib import Path

import pytest
import torch
from norms import reference
from torch import nn

from ablate.norms import norm_layers

ORACLES = json.loads((Path(__file__).parent / "oracles.json").read_text(encoding="utf-8"))
DIM = 24
every_kind = pytest.mark.parametrize("kind", norm_layers)
WITH_EPS = [kind for kind in norm_layers if "eps" in norm_layers[kind].model_fields]


def build(kind, dtype=torch.float64, **fields):
    """The config, and its module with weights that are not the initial ones."""
    config = norm_layers[kind](**fields)
    module = config.build(DIM)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return config, module.to(dtype)


def tokens(dtype=torch.float64, scale=1.0):
    x = torch.randn(3, 5, DIM, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return (scale * (x + 0.5)).to(dtype)


def expected(config, module, x):
    if config.kind not in reference.NORMS:
        pytest.fail(f"write the formula of {config.kind} into NORMS of tests/norms/reference.py")
    parameters = {name: p.double() for name, p in module.named_parameters()}
    return reference.NORMS[config.kind](x.double(), parameters, config.model_dump())


def distance(a, b):
    """The largest difference, relative to the largest value where that is above 1."""
    return ((a - b).abs().max() / b.abs().max().clamp(min=1)).item()


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
@every_kind
def test_output_and_gradients_equal_the_formula(kind, scale):
    config, module = build(kind)
    x = tokens(scale=scale).requires_grad_()
    weight = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    variables = [x, *module.parameters()]
    outputs = module(x), expected(config, module, x)
    assert distance(*outputs) < 1e-11
    ours, theirs = (torch.autograd.grad((y * weight).sum(), variables) for y in outputs)
    for a, b in zip(ours, theirs, strict=True):
        assert distance(a, b) < 1e-9


@pytest.mark.parametrize("kind", WITH_EPS)
def test_eps_is_under_the_root(kind):
    config, module = build(kind, eps=0.7)
    x = tokens()
    torch.testing.assert_close(module(x), expected(config, module, x), atol=1e-12, rtol=1e-12)
    assert not torch.allclose(module(x), build(kind, eps=1e-6)[1](x), rtol=0.05)


@every_kind
def test_a_fresh_layer_has_neither_gain_nor_shift(kind):
    config = norm_layers[kind]()
    x = tokens()
    fresh = {"weight": 0.0 if kind == "rmsnorm1p" else 1.0, "scale": 1.0, "bias": 0.0, "shift": 0.0, "alpha": 0.5}
    module = config.build(DIM).double()
    drawn = {name: p for name, p in module.named_parameters() if p.ndim == 2}
    formula = reference.NORMS[kind](x, fresh | drawn, config.model_dump())
    torch.testing.assert_close(module(x), formula, atol=1e-12, rtol=1e-12)


def test_layernorm_without_bias():
    config, module = build("layernorm", bias=False)
    assert list(module.state_dict()) == ["weight"]
    x = tokens()
    torch.testing.assert_close(module(x), expected(config, module, x), atol=1e-12, rtol=1e-12)


@every_kind
def test_the_dtype_of_the_input_is_kept(kind):
    dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    for dtype, weights in itertools.product(dtypes, dtypes):
        assert build(kind, weights)[1](tokens(dtype)).dtype == dtype, weights


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
@every_kind
def test_bfloat16_is_rounded_once_at_the_end(kind, weights):
    """Only float32 statistics give the exact value rounded; a rounding in between would move many of them."""
    config, module = build(kind, weights)
    x = tokens(torch.bfloat16, scale=30.0)
    exact = expected(config, module, x).bfloat16()
    assert (module(x) != exact).float().mean() < 0.01


@every_kind
def test_squares_do_not_overflow_in_float16(kind):
    config, module = build(kind, torch.float16)
    x = tokens(torch.float16, scale=2000.0)  # 2000^2 is infinite in float16
    torch.testing.assert_close(module(x), expected(config, module, x).half(), atol=2e-3, rtol=2e-3)


@every_kind
def test_autocast_does_not_touch_the_statistics(kind):
    _, module = build(kind, torch.float32)
    x = tokens(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        wide, narrow = module(x), module(x.bfloat16())
    assert wide.dtype == torch.float32
    assert torch.equal(wide, module(x))
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow, module(x.bfloat16()))


@pytest.mark.parametrize("kind", [kind for kind in norm_layers if kind != "none"])
def test_state_dict_round_trip(kind):
    _, module = build(kind)
    other = norm_layers[kind]().build(DIM).double()
    assert not torch.equal(other(tokens()), module(tokens()))
    other.load_state_dict(copy.deepcopy(module.state_dict()))
    for m in (module, other):
        m.eval()  # the running averages of the one have seen more batches
    other.load_state_dict(copy.deepcopy(module.state_dict()))
    assert torch.equal(other(tokens()), module(tokens()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_all_features_of_prmsnorm_are_rmsnorm(dtype):
    x = tokens(dtype)
    _, whole = build("prmsnorm", dtype, p=1)
    assert torch.equal(whole(x), build("rmsnorm", dtype)[1](x))


@pytest.mark.parametrize(
    ("dim", "p", "k"), [(768, 0.0625, 48), (24, 0.0625, 2), (100, 0.29, 29), (16, 0.01, 1), (16, 1e-11, 1)]
)
def test_prmsnorm_takes_the_ceiling(dim, p, k):
    x = torch.randn(2, dim, dtype=torch.float64)
    module = norm_layers["prmsnorm"](p=p, eps=1e-30).build(dim).double()
    torch.testing.assert_close(module(x), x / x[:, :k].pow(2).mean(-1, keepdim=True).sqrt(), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batchnorm_equals_torch_in_training_and_afterwards(dtype):
    """[batch, tokens, features] as torch's [batch * tokens, features]; the running averages too."""
    _, ours = build("batchnorm", torch.float32)
    torchs = nn.BatchNorm1d(DIM)
    torchs.load_state_dict(ours.state_dict(), strict=False)
    for seed in range(3):
        x = torch.randn(4, 5, DIM, generator=torch.Generator().manual_seed(seed)).to(dtype)
        torch.testing.assert_close(ours(x), torchs(x.float().flatten(0, 1)).view(x.shape).to(dtype))
    torch.testing.assert_close(ours.running_var, torchs.running_var)
    ours.eval()
    torchs.eval()
    torch.testing.assert_close(ours(x), torchs(x.float().flatten(0, 1)).view(x.shape).to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_batchnorm_keeps_its_averages_in_any_dtype(dtype):
    _, module = build("batchnorm", dtype)
    before = module.running_mean.clone()
    module(tokens(torch.float32))
    assert not torch.equal(module.running_mean, before)
    assert module.running_mean.dtype == dtype


def change_one(x, index, change):
    """`x` with one of its rows changed."""
    return torch.cat([x[:index], change(x[index : index + 1]), x[index + 1 :]])


CHANGES = {
    "weight matrix re-scaled": lambda w, x: (7.0 * w, x),
    "weight matrix re-centred": lambda w, x: (w + torch.linspace(-1, 2, DIM, dtype=w.dtype), x),  # every neuron alike
    "weight vector re-scaled": lambda w, x: (change_one(w, 3, lambda row: 7.0 * row), x),
    "dataset re-scaled": lambda w, x: (w, 7.0 * x),
    "dataset re-centred": lambda w, x: (w, x + torch.linspace(-1, 2, DIM, dtype=x.dtype)),
    "one case re-scaled": lambda w, x: (w, change_one(x, 1, lambda case: 7.0 * case)),
}
INVARIANT = {  # Zhang and Sennrich 2019, table 1; the last two are not in it
    "batchnorm": {"weight matrix re-scaled", "weight vector re-scaled", "dataset re-scaled", "dataset re-centred"},
    "layernorm": {"weight matrix re-scaled", "weight matrix re-centred", "dataset re-scaled", "one case re-scaled"},
    "rmsnorm": {"weight matrix re-scaled", "dataset re-scaled", "one case re-scaled"},
    "prmsnorm": {"weight matrix re-scaled", "dataset re-scaled", "one case re-scaled"},
    "centernorm": {"weight matrix re-centred"},
    "none": set(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", INVARIANT)
def test_what_each_is_invariant_to(kind, change):
    """Of the summed inputs W x of a layer, for cases x [n, d]."""
    _, module = build(kind, **({"eps": 1e-30} if kind in WITH_EPS else {}))
    generator = torch.Generator().manual_seed(4)
    w = torch.randn(DIM, DIM, generator=generator, dtype=torch.float64)
    x = tokens().flatten(0, 1)
    changed_w, changed_x = CHANGES[change](w, x)
    same = torch.allclose(module(changed_x @ changed_w.T), module(x @ w.T), atol=1e-8)
    assert same == (change in INVARIANT[kind])


@pytest.mark.parametrize("kind", [kind for kind in norm_layers if norm_layers[kind]().has_statistic])
def test_a_statistic_is_the_layer_without_gain_and_shift(kind):
    config = norm_layers[kind]()
    statistic = config.build_statistic(DIM)
    assert not statistic.state_dict()
    x = tokens()
    torch.testing.assert_close(statistic(x), config.build(DIM).double()(x), atol=1e-12, rtol=1e-12)
    assert statistic(tokens(torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", norm_layers)
def test_layers_that_norm_each_feature_alone_say_so(kind):
    """Another feature of a token has no influence then."""
    config, module = build(kind)
    x = tokens()
    changed = x.clone()
    changed[..., 0] += 1.0
    assert torch.equal(module(changed)[..., 1:], module(x)[..., 1:]) == config.per_feature


# ------------------------------------------------------------------------ the numbers of published code (oracles.json)


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def near(value, expected):
    torch.testing.assert_close(value, tensor(expected), rtol=0, atol=1e-10)


def filled(kind, dim, values, **fields):
    """The module in float64 with these weights."""
    module = norm_layers[kind](**fields).build(dim).double()
    for name, p in module.named_parameters():
        p.data = tensor(values[name]).expand(p.shape).clone()
    return module


@pytest.mark.parametrize("kind", reference.ELEMENTWISE)
def test_elementwise_functions_equal_the_published_code(kind):
    oracle = ORACLES["derf_dyt"]
    x, outputs = tensor(oracle["inputs"]["x"]).requires_grad_(), oracle["outputs"][kind]
    module = filled(kind, x.shape[-1], oracle["weights"])
    y = module(x)
    near(y, outputs["y"])
    y.backward(tensor(oracle["inputs"]["upstream"]))
    near(x.grad, outputs["grad_x"])
    for name, p in module.named_parameters():
        near(p.grad, outputs[f"grad_{name}"])


def test_gatednorm_and_preaffine_equal_the_published_code():
    oracle = ORACLES["gatednorm_preaffine"]
    x, outputs, weights = tensor(oracle["inputs"]["x"]), oracle["outputs"], oracle["weights"]
    values = {**weights, "scale": weights["lambda"], "down": weights["W_down"], "up": weights["W_up"]}
    near(filled("preaffine", x.shape[-1], values)(x), outputs["preaffine"])
    gated = filled("gatednorm", x.shape[-1], values, rank=2)
    near(gated(x), outputs["gatednorm"])
    near(gated(x * tensor(weights["lambda"])), outputs["both"])


def test_preaffine_starts_as_rmsnorm():
    x = tokens(torch.float32)
    assert torch.equal(norm_layers["preaffine"]().build(DIM)(x), norm_layers["rmsnorm"]().build(DIM)(x))


@pytest.mark.parametrize(("std", "most"), [(0.0, 0.0), (0.02, 0.01)])
def test_gatednorm_starts_with_half_of_rmsnorm(std, most):
    x = tokens(torch.float32)
    gated = norm_layers["gatednorm"](std=std).build(DIM)(x)
    ratio = gated / norm_layers["rmsnorm"]().build(DIM)(x)
    assert (ratio - 0.5).abs().max() <= most
    assert norm_layers["gatednorm"](rank=3).build(DIM).down.shape == (3, DIM)


@pytest.mark.parametrize("kind", reference.ELEMENTWISE)
def test_the_slope_may_start_by_place(kind):
    layer = norm_layers[kind](alpha=0.7, attn=0.8, mlp=0.2, final=0.1)
    starts = {place: layer.at(place).build(DIM).alpha.item() for place in ("attn", "mlp", "final", "embedding", "")}
    assert starts == pytest.approx({"attn": 0.8, "mlp": 0.2, "final": 0.1, "embedding": 0.7, "": 0.7})
    assert norm_layers[kind](alpha=0.7).at("attn").build(DIM).alpha.item() == pytest.approx(0.7)
