"""Parametrisations against their formulas written out by hand, and at their base against the standard one."""

import pytest
import torch
from norms.cases import NORMED, shaken
from torch.utils._pytree import tree_leaves

from ablate.config.errors import ConfigError
from ablate.experiment.tree import Experiment
from ablate.norms import placements
from ablate.norms.residuals import Multiplier
from ablate.optim import scaling
from ablate.optim.groups import list_factors
from ablate.optim.optimizers import build_optimizer
from ablate.optim.parametrizations import Factors, Multipliers, parametrizations
from ablate.parallel.deferred import defer_weights, materialize

FAMILIES = {
    "llama": {"model": {"kind": "llama", "hidden": 32, "layers": 4, "heads": 2, "mlp": 64}},
    "vit": {"model": {"kind": "vit", "hidden": 32, "layers": 4, "heads": 2, "mlp_ratio": 2}, "data": "digits"},
}
INPUTS = {"llama": (11, (8,)), "vit": (10, (1, 8, 8))}
SCALED = [kind for kind in parametrizations if kind != "standard"]
LISTED = [kind for kind in NORMED if placements[kind].listed]
M, K = 2.0, 2.0  # the width and the depth over the base's, below


def build(family, *more):
    experiment = Experiment.from_mapping(FAMILIES[family], *more)
    torch.manual_seed(0)
    return experiment, experiment.build_model(*INPUTS[family])


def give_base(kind, hidden=16, layers=2, **fields):
    return {"parametrization": {"kind": kind, "base": {"hidden": hidden, "layers": layers, **fields}}}


def train(family, experiment, model, updates=3):
    classes, shape = INPUTS[family]
    optimizer = build_optimizer(experiment.optimizer, model)
    draw = torch.Generator().manual_seed(1)
    for _ in range(updates):
        if family == "llama":
            inputs = torch.randint(classes, (2, *shape), generator=draw)
        else:
            inputs = torch.randn(4, *shape, generator=draw)
        targets = torch.randint(classes, inputs.shape if family == "llama" else inputs.shape[:1], generator=draw)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten()).backward()
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("norm", LISTED)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", SCALED)
def test_at_the_base_it_is_the_standard_one_to_the_bit(kind, family, norm):
    if kind == "complete_p" and placements.parse(norm).scales_by_depth():
        pytest.skip("refused, which is tested below")
    own = build(family, {"norm": norm}, give_base(kind, 32, 4))
    standard, own = train(family, *build(family, {"norm": norm})), train(family, *own)
    assert own.keys() == standard.keys()
    assert all(torch.equal(own[name], standard[name]) for name in standard)


@pytest.mark.parametrize("kind", SCALED)
def test_at_the_base_there_are_no_multipliers(kind):
    """So that it is exported, warm-started and resumed as the standard one is."""
    experiment, model = build("llama", give_base(kind, 32, 4, head_dim=16))
    assert experiment.multipliers == Multipliers()
    assert model.multipliers is None
    assert experiment.from_mapping(experiment.to_tree()) == experiment


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("family", FAMILIES)
def test_factors_of_each_role(kind, family):
    """Table 8 of Yang et al. 2022, table 1 of Dey et al. 2025, written out."""
    settings = {"optimizer": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.1, "eps": 1e-8}}
    experiment, model = build(family, settings, give_base(kind))
    optimizer = build_optimizer(experiment.optimizer, model)
    assert optimizer.param_groups[0]["lr"] == 1e-3  # which is what is logged
    k = K if kind == "complete_p" else 1.0
    inside = {id(p) for p in model.blocks().parameters()}
    head = {id(p) for name, p in model.named_parameters() if name.startswith(("lm_head", "vit.head"))}
    stem = ("embed_tokens", "vit.patch_embed", "vit.pos_embed", "vit.cls_token")
    embedding = {id(p) for name, p in model.named_parameters() if name.startswith(stem)}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) in inside and parameter.ndim == 2:
                expected = 1e-3 / M, 0.1 * M, 1e-8 / M / k
            elif id(parameter) in inside:
                expected = 1e-3, 0.0, 1e-8 / M / k
            else:
                decays = group["weight_decay"] == 0.1 and id(parameter) in head | embedding
                expected = 1e-3, 0.1 if decays else 0.0, 1e-8 / M
            assert (group["lr"], group["weight_decay"], group["eps"]) == pytest.approx(expected)


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("family", FAMILIES)
def test_initial_weights_and_multipliers(kind, family):
    (_, standard), (_, own) = build(family), build(family, give_base(kind))
    inside = {name for name, _ in own.named_parameters() if "layers." in name or "blocks." in name}
    for name, weight in own.named_parameters():
        factor = M**-0.5 if name in inside and weight.ndim == 2 else 1.0
        torch.testing.assert_close(weight, factor * standard.get_parameter(name))
    factors = sorted(module.factor for module in own.modules() if isinstance(module, Multiplier))
    branches = [1 / K] * 8 if kind == "complete_p" else []
    assert factors == [*branches, 1 / M]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("family", FAMILIES)
def test_gates_of_norms_are_a_readout_and_an_embedding(family, kind, norm):
    """From the width to few numbers: as a head, initial weights and rate times 1/m. Back: as an embedding. Post-LN has
    them on the stream, where what L layers learn adds up."""
    own = {"norm": norm, "norm.layer": "gatednorm", "optimizer": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.1}}
    (_, standard), (experiment, model) = build(family, own), build(family, own, give_base(kind))
    groups = build_optimizer(experiment.optimizer, model).param_groups
    settings = {id(p): (g["lr"], g["lr"] * g["weight_decay"]) for g in groups for p in g["params"]}
    names = [name for name, _ in model.named_parameters() if name.endswith((".down", ".up"))]
    assert len(names) == 2 * (2 * 4 + 1)
    for name in names:
        weight, on_stream = model.get_parameter(name), norm == "post" and "residual" in name
        width = M if name.endswith("down") else 1.0
        depth = K if kind == "complete_p" and on_stream else 1.0
        torch.testing.assert_close(weight, standard.get_parameter(name) / width)
        assert settings[id(weight)] == pytest.approx((1e-3 / width / depth, 1e-4 / depth)), name


@pytest.mark.parametrize("norm", LISTED)
@pytest.mark.parametrize("family", FAMILIES)
def test_branches_are_multiplied_as_a_whole(family, norm):
    """Twice as deep as the base: each branch that is added counts half, also where a norm follows the sublayer."""
    if placements.parse(norm).scales_by_depth():
        with pytest.raises(ConfigError, match=r"norm\.kind: .* by the number of layers itself"):
            build(family, {"norm": norm}, give_base("complete_p"))
        return
    _, model = build(family, {"norm": norm}, give_base("complete_p", hidden=32))
    (_, plain) = build(family, {"norm": norm})
    block, other = model.blocks()[0], plain.blocks()[0]
    x = model.open(torch.randn(2, 5, 32))
    added = []

    def halve(module, inputs, output):
        added.append(output)
        return 0.5 * output

    for residual in (other.attn_residual, other.mlp_residual):
        getattr(residual, "inner", residual).drop.register_forward_hook(halve)
    arguments = [model.rotary(torch.arange(5))] if family == "llama" else []
    torch.testing.assert_close(block(x, *arguments), other(x, *arguments))
    assert len(added) == 2


@pytest.mark.parametrize("norm", LISTED)
@pytest.mark.parametrize("family", FAMILIES)
def test_norms_on_the_stream_are_those_that_matter_without_branches(family, norm):
    """Where all branches count nothing, a layer's output depends on what is learned on the stream, and on nothing
    else. With complete_p that has the learning rate times 1/k, and all other vectors that of the optimizer."""
    mixed = {"kind": "mhc", "mix_start": 0.5}  # by default the streams hardly mix, and what is learned hardly counts
    _, model = build(family, {"norm": mixed if norm == "mhc" else norm})
    block = model.blocks()[-1]
    shaken(model, 0.05)
    for residual in (block.attn_residual, block.mlp_residual):
        getattr(residual, "inner", residual).drop = Multiplier(0.0)
    arguments = [model.rotary(torch.arange(5))] if family == "llama" else []
    generator = torch.Generator().manual_seed(1)
    x = model.open(torch.randn(2, 5, 32, generator=generator))
    if isinstance(x, torch.Tensor):  # equal streams cannot be mixed
        x = x + torch.randn(x.shape, generator=generator)
    after = [part for part in tree_leaves(block(x, *arguments)) if part is not None and part.grad_fn]
    sum((part * torch.linspace(-1, 2, part.numel()).view_as(part)).sum() for part in after).backward()
    model.multipliers = Multipliers(stream={"norms": Factors(0.25), "readouts": Factors(0.25)})
    factors = list_factors(model)
    for name, parameter in block.named_parameters():
        moves = parameter.grad is not None and bool(parameter.grad.abs().max() > 1e-6)
        (own,) = [factors[full] for full, p in model.named_parameters() if p is parameter]
        assert own.lr == (0.25 if moves else 1.0), name


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_norms_on_the_stream_by_depth(alpha):
    """N(x + f(x)) in twice as many layers: what one of them learns counts half, whatever a branch counts."""
    experiment, model = build("llama", {"norm": "post", "optimizer.lr": 1e-3}, give_base("complete_p"))
    changed = experiment.from_mapping(experiment.to_tree(), {"parametrization.alpha": alpha})
    model.multipliers = changed.multipliers
    rates = {
        id(p): (group["lr"], group["eps"])
        for group in build_optimizer(changed.optimizer, model).param_groups
        for p in group["params"]
    }
    for name, parameter in model.named_parameters():
        if name.startswith("layers") and parameter.ndim == 1:
            assert rates[id(parameter)] == pytest.approx((1e-3 / K, 1e-8 / M)), name
        elif name.startswith("layers"):
            assert rates[id(parameter)] == pytest.approx((1e-3 / M * K ** (alpha - 1), 1e-8 / M / K**alpha)), name


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_by_the_width_of_a_head(family):
    """Logits q k / d with the factor that makes them q k / sqrt(d) at the base's heads, of half the width."""
    _, model = build(family, give_base("mup", head_dim=8))
    (_, plain) = build(family, give_base("mup"))
    for block in model.blocks():
        attn = block.attn
        scale = attn.query_scale if family == "llama" else attn.q_norm
        assert scale.factor == pytest.approx((8 / 16) ** 0.5)
    with torch.no_grad():
        for block in plain.blocks():
            qkv = block.attn.qkv_proj.weight if family == "llama" else block.attn.qkv.weight
            qkv[: len(qkv) // 3] *= (8 / 16) ** 0.5
    inputs = torch.arange(8).view(1, 8) if family == "llama" else torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(model(inputs), plain(inputs))


@pytest.mark.parametrize(
    ("arguments", "matrices"),
    [
        ({"kind": "timm", "name": "muon"}, M**-0.5),  # match_rms_adamw
        ({"kind": "timm", "name": "muon", "adjust_lr_fn": "original"}, 1.0),
        ({"kind": "torch", "name": "Muon"}, 1.0),
        ({"kind": "torch", "name": "Muon", "adjust_lr_fn": "match_rms_adamw"}, M**-0.5),
    ],
)
def test_muon_has_the_rate_of_its_updates(arguments, matrices):
    more = {"optimizer": {**arguments, "lr": 1e-2, "weight_decay": 0.1}}
    experiment, model = build("llama", more, give_base("mup"))
    groups = build_optimizer(experiment.optimizer, model).param_groups
    inside = {id(p) for p in model.blocks().parameters() if p.ndim == 2}
    own = [group for group in groups if any(id(p) in inside for p in group["params"])]
    assert [group["lr"] for group in own] == pytest.approx([1e-2 * matrices] * len(own))
    assert [group["lr"] * group["weight_decay"] for group in own] == pytest.approx([1e-3] * len(own))
    rest = [group for group in groups if group not in own and group["params"]]
    assert [group["lr"] for group in rest] == pytest.approx([1e-2] * len(rest))


def test_weights_that_are_deferred_are_the_same():
    """As fsdp makes them: on the meta device, and block by block."""
    experiment, model = build("llama", give_base("complete_p"))
    torch.manual_seed(0)
    deferred, recipes = defer_weights(lambda: experiment.build_model(*INPUTS["llama"]))
    materialize(deferred, recipes, {}, None)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, deferred.get_parameter(name)), name


SGD = {"kind": "torch", "name": "SGD"}
LORA = {"rank": 2}
ALIGN = {"method": "dpo", "beta": 0.1}
VIT = {"model": {"kind": "vit", "hidden": 128, "heads": 4}, "data": "digits"}
REFUSED = {
    "a wider base": (give_base("mup", hidden=64), r"parametrization\.base\.hidden: is wider than the model"),
    "a base that nobody gave": (
        {"parametrization.kind": "mup", "model.hidden": 32},
        r"base\.hidden: is not set, and its default, 64, is wider than the model, whose model\.hidden is 32\. Set it",
    ),
    "a deeper base": (give_base("complete_p", layers=8), r"parametrization\.base\.layers: is deeper"),
    "tied embeddings": (
        {**give_base("mup"), "model.tie_embeddings": True},
        r"the head has .* Set model\.tie_embeddings=false",
    ),
    "its own scaling": ({**give_base("mup"), "init": "fan_in"}, r"init\.kind: scales the initial weights by the w"),
    "by depth twice": (
        {**give_base("complete_p"), "init": "scaled"},
        r"init\.kind: scales the initial weights by the dep",
    ),
    "DeepNorm by depth": ({**give_base("complete_p"), "norm": "deepnorm"}, r"norm\.kind: deepnorm scales residual"),
    "DeepNorm by depth in some layers": (
        {**give_base("complete_p"), "norm": {"kind": "mix", "first": "deepnorm"}},
        r"deepnorm, which some of its layers have, scales .*mix with its usual settings\); or take mup",
    ),
    "another optimizer": ({**give_base("mup"), "optimizer": SGD}, r"optimizer\.kind: the learning rates of mup"),
    "no roles": ({**give_base("mup"), "model": {"kind": "gru", "hidden": 32}}, r"needs to know the role of each"),
    "adapters": ({**give_base("mup"), "lora": LORA}, r"lora: trains a model whose size has been chosen"),
    "alignment": ({**give_base("mup"), "align": ALIGN}, r"align: trains a model whose size has been chosen"),
    "a head of the task": (
        {**give_base("mup"), **VIT, "task": "masked_image_modeling"},
        r"has a head of its own, .* Accepted: image_classification; or param.*=standard",
    ),
    "unknown kind": ({"parametrization": "mu_p"}, r"parametrization"),
}


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.addons] if what == "no roles" else []) for what in REFUSED]
)
def test_what_does_not_go_together_is_refused(what):
    settings, message = REFUSED[what]
    family = {} if "model" in settings else FAMILIES["llama"]
    with pytest.raises(ConfigError, match=message):
        Experiment.from_mapping(family, settings)


def test_layers_without_the_two_names_get_no_silent_multiplier():
    norm = Experiment.from_mapping(FAMILIES["llama"]).norm
    with pytest.raises(ConfigError, match="call neither attn_residual nor mlp_residual"):
        scaling._scale_branches(torch.nn.Linear(2, 2), 0.5, norm)
