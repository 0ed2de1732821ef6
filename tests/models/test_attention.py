"""The options of the attention: against published code, and a second implementation written out here."""

import copy
import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from norms import cases
from norms.cases import RESIDUAL, WIRED

from ablate.config.errors import ConfigError
from ablate.diagnostics.checks.models import check_leak, check_plan, check_updates
from ablate.diagnostics.checks.subject import build_subject
from ablate.diagnostics.measures.layers import Layers
from ablate.distributed import ranks
from ablate.experiment.tree import Experiment
from ablate.models.attention import Sink
from ablate.models.attention_config import AttentionConfig
from ablate.models.llama import Attention, causal
from ablate.models.llama_config import Llama
from ablate.norms import GATES, placements
from ablate.optim.groups import assign_roles
from ablate.optim.muon import MuonWithAdamW
from ablate.optim.optimizers import build_optimizer
from ablate.parallel.sharing import validate_sharing

ORACLES = json.loads((Path(__file__).parents[1] / "data" / "attention.json").read_text())
"""Computed in float64 by the code that each names."""
ALL = {"gate": "elementwise", "sink": "learned", "value_residual": "learned", "temperature": True}
OPTIONS = [
    {"gate": "elementwise"},
    {"gate": "headwise"},
    {"sink": "learned"},
    {"sink": "one"},
    {"value_residual": "fixed"},
    {"value_residual": "learned"},
    {"temperature": True},
    {"qk_clip": 1e3},
    ALL,
]
CASES = [(family, {}, options) for family in RESIDUAL for options in OPTIONS]
CASES += [("llama", {"kv_heads": 1}, options) for options in OPTIONS]
every_case = pytest.mark.parametrize(("family", "more", "options"), CASES, ids=str)
TOGETHER = {"gate": "headwise", "sink": "one", "value_residual": "fixed", "qk_clip": 1e3}
all_at_once = pytest.mark.parametrize(
    ("family", "more", "options"),
    [case for case in CASES if case[2] == ALL] + [(f, {}, TOGETHER) for f in RESIDUAL],
    ids=str,
)
every_family = pytest.mark.parametrize("family", RESIDUAL)


def settings(options, **model):
    return {"init.std": 0.3, "model.attention": options} | {f"model.{name}": value for name, value in model.items()}


def shaken(model):
    """With every vector away from its start."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:
                p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return model


# ------------------------------------------------------------------------------------------------ published code


def still(seq, dim):
    """A rotary table that rotates nothing."""
    return torch.stack([torch.ones(seq, 1, dim), torch.zeros(seq, 1, dim)]).double()


def attention_of(weights, index=0, **options):
    config = Llama(hidden=6, heads=4, kv_heads=2, head_dim=3, layers=3, attention=AttentionConfig(**options))
    attention = Attention(config, placements.parse("pre"), index).double()
    with torch.no_grad():
        attention.qkv_proj.weight.copy_(torch.cat([weights[name] for name in ("W_q", "W_k", "W_v")]))
        attention.o_proj.weight.copy_(weights["W_o"])
        if attention.gate is not None:
            attention.gate.weight.copy_(weights[f"W_g_{options['gate']}"])
    return attention


def as_tensors(weights):
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in weights.items()}


@pytest.mark.parametrize("gate", ["none", "headwise", "elementwise"])
def test_the_gate_is_that_of_its_authors(gate):
    oracle = ORACLES["gate"]
    x = torch.tensor(oracle["inputs"]["x"], dtype=torch.float64)
    attention = attention_of(as_tensors(oracle["weights"]), gate=gate)
    expected = torch.tensor(oracle["outputs"][gate], dtype=torch.float64)
    torch.testing.assert_close(attention(x, still(4, 3), causal, []), expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("sink", "output"), [("learned", "learned"), ("one", "softmax_off_by_one (sink 0)")], ids=["learned", "one"]
)
def test_the_sink_is_that_of_gpt_oss(sink, output):
    oracle = ORACLES["sink"]
    inputs = as_tensors(oracle["inputs"])
    q, k, v = (inputs[name] for name in "qkv")
    module = Sink(AttentionConfig(sink=sink), q.shape[1]).double()
    if sink == "learned":
        module.load_state_dict({"weight": inputs["sink_learned"]})
    expected = torch.tensor(oracle["outputs"][output]["output"], dtype=torch.float64).transpose(1, 2)
    torch.testing.assert_close(module(q, k, v, is_causal=True), expected, atol=1e-10, rtol=0)
    seen = torch.ones(4, 4, dtype=torch.bool).tril()[None, None]
    for mask in (seen, torch.zeros(1, 1, 4, 4, dtype=torch.float64).masked_fill(~seen, -torch.inf)):
        torch.testing.assert_close(module(q, k, v, mask), expected, atol=1e-10, rtol=0)
        last = module(q[:, :, 3:], k, v, mask[:, :, 3:])  # as with a cache
        torch.testing.assert_close(last, expected[:, :, 3:], atol=1e-10, rtol=0)


def test_the_value_residual_is_that_of_its_authors():
    oracle, carry = ORACLES["value_residual"], []
    for index, (weights, x, y) in enumerate(
        zip(oracle["weights"], oracle["inputs"]["x"], oracle["outputs"]["y"], strict=True)
    ):
        for kind in ("fixed", "learned"):  # which are the same at the start
            attention = attention_of(as_tensors(weights), index, value_residual=kind)
            found = attention(torch.tensor(x, dtype=torch.float64), still(4, 3), causal, carry)
            torch.testing.assert_close(found, torch.tensor(y, dtype=torch.float64), atol=1e-10, rtol=0)
    assert len(carry) == 1


# ------------------------------------------------------------------------------------------------ written out


def by_hand(family, attention, options, x, table, first):
    """(output of an attention, its values), by the formulas: x [batch, tokens, d]; `table`: LLaMA's of cosines
    and signed sines (`test_llama`); `first`: V_1, None in layer 1."""
    batch, seq, _ = x.shape
    heads = attention.heads
    if family == "llama":
        kv, dim = attention.kv_heads, attention.head_dim
        qkv = (x @ attention.qkv_proj.weight.T).view(batch, seq, heads + 2 * kv, dim)
        q, k, v = qkv.split([heads, kv, kv], 2)
        q, k = (part * table[0] + part.roll(dim // 2, -1) * table[1] for part in (q, k))
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        k = k.repeat_interleave(heads // kv, 1)
    else:
        qkv = F.linear(x, attention.qkv.weight, attention.qkv.bias).view(batch, seq, 3, heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        dim = q.shape[-1]
    own = v
    if options.get("value_residual") and first is not None:
        a, b = (0.5, 0.5) if attention.values.weight is None else attention.values.weight
        v = a * first + b * v
    scores = q @ k.mT / dim**0.5
    if options.get("temperature"):
        cosine = (q @ k.mT) / q.norm(dim=-1)[..., :, None] / k.norm(dim=-1)[..., None, :]
        scores = attention.temperature.weight.clamp(max=math.log(100)).exp()[:, None, None] * cosine
    if family == "llama":
        scores = scores.masked_fill(torch.ones(seq, seq, dtype=torch.bool).triu(1), -torch.inf)
    y = scores.softmax(-1) @ v.repeat_interleave(heads // v.shape[1], 1)
    if kind := options.get("sink"):
        z = attention.sink.weight if kind == "learned" else torch.zeros(heads, dtype=x.dtype)
        y = y * (scores.logsumexp(-1, keepdim=True) - z[:, None, None]).sigmoid()
    if options.get("gate"):
        gates = (x @ attention.gate.weight.T).sigmoid().view(batch, seq, heads, -1)
        y = y * gates.transpose(1, 2)
    y = y.transpose(1, 2).reshape(batch, seq, -1)
    return (attention.o_proj if family == "llama" else attention.proj)(y), own


def write_out(family, model, options):
    """A copy of `model` whose attentions compute by the formulas."""
    model = copy.deepcopy(model)
    for block in model.blocks():

        def forward(x, *given, attention=block.attn):
            carry = given[-1] if options.get("value_residual") else []
            y, own = by_hand(family, attention, options, x, given and given[0], carry[0] if carry else None)
            if not carry:
                carry.append(own)
            return y

        block.attn.forward = forward
    return model


@every_case
def test_outputs_and_gradients_equal_the_formulas(tiny, family, more, options):
    _, model, inputs = tiny(family, settings(options, **more))
    reference = write_out(family, shaken(model), options)
    expected, found = reference(inputs), model(inputs)
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
    for a, b in zip(cases.gradients(model, found), cases.gradients(reference, expected), strict=True):
        assert b.abs().max() > 0
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)


# ------------------------------------------------------------------------------------------------ at the start


def pair(tiny, family, options, other=None, **more):
    """(a model with `options`, one with `other` or without any and the same weights otherwise, inputs)."""
    _, model, inputs = tiny(family, settings(options, **more))
    _, plain, _ = tiny(family, settings(other or {}, **more))
    return model, plain, inputs


@every_case
def test_all_other_weights_start_as_without(tiny, family, more, options):
    model, plain, _ = pair(tiny, family, options, **more)
    own = model.state_dict()
    for name, value in plain.state_dict().items():
        assert torch.equal(own[name], value), name
    assert len(own) > len(plain.state_dict()) or options in (
        {"sink": "one"},
        {"value_residual": "fixed"},
        {"qk_clip": 1e3},
    )
    assert all(p.ndim > 0 for p in model.parameters())  # a scalar of no dimension cannot be sharded


@every_family
def test_learned_ones_start_as_the_fixed_ones(tiny, family):
    for learned, fixed in (
        ({"sink": "learned"}, {"sink": "one"}),
        ({"value_residual": "learned"}, {"value_residual": "fixed"}),
    ):
        model, other, inputs = pair(tiny, family, learned, fixed)
        torch.testing.assert_close(model(inputs), other(inputs), atol=1e-12, rtol=1e-12)
        assert not torch.allclose(model(inputs), pair(tiny, family, {})[0](inputs), atol=1e-3)


@every_family
def test_where_they_are_neutral_the_model_is_the_plain_one(tiny, family):
    model, plain, inputs = pair(tiny, family, {"sink": "learned", "value_residual": "learned", "gate": "headwise"})
    with torch.no_grad():
        for index, block in enumerate(model.blocks()):
            block.attn.sink.weight.fill_(-1e4)
            block.attn.gate.weight.zero_()  # gates of 1/2
            (block.attn.o_proj if family == "llama" else block.attn.proj).weight.mul_(2)
            if index:
                block.attn.values.weight.copy_(torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(model(inputs), plain(inputs), atol=1e-12, rtol=1e-12)


@every_family
def test_by_default_nothing_is_there(tiny, family):
    """No parameter and no operation, and V_1 is not carried."""
    _, model, inputs = tiny(family)
    assert not [name for name in model.state_dict() if {*name.split(".")} & {"gate", "sink", "values", "temperature"}]
    seen = []
    for block in model.blocks():
        block.register_forward_hook(lambda module, args, output: seen.append((len(args), output)))
    model(inputs)
    assert [count for count, _ in seen] == [2 if family == "llama" else 1] * 3
    assert all(isinstance(output, torch.Tensor) for _, output in seen)


@pytest.mark.parametrize(
    ("given", "std"),
    [({}, 0.02), ({"norm": "deepnorm"}, 0.02), ({"init": "scaled"}, 0.02), ({"init": "depth_scaled"}, 0.02)],
)
@pytest.mark.parametrize("gate", ["elementwise", "headwise"])
@every_family
def test_gates_start_as_init_draws_a_matrix_and_no_placement_or_depth_reaches_them(family, gate, given, std):
    model = {"kind": family, "hidden": 256, "layers": 4, "heads": 16, "attention": {"gate": gate}}
    experiment = Experiment.from_mapping({"model": model}, given)
    torch.manual_seed(0)
    shape = (12,) if family == "llama" else (1, 8, 8)
    gates = [p for p in experiment.build_model(11, shape).projections() if p.role in GATES]
    assert [p.layer for p in gates] == [0, 1, 2, 3]
    for projection in gates:
        assert projection.weight.shape == (256 if gate == "elementwise" else 16, 256)
        assert projection.weight.std().item() == pytest.approx(std, rel=0.05)


# ------------------------------------------------------------------------------------------------ how it is computed


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_no_token_sees_the_future(options):
    check_leak(build_subject({"model.kind": "llama", "model.attention": options}))


@all_at_once
def test_compiled_it_is_one_graph_of_the_same_numbers(tiny, family, more, options):
    _, model, inputs = tiny(family, settings(options, **more))
    plain, largest = shaken(model)(inputs), [buffer.clone() for buffer in model.buffers()]
    model.after_update()
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)(inputs)
    torch.testing.assert_close(compiled, plain, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close([*model.buffers()], largest, atol=1e-12, rtol=1e-12)
    assert ("qk_clip" in options) == any(buffer.any() for buffer in largest)


@all_at_once
def test_layers_that_are_computed_again_give_the_same_gradients(tiny, family, more, options):
    _, model, inputs = tiny(family, settings(options, **more))
    cases.check_recomputed(shaken(model), inputs)


@all_at_once
def test_autocast_stays_near(tiny, family, more, options):
    _, model, inputs = tiny(family, settings(options, **more))
    model, inputs = shaken(model).float(), inputs.float() if inputs.is_floating_point() else inputs
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(inputs).float()
    exact = model(inputs)
    assert 0 < (rough - exact).abs().mean() < 0.1 * exact.abs().mean()
    assert model.bfloat16()(inputs.bfloat16() if inputs.is_floating_point() else inputs).dtype == torch.bfloat16


@pytest.mark.parametrize(("family", "placement"), WIRED)
def test_it_stands_beside_every_placement(tiny, family, placement):
    options = ALL | {"temperature": placement not in ("hybrid", "ngpt")}  # which norm queries and keys themselves
    options |= {"gate": "none"} if placement == "ngpt" else {}
    _, model, inputs = tiny(family, settings(options) | {"norm": placement})
    assert all(gradient.abs().max() > 0 for gradient in cases.gradients(model, cases.shaken(model, 0.1)(inputs)))


@every_family
def test_a_layer_can_be_skipped_and_layers_of_attention_alone_have_it_too(tiny, family):
    """Without layer 1 all others have its values still."""
    _, model, inputs = tiny(family, settings(ALL, sublayers="attn"))
    with Layers(model).skip(0):
        without = model(inputs)
    assert without.isfinite().all()
    assert not torch.allclose(without, model(inputs))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@every_family
def test_the_plan_counts_what_torch_counts(family, options):
    given = {"model.attention": options}
    check_plan(family, given)
    check_updates(build_subject({"model.kind": family, "optimizer.weight_decay": 0.0}, given))


# ------------------------------------------------------------------------------------------------ optimizers


def role_of(model, name):
    (role,) = {role for path, role in assign_roles(model).items() if f".{name}." in path}
    return role


@every_family
def test_vectors_never_decay_and_matrices_of_gates_do(tiny, family):
    experiment, model, _ = tiny(family, settings(ALL))
    assert role_of(model, "gate") == "matrices"
    assert {role_of(model, name) for name in ("sink", "values", "temperature")} == {"norms"}
    decays = {
        p: group["weight_decay"]
        for group in build_optimizer(experiment.optimizer, model).param_groups
        for p in group["params"]
    }
    for name, p in model.named_parameters():
        if ".attn." in name and "bias" not in name:
            assert decays[p] == (0.1 if p.ndim == 2 else 0.0), name


@every_family
def test_muon_leaves_gates_of_heads_to_adamw(tiny, family):
    for gate, role in (("headwise", "gates"), ("elementwise", "matrices")):
        experiment, model, _ = tiny(family, settings({"gate": gate}) | {"optimizer": "muon"})
        assert role_of(model, "gate") == role
        optimizer = build_optimizer(experiment.optimizer, model)
        assert isinstance(optimizer, MuonWithAdamW)
        turned = {p for group in optimizer.muon.param_groups for p in group["params"]}
        for name, p in model.named_parameters():
            if ".gate." in name:
                assert (p in turned) == (gate == "elementwise")


@pytest.mark.parametrize(
    ("head_dim", "init", "rate", "eps"),
    [(None, 0.5, 1 / 4, 1 / 4), (4, 1 / 4, 1 / 4, 1.0)],  # four times as many heads as the base; as many
    ids=["more-heads", "wider-heads"],
)
@every_family
def test_mup_scales_a_gate_as_its_number_of_heads_grows(tiny, family, head_dim, init, rate, eps):
    base = {"hidden": 16, "layers": 3, **({"head_dim": head_dim} if head_dim else {})}
    size = {"hidden": 64, "heads": 4}
    given = settings({"gate": "headwise"}, **size)
    mup = {"parametrization": {"kind": "mup", "base": base}}
    experiment = Experiment.from_mapping({"model": {"kind": family}}, given | mup)
    shape = (12,) if family == "llama" else (1, 8, 8)
    torch.manual_seed(0)
    model = experiment.build_model(11, shape)
    torch.manual_seed(0)
    plain = Experiment.from_mapping({"model": {"kind": family}}, given).build_model(11, shape)
    for a, b in zip(model.blocks(), plain.blocks(), strict=True):
        torch.testing.assert_close(a.attn.gate.weight, init * b.attn.gate.weight)
    factors = model.multipliers.find_factors("gates", is_inside=True)
    assert (factors.lr, factors.weight_decay, factors.eps) == (rate, 1 / rate, eps)


# ------------------------------------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model.layers": 0, "model.attention.gate": "headwise"}, r"model\.attention\.gate: .* without layers"),
        ({"model.layers": 1, "model.attention.value_residual": "fixed"}, r"value_residual: .* there are none"),
        ({"norm.qk": "rmsnorm", "model.attention.temperature": True}, r"temperature: .* and norm\.qk=rmsnorm does so"),
        ({"norm": "hybrid", "model.attention.temperature": True}, r"temperature: .* and placement hybrid does so"),
        ({"model.attention.gate": "on"}, r"model\.attention\.gate: "),
        ({"model.attention.sinks": "one"}, r"model\.attention\.sinks: .*sink"),
    ],
)
@every_family
def test_what_makes_no_sense_is_refused(family, given, message):
    with pytest.raises(ConfigError, match=message):
        Experiment.from_mapping({"model": {"kind": family}}, given)


def test_tensor_parallelism_is_refused(monkeypatch):
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
    given = {"trainer.strategy": "fsdp", "trainer.tensor_parallel": 2, "model.attention": {"sink": "one"}}
    (problem,) = validate_sharing(Experiment.from_mapping(given))
    assert "does not split model.attention (sink) over the ranks" in str(problem)
