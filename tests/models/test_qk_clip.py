"""QK-clip: the factors of the weights by its formula, from logits that are computed here, and what is left as it is."""

import copy
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from norms import cases
from norms.cases import RESIDUAL
from torch.utils.flop_counter import FlopCounterMode

from ablate.config.errors import ConfigError
from ablate.distributed import ranks
from ablate.estimate.flops import count
from ablate.estimate.memory import Meter, resolve_setup
from ablate.experiment.tree import Experiment
from ablate.models.base import freeze
from ablate.training.procedures import Hooks, Place
from ablate.training.runs import load_experiment
from ablate.training.train import train
from ablate.training.trained import open_trained

CASES = [("llama", {}), ("llama", {"kv_heads": 2}), ("llama", {"kv_heads": 1, "head_dim": 6}), ("vit", {})]
every_case = pytest.mark.parametrize(("family", "more"), CASES, ids=str)
every_family = pytest.mark.parametrize("family", RESIDUAL)


@pytest.fixture
def clipped(tiny):
    """clipped(family, limit, **fields) -> (the model in training, with large weights and biases, inputs)."""

    def build(family, limit=1.0, more=(), **fields):
        given = {"init.std": 0.5, "model.heads": 4, "model.attention.qk_clip": limit, **dict(more)}
        _, model, inputs = tiny(family, given | {f"model.{name}": value for name, value in fields.items()})
        return cases.shaken(model.train(), 0.1), inputs

    return build


def projection_of(block):
    return block.attn.qkv_proj if hasattr(block.attn, "qkv_proj") else block.attn.qkv


def largest_logits(model, inputs):
    """[layers, heads]: written out, from the inputs of each layer's projection, in a model without effects."""
    model = copy.deepcopy(model).eval()
    seen = []
    for block in model.blocks():
        projection_of(block).register_forward_pre_hook(lambda linear, args: seen.append((linear, args[0])))
    model(inputs)
    stack, found = model.config.stack(), []
    for linear, x in seen:
        rows = F.linear(x, linear.weight, linear.bias).unflatten(-1, (-1, stack.head_dim)).transpose(1, 2)
        q, k, _ = rows.split([stack.heads, stack.kv_heads, stack.kv_heads], 1)
        if stack.causal:
            half, positions = stack.head_dim // 2, torch.arange(x.shape[1]).double()
            angle = positions[:, None] * 10000.0 ** (-torch.arange(half).double() / half)
            rotation = torch.polar(torch.ones_like(angle), angle)
            q, k = (torch.complex(part[..., :half], part[..., half:]) * rotation for part in (q, k))
            scores = (q @ k.repeat_interleave(stack.heads // stack.kv_heads, 1).mH).real
            scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -torch.inf)
        else:
            scores = q @ k.mT
        found.append(scores.amax((0, 2, 3)) / math.sqrt(stack.head_dim))
    return torch.stack(found).detach()


def rows_by_head(model):
    """[layers] of the weights, and the bias if there is one, of each head: [q, k, v heads, head_dim, ...]."""
    dim = model.config.stack().head_dim
    found = []
    for block in model.blocks():
        linear = projection_of(block)
        parts = [linear.weight] if linear.bias is None else [linear.weight, linear.bias[:, None]]
        found.append(torch.cat(parts, 1).detach().clone().unflatten(0, (-1, dim)))
    return found


@every_case
def test_each_head_is_scaled_by_its_formula_and_the_others_keep_every_bit(clipped, family, more):
    model, inputs = clipped(family, **more)
    logits = largest_logits(model, inputs)
    limit = float(logits.quantile(0.4))
    model, inputs = clipped(family, limit, **more)
    before, rest = rows_by_head(model), {n: p.clone() for n, p in model.state_dict().items() if "qkv" not in n}
    model(inputs)
    model.after_update()
    stack = model.config.stack()
    group, above = stack.heads // stack.kv_heads, 0
    for layer, (own, old, new) in enumerate(zip(logits.tolist(), before, rows_by_head(model), strict=True)):
        for head in range(stack.heads):
            shared = max(own[head // group * group : (head // group + 1) * group])
            keys = min(1.0, math.sqrt(limit / shared))
            queries = min(1.0, limit / own[head] / keys)
            above += own[head] > limit
            assert own[head] * keys * queries <= limit * (1 + 1e-12)
            for place, factor in ((head, queries), (stack.heads + head // group, keys)):
                if factor == 1:
                    assert torch.equal(new[place], old[place]), (layer, place)
                else:
                    torch.testing.assert_close(new[place], factor * old[place], rtol=1e-6, atol=0)
        assert torch.equal(new[-stack.kv_heads :], old[-stack.kv_heads :])  # values
    assert 0 < above < logits.numel()
    assert all(torch.equal(value, rest[name]) for name, value in model.state_dict().items() if "qkv" not in name)


@every_case
def test_the_first_layers_logits_of_the_batch_are_then_at_most_the_limit(clipped, family, more):
    """Inputs of later layers change with it."""
    model, inputs = clipped(family, 0.5, **more)
    before = largest_logits(model, inputs)[0]
    model(inputs)
    model.after_update()
    after = largest_logits(model, inputs)[0]
    assert (before > 0.5).any()
    assert (after <= 0.5 * (1 + 1e-6)).all()
    if model.config.stack().kv_heads == model.config.stack().heads:
        torch.testing.assert_close(after, before.clamp(max=0.5), rtol=1e-6, atol=0)


@every_family
def test_two_parts_of_a_batch_are_as_one_and_each_update_begins_anew(clipped, family):
    whole, inputs = clipped(family, 0.5)
    parts = copy.deepcopy(whole)
    whole(inputs)
    for part in (inputs[:2], inputs[2:]):
        parts(part)
    for model in (whole, parts):
        model.after_update()
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))
    before = rows_by_head(whole)
    whole.after_update()
    assert all(torch.equal(a, b) for a, b in zip(rows_by_head(whole), before, strict=True))


@every_family
def test_only_training_counts_and_a_second_computation_of_a_layer_does_not(clipped, family):
    model, inputs = clipped(family, 0.5)
    before = rows_by_head(model)
    model.eval()(inputs)
    model.after_update()
    assert all(torch.equal(a, b) for a, b in zip(rows_by_head(model), before, strict=True))
    again = copy.deepcopy(model).train()
    model.train()(inputs)
    cases.check_recomputed(again, inputs)
    for one in (model, again):
        one.after_update()
    for a, b in zip(rows_by_head(model), rows_by_head(again), strict=True):
        assert not torch.equal(a, before[0])
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)


@every_family
def test_the_largest_is_that_of_all_ranks(clipped, family, monkeypatch):
    own, inputs = clipped(family, 0.5)
    both = copy.deepcopy(own)
    own(inputs[:2])
    both(inputs)
    other = [block.attn.clip.largest.clone() for block in both.blocks()]
    monkeypatch.setattr(ranks, "gather", lambda value: torch.stack([value, torch.stack(other).float()]))
    own.after_update()
    monkeypatch.undo()
    both.after_update()
    assert all(torch.equal(a, b) for a, b in zip(own.parameters(), both.parameters(), strict=True))


@every_family
def test_frozen_weights_and_the_optimizers_state_stay(clipped, family):
    model, inputs = clipped(family, 0.5)
    freeze(model, ["layers.1"])
    before = rows_by_head(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.0)
    model(inputs).sum().backward()
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    model.after_update()
    same = [torch.equal(a, b) for a, b in zip(rows_by_head(model), before, strict=True)]
    assert same == [False, True, False]
    for key, values in optimizer.state_dict()["state"].items():
        assert all(torch.equal(value, state["state"][key][name]) for name, value in values.items())


@every_family
def test_a_factor_of_the_queries_counts(clipped, family):
    """A parametrisation's, which scales the logits."""
    model, inputs = clipped(family, 1e3)
    model(inputs)
    plain = model.blocks()[0].attn.clip.largest.clone()
    model.after_update()
    model.scale_queries(3.0)
    model(inputs)
    torch.testing.assert_close(model.blocks()[0].attn.clip.largest, 3 * plain)


# ------------------------------------------------------------------------------------------------ runs


def test_a_run_is_clipped_in_each_update_alike_in_parts_and_after_an_interruption(store, tiny_settings, monkeypatch):
    settings = {"model.attention.qk_clip": 0.02, "optimizer.lr": 0.02, "trainer.max_steps": 6}
    seen = []

    def note(self, model, updates, plain=Experiment.after_update):
        before = rows_by_head(model)
        plain(self, model, updates)
        same = all(torch.equal(a, b) for a, b in zip(rows_by_head(model), before, strict=True))
        seen.append((updates, same))

    monkeypatch.setattr(Experiment, "after_update", note)
    whole = train(Experiment.from_mapping(tiny_settings, settings))
    assert seen == [(0, True), *((updates, False) for updates in range(1, 7))]
    parts = train(Experiment.from_mapping(tiny_settings, settings | {"trainer.accumulate": 2}))
    assert parts.metrics["val/loss"] == pytest.approx(whole.metrics["val/loss"], rel=1e-5)
    asked = itertools.count(1)
    part = train(Experiment.from_mapping(tiny_settings, settings), hooks=Hooks(asked_to_stop=lambda: next(asked) == 3))
    rest = train(load_experiment(part.run_id, {}), Place(run_id=part.run_id))
    assert rest.metrics == whole.metrics
    a, b = open_trained(whole.run_id).state, open_trained(rest.run_id).state
    assert all(torch.equal(value, b[name]) for name, value in a.items())


# ------------------------------------------------------------------------------------------------ beside it


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"norm.qk": "rmsnorm"}, r"qk_clip: scales .* and norm\.qk=rmsnorm norms what these give"),
        ({"norm": "hybrid"}, r"qk_clip: scales .* and placement hybrid norms what these give"),
        ({"model.attention.temperature": True}, r"qk_clip: scales .* and model\.attention\.temperature=true norms"),
        ({"model.attention.qk_clip": 0.0}, r"model\.attention\.qk_clip: must be greater than 0"),
        ({"model.layers": 0}, r"model\.attention\.qk_clip: .* without layers"),
    ],
    ids=str,
)
@every_family
def test_where_logits_are_bounded_already_it_is_refused(family, given, message):
    with pytest.raises(ConfigError, match=message):
        Experiment.from_mapping({"model": {"kind": family}}, {"model.attention.qk_clip": 100.0, **given})


@every_case
def test_the_plan_counts_the_logits_of_all_pairs_and_the_memory_of_one_head(family, more):
    more = {f"model.{name}": value for name, value in more.items()} | {"model.heads": 4, "model.hidden": 16}
    shape = (64,) if family == "llama" else (1, 16, 16)
    plain, own = (
        Experiment.from_mapping({"model": {"kind": family}}, more | {"model.attention.qk_clip": limit})
        for limit in (None, 1.0)
    )
    stack, tokens = own.model.stack(), own.model.sequence_length(shape)
    counts = [count(one.build_model(11, shape), shape) for one in (plain, own)]
    by_hand = stack.depth * stack.heads * 2 * stack.head_dim * tokens**2 / (tokens if family == "llama" else 1)
    assert counts[0].forward_flops == counts[1].forward_flops
    assert counts[1].training_flops - counts[0].training_flops == by_hand
    model = own.build_model(11, shape)
    inputs = torch.zeros(1, *shape, dtype=torch.long if family == "llama" else torch.float32)
    measured = []
    for trains in (False, True):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model.train(trains)(inputs)
        measured.append(counter.get_total_flops())
    assert measured[1] - measured[0] == by_hand * (tokens if family == "llama" else 1)
    batch = {"trainer.batch_size": 64, "trainer.precision": "32-true"}
    peaks = []
    for one in (plain, own):
        one = Experiment.from_mapping(one.to_tree(), batch)
        peaks.append(Meter(one, 11, shape, gpu=False).memory(resolve_setup(one)).parts)
    assert 0 <= sum(peaks[1].values()) - sum(peaks[0].values()) <= 4 * 64 * tokens**2
