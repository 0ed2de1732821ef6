"""Placements with several streams, and modifiers, against the numbers of the official or best public code in float64
(`oracles.json`), and what they begin as."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from norms.cases import RESIDUAL
from torch import nn

from ablate.config.errors import ConfigError
from ablate.models.base import build_ends, make_norm_factory
from ablate.norms import Site, Stack, norm_layers, placements, stream_residuals

ORACLES = json.loads((Path(__file__).parent / "oracles.json").read_text(encoding="utf-8"))
TINY = norm_layers["rmsnorm"](eps=1e-30)


def tensor(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def sublayer(weights):
    """f(x) = tanh(x W1^T) W2^T."""
    first, second = tensor(weights["W1"]), tensor(weights["W2"])
    return lambda x: torch.tanh(x @ first.T) @ second.T


def wire(norm, depth, dim):
    """The wiring of each sublayer in their order, and both ends, in float64."""
    stack = Stack(depth, dim, dim, 1, 1, dim, causal=True, token_embedding=True)
    sites = [Site(index, depth, dim, make_norm_factory(norm, dim)) for index in range(depth)]
    sides = [side.double() for site in sites for side in norm.wire(site)]
    opening, closing = build_ends(norm, stack)
    return sides, opening.double(), closing.double()


@torch.no_grad()
def fill(module, **values):
    for name, value in values.items():
        parameter = module.get_parameter(name)
        parameter.copy_(tensor(value).view(parameter.shape))


def near(value, numbers):
    torch.testing.assert_close(value, tensor(numbers), rtol=0, atol=1e-10)


@pytest.mark.parametrize("case", ["init", "static", "dynamic"])
def test_hyper_connections(case):
    oracle = ORACLES["hyper_connections"]
    norm = placements["hc"](n=3, dynamic=case == "dynamic", layer=TINY)
    sides, opening, closing = wire(norm, 2, 4)
    weights, outputs = oracle["weights"], oracle["outputs"][case]
    state = opening(tensor(oracle["inputs"]["embedding"]))
    for side, own, f, expected in zip(
        sides, weights[case], weights["f"], outputs["streams_after_sublayer"], strict=False
    ):
        side.norm = nn.Identity()  # the numbers are of f without a norm in front
        start = side.alpha.detach().clone()
        fill(side, alpha=own["static_alpha"], beta=own["static_beta"])
        if case == "dynamic":
            fill(
                side,
                alpha_map=own["dynamic_alpha_fn"],
                beta_map=own["dynamic_beta_fn"],
                alpha_scale=own["dynamic_alpha_scale"],
                beta_scale=own["dynamic_beta_scale"],
            )
            fill(side.stream_norm, weight=[1 + g for g in own["norm.gamma"]])
        if case == "init":
            assert torch.equal(start, side.alpha)
        state = side(state, sublayer(f))
        near(state, expected)
    near(closing(state), outputs["y_sum"])


def test_mhc():
    oracle = ORACLES["mhc"]
    norm = placements["mhc"](ends_as="read")
    sides, _, closing = wire(norm, 1, 4)
    weights, outputs, state = oracle["weights"], oracle["outputs"], tensor(oracle["inputs"]["streams_in"])
    for side, name, gain, f in zip(sides, ("attn_hc", "ffn_hc"), weights["norm"], weights["f"], strict=True):
        own = weights[name]
        fill(side.maps, projection=own["fn"], base=own["base"], scale=own["scale"])
        fill(side.norm, weight=gain)
        state = side(state, sublayer(f))
    near(state, outputs["streams_out"])
    head = weights["head"]
    fill(closing.close.maps, projection=head["hc_fn"], base=head["hc_base"], scale=head["hc_scale"])
    near(closing(state), outputs["head"])


def test_the_balance_has_the_gradients_of_its_steps():
    """Those of autograd through the formula, and differences; logits apart by 16, as at the default start, too."""
    logits = torch.randn(2, 3, 4, 4, dtype=torch.float64) * torch.tensor([[[[0.5]]], [[[8.0]]]])

    def written_out(logits, iterations):
        weights = logits.exp() / logits.exp().sum(-1, keepdim=True) + 1e-6
        for axis in [-2, *[-1, -2] * (iterations - 1)]:
            weights = weights / (weights.sum(axis, keepdim=True) + 1e-6)
        return weights

    seen = []
    for function in (stream_residuals.balance, written_out):
        given = logits.clone().requires_grad_()
        balanced = function(given, 20)
        (balanced * torch.linspace(0, 1, 96).view(2, 3, 4, 4)).sum().backward()
        seen.append((balanced.detach(), given.grad))
    for ours, expected in zip(*seen, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x: stream_residuals.balance(x, 3), logits[:1].clone().requires_grad_())


@pytest.mark.parametrize("variant", ["post_pre", "hybrid_pre"])
def test_siamese(variant):
    oracle = ORACLES["siamesenorm"]
    outputs = oracle["outputs"][variant]
    norm = placements["siamese"](variant=variant, first="pre" if variant == "hybrid_pre" else "same")
    layers = outputs["weights"]
    sides, opening, closing = wire(norm, len(layers), 4)
    state = opening(tensor(oracle["inputs"]["embedding"]))
    for i, (own, expected) in enumerate(zip(layers, outputs["layers"], strict=True)):
        attn, mlp = sides[2 * i : 2 * i + 2]
        if variant == "post_pre":
            for side, nth in ((attn, 1), (mlp, 2)):
                for name in ("post", "pre", "input"):
                    fill(side, **{f"{name}.weight": own[f"{name}_norm{nth}"]})
        else:
            fill(attn, **{"pre.weight": own["attn_y_norm"]})
            fill(attn, **({"post.weight": own["attn_norm"]} if "attn_norm" in own else {"scale": own["c1"]}))
            names = {"post": "ff_norm", "pre": "ff_y_norm", "input": "ff_input_norm"}
            fill(mlp, **{f"{ours}.weight": own[theirs] for ours, theirs in names.items()})
        state = mlp(attn(state, sublayer(own["attn"])), sublayer(own["mlp"]))
        for stream, numbers in zip(state, expected.values(), strict=True):
            near(stream, numbers)
    final = outputs["final"]
    names = ("pre_norm", "post_norm", "final_norm") if variant == "post_pre" else ("ln_f", "ln_y_f", "ln_final_f")
    fill(closing.close, **{"post.weight": final[names[0]], "pre.weight": final[names[1]]})
    last = make_norm_factory(norm, 4)().double()
    fill(last, weight=final[names[2]])
    near(last(closing(state)), outputs["y"])


@pytest.mark.parametrize("case", [name for name, own in ORACLES["keel"]["outputs"].items() if own["alpha"] == 6])
def test_keel(case):
    oracle = ORACLES["keel"]
    outputs = oracle["outputs"][case]
    sides, _, _ = wire(placements["keel"](exempt_first=outputs["first_layer_exempt"]), 3, 5)
    x = tensor(oracle["inputs"]["x"])
    weights = oracle["weights"]
    for side, f, gains, expected in zip(sides, weights["f"], weights["norms"], outputs["after_sublayer"], strict=True):
        if hasattr(side, "after"):
            fill(side, **{"before.weight": gains["inner"], "after.weight": gains["outer"]})
        else:
            fill(side, **{"norm.weight": gains["inner"]})
        x = side(x, sublayer(f))
        near(x, expected)


@pytest.mark.parametrize("gate", [*ORACLES["gpas"]["outputs"]])
def test_gpas_and_its_gradients(gate):
    oracle = ORACLES["gpas"]
    (attn, mlp), _, _ = wire(placements["gpas"](), 1, 5)
    weights, outputs = oracle["weights"], oracle["outputs"][gate]
    fill(attn, **{"inner.norm.weight": weights["n1"], "gate.g": [float(gate)]})
    fill(mlp, **{"inner.norm.weight": weights["n2"]})
    assert not [name for name, _ in mlp.named_parameters() if "gate" in name]  # it is that of the attention
    x = tensor(oracle["inputs"]["x"]).requires_grad_()
    first = attn(x, sublayer(weights["f"][0]))
    near(first.detach(), outputs["after_attention"])
    y = mlp(first, sublayer(weights["f"][1]))
    near(y.detach(), outputs["y"])
    (y * tensor(oracle["inputs"]["upstream"])).sum().backward()
    near(x.grad, outputs["grad_x"])
    near(attn.gate.g.grad, [outputs["grad_gate"]])


def test_gpas_leaves_the_input_of_f_where_the_sum_is_normed():
    """N(alpha G(x) + f(x)) of DeepNorm, written out."""
    (attn, *_), _, _ = wire(placements["gpas"](base=placements["deepnorm"]()), 4, 5)
    fill(attn, **{"gate.g": [0.7]})
    x, f = torch.randn(2, 3, 5, dtype=torch.float64), sublayer(ORACLES["gpas"]["weights"]["f"][0])
    gated = x * (1 - 0.7 / (1 + torch.exp(torch.tensor(-0.7, dtype=torch.float64))))
    total = 8**0.25 * gated + f(x)
    expected = total / (total.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(attn(x, f), expected)


@pytest.mark.parametrize("schedule", ["linear", "sqrt", "square", "equal", "reverse"])
def test_prores(schedule):
    norm = placements["prores"](updates=1000, schedule=schedule)
    name = "linear" if schedule == "linear" else f"linear_{schedule}"
    for updates, rows in ORACLES["prores"]["outputs"].items():
        ours = [norm.find_factor(int(updates), layer, 6) for layer in range(1, 7)]
        assert ours == pytest.approx(rows[name], abs=1e-10), updates


@pytest.mark.parametrize("case", [*ORACLES["attnres"]["outputs"]])
def test_attention_residuals(case):
    oracle, zero, block = ORACLES["attnres"], "queries 0" in case, int(case.partition("=")[2][0])
    outputs, sites = oracle["outputs"][case], oracle["weights"]["sites"]
    sides, opening, closing = wire(placements["attnres"](block=block), 3, 4)
    seen = []
    state = opening(tensor(oracle["inputs"]["embedding"]))
    for side, site, weights in zip(sides, sites, oracle["weights"]["f"], strict=False):
        f = sublayer(weights)
        fill(side.norm, weight=site["norm"])
        if side.aggregate is not None:
            fill(side.aggregate, query=[0.0] * 4 if zero else site["query"], gain=site["key_norm"])
        state = side(state, lambda x, f=f: seen.append(x) or f(x))
    fill(closing.close.aggregate, query=[0.0] * 4 if zero else sites[-1]["query"], gain=sites[-1]["key_norm"])
    last = make_norm_factory(placements["attnres"](), 4)().double()
    fill(last, weight=sites[-1]["norm"])
    seen.append(last(closing(state)))
    known = outputs["normed_inputs"]
    for ours, numbers in zip(seen[-len(known) :], known, strict=True):
        near(ours, numbers)


STARTS = {
    "hc": {"kind": "hc"},
    "hc-static": {"kind": "hc", "dynamic": False, "n": 2},
    "mhc": {"kind": "mhc", "read_start": 40.0, "mix_start": 40.0},
    "gpas": {"kind": "gpas"},
    "attnres": {"kind": "attnres"},
    "attnres-full": {"kind": "attnres", "block": 1},
}


@pytest.mark.parametrize("family", RESIDUAL)
@pytest.mark.parametrize("case", [*STARTS])
def test_it_begins_as_pre_ln(tiny, family, case):
    """With large weights, so that eps does not show; mhc with logits so large that their sigmoids are 1."""
    _, pre, inputs = tiny(family, {"norm": "pre", "init.std": 0.5})
    _, model, _ = tiny(family, {"norm": STARTS[case], "init.std": 0.5})
    model.load_state_dict({**model.state_dict(), **rename(pre.state_dict(), case)})
    pre, model = pre.double().eval(), model.double().eval()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    torch.testing.assert_close(model(inputs), pre(inputs), rtol=1e-4, atol=1e-4)


def rename(state, case):
    inner = "_residual.inner." if case == "gpas" else "_residual."
    return {name.replace("_residual.", inner): value for name, value in state.items()}


@pytest.mark.parametrize("family", RESIDUAL)
def test_prores_ends_as_its_base(tiny, family):
    given = {"norm": {"kind": "prores", "base": "sandwich", "updates": 5}}
    experiment, model, inputs = tiny(family, given, updates=4)
    _, base, _ = tiny(family, {"norm": "sandwich"})
    model.load_state_dict({**model.state_dict(), **base.state_dict()}, strict=True)
    assert not torch.equal(model(inputs), base(inputs))
    experiment.norm.after_update(model, 5 * len(model.blocks()))
    assert torch.equal(model(inputs), base(inputs))


@pytest.mark.parametrize("family", RESIDUAL)
def test_prores_begins_without_branches(tiny, family):
    _, model, inputs = tiny(family, {"norm": "prores"}, updates=0)
    with torch.no_grad():
        before = model(inputs)
        for p in model.blocks().parameters():
            p.add_(torch.randn_like(p))
    assert torch.equal(model(inputs), before)


REFUSED = {
    "streams": ({"norm": {"kind": "hc", "n": 0}}, "norm.n"),
    "carriers": ({"norm": {"kind": "mix", "alpha": 0.5, "first": "hc", "second": "pre"}}, "norm"),
    "numbers": ({"norm": {"kind": "mix", "alpha": 0.5, "first": "hc", "second": {"kind": "mhc", "n": 2}}}, "norm"),
    "block": ({"norm": {"kind": "attnres", "block": 4}}, "norm.block"),
    "twice": ({"norm": {"kind": "gpas", "base": "gpas"}}, "norm"),
    "twice inside": ({"norm": {"kind": "prores", "base": {"kind": "gpas", "base": "prores"}}}, "norm"),
    "no sum": ({"norm": {"kind": "gpas", "base": "b2t"}}, "norm.base"),
    "rule": ({"norm": {"kind": "siamese", "first": "pre"}}, "norm.first"),
    "no gain": ({"norm": {"kind": "sandwich_scaled", "layer": "none"}}, "norm.layer"),
}


@pytest.mark.parametrize("case", [*REFUSED])
def test_what_cannot_be_is_refused(tiny, case):
    settings, path = REFUSED[case]
    with pytest.raises(ConfigError) as refused:
        tiny("llama", settings)  # of three layers
    assert any(problem.path.startswith(path) for problem in refused.value.problems), refused.value


def test_a_mix_of_one_carrier_is_built(tiny):
    _, model, inputs = tiny("llama", {"norm": {"kind": "mix", "alpha": 0.5, "first": "hc", "second": "mhc"}})
    assert model(inputs).isfinite().all()


def test_sites_count_sublayers():
    site = Site(2, 4, 8, nn.Identity)
    assert (site.sublayer, site.mlp.sublayer) == (4, 5)
    assert replace(site, sublayers=1).sublayer == 2
