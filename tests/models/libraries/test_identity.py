"""Models by name, against those of the libraries and against our own families, on the same weights in float64."""

import pytest
import timm
import torch
import transformers
from models.libraries.cases import CLASSES, IMAGE, KNOWN, OTHERS, SEQ, VOCAB, classes_of, inputs_of, rename, shape_of
from norms.cases import CARRIERS, NORMED, shaken

from ablate.experiment.tree import Experiment


def build_theirs(settings):
    """The library's own model, with weights far from its initial ones."""
    given = {name: value for name, value in settings.items() if name not in ("kind", "config", "name")}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    torch.manual_seed(3)
    if settings["kind"] == "hf":
        given |= {"vocab_size": VOCAB, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
        config = transformers.AutoConfig.for_model(settings["config"], **given)
        model = transformers.AutoModelForCausalLM.from_config(config)
    else:
        size = {} if settings["name"].startswith("convnext") else {"img_size": IMAGE[1:]}
        model = timm.create_model(settings["name"], num_classes=CLASSES, in_chans=IMAGE[0], **size, **given)
    return shaken(model.double().eval(), 0.2)


def build_ours(settings, more):
    experiment = Experiment.from_mapping({"model": settings}, more)
    return experiment, experiment.build_model(classes_of(settings), shape_of(settings)).double().eval()


def compute_theirs(model, settings, inputs):
    return model(input_ids=inputs).logits if settings["kind"] == "hf" else model(inputs)


@pytest.mark.parametrize("case", [*KNOWN, *OTHERS])
def test_by_default_it_is_the_model_of_the_library(case):
    settings = (KNOWN | OTHERS)[case]
    theirs = build_theirs(settings)
    experiment, ours = build_ours(settings, {})
    assert (experiment.norm.kind, experiment.norm.layer.kind, experiment.init.kind) == ("library", "library", "library")
    problems = ours.load_state_dict({f"net.{name}": value for name, value in theirs.state_dict().items()}, strict=False)
    assert set(problems.missing_keys) | set(problems.unexpected_keys) <= {"shape"}
    inputs = inputs_of(settings)
    with torch.no_grad():
        torch.testing.assert_close(ours(inputs), compute_theirs(theirs, settings, inputs), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", KNOWN)
def test_in_our_wiring_its_own_placement_computes_the_same(case):
    settings = KNOWN[case]
    theirs = build_theirs(settings)
    post = {"norm": "post", "norm.final_norm": False}
    _, ours = build_ours(settings, post if case == "bert" else {"norm": "pre"})
    assert any("residual" in name for name in ours.state_dict())
    state = {rename(case, name): value for name, value in theirs.state_dict().items()}
    problems = ours.load_state_dict(state, strict=False)
    assert set(problems.missing_keys) | set(problems.unexpected_keys) <= {"shape"}
    inputs = inputs_of(settings)
    logits = compute_theirs(theirs, settings, inputs), ours(inputs)
    torch.testing.assert_close(*logits, rtol=1e-10, atol=1e-10)
    if settings["kind"] == "hf":
        loss = torch.nn.functional.cross_entropy(logits[0].flatten(0, 1), inputs.flatten())
        torch.testing.assert_close(ours(inputs, inputs).double(), loss, rtol=1e-6, atol=1e-6)  # which is in float32


def list_cases(layer):
    """Every placement; two of them with each QK-norm, which is beside any."""
    norms = {"head": {"norm.qk": layer}, "width": {"norm.qk": layer, "norm.qk_over": "width"}}
    beside = [
        pytest.param(kind, more, id=f"{kind}-{over}") for kind in ("post", "subln") for over, more in norms.items()
    ]
    plain = [kind for kind in NORMED if kind not in CARRIERS]
    return [*(pytest.param(kind, {}, id=kind) for kind in plain), *beside]


LLAMA = {"hidden": 16, "layers": 4, "heads": 2, "kv_heads": 1, "mlp": 24}
OWN_VIT = {"kind": "vit", "hidden": 16, "layers": 4, "heads": 2}


def names_of_llama(name):
    """The matrices of a LLaMA of ours as those of transformers' modules in our wiring, by its names."""
    ends = {"embed_tokens.": "net.model.embed_tokens.", "norm.": "net.model.norm.", "lm_head.": "net.lm_head."}
    for ours, theirs in ends.items():
        if name.startswith(ours):
            return [theirs + name.removeprefix(ours)]
    if name.startswith("embed_norm."):
        return [f"net.model.embed_tokens.after.{name.removeprefix('embed_norm.')}"]
    at = {"attn.qkv_proj": [f"attn.self_attn.{x}_proj" for x in "qkv"], "attn.o_proj": ["attn.self_attn.o_proj"]}
    at |= {"mlp.gate_up_proj": ["mlp.mlp.gate_proj", "mlp.mlp.up_proj"], "mlp.down_proj": ["mlp.mlp.down_proj"]}
    at |= {f"attn.qkv_norm.{x}": [f"attn.self_attn.{x}_proj.1.norm"] for x in "qkv"}
    at |= {"attn.norm": ["attn.self_attn.o_proj.0"], "mlp.norm": ["mlp.mlp.down_proj.0"]}
    for ours, theirs in at.items():
        if f".{ours}." in name:
            return [f"net.model.{name.replace(ours, one)}" for one in theirs]
    return [f"net.model.{name}"]


def load_by_names(model, weights):
    """Load `weights`, in which a module of the library that has a norm beside it still has its own name."""
    own, state = set(model.state_dict()), {}
    for name, value in weights.items():
        path, _, end = name.rpartition(".")
        inside = (
            1 if path.endswith(("o_proj", "down_proj", ".proj", "fc2")) else 0
        )  # behind its norm, or in front of it
        names = name, f"{path}.{inside}.{end}", name.replace(".1.norm.", ".1.")
        state[next(known for known in names if known in own)] = value
    problems = model.load_state_dict(state, strict=False)
    assert set(problems.missing_keys) <= {"shape"}


@pytest.mark.parametrize(("kind", "more"), list_cases("rmsnorm"))
def test_llama_of_transformers_is_ours_with_every_placement(kind, more):
    settings = {"norm": kind, "norm.layer": "rmsnorm", **more}
    own = Experiment.from_mapping({"model": LLAMA}, settings)
    ours = shaken(own.build_model(VOCAB, (SEQ,)).double().eval(), 0.2)
    _, theirs = build_ours(KNOWN["llama"], settings)
    weights = {}
    for name, value in ours.state_dict().items():
        names = names_of_llama(name)
        sizes = {"qkv_proj": [16, 8, 8], "gate_up_proj": [24, 24]}
        parts = value.split(next((s for end, s in sizes.items() if f"{end}." in name), [len(value)]))
        weights |= dict(zip(names, parts, strict=True))
    load_by_names(theirs, weights)
    assert theirs.parameter_count() == ours.parameter_count()
    inputs = inputs_of({"kind": "hf"})
    with torch.no_grad():  # both compute the rotary embedding in float32
        torch.testing.assert_close(theirs(inputs), ours(inputs), rtol=1e-5, atol=1e-5)


def name_of_vit(name):
    """What a tensor of a ViT of ours is called in timm's modules in our wiring."""
    name = name.replace("vit.norm_pre.", "vit.norm_pre.after.").replace(".attn.qkv.projection.", ".attn.qkv.")
    for ours, theirs in {
        ".attn.qkv.norm.": ".attn.qkv.1.1.",
        ".attn.norm.": ".attn.proj.0.",
        ".mlp.norm.": ".mlp.fc2.0.",
    }.items():
        name = name.replace(ours, theirs)
    return name.replace("vit.", "net.", 1).replace(".attn.", ".attn.attn.").replace(".mlp.", ".mlp.mlp.")


@pytest.mark.parametrize(("kind", "more"), list_cases("layernorm"))
def test_vit_of_timm_is_ours_with_every_placement(kind, more):
    settings = {"norm": kind, "norm.layer": "layernorm", **more}
    own = Experiment.from_mapping({"model": OWN_VIT}, settings)
    ours = shaken(own.build_model(CLASSES, IMAGE).double().eval(), 0.2)
    _, theirs = build_ours(KNOWN["vit"], settings)
    weights = {name_of_vit(name): value for name, value in ours.state_dict().items()}
    if more.get("norm.qk_over", "head") == "head" and more:  # ours has timm's own places for these
        weights = {
            n.replace(".q_norm.", ".qkv.1.1.q.").replace(".k_norm.", ".qkv.1.1.k."): v for n, v in weights.items()
        }
    load_by_names(theirs, weights)
    inputs = inputs_of({"kind": "timm"})
    with torch.no_grad():
        torch.testing.assert_close(theirs(inputs), ours(inputs), rtol=1e-10, atol=1e-10)
