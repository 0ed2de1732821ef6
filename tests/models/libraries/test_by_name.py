"""Models by name as families of models: the checks of `ablate check`, initial weights, messages, and runs."""

import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from models.libraries.cases import HF, KNOWN, LLAMA, OTHERS, TIMM, classes_of, inputs_of, shape_of
from norms.cases import CARRIERS, NORMED

import ablate
from ablate.addons.export.run import export
from ablate.config.errors import AblateError, ConfigError
from ablate.diagnostics.checks import models as checks
from ablate.diagnostics.checks.base import CheckSkippedError
from ablate.diagnostics.checks.subject import build_subject
from ablate.experiment.tree import Experiment
from ablate.models.libraries import hf
from ablate.models.libraries.base import find_family
from ablate.norms import placements
from ablate.training.trained import open_trained

DIFFERING = ["llama", "qwen3", "gpt2", "bert", "vit", "deit-distilled"]  # of each entry of the table one


def as_words(settings):
    return {f"model.{name}": value for name, value in settings.items() if name != "kind"}


@pytest.mark.parametrize("case", DIFFERING)
def test_every_accepted_placement_has_its_norms_and_sees_no_future(case):
    settings, accepted, refused = KNOWN[case], 0, []
    for kind in placements:
        try:
            subject = build_subject({"model.kind": settings["kind"], "norm.kind": kind, **as_words(settings)})
        except ConfigError as error:
            refused.append(str(error))
            continue
        accepted += 1
        checks.check_counts(subject)
        if settings["kind"] == "hf":
            checks.check_leak(subject)
    assert accepted >= len(NORMED) - len(CARRIERS) - 2
    text = (
        rf"placement \w+ asks for .*, which model {settings['kind']} \S+ does not offer\. Accepted with it: pre, post"
        "|placement sandwich_scaled sets the start of gains, and norm layer library has none to set"
    )
    assert all(re.search(text, message) for message in refused)


@pytest.mark.parametrize("case", [*DIFFERING, *OTHERS])
@pytest.mark.parametrize("check", [checks.check_plan, checks.check_parts, checks.check_training])
def test_plan_parts_and_updates(case, check):
    settings = (KNOWN | OTHERS)[case]
    check(settings["kind"], as_words(settings))


@pytest.mark.parametrize("case", OTHERS)
def test_a_model_whose_sublayers_are_not_known_keeps_its_placement(case):
    with pytest.raises(ConfigError, match=r"norm\.kind: the sublayers of .* are unknown, so placement post"):
        Experiment.from_mapping({"model": OTHERS[case], "norm": "post"})
    with pytest.raises(ConfigError, match=r"init\.kind: the roles of the matrices of .* are unknown"):
        Experiment.from_mapping({"model": OTHERS[case], "init": "scaled"})
    try:
        checks.check_causality(OTHERS[case]["kind"], as_words(OTHERS[case]))
    except CheckSkippedError:
        assert OTHERS[case]["kind"] == "timm"


def build(settings, more, seed=0):
    torch.manual_seed(seed)
    return Experiment.from_mapping({"model": settings}, more).build_model(classes_of(settings), shape_of(settings))


@pytest.mark.parametrize("case", ["llama", "gpt2", "bert", "vit"])
@pytest.mark.parametrize("init", ["library", "scaled"])
def test_the_initial_weights_are_the_same_for_every_placement(case, init):
    models = {kind: build(KNOWN[case], {"norm": kind, "init": init}) for kind in ("pre", "post", "lns")}
    models |= {"library": build(KNOWN[case], {"init": init})}
    matrices = {kind: [p.weight for p in model.projections()] for kind, model in models.items()}
    for others in matrices.values():
        assert all(torch.equal(a, b) for a, b in zip(matrices["pre"], others, strict=True))
    scaled = build(KNOWN[case], {"norm": "deepnorm", "init": init})
    gains = {p.role: p.weight.std().item() for p in scaled.projections()}
    pre = {p.role: p.weight.std().item() for p in models["pre"].projections()}
    assert all(gains[role] != pre[role] for role in gains if role not in ("embedding", "head"))


def test_an_initialisation_of_ours_draws_all_matrices_of_a_language_model():
    """As in our LLaMA: 0.4 for most, less for what writes to the residual stream, and its own for the embedding."""
    model = build(
        KNOWN["llama"] | {"hidden_size": 64}, {"init": {"kind": "scaled", "std": 0.4, "embedding_std": 0.4**0.5}}
    )
    for projection in model.projections():
        std = {"embedding": 0.4**0.5, "o": 0.4 / 8**0.5, "down": 0.4 / 8**0.5}.get(projection.role, 0.4)
        assert projection.weight.std().item() == pytest.approx(std, rel=0.1)
    assert {p.role for p in model.projections()} == {"embedding", "q", "k", "v", "o", "gate", "up", "down", "head"}


def test_the_projections_of_a_transposed_matrix_are_views_of_it():
    model = build(KNOWN["gpt2"], {"norm": "post"})
    first = model.net.transformer.h[0].attn.attn.c_attn.weight
    roles = {p.role: p.weight for p in model.projections() if p.layer == 0}
    assert torch.equal(torch.cat([roles[role] for role in "qkv"]), first.T)
    with torch.no_grad():
        roles["k"].fill_(7.0)
    assert (first[:, 16:32] == 7).all()
    assert not (first[:, :16] == 7).any()


def test_the_types_that_are_causal_as_decoders_alone_are_those_that_say_so():
    folder = Path(transformers.__file__).parent / "models"
    files = [
        file for file in folder.glob("*/modeling_*.py") if "as a standalone, add" in file.read_text(encoding="utf-8")
    ]
    assert {file.stem.removeprefix("modeling_").replace("_", "-") for file in files} == {
        kind.replace("_", "-") for kind in hf.ENCODERS
    }


LONG = {"config": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"kind": "hf"}, r"model\.config: is required"),
        ({"kind": "timm"}, r"model\.name: is required"),
        ({"kind": "hf", "config": "gtp2"}, r"config: transformers has no causal .* Did you mean gpt2\?"),
        ({"kind": "hf", "config": "vit"}, r"model\.config: transformers has no causal language model of this type"),
        ({"kind": "timm", "name": "vit_tiny_patch16_24"}, r"name: timm has no such .* mean vit_tiny_patch16_224\?"),
        ({"kind": "hf", "config": "./nowhere"}, r"model\.config: there is no such folder or file with a config\.json"),
        ({"kind": "hf", "config": {"n_layer": 2}}, r"model\.config: a mapping needs model_type"),
        ({"kind": "hf", **LONG, "n_layers": 2, "n_head_": 3}, r"n_layers: .* mean n_layer\?(.|\n)*n_head_: "),
        ({"kind": "hf", **LONG, "hidden_size": 16}, r"model\.hidden_size: .* Did you mean n_embd\?"),
        ({"kind": "hf", **LONG, "use_cache": True}, r"model\.use_cache: .*Ablate sets it"),
        ({"kind": "hf", **LONG, "n_head": 3}, r"model\.config: transformers cannot build this gpt2: .*divisible"),
        ({"kind": "hf", **LONG, "n_head": "two"}, r"model\.n_head: transformers cannot .* expected int, got str"),
        ({"kind": "hf", "config": "bert", **LLAMA}, r"model\.is_decoder: bert sees the tokens that it is to predict"),
        ({"kind": "hf", "config": "mixtral", **LLAMA}, r"config: MixtralForCausalLM has weights .* dense models"),
        ({"kind": "timm", **TIMM["vit"], "depht": 2}, r"depht: .* has no such argument\. .* mean depth\?"),
        ({"kind": "timm", **TIMM["vit"], "num_classes": 3}, r"num_classes: the number of classes is that of the data"),
        ({"kind": "timm", **TIMM["vit"], "norm_layer": "rmsnorm"}, r"norm_layer: the norm layer is set by norm\.layer"),
        ({"kind": "timm", **TIMM["vit"], "num_heads": 3}, r"model: timm cannot build vit_tiny_patch16_224 with "),
    ],
)  # fmt: skip
def test_a_mistake_is_told_in_a_sentence(model, message):
    with pytest.raises(ConfigError, match=message):
        Experiment.from_mapping({"model": model})


@pytest.mark.parametrize(
    ("case", "more", "message"),
    [
        ("bert", {"norm": "peri"}, r"peri asks for a norm after the embedding, which model hf bert does not .* pre"),
        ("qwen3", {"norm": "hybrid"}, r"placement hybrid asks for norms on .*, which model hf qwen3 does not"),
        ("gpt2", {"norm": "library", "norm.final_norm": False}, r"norm\.final_norm: placement library leaves the norm"),
        ("gpt2", {"norm": "library", "norm.qk": "rmsnorm"}, r"norm\.qk: placement library leaves queries and keys"),
        ("gpt2", {"norm": {"kind": "mix", "alpha": 0.5, "first": "library"}}, r"is for all .*for hf gpt2 is pre"),
        ("gpt2", {"init.std": 0.1}, r"init\.std: the library's own initialisation has no such setting"),
        ("gpt2", {"trainer.strategy": "fsdp"}, r"trainer\.strategy: model hf gpt2 is built whole by its library"),
    ],
)  # fmt: skip
def test_what_a_model_cannot_do_is_refused_with_both_names(case, more, message):
    with pytest.raises(ConfigError, match=message):
        Experiment.from_mapping({"model": KNOWN[case]}, more)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"sliding_window": 8}, r"model\.sliding_window: hf mistral attends to 8 tokens, and a sequence has 13"),
        ({"max_position_embeddings": 12}, r"model\.max_position_embeddings: hf mistral has 12 positions.* at least 13"),
    ],
)
def test_sequences_that_are_too_long_are_refused(more, message):
    with pytest.raises(ConfigError, match=message):
        build(KNOWN["mistral"] | more, {})


def test_images_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"timm vit_tiny_patch16_224 cannot take images of 8 x 8 \(data\): "):
        build({"kind": "timm", "name": "vit_tiny_patch16_224"}, {})
    with pytest.raises(ConfigError, match=r"model\.patch_size: patches of 3 x 3 do not divide images of 8 x 8"):
        build(KNOWN["vit"] | {"patch_size": 3}, {})


def test_a_layer_with_another_sublayer_is_not_of_the_family():
    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, add_cross_attention=True)
    assert find_family(transformers.GPT2LMHeadModel(config)) is None
    config.add_cross_attention = False
    assert find_family(transformers.GPT2LMHeadModel(config)).own == "pre"


def test_a_name_on_the_hub_is_refused_without_a_network(monkeypatch, tmp_path):
    def fail(*_, **__):
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", fail)
    with pytest.raises(
        ConfigError,
        match=r"model\.config: is not in the cache of the Hugging Face hub, which cannot be reached now \(no route",
    ):
        Experiment.from_mapping({"model": {"kind": "hf", "config": "nobody/nothing"}})


@pytest.mark.parametrize("whole", [True, False])
def test_a_config_file_is_its_type_and_fields(tmp_path, whole):
    transformers.Qwen3Config(**LLAMA, head_dim=12, rms_norm_eps=1e-5, vocab_size=999, eos_token_id=998).save_pretrained(
        tmp_path
    )
    place = tmp_path if whole else tmp_path / "config.json"
    stored = Experiment.from_mapping({"model": {"kind": "hf", "config": str(place), "num_hidden_layers": 2}}).to_tree()
    assert stored["model"]["config"] == "qwen3"
    assert stored["model"] | LLAMA | {"num_hidden_layers": 2} == stored["model"]
    assert (stored["model"]["head_dim"], stored["model"]["rms_norm_eps"]) == (12, 1e-5)
    assert not {"vocab_size", "eos_token_id", "dtype"} & stored["model"].keys()
    assert Experiment.from_mapping(stored).to_tree() == stored
    mapping = {"model_type": "qwen3", **{n: v for n, v in stored["model"].items() if n not in ("kind", "config")}}
    assert Experiment.from_mapping({"model": {"kind": "hf", "config": mapping}}).to_tree() == stored


@pytest.mark.parametrize(
    ("case", "more"),
    [("llama", {}), ("bert", {"norm": "pre"}), ("vit", {"norm": "post"}), ("swin", {"norm.layer": "rmsnorm"})],
)
def test_a_run_trains_and_its_model_opens(store, tmp_path, case, more):
    settings = (KNOWN | OTHERS)[case]
    short = (
        {"data.seq_len": 16, "data.val_fraction": 0.0005} if settings["kind"] == "hf" else {"data.val_fraction": 0.02}
    )
    trainer = {"trainer.max_steps": 2, "trainer.batch_size": 4, "trainer.activation_checkpointing": case == "llama"}
    result = ablate.train(Experiment.from_mapping({"model": settings}, short, trainer, more))
    assert result.status == "completed"
    source = open_trained(result.run_id)
    assert source.experiment.norm.of_library == (more.get("norm") is None)
    model = source.model()
    classes, shape = source.inputs
    torch.manual_seed(9)
    again = source.experiment.build_model(classes, shape).eval()
    again.load_state_dict(dict(source.state))
    inputs = inputs_of(settings)
    inputs = inputs.float() if inputs.is_floating_point() else inputs
    torch.testing.assert_close(model(inputs), again(inputs))
    if case == "llama":
        check_export(result.run_id, tmp_path / "exported", model, inputs)
    elif settings["kind"] == "hf":
        with pytest.raises(AblateError, match=r"hf bert with norm=pre norm\.layer=library is no model of transformers"):
            export(result.run_id, "hf", tmp_path / "exported")
    else:
        with pytest.raises(
            AblateError, match=r"timm is for ViTs, and this model is a timm .* Accepted for it: consolidated"
        ):
            export(result.run_id, "timm", tmp_path / "exported")


def check_export(run_id, folder, model, inputs):
    """As a model of transformers the trained model has its logits."""
    export(run_id, "hf", folder)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    torch.testing.assert_close(theirs(input_ids=inputs).logits, model(inputs))


def test_lora_adapts_the_matrices_of_a_layer():
    from ablate.estimate.inputs import build_skeleton

    settings = {
        "model": {"kind": "hf", **HF["llama"]},
        "warm_start": {"from": "somewhere", "copy": ["all"]},
        "lora": {"targets": ["self_attn"]},
    }
    model = build_skeleton(Experiment.from_mapping(settings), 53, (13,))
    adapted = {name for name, p in model.named_parameters() if p.requires_grad}
    assert len(adapted) == 4 * 4 * 2
    assert all(".self_attn." in name for name in adapted)
