"""LoRA: what is trained and what stays, merged weights against W + alpha / rank B A by hand, and what is refused."""

import importlib.metadata
import json
import sys

import pytest
import torch
from norms.cases import NORMED, PROFILED, RESIDUAL, WIRED, sensible

from ablate import tracking
from ablate.addons.post_training.lora import EXTENSION, adapt, validate_targets
from ablate.config.building import json_schema
from ablate.config.errors import AblateError, ConfigError
from ablate.data import IGNORED
from ablate.experiment.parts import Lora
from ablate.experiment.tree import Experiment
from ablate.norms import norm_layers
from ablate.training.procedures import Hooks, Place
from ablate.training.runs import load_experiment
from ablate.training.train import train
from ablate.training.trained import open_trained

pytest.importorskip("peft")

NAMES = {
    "llama": ["attn.qkv_proj", "attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"],
    "vit": ["attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"],
    "gru": ["input", "recurrent"],
}
INSIDE = [{"gate": "headwise"}, {"sink": "learned"}, {"value_residual": "learned"}, {"temperature": True}]
CASES = [
    *((family, {"norm": kind}) for family, kind in WIRED if kind in NORMED),
    *((family, {"norm.layer": layer}) for family in RESIDUAL for layer in norm_layers if sensible(family, layer)),
    *((family, {"model.attention": options}) for family in RESIDUAL for options in [*INSIDE, {"qk_clip": 1e-3}]),
    ("gru", {"norm": "summed_inputs"}),
]


def experiment(settings, **more):
    return Experiment.from_mapping(settings, {key.replace("__", "."): value for key, value in more.items()})


def adapted(settings, donor, lora, **more):
    """A run on `donor`, with steps large enough for a difference."""
    start = {"from": donor, "copy": "all", **more.pop("start", {})}
    return experiment(settings, warm_start=start, lora=lora, **{"optimizer__lr": 0.02, **more})


def family_of(settings):
    return settings["model"].get("kind", "llama")


def checkpoint(store, run):
    return torch.load(store / "runs" / run / "last.ckpt", weights_only=True)


def weights(store, run):
    """The weights of a checkpoint as they are stored."""
    state = checkpoint(store, run)["state_dict"]
    return {name.removeprefix("model."): value for name, value in state.items()}


def by_hand(state, scale):
    """The weights of a model without adapters: W + scale B A, one by one."""
    found = {}
    for name, value in state.items():
        if "lora_" in name:
            continue
        place = name.removesuffix(".base_layer.weight")
        if place != name:
            a, b = (state[f"{place}.lora_{letter}.default.weight"] for letter in "AB")
            value = value + scale * sum(torch.outer(b[:, i], a[i]) for i in range(len(a)))
        found[name.replace(".base_layer", "")] = value
    return found


@pytest.fixture
def donor(trained_once, family_settings):
    """A model that was trained for a moment; its run."""
    return trained_once(experiment(family_settings, seed=5)).run_id


# ---------------------------------------------------------------------------------------------------- the layers


@pytest.mark.parametrize(("family", "settings"), CASES, ids=str)
def test_adapters_alone_learn_and_are_merged_into_what_the_formula_says(tiny, family, settings):
    """In every placement, with every norm layer and option of the attention, on every linear layer of attention and
    MLP: connections, gates and norms stay, and what the model does after an update."""
    _, plain, inputs = tiny(family, settings)
    run, model, _ = tiny(family, settings)
    run = run.model_copy(update={"lora": Lora(rank=3, alpha=12.0, targets=["layers"])})
    EXTENSION.restrict(model, run)
    before = plain.eval()(inputs)
    assert torch.equal(model.eval()(inputs), before)
    learned = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(learned) == 2 * len(NAMES[family]) * 3
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.03)
    for update in (1, 2):  # in the first a factor is still zero
        model.train()(inputs).square().mean().backward()
        optimizer.step()
        run.after_update(model, update)
    stored = {name.replace(".base_layer", ""): value for name, value in model.state_dict().items()}
    assert all(torch.equal(stored[name], p) for name, p in plain.named_parameters())
    after = model.eval()(inputs)
    for merged in (
        by_hand(model.state_dict(), 12 / 3),
        EXTENSION.merge(lambda: tiny(family, settings)[1], run, model.state_dict()),
    ):
        plain.load_state_dict(merged)
        torch.testing.assert_close(plain(inputs), after)
    assert not torch.allclose(before, after)


def test_the_loss_sees_the_adapters_and_gives_them_alone_a_gradient(tiny):
    _, model, tokens = tiny("llama")
    adapt(model, Lora(rank=2))
    model(tokens, tokens).backward()
    wanted = {name for name, p in model.named_parameters() if "lora_" in name}
    assert {name for name, p in model.named_parameters() if p.grad is not None} == wanted
    moved = [name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0]
    assert moved
    assert all("lora_B" in name for name in moved)  # of A it is zero while B is


@pytest.mark.parametrize(
    ("family", "kind", "targets", "expected"),
    [
        ("llama", "pre", ("attn", "mlp"), [f"layers.{i}.{name}" for i in range(3) for name in NAMES["llama"]]),
        ("llama", "pre", "qkv_proj", [f"layers.{i}.attn.qkv_proj" for i in range(3)]),
        ("llama", "pre", ["layers.1", "mlp.down_proj"], ["layers.0.mlp.down_proj"]
            + [f"layers.1.{name}" for name in NAMES["llama"]] + ["layers.2.mlp.down_proj"]),
        ("llama", "pre", "layers.2.attn.o_proj", ["layers.2.attn.o_proj"]),
        ("vit", "pre", "layers.0.attn", ["vit.blocks.0.attn.qkv", "vit.blocks.0.attn.proj"]),
        ("vit", "hybrid", "qkv", [f"vit.blocks.{i}.attn.qkv" for i in range(3)]),
    ],
)  # fmt: skip
def test_targets_are_sublayers_names_and_parts(tiny, family, kind, targets, expected):
    _, model, _ = tiny(family, {"norm": kind})
    adapt(model, experiment({}, warm_start={"from": "x", "copy": "all"}, lora__targets=targets).lora)
    found = [name.removesuffix(".lora_A.default") for name, _ in model.named_modules() if name.endswith("A.default")]
    assert [name.removesuffix(".projection") for name in found] == expected


# ---------------------------------------------------------------------------------------------------- runs


def test_only_adapters_are_trained_from_the_donors_loss_on(store, family_settings, donor, begun):
    """Neither gradient, moments nor weight decay touch anything else, and what is opened afterwards is one model."""
    family, given = family_of(family_settings), open_trained(donor).state
    wanted = adapted(family_settings, donor, {"rank": 2, "alpha": 6.0}, optimizer__weight_decay=0.5)
    result = train(wanted)
    (first,) = begun
    assert all(torch.equal(value, given[name]) for name, value in by_hand(first, 3.0).items())
    last = weights(store, result.run_id)
    for name, value in last.items():
        if "lora_" not in name:
            assert torch.equal(value, given[name.replace(".base_layer", "")]), name
    assert len([n for n in last if "lora_" in n and not torch.equal(last[n], first[n])]) == 2 * 2 * len(NAMES[family])
    (optimizer,) = checkpoint(store, result.run_id)["optimizer_states"]
    shapes = sorted(tuple(state["exp_avg"].shape) for state in optimizer["state"].values())
    assert shapes == sorted(tuple(value.shape) for name, value in last.items() if "lora_" in name)

    source = open_trained(result.run_id)
    assert set(source.state) == set(given)
    for name, value in by_hand(last, 3.0).items():
        torch.testing.assert_close(source.state[name], value, rtol=1e-6, atol=1e-7)
    assert 0 < result.metrics["val/loss"] < 20
    learned = sum(value.numel() for name, value in last.items() if "lora_" in name)
    still = sum(p.numel() for p in source.model().parameters())
    assert (result.facts["ablate.parameters"], result.facts["ablate.parameters.frozen"]) == (learned + still, still)
    assert result.facts["version.peft"] == importlib.metadata.version("peft")


def test_the_loss_of_the_first_update_is_the_donors_and_the_last_is_the_merged_models(trained_once, tiny_settings):
    donor = trained_once(experiment(tiny_settings, seed=5)).run_id
    losses = []
    wanted = adapted(tiny_settings, donor, {"dropout": 0.2}, trainer__log_every_n_steps=1)
    result = train(wanted, hooks=Hooks(progress=lambda step, loss: losses.append(loss)))
    full = []
    same = experiment(wanted.to_tree(), lora=None)
    train(same, hooks=Hooks(progress=lambda step, loss: full.append(loss)))
    assert losses[0] == full[0]
    assert losses[-1] != full[-1]
    corpus = wanted.data.load(tracking.cache_folder())
    inputs, targets = corpus.val.__getitems__(range(len(corpus.val)))
    assert (targets != IGNORED).all()
    with torch.no_grad():
        logits = open_trained(result.run_id).model()(inputs).double().log_softmax(-1)
    loss = -logits.gather(-1, targets[..., None]).mean()
    assert result.metrics["val/loss"] == pytest.approx(float(loss), rel=1e-5)
    assert result.metrics["val/loss"] < trained_once(experiment(tiny_settings, seed=5)).metrics["val/loss"]


def test_an_interrupted_one_goes_on_bit_by_bit_without_the_donor(store, family_settings, donor):
    """With dropout, accumulated batches and an average of the weights."""
    more = {"trainer__accumulate": 2, "trainer__ema_decay": 0.5}
    wanted = adapted(family_settings, donor, {"rank": 2, "dropout": 0.3}, **more)
    whole, asked = train(wanted), iter(range(1, 1000))
    part = train(wanted, hooks=Hooks(asked_to_stop=lambda: next(asked) == 7))
    assert part.status == "interrupted"
    (store / "runs" / donor / "last.ckpt").unlink()
    rest = train(load_experiment(part.run_id, {}), Place(run_id=part.run_id))
    assert rest.metrics == whole.metrics
    a, b = weights(store, whole.run_id), weights(store, rest.run_id)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_average_is_of_the_adapters(store, trained_once, tiny_settings):
    donor = trained_once(experiment(tiny_settings)).run_id
    run = train(adapted(tiny_settings, donor, {"rank": 2, "alpha": 2.0}, trainer__ema_decay=0.9)).run_id
    average = checkpoint(store, run)["callbacks"]["WeightAverage"]["weights"]
    last = weights(store, run)
    assert [name for name in last if not torch.equal(average[name], last[name])] == [n for n in last if "lora_" in n]
    source = open_trained(run, ema=True)
    for name, value in by_hand(average, 1.0).items():
        torch.testing.assert_close(source.state[name], value, rtol=1e-6, atol=1e-7)


def test_what_is_frozen_by_name_gets_no_adapter(store, trained_once, tiny_settings):
    donor = trained_once(experiment(tiny_settings)).run_id
    run = train(adapted(tiny_settings, donor, {"rank": 2}, start={"freeze": ["embedding", "layers.0", "head"]})).run_id
    last = weights(store, run)
    beside = {name.partition(".lora_")[0] for name in last if "lora_" in name}
    assert beside == {f"layers.1.{name}" for name in NAMES["llama"]}
    given, state = open_trained(donor).state, open_trained(run).state
    changed = {name for name in state if not torch.equal(state[name], given[name])}
    assert changed == {f"layers.1.{name}.weight" for name in NAMES["llama"]}


def test_a_placement_that_looks_at_the_first_batch_changes_nothing_of_the_donor(trained_once, tiny_settings, begun):
    """Admin would set its factors anew."""
    tree = {**tiny_settings, **PROFILED["llama"]}
    donor = trained_once(experiment(tree, seed=3, optimizer__lr=0.05)).run_id
    begun.clear()
    run = train(adapted(tree, donor, {"rank": 2})).run_id
    given, (first,) = open_trained(donor).state, begun
    assert all(torch.equal(value, given[name]) for name, value in by_hand(first, 8.0).items())
    assert torch.equal(open_trained(run).state["layers.0.attn_residual.omega"], given["layers.0.attn_residual.omega"])


def test_branches_that_have_grown_stay(store, trained_once, tiny_settings, begun):
    """ProRes would let them grow anew."""
    tree = {**tiny_settings, "norm": {"kind": "prores", "updates": 9}}
    donor = trained_once(experiment(tree)).run_id
    grown = {name: value for name, value in open_trained(donor).state.items() if name.endswith("factor")}
    assert sorted({round(float(value), 3) for value in grown.values()}) == [0.667, 1.0]
    begun.clear()
    run = train(adapted(tree, donor, {"rank": 2}, trainer__max_steps=4)).run_id
    for state in (begun[0], weights(store, run)):
        assert all(torch.equal(state[name], value) for name, value in grown.items())


def test_it_is_measured_and_checkpointed_as_other_trainings_are(trained_once, tiny_settings):
    """Measurements on the layers, which adapters alone give a gradient, and blocks that are computed again."""
    donor = trained_once(experiment(tiny_settings)).run_id
    plain = train(adapted(tiny_settings, donor, {"rank": 2, "dropout": 0.2}))
    more = {"trainer__diagnose": {"what": "all", "interval": 4}, "trainer__activation_checkpointing": True}
    again = train(adapted(tiny_settings, donor, {"rank": 2, "dropout": 0.2}, **more))
    assert again.metrics["val/loss"] == pytest.approx(plain.metrics["val/loss"], rel=1e-6)
    a, b = open_trained(plain.run_id).state, open_trained(again.run_id).state
    assert all(torch.allclose(a[name], b[name], rtol=1e-5, atol=1e-6) for name in a)
    assert a.keys() == b.keys()


def test_it_is_a_model_like_any_other_afterwards(store, trained_once, tiny_settings, tmp_path):
    """Exported, with its folder as a donor; a second stage of adapters; all of its weights trained on."""
    from ablate.addons.export.in_memory import to_hf
    from ablate.addons.export.run import export

    donor = trained_once(experiment(tiny_settings, norm="lns")).run_id
    tree = {**tiny_settings, "norm": "lns"}
    run = train(adapted(tree, donor, {"rank": 2})).run_id
    source = open_trained(run)
    tokens = torch.arange(20).reshape(2, 10)
    with torch.no_grad():
        logits = source.model()(tokens)
        torch.testing.assert_close(to_hf(source)(tokens).logits, logits, rtol=1e-5, atol=1e-5)
    export(run, "safetensors", tmp_path / "weights")
    exported = open_trained(str(tmp_path / "weights"))
    assert all(torch.equal(exported.state[name], source.state[name]) for name in source.state)
    for first in (run, str(tmp_path / "weights")):
        second = train(adapted(tree, first, {"rank": 3})).run_id
        base = weights(store, second)
        assert torch.equal(base["layers.0.attn.o_proj.base_layer.weight"], source.state["layers.0.attn.o_proj.weight"])
    third = train(experiment(tree, warm_start={"from": second, "copy": "all"}))
    assert not [name for name in weights(store, third.run_id) if "lora" in name]


def test_operations_and_bytes_count_adapters_as_trained_and_the_rest_as_frozen(trained_once, tiny_settings):
    """By hand: rank 2 on 16 -> 48, 16 -> 16, 16 -> 64 and 32 -> 16 in two layers; norms of 16 and a head of 256."""
    donor = trained_once(experiment(tiny_settings))
    run = train(adapted(tiny_settings, donor.run_id, {"rank": 2}))
    learned = 2 * 2 * ((16 + 48) + (16 + 16) + (16 + 64) + (32 + 16))
    matrices = 2 * (16 * 48 + 16 * 16 + 16 * 64 + 32 * 16)
    frozen = matrices + 5 * 16 + 2 * 256 * 16
    assert run.facts["ablate.parameters"] == learned + frozen
    assert run.facts["ablate.state_bytes"] == 16 * learned + 2 * frozen
    own = (6 * learned + 2 * (matrices + 5 * 16 + 256 * 16)) * 12 * 4 * 32
    assert run.facts["ablate.flops"] == own + donor.facts["ablate.flops"]
    third = train(experiment(tiny_settings, warm_start={"from": run.run_id, "copy": "all"}))
    assert third.facts["ablate.flops_before"] == run.facts["ablate.flops"]


# ---------------------------------------------------------------------------------------------------- configuration


def test_fields_are_set_by_their_paths_and_described_in_the_schema():
    start = {"warm_start.from": "x", "warm_start.copy": "all"}
    one = Experiment.from_mapping(start, {"lora.rank": 16, "lora.targets": "attn"})
    assert one.lora == Lora(rank=16, targets=("attn",))
    assert Experiment.from_mapping(one.to_tree()) == one
    assert Experiment.from_mapping(one.to_tree(), {"lora": None}).lora is None
    assert Experiment.from_mapping(start, {"lora": {}}).lora == Lora()
    assert Experiment.from_mapping({**start, "lora": {"rank": 2}}, {"lora": {}}).lora == Lora(rank=2)
    assert "peft's lora_alpha" in json.dumps(json_schema(Experiment))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"lora": {}}, "lora: adapts a trained model.*set warm_start.from=RUN_ID and warm_start.copy=all"),
        ({"lora": {}, "warm_start": {"freeze": "head"}}, "lora: adapts a trained model"),
        ({"lora": {}, "warm_start": {"from": "DONOR", "copy": "layers"}}, "lora: adapts a trained model"),
        ({"lora": {"rank": 0}}, "lora.rank: must be greater than 0"),
        ({"lora": {"r": 4}}, "lora.r: unknown key. Did you mean lora.rank"),
        ({"lora": {"dropout": 1.0}}, "lora.dropout: must be less than 1"),
        ({"lora.targets": ["attn", "qkv_prj"]}, "no such linear layers. Accepted: attn, mlp, .*Did you mean qkv_proj"),
        ({"lora.targets": "head"}, "lora.targets: .*no such linear layers"),
        ({"lora.targets": []}, "lora.targets: nothing is left to train"),
        ({"lora.targets": "attn", "warm_start.freeze": ["layers.0.attn", "layers.1"]}, "all of them are in warm_start"),
        ({"lora": {}, "trainer": {"strategy": "fsdp", "tensor_parallel": 2}}, "tensor_parallel: must be 1 with lora"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_before_a_run_begins(store, trained_once, tiny_settings, settings, text):
    donor = trained_once(experiment(tiny_settings)).run_id
    if "warm_start" not in settings and text.find("adapts") < 0:
        settings = {"warm_start": {"from": "DONOR", "copy": "all"}, **settings}
    with pytest.raises(ConfigError, match=text):
        train(Experiment.from_mapping(json.loads(json.dumps({**tiny_settings, **settings}).replace("DONOR", donor))))
    assert len(list((store / "runs").iterdir())) == 1


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("gru", "no such linear layers. Accepted: input, recurrent, or parts such as layers.0."),
        ("convpool", "no such linear layers. It has none in its layers, and only these are adapted."),
    ],
)
def test_models_without_attention_say_what_they_have(tiny, family, text):
    _, model, _ = tiny(family)
    attn, mlp = validate_targets(model, Lora())
    assert attn.message == mlp.message == f"the model has {text}"


def test_without_the_library_it_says_what_to_install(store, trained_once, tiny_settings, monkeypatch):
    donor = trained_once(experiment(tiny_settings)).run_id
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(AblateError, match=r"pip install '\.\[hf\]'"):
        train(adapted(tiny_settings, donor, {}))
    assert len(list((store / "runs").iterdir())) == 1
