"""Norm layers, against their formulas written out in float64."""

import copy

import pytest
import torch

from ablate.norms import norm_layers

DIM = 24


def rmsnorm(x, eps, weight):
    return x / ((x * x).sum(-1, keepdim=True) / x.shape[-1] + eps) ** 0.5 * weight


def layernorm(x, eps, weight, bias=0.0):
    mean = x.sum(-1, keepdim=True) / x.shape[-1]
    variance = ((x - mean) ** 2).sum(-1, keepdim=True) / x.shape[-1]
    return (x - mean) / (variance + eps) ** 0.5 * weight + bias


FORMULAS = {"rmsnorm": rmsnorm, "layernorm": layernorm}


def formula(kind):
    if kind not in FORMULAS:
        pytest.fail(f"write the formula of {kind} into FORMULAS")
    return FORMULAS[kind]


def build(kind, dtype=torch.float64, **fields):
    """The config, and its module with weights that are not the initial ones."""
    config = norm_layers[kind](**fields)
    module = config.build(DIM)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.randn(DIM, generator=generator))
    return config, module.to(dtype)


def tokens(dtype=torch.float64, scale=1.0):
    x = torch.randn(3, 5, DIM, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return (scale * (x + 0.5)).to(dtype)


def expected(kind, config, module, x):
    return formula(kind)(x.double(), config.eps, **{name: p.double() for name, p in module.named_parameters()})


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
@pytest.mark.parametrize("kind", norm_layers)
def test_output_and_gradients_equal_the_formula(kind, scale):
    config, module = build(kind)
    x = tokens(scale=scale).requires_grad_()
    weight = torch.randn(x.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    variables = [x, *module.parameters()]
    outputs = module(x), expected(kind, config, module, x)
    torch.testing.assert_close(*outputs, atol=1e-11, rtol=1e-11)
    ours, theirs = (torch.autograd.grad((y * weight).sum(), variables) for y in outputs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("kind", norm_layers)
def test_eps_is_under_the_root(kind):
    config, module = build(kind, eps=0.7)
    x = tokens()
    torch.testing.assert_close(module(x), expected(kind, config, module, x), atol=1e-12, rtol=1e-12)
    assert not torch.allclose(module(x), build(kind, eps=1e-6)[1](x), rtol=0.05)


@pytest.mark.parametrize("kind", norm_layers)
def test_a_fresh_layer_has_neither_gain_nor_shift(kind):
    config = norm_layers[kind]()
    x = tokens()
    torch.testing.assert_close(
        config.build(DIM).double()(x), formula(kind)(x, config.eps, weight=1.0), atol=1e-12, rtol=1e-12
    )


def test_layernorm_without_bias():
    config, module = build("layernorm", bias=False)
    assert list(module.state_dict()) == ["weight"]
    x = tokens()
    torch.testing.assert_close(module(x), layernorm(x, config.eps, module.weight), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("weights", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", norm_layers)
def test_the_dtype_of_the_input_is_kept(kind, dtype, weights):
    assert build(kind, weights)[1](tokens(dtype)).dtype == dtype


@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", norm_layers)
def test_bfloat16_is_rounded_once_at_the_end(kind, weights):
    """Only float32 statistics give the exact value rounded; a rounding in between would move many of them."""
    config, module = build(kind, weights)
    x = tokens(torch.bfloat16, scale=30.0)
    exact = expected(kind, config, module, x).bfloat16()
    assert (module(x) != exact).float().mean() < 0.01


@pytest.mark.parametrize("kind", norm_layers)
def test_squares_do_not_overflow_in_float16(kind):
    config, module = build(kind, torch.float16)
    x = tokens(torch.float16, scale=2000.0)  # 2000^2 is infinite in float16
    torch.testing.assert_close(module(x), expected(kind, config, module, x).half(), atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("kind", norm_layers)
def test_autocast_does_not_touch_the_statistics(kind):
    _, module = build(kind, torch.float32)
    x = tokens(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        wide, narrow = module(x), module(x.bfloat16())
    assert wide.dtype == torch.float32
    assert torch.equal(wide, module(x))
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow, module(x.bfloat16()))


@pytest.mark.parametrize("kind", norm_layers)
def test_state_dict_round_trip(kind):
    _, module = build(kind)
    other = norm_layers[kind]().build(DIM).double()
    assert not torch.equal(other(tokens()), module(tokens()))
    other.load_state_dict(copy.deepcopy(module.state_dict()))
    assert torch.equal(other(tokens()), module(tokens()))


@pytest.mark.parametrize("kind", norm_layers)
def test_each_token_is_normed_on_its_own(kind):
    _, module = build(kind)
    x = tokens()
    changed = x.clone()
    changed[1, 2] += torch.randn(DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    moved = (module(x) != module(changed)).any(-1)
    assert moved.nonzero().tolist() == [[1, 2]]


def test_what_each_is_invariant_to():
    """Zhang and Sennrich 2019: re-scaling for both, re-centring for LayerNorm alone."""
    x = tokens()
    for kind, shifts in [("rmsnorm", False), ("layernorm", True)]:
        _, module = build(kind, eps=1e-30)
        torch.testing.assert_close(module(7.0 * x), module(x), atol=1e-10, rtol=1e-10)
        assert torch.allclose(module(x + 3.0), module(x), atol=1e-10) == shifts
