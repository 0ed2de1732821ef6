"""Checkpoints and exported folders whose weights are not those of their model: a sentence, and exit status 2."""

import pytest
import torch
from export.cases import checkpoint
from safetensors.torch import load_file, save_file

from ablate.cli import main
from ablate.config.errors import AblateError
from ablate.experiment.tree import Experiment
from ablate.training.procedures import Hooks, Place
from ablate.training.train import train
from ablate.training.trained import open_trained

VIT = {"model": {"kind": "vit", "hidden": 16, "layers": 2, "heads": 2}}
FAMILIES = {  # arguments of `checkpoint`, and the weights that say what the inputs are
    "llama": ({"norm": "pre"}, ("embed_tokens.weight",)),
    "vit": (
        {"norm": "post"},
        ("vit.head.weight", "vit.pos_embed", "vit.patch_embed.proj.weight"),
        VIT,
        10,
        (1, 8, 8),
    ),
}
SHAPES = {
    "cut": lambda value: value[:-1].clone(),
    "flat": lambda value: value.reshape(1, 1, -1),
    "empty": lambda value: value[:0].clone(),
    "a number": lambda value: value.sum(),
    "whole numbers": lambda value: value.long(),
    "one number shown as many": lambda value: torch.zeros(1).expand(10**6, 10**6),
    "a list": lambda value: value.tolist(),
}


def build(family, folder):
    """The checkpoint of a model of the family, its content, and the names of weights to do something to."""
    settings, names, *more = FAMILIES[family]
    file, _ = checkpoint(folder, settings, *more)
    return file, torch.load(file, weights_only=True), names


def tell(file, tmp_path, capsys, *words):
    """What export says of it."""
    out = tmp_path / "out"
    assert main(["export", str(file), "--to", "safetensors", "--output", str(out), *words]) == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert not out.exists()
    return told


@pytest.mark.parametrize("how", SHAPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_misshapen_weights_are_told(family, how, tmp_path, store, capsys):
    file, content, names = build(family, tmp_path)
    for name in (*names, next(name for name in content["state_dict"] if "norm" in name).removeprefix("model.")):
        key = f"model.{name}"
        torch.save(
            {**content, "state_dict": {**content["state_dict"], key: SHAPES[how](content["state_dict"][key])}}, file
        )
        told = tell(file, tmp_path, capsys)
        assert f"{file} does not contain the " in told
        assert how in ("flat", "empty") or name in told or "configuration: " in told
    torch.save(content, file)
    assert main(["export", str(file), "--to", "safetensors", "--output", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_missing_and_further_weights_are_told(family, tmp_path, store, capsys):
    file, content, names = build(family, tmp_path)
    for name in names:
        torch.save(
            {**content, "state_dict": {k: v for k, v in content["state_dict"].items() if k != f"model.{name}"}}, file
        )
        assert f"configuration: it has no {name}" in tell(file, tmp_path, capsys)
    torch.save({**content, "state_dict": {**content["state_dict"], "model.odd": torch.ones(1)}}, file)
    assert "the model has no odd" in tell(file, tmp_path, capsys)


@pytest.mark.parametrize(
    "state", [[], None, "weights", 3, torch.ones(3), {}, {1: torch.ones(2)}, {"model.a": {}}], ids=repr
)
def test_a_state_of_another_type_is_told(state, tmp_path, store, capsys):
    file, content, _ = build("llama", tmp_path)
    torch.save({**content, "state_dict": state}, file)
    assert f"{file} does not contain the " in tell(file, tmp_path, capsys)


@pytest.mark.parametrize("experiment", [None, [], "pre", {"model": 3}, {"model": {"layers": 2_000}}], ids=repr)
def test_a_configuration_of_another_type_or_model_is_told(experiment, tmp_path, store, capsys):
    file, content, _ = build("llama", tmp_path)
    torch.save({**content, "experiment": experiment}, file)
    tell(file, tmp_path, capsys)


def test_an_exported_folder_that_is_misshapen_is_told(tmp_path, store, capsys):
    file, _ = checkpoint(tmp_path, {"norm": "pre", "model.tie_embeddings": True})
    folder = tmp_path / "exported"
    assert main(["export", str(file), "--to", "safetensors", "--output", str(folder)]) == 0
    state = load_file(folder / "model.safetensors")
    save_file(
        {name: value for name, value in state.items() if name != "embed_tokens.weight"}, folder / "model.safetensors"
    )
    assert "it has no embed_tokens.weight" in tell(folder, tmp_path, capsys)
    save_file({**state, "embed_tokens.weight": torch.ones(5)}, folder / "model.safetensors")
    assert "does not contain the model of its configuration" in tell(folder, tmp_path, capsys)
    save_file({**state, "norm.weight": torch.full_like(state["norm.weight"], torch.nan)}, folder / "model.safetensors")
    assert "NaN or infinite, in norm.weight" in tell(folder, tmp_path, capsys)
    (folder / "model.safetensors").write_bytes(b"nothing")
    assert "cannot be read as an export" in tell(folder, tmp_path, capsys)


def test_no_run_goes_on_from_weights_of_another_shape(store, tiny_settings):
    stops = iter(range(1, 1000))
    run = Experiment.from_mapping(tiny_settings)
    run_id = train(run, hooks=Hooks(asked_to_stop=lambda: next(stops) == 9)).run_id
    file = store / "runs" / run_id / "last.ckpt"
    content = torch.load(file, weights_only=True)
    name = "model.layers.0.attn.qkv_proj.weight"
    for state, text in (
        ({**content["state_dict"], name: torch.ones(3)}, f"size mismatch for {name}"),
        ({k: v for k, v in content["state_dict"].items() if k != name}, f"Missing.*{name}"),
    ):
        torch.save({**content, "state_dict": state}, file)
        with pytest.raises(RuntimeError, match=text):
            train(run, Place(run_id=run_id))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_exported_only_if_asked(value, tmp_path, store, capsys):
    file, content, _ = build("llama", tmp_path)
    content["state_dict"]["model.embed_tokens.weight"][3, 1] = value
    torch.save(content, file)
    told = tell(file, tmp_path, capsys)
    assert "NaN or infinite, in embed_tokens.weight" in told
    assert "--not-finite" in told
    with pytest.raises(AblateError, match="NaN or infinite"):
        open_trained(str(file))
    assert main(["export", str(file), "--to", "safetensors", "--output", str(tmp_path / "out"), "--not-finite"]) == 0
    written = load_file(tmp_path / "out" / "model.safetensors")["embed_tokens.weight"]
    assert not torch.isfinite(written[3, 1])
