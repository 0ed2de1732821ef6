"""Optimizers against a step written by hand, schedules against their formulas."""

import math

import pytest
import torch
import transformers
from pydantic import ValidationError
from torch import nn

from ablate.models import list_families
from ablate.optim.optimizers import optimizers
from ablate.optim.schedules import schedules

STEPS = [
    (300, None, 0.1),
    (10, None, 0.1),
    (7, 3, 0.1),
    (1000, 100, 0.5),
    (5, 4, 0.0),
    (2, 1, 0.1),
    (50, None, 0.34),
    (7, None, 0.1),
]


def factors(schedule, max_steps):
    return [schedule.factor(step, max_steps) for step in range(max_steps)]


def configure(kind, warmup_steps, warmup_fraction, **fields):
    return schedules[kind](warmup_steps=warmup_steps, warmup_fraction=warmup_fraction, **fields)


# ---------------------------------------------------------------------------------------------------- schedules


@pytest.mark.parametrize(("max_steps", "steps", "fraction"), STEPS)
@pytest.mark.parametrize("kind", schedules)
def test_warmup_is_linear_and_starts_above_zero(kind, max_steps, steps, fraction):
    schedule = configure(kind, steps, fraction)
    warmup = steps if steps is not None else round(fraction * max_steps)
    assert schedule.warmup(max_steps) == warmup
    assert warmup > 0
    found = factors(schedule, max_steps)[:warmup]
    assert found[0] == 1 / warmup
    assert found == pytest.approx([(i + 1) / warmup for i in range(warmup)])
    assert found[-1] == 1.0


@pytest.mark.parametrize(("max_steps", "steps", "fraction"), [*STEPS, (10, 0, 0.1), (10, None, 0.0), (1, 0, 0.1)])
@pytest.mark.parametrize("kind", schedules)
def test_never_zero_never_above_the_peak_and_never_wrapping(kind, max_steps, steps, fraction):
    schedule = configure(kind, steps, fraction)
    found = factors(schedule, max_steps)
    assert all(0 < f <= 1 for f in found)
    after = found[schedule.warmup(max_steps) :]
    assert after == sorted(after, reverse=True)
    for beyond in (max_steps, max_steps + 1, 3 * max_steps):
        assert schedule.factor(beyond, max_steps) == found[-1]


@pytest.mark.parametrize(("max_steps", "steps", "fraction"), STEPS)
@pytest.mark.parametrize("final", [0.1, 0.0, 0.5])
def test_cosine(max_steps, steps, fraction, final):
    """The peak is met once, at the end of the warm-up; the last update is at `final_fraction`."""
    schedule = configure("cosine", steps, fraction, final_fraction=final)
    warmup = schedule.warmup(max_steps)
    found = factors(schedule, max_steps)
    assert [i for i, f in enumerate(found) if f == 1.0] == [warmup - 1]
    assert found[-1] == pytest.approx(final, abs=1e-15)
    for i in range(warmup, max_steps):
        angle = math.pi * (i + 1 - warmup) / (max_steps - warmup)
        assert found[i] == pytest.approx(final + (1 - final) * (1 + math.cos(angle)) / 2, abs=1e-15)


@pytest.mark.parametrize(("steps", "fraction"), [(0, 0.1), (None, 0.0)])
def test_without_warmup(steps, fraction):
    schedule = configure("cosine", steps, fraction, final_fraction=0.2)
    found = factors(schedule, 40)
    assert found[0] == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 40)) / 2)
    assert found[-1] == pytest.approx(0.2)
    assert factors(configure("constant", steps, fraction), 40) == [1.0] * 40


def test_constant_stays_at_the_peak():
    assert factors(configure("constant", 4, 0.1), 10) == [0.25, 0.5, 0.75] + [1.0] * 7


@pytest.mark.parametrize(("max_steps", "steps", "fraction"), STEPS)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("shape", ["linear", "1-sqrt"])
def test_wsd(max_steps, steps, fraction, share, shape):
    """The peak from the end of the warm-up to the decay, which ends at `final_fraction`, by the paper's formula."""
    schedule = configure("wsd", steps, fraction, decay_fraction=share, shape=shape, final_fraction=0.05)
    warmup, found = schedule.warmup(max_steps), factors(schedule, max_steps)
    begin = max(warmup, max_steps - round(share * max_steps))
    assert found[warmup:begin] == [1.0] * (begin - warmup)
    for n in range(begin, max_steps):
        x = (n + 1 - begin) / (max_steps - begin)
        fallen = 1 - x if shape == "linear" else 1 - x**0.5
        assert found[n] == pytest.approx(0.05 + 0.95 * fallen, abs=1e-12)


def test_wsd_by_hand():
    """Its decay by default is the paper's, as the square root."""
    schedule = configure("wsd", 10, 0.1, decay_fraction=0.25, final_fraction=0.0)
    assert [schedule.factor(n, 400) for n in (9, 10, 299)] == [1.0, 1.0, 1.0]
    assert schedule.factor(299 + 25, 400) == pytest.approx(0.5)  # a quarter of the decay, half of the way
    assert schedule.factor(399, 400) == 0.0


def test_one_minus_sqrt_is_wsd_to_zero():
    schedule = schedules.parse("1-sqrt")
    assert [schedule.factor(n, 400) for n in (319, 339, 399)] == [1, 0.5, 0]  # 20 of 80 updates: half of the way


@pytest.mark.parametrize(("max_steps", "steps", "fraction"), [*STEPS, (10, 0, 0.1), (1, 0, 0.1)])
@pytest.mark.parametrize("final", [0.0, 0.25])
def test_linear(max_steps, steps, fraction, final):
    """After the warm-up, the schedule of transformers where it ends at zero."""
    schedule = configure("linear", steps, fraction, final_fraction=final)
    warmup, found = schedule.warmup(max_steps), factors(schedule, max_steps)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = transformers.get_linear_schedule_with_warmup(optimizer, warmup, max_steps).lr_lambdas[0]
    expected = [final + (1 - final) * theirs(step) for step in range(warmup, max_steps)]
    assert found[warmup:] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"warmup_steps": 4}, {3: 1, 4: (4 / 5) ** 0.51, 15: 0.25**0.51, 79: (1 / 20) ** 0.51, 99: 0.1 * 0.05**0.51}),
        # at 84 a quarter of the decay: 1 - 0.9 * sqrt(1 / 4) of the rate at its start, (16 / 80)^0.5
        ({"warmup_steps": 4, "exponent": 0.5, "from_step": 16}, {3: 1, 9: 1, 15: 1, 63: 0.5, 84: 0.2**0.5 * 0.55}),
        ({"warmup_steps": 0, "exponent": 1, "decay_fraction": 0}, {0: 1, 1: 1 / 2, 99: 1 / 100}),
    ],
)
def test_power_by_hand(fields, expected):
    schedule = schedules["power"](**fields)
    assert [schedule.factor(n, 100) for n in expected] == pytest.approx([float(f) for f in expected.values()])
    if schedule.decay_fraction:  # it does not depend on the length of the run before its decay
        assert [schedule.factor(n, 900) for n in range(80)] == [schedule.factor(n, 100) for n in range(80)]
        assert schedule.count_shared(100) == 80


@pytest.mark.parametrize("kind", schedules)
def test_the_scheduler_gives_each_update_its_factor(kind):
    schedule = configure(kind, 3, 0.1)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.02)
    scheduler = schedule.build(optimizer, 12)
    used = []
    for _ in range(15):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    expected = factors(schedule, 12)
    assert used == pytest.approx([0.02 * f for f in [*expected, *[expected[-1]] * 3]])


@pytest.mark.parametrize(
    "fields", [{"warmup_steps": -1}, {"warmup_fraction": 1.0}, {"warmup_fraction": -0.1}, {"warmup_steps": 1.5}]
)
@pytest.mark.parametrize("kind", schedules)
def test_what_a_schedule_refuses(kind, fields):
    with pytest.raises(ValidationError):
        schedules[kind](**fields)


# ---------------------------------------------------------------------------------------------------- optimizers

OWN = [kind for kind in optimizers if "name" not in optimizers[kind].model_fields]  # those by name: test_by_name


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(5, 4)
        self.linear = nn.Linear(4, 3)
        self.norm = nn.LayerNorm(3)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, x):
        return self.norm(self.linear(self.embedding(x)))


def gradients(model, step):
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(p.shape, generator=generator) for name, p in model.named_parameters() if p.requires_grad}


def by_hand(kind, config, p, gs, decay):
    """`p` in float64 after a step with each gradient of `gs`."""
    beta1, beta2 = config.betas
    p, m, v = p.double(), 0.0, 0.0
    for t, g in enumerate((g.double() for g in gs), start=1):
        if kind == "adam":
            g = g + decay * p
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        step = config.lr * (m / (1 - beta1**t)) / ((v / (1 - beta2**t)) ** 0.5 + config.eps)
        p = p - step - (config.lr * decay * p if kind == "adamw" else 0)
    return p


@pytest.mark.parametrize("fields", [{}, {"lr": 0.03, "betas": (0.8, 0.9), "eps": 0.1, "weight_decay": 0.5}])
@pytest.mark.parametrize("kind", OWN)
def test_steps_equal_those_by_hand(kind, fields):
    if kind not in ("adam", "adamw"):
        pytest.fail(f"write the step of {kind} into by_hand")
    config, model = optimizers[kind](**fields), Small()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = config.build(model)
    for step in range(3):
        for name, g in gradients(model, step).items():
            model.get_parameter(name).grad = g
        optimizer.step()
    for name, p in model.named_parameters():
        if name.startswith("frozen"):
            assert torch.equal(p, start[name])
            continue
        decay = config.weight_decay if name in ("embedding.weight", "linear.weight") else 0.0
        expected = by_hand(kind, config, start[name], [gradients(model, step)[name] for step in range(3)], decay)
        torch.testing.assert_close(p.double(), expected, atol=1e-6, rtol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


def test_defaults_are_the_papers():
    """Adam: betas 0.9 and 0.999, eps 1e-8, no weight decay (Mix-LN's recipe); peak learning rate 1e-3."""
    adam = optimizers["adam"]()
    assert (adam.betas, adam.eps, adam.weight_decay, adam.lr) == ((0.9, 0.999), 1e-8, 0.0, 1e-3)
    adamw = optimizers["adamw"]()
    assert (adamw.betas, adamw.eps, adamw.weight_decay) == ((0.9, 0.95), 1e-8, 0.1)


def test_convnext_is_a_preset_of_adamw():
    convnext = optimizers.parse("adamw-convnext")
    assert (convnext.kind, convnext.lr, convnext.betas) == ("adamw", 4e-3, (0.9, 0.999))
    assert (convnext.eps, convnext.weight_decay) == (1e-8, 0.05)


@pytest.mark.parametrize("kind", OWN)
def test_the_step_is_fused_where_the_device_has_one_and_plain_elsewhere(kind):
    config = optimizers[kind](lr=0.02)
    assert all(group["fused"] for group in config.build(Small()).param_groups)
    plain = config.build(Small().to("meta"))
    assert not any(group["fused"] for group in plain.param_groups)
    for p in (p for group in plain.param_groups for p in group["params"]):
        p.grad = torch.zeros_like(p)
    plain.step()
    assert [len(group["params"]) for group in plain.param_groups] == [2, 3]
    assert {group["lr"] for group in plain.param_groups} == {0.02}


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("family", list_families())
def test_only_matrices_decay(tiny, family, kind):
    _, model, _ = tiny(family)
    frozen = next(p for p in model.parameters() if p.ndim >= 2).requires_grad_(False)
    optimizer = optimizers[kind](weight_decay=0.3, lr=0.5).build(model)
    grouped = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(grouped) == len({id(p) for p in grouped})
    assert {id(p) for p in grouped} == {id(p) for p in model.parameters()} - {id(frozen)}
    exempt = {id(p) for name, p in model.named_parameters() if name in ("vit.cls_token", "vit.pos_embed")}
    assert len(exempt) == (2 if family == "vit" else 0)
    for group in optimizer.param_groups:
        assert group["lr"] == 0.5
        for p in group["params"]:
            assert group["weight_decay"] == (0.3 if p.ndim >= 2 and id(p) not in exempt else 0.0)
    assert any(p.ndim < 2 for p in grouped)


def test_a_tied_matrix_is_one_parameter(tiny):
    _, model, _ = tiny("llama", {"model.tie_embeddings": True})
    optimizer = optimizers["adamw"]().build(model)
    grouped = [p for group in optimizer.param_groups for p in group["params"]]
    assert sum(p is model.lm_head.weight for p in grouped) == 1


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"lr": 0}, ("lr",)),
        ({"lr": -1e-3}, ("lr",)),
        ({"weight_decay": -0.1}, ("weight_decay",)),
        ({"eps": 0}, ("eps",)),
        ({"betas": (1.0, 0.9)}, ("betas", 0)),
        ({"betas": (0.9, -0.1)}, ("betas", 1)),
        ({"betas": (0.9,)}, ("betas", 1)),
    ],
)
@pytest.mark.parametrize("kind", OWN)
def test_what_an_optimizer_refuses(kind, fields, place):
    """torch would refuse betas itself, but only once training starts."""
    with pytest.raises(ValidationError) as caught:
        optimizers[kind](**fields)
    assert [e["loc"] for e in caught.value.errors()] == [place]
