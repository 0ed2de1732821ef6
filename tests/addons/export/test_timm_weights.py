"""A ViT for timm, and averages of weights."""

import pytest
import timm
import torch
from safetensors.torch import load_file

from ablate.addons.export.run import export
from ablate.cli import main
from ablate.config.errors import AblateError
from ablate.experiment.tree import Experiment
from ablate.training.train import train
from ablate.training.trained import open_trained

VIT = {"model": {"kind": "vit", "hidden": 16, "layers": 2, "heads": 2, "mlp_ratio": 3.0, "patch_size": 4}}


def checkpoint(folder, settings):
    """(path of a checkpoint, its model), with every parameter away from its initial value."""
    experiment = Experiment.from_mapping(VIT, settings)
    torch.manual_seed(1)
    model = experiment.build_model(7, (3, 16, 16)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    file = folder / "last.ckpt"
    torch.save({"state_dict": state, "experiment": experiment.to_tree(), "global_step": 3}, file)
    return file, model


COMPLETE_P = {"kind": "complete_p", "base": {"hidden": 8, "layers": 1}}
BY_HEAD = {"kind": "complete_p", "base": {"hidden": 8, "layers": 1, "head_dim": 4}}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"model.drop_path": 0.1},
        {"norm.qk": "layernorm"},
        {"model.attention.qk_clip": 1.0},
        {"parametrization": COMPLETE_P, "norm.qk": "layernorm"},
        {"parametrization": BY_HEAD, "model.drop_path": 0.1},
    ],
    ids=str,
)
def test_timm_gives_our_logits(tmp_path, settings):
    file, ours = checkpoint(tmp_path, settings)
    words = export(str(file), "timm", tmp_path / "out")
    assert 'timm.create_model("local-dir:out", pretrained=True)' in words
    images = torch.randn(5, 3, 16, 16)
    wanted = ours(images)

    shape = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "mlp_ratio": 3.0}
    by_state = timm.create_model("vit_tiny_patch16_224", num_classes=7, qk_norm="norm.qk" in settings, **shape).eval()
    by_state.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))
    torch.testing.assert_close(by_state(images), wanted, rtol=0, atol=1e-6)
    by_folder = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    torch.testing.assert_close(by_folder(images), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm": "post"}, "this model has norm=post"),
        ({"norm.layer": "rmsnorm"}, "norm.layer=rmsnorm"),
        ({"norm.layer.eps": 1e-5}, "eps 1e-6"),
        ({"norm.qk": "rmsnorm"}, "norm.qk=rmsnorm"),
        ({"norm.qk": "layernorm", "norm.qk_over": "width"}, "norm.qk_over=width"),
        ({"model.attention.gate": "elementwise"}, r"no place for model\.attention \(gate\)"),
        ({"norm.qk": "layernorm", "parametrization": BY_HEAD}, "no place for a multiplier of normed queries"),
    ],
)
def test_what_timm_does_not_have_is_refused(tmp_path, settings, message):
    file, _ = checkpoint(tmp_path, settings)
    with pytest.raises(AblateError, match=message):
        export(str(file), "timm", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_average_of_the_weights_is_exported(store, trained, vit_settings, tmp_path, capsys):
    without = trained("vit")
    result = train(Experiment.from_mapping(vit_settings, {"trainer.ema_decay": 0.5}))
    for name, more in (("own", []), ("average", ["--ema"])):
        assert main(["export", result.run_id, "--to", "safetensors", "--output", str(tmp_path / name), *more]) == 0
    assert "averaged parameters" in capsys.readouterr().out
    saved = torch.load(store / "runs" / result.run_id / "last.ckpt", weights_only=True)
    average = saved["callbacks"]["WeightAverage"]["weights"]
    own, exported = (load_file(tmp_path / name / "model.safetensors") for name in ("own", "average"))
    assert own.keys() == exported.keys() == average.keys()
    assert all(torch.equal(exported[name], average[name]) for name in average)
    assert any(not torch.equal(exported[name], own[name]) for name in own)
    with pytest.raises(AblateError, match=r"no averaged weights: its run did not set trainer\.ema_decay"):
        open_trained(without.run_id, ema=True)
