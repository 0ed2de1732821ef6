"""Copying parts of a donor and freezing parts: what is copied, what is never touched, and what is refused."""

import pytest
import torch
from norms.cases import PROFILED
from stored_facts import read_facts

from ablate.config.errors import AblateError, ConfigError
from ablate.experiment.tree import Experiment
from ablate.training.checkpoints import hash_weights
from ablate.training.procedures import Hooks, Place
from ablate.training.runs import load_experiment
from ablate.training.train import train
from ablate.training.trained import open_trained

EMBEDDING = {"llama": ["embed_tokens.weight"], "vit": ["vit.patch_embed.proj.weight", "vit.pos_embed"]}
HEAD = {"llama": ["lm_head.weight"], "vit": ["vit.head.weight", "vit.head.bias"]}
OUTER = {family: EMBEDDING[family] + HEAD[family] for family in EMBEDDING}
OUTSIDE = ["embedding", "head"]


def experiment(settings, **more):
    return Experiment.from_mapping(settings, {key.replace("__", "."): value for key, value in more.items()})


def started(settings, donor, copy=OUTSIDE, freeze=(), **more):
    start = {"from": donor, "copy": copy} if donor else {}
    return experiment(settings, warm_start={**start, "freeze": freeze}, **more)


def family_of(settings):
    return settings["model"].get("kind", "llama")


def stop_at(step):
    asked = iter(range(1, 1000))
    return Hooks(asked_to_stop=lambda: next(asked) == step)


@pytest.fixture
def donor(trained_once, family_settings):
    """A model without layers that was trained for a moment; its run."""
    return trained_once(experiment(family_settings, model__layers=0, seed=5)).run_id


def test_the_parts_are_the_donors_and_everything_else_starts_as_it_would_have(family_settings, donor, begun):
    family, given = family_of(family_settings), open_trained(donor).state
    cold = train(experiment(family_settings))
    warm = train(started(family_settings, donor))
    before, after = begun
    for name in OUTER[family]:
        assert torch.equal(after[name], given[name])
        assert not torch.equal(after[name], before[name])
    others = [name for name in before if name not in OUTER[family]]
    assert others
    different = [name for name in others if not torch.equal(before[name], after[name])]
    assert all("embed" in name or "cls_token" in name for name in different)  # the rest of ViT's embedding
    trained = open_trained(warm.run_id).state
    assert all(not torch.equal(trained[name], given[name]) for name in OUTER[family])  # copied is not frozen
    assert cold.metrics["val/loss"] != warm.metrics["val/loss"]


def test_frozen_parts_are_bit_identical_after_training_and_have_no_optimizer_state(store, family_settings, donor):
    family, given = family_of(family_settings), open_trained(donor).state
    decaying = {"optimizer__weight_decay": 0.5, "optimizer__lr": 1e-2}
    result = train(started(family_settings, donor, freeze=OUTSIDE, **decaying))
    source = open_trained(result.run_id)
    for name in OUTER[family]:
        assert torch.equal(source.state[name], given[name])
    blank = source.model()
    frozen = {n for n, _ in blank.named_parameters() if n.startswith(("embed", "lm_head", "vit.head", "vit.pos_embed"))}
    frozen |= {n for n, _ in blank.named_parameters() if n.startswith(("vit.patch_embed", "vit.cls_token"))}
    moving = {n: p for n, p in blank.named_parameters() if n not in frozen}
    content = torch.load(store / "runs" / result.run_id / "last.ckpt", weights_only=True)
    (optimizer,) = content["optimizer_states"]
    shapes = sorted(tuple(state["exp_avg"].shape) for state in optimizer["state"].values())
    assert shapes == sorted(tuple(p.shape) for p in moving.values())
    cold = train(experiment(family_settings, **decaying))
    still = [name for name in moving if torch.equal(open_trained(cold.run_id).state[name], source.state[name])]
    assert not still


def test_freezing_alone_changes_nothing_else_at_the_first_update(store, family_settings, begun):
    """Without a donor the frozen parts stay as they were drawn, and the others take the step of a free run."""
    one = {"trainer__max_steps": 1, "trainer__val_check_interval": 1}
    free = train(experiment(family_settings, **one))
    frozen = train(started(family_settings, None, freeze="head", **one))
    first, second = begun
    assert all(torch.equal(first[name], second[name]) for name in first)
    a, b = open_trained(free.run_id).state, open_trained(frozen.run_id).state
    head = HEAD[family_of(family_settings)]
    for name in a:
        if name in head:
            assert torch.equal(b[name], second[name])
            assert not torch.equal(a[name], b[name])
        else:
            torch.testing.assert_close(a[name], b[name], rtol=0, atol=0)


def test_a_resumed_run_neither_copies_again_nor_thaws(store, family_settings, donor):
    """It goes on without the donor, to the numbers of an uninterrupted run."""
    wanted = started(family_settings, donor, freeze=["head"])
    whole = train(wanted)
    part = train(wanted, hooks=stop_at(7))
    assert part.status == "interrupted"
    (store / "runs" / donor / "last.ckpt").unlink()
    rest = train(load_experiment(part.run_id, {}), Place(run_id=part.run_id))
    assert rest.metrics == whole.metrics
    a, b = open_trained(whole.run_id).state, open_trained(rest.run_id).state
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_stored_configuration_names_the_very_weights(trained_once, tiny_settings):
    donor = trained_once(experiment(tiny_settings, model__layers=0)).run_id
    run = train(started(tiny_settings, donor)).run_id
    stored = open_trained(run).experiment
    assert stored.warm_start.donor == donor
    assert stored.warm_start.sha256 == hash_weights(open_trained(donor).state)
    assert stored == Experiment.from_mapping(stored.to_tree())
    other = train(experiment(tiny_settings, model__layers=0, seed=1)).run_id
    with pytest.raises(ConfigError, match=r"weights of .* have changed"):
        train(Experiment.from_mapping(stored.to_tree(), {"warm_start.from": other}))


def test_a_sublayer_comes_with_its_residual_connection(trained_once, tiny_settings, begun):
    donor = trained_once(experiment(tiny_settings, norm="layerscale", model__layers=1, model__sublayers="attn")).run_id
    begun.clear()
    train(started(tiny_settings, donor, ["layers.0.attn"], norm="layerscale"))
    given = open_trained(donor).state
    (after,) = begun
    copied = [name for name in after if name in given and torch.equal(after[name], given[name])]
    assert "layers.0.attn_residual.scale" in copied
    assert {name for name in copied if "attn." in name} == {n for n in given if "attn." in n}
    assert not [name for name in copied if name.startswith("layers.1.attn.")]


def test_what_admin_measures_does_not_overwrite_what_was_copied(trained_once, tiny_settings, begun):
    tree = {**tiny_settings, **PROFILED["llama"]}
    donor = trained_once(experiment(tree, seed=3, optimizer__lr=0.05)).run_id
    given = open_trained(donor).state
    begun.clear()
    run = train(started(tree, donor, ["embedding", "layers.0"], freeze=["layers.0"])).run_id
    (after,) = begun
    train(experiment(tree))
    for name in ("layers.0.attn_residual.omega", "layers.0.mlp_residual.omega"):
        assert torch.equal(after[name], given[name])
        assert torch.equal(open_trained(run).state[name], given[name])
    cold = begun[1]
    assert not torch.equal(after["layers.1.attn_residual.omega"], cold["layers.1.attn_residual.omega"])


def test_the_average_of_the_weights_begins_with_what_was_copied(store, trained_once, tiny_settings):
    donor = trained_once(experiment(tiny_settings, model__layers=0)).run_id
    wanted = started(tiny_settings, donor, freeze=OUTSIDE, trainer__ema_decay=0.5)
    run = train(wanted)
    content = torch.load(store / "runs" / run.run_id / "last.ckpt", weights_only=True)
    average = content["callbacks"]["WeightAverage"]["weights"]
    for name in OUTER["llama"]:
        assert torch.equal(average[name], open_trained(donor).state[name])


def test_an_exported_folder_is_a_donor(trained_once, tiny_settings, tmp_path):
    from ablate.addons.export.run import export

    for tied in (False, True):
        tree = {**tiny_settings, "model": {**tiny_settings["model"], "tie_embeddings": tied}}
        donor = trained_once(experiment(tree, model__layers=0)).run_id
        folder = tmp_path / f"weights-{tied}"
        export(donor, "safetensors", folder)
        run = train(started(tree, str(folder), freeze=OUTSIDE)).run_id
        state = open_trained(run).state
        assert all(torch.equal(state[name], open_trained(donor).state[name]) for name in OUTER["llama"])
        assert open_trained(run).experiment.warm_start.sha256 == hash_weights(open_trained(donor).state)


def test_a_tied_head_is_frozen_with_the_embedding_or_not_at_all(trained_once, tiny_settings):
    tied = {**tiny_settings, "model": {**tiny_settings["model"], "tie_embeddings": True}}
    with pytest.raises(ConfigError, match="one matrix of embedding and head: name both"):
        train(started(tied, None, freeze="embedding"))
    untied, donor = (trained_once(experiment(t, model__layers=0)).run_id for t in (tiny_settings, tied))
    with pytest.raises(ConfigError, match="are one matrix in the model and two in the source run"):
        train(started(tied, untied))
    run = train(started(tied, donor, freeze=OUTSIDE)).run_id
    state, given = open_trained(run).state, open_trained(donor).state
    assert torch.equal(state["embed_tokens.weight"], given["embed_tokens.weight"])
    assert state["lm_head.weight"].data_ptr() == state["embed_tokens.weight"].data_ptr()
    part = train(started(tiny_settings, donor, freeze=OUTSIDE)).run_id  # the other way round each gets its own
    assert torch.equal(open_trained(part).state["lm_head.weight"], given["embed_tokens.weight"])


def test_every_tensor_that_does_not_fit_is_told(trained_once, tiny_settings):
    wide = {"model__layers": 1, "model__hidden": 32}
    donor = trained_once(experiment(tiny_settings, **wide)).run_id
    with pytest.raises(ConfigError) as error:
        train(started(tiny_settings, donor, ["embedding", "head", "layers.0.mlp"]))
    text = str(error.value)
    assert "embed_tokens.weight is [256, 16] here, [256, 32]" in text
    assert "lm_head.weight is [256, 16] here, [256, 32]" in text
    assert "layers.0.mlp.gate_up_proj.weight is [64, 16] here, [64, 32]" in text
    assert "layers.0.mlp.down_proj.weight is [16, 32] here, [32, 32]" in text
    sandwich = train(experiment(tiny_settings, norm="sandwich")).run_id
    with pytest.raises(ConfigError, match=r"layers.0.attn_residual.norm.weight is \[16\] here, missing in"):
        train(started(tiny_settings, sandwich, "layers.0.attn"))


def test_all_is_every_weight_of_the_same_model(trained_once, family_settings, begun):
    donor = trained_once(experiment(family_settings, norm="layerscale", seed=3)).run_id
    begun.clear()
    train(started(family_settings, donor, "all", norm="layerscale"))
    given = open_trained(donor).state
    (after,) = begun
    assert set(after) == set(given)
    assert all(torch.equal(after[name], given[name]) for name in given)


def test_all_of_another_model_is_refused_although_its_weights_fit(store, tiny_settings):
    """Mix-LN and Pre-LN have the same tensors, and so do two and four heads."""
    mix = train(experiment(tiny_settings, norm={"kind": "mix", "alpha": 0.5})).run_id
    with pytest.raises(ConfigError, match=r"norm.kind.*all of the source run .* is copied, where it is mix"):
        train(started(tiny_settings, mix, "all"))
    assert train(started(tiny_settings, mix, "layers")).status == "completed"  # parts are taken as they are
    heads = {**tiny_settings["model"], "heads": 4, "hidden": 32}
    four = train(experiment({**tiny_settings, "model": heads})).run_id
    with pytest.raises(ConfigError) as error:
        train(started({**tiny_settings, "model": {**heads, "heads": 2}}, four, "all"))
    assert "model.heads" in str(error.value)
    assert "model.hidden" not in str(error.value)


def test_a_donor_of_other_multipliers_is_refused(trained_once, tiny_settings):
    """Its weights would mean something else here. At the size of the base there are no multipliers."""
    plain = trained_once(experiment(tiny_settings, model__layers=0, seed=5)).run_id
    hidden = tiny_settings["model"]["hidden"]
    scaled = {"kind": "mup", "base": {"hidden": hidden // 2}}
    with pytest.raises(ConfigError, match=r"parametrization: multiplies parts of the model differently"):
        train(started(tiny_settings, plain, parametrization=scaled))
    assert train(started(tiny_settings, plain, parametrization={"kind": "mup", "base": {"hidden": hidden}})).run_id


def test_a_donor_of_another_tokenizer_is_refused(trained_once, tiny_settings, tmp_path):
    """Two tokenizers of the same size that cut text otherwise; a copy of the donor's is the donor's."""
    tokenizers = pytest.importorskip("tokenizers")
    names = []
    for number, first in enumerate(("is", "it", "is")):
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, first: 1, "</s>": 2}, unk_token="[UNK]"))
        made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        made.save(str(tmp_path / f"{number}.json"), pretty=number == 2)
        names.append(str(tmp_path / f"{number}.json"))
    (tmp_path / "a.txt").write_text("is it so ? " * 200)
    data = {"kind": "text", "files": str(tmp_path / "a.txt"), "seq_len": 8, "val_fraction": 0.2}
    trees = [{**tiny_settings, "data": {**data, "tokenizer": name}} for name in names]
    donor = trained_once(experiment(trees[0])).run_id
    with pytest.raises(
        ConfigError, match=r"data.tokenizer.* was trained with the tokenizer .*0.json, and this run's tokenizer differs"
    ):
        train(started(trees[1], donor, "all"))
    assert train(started(trees[1], donor, "layers")).status == "completed"
    assert train(started(trees[2], donor, "all")).status == "completed"


def test_the_operations_of_all_stages_are_facts_of_the_run(store, tiny_settings):
    """A chain of three: each counts those before it. Hand-computed: 16 wide, 256 bytes, norms and head at depth 0."""
    first = train(experiment(tiny_settings, model__layers=0))
    per_token = 6 * (16 + 16 * 256)
    assert first.facts["ablate.flops"] == per_token * 12 * 4 * 32
    second = train(started(tiny_settings, first.run_id, freeze=OUTSIDE))
    layers = open_trained(second.run_id).model().config.layer_parameters() + 2 * 2 * 16
    own = (6 * (layers + 16) + 2 * 16 * 256) * 12 * 4 * 32
    assert second.facts["ablate.flops_before"] == first.facts["ablate.flops"]
    assert second.facts["ablate.flops"] == own + first.facts["ablate.flops"]
    assert second.facts["ablate.state_bytes"] == 16 * (layers + 16) + 2 * 2 * 16 * 256
    third = train(started(tiny_settings, second.run_id))
    assert third.facts["ablate.flops_before"] == second.facts["ablate.flops"]
    assert float(read_facts(second.run_id)["ablate.flops"]) == second.facts["ablate.flops"]


@pytest.mark.parametrize(
    ("start", "text"),
    [
        ({"from": "DONOR"}, "copy nothing"),
        ({"copy": ["head"]}, "copy needs from"),
        ({"freeze": []}, "neither copies nor freezes"),
        ({"from": "DONOR", "copy": "embeding"}, "has no such part.*Did you mean embedding"),
        ({"from": "DONOR", "copy": "layers.1"}, "the source run .* has no such part"),
        ({"freeze": ["haed"]}, "warm_start.freeze: the model has no such part.*Did you mean head"),
        ({"freeze": ["embedding", "layers", "final_norm", "head"]}, "nothing is left to train"),
        ({"from": "nowhere", "copy": "head"}, "neither a checkpoint nor a run"),
        ({"form": "nowhere", "copy": "head"}, "Did you mean warm_start.from"),
        ({"from": "sweep:demo/mix", "copy": "head"}, "demo"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_run_begins(store, trained_once, tiny_settings, start, text):
    donor = trained_once(experiment(tiny_settings, model__layers=1)).run_id
    given = {key: donor if value == "DONOR" else value for key, value in start.items()}
    before = len(list((store / "runs").iterdir()))
    with pytest.raises(AblateError, match=text):
        train(experiment(tiny_settings, warm_start=given))
    assert len(list((store / "runs").iterdir())) == before
