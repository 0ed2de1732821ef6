"""A stored measurement is read only for the same weights, code and tasks."""

import os
from importlib import metadata
from pathlib import Path

import pytest
import torch
from diagnostics.test_run import WORDS, saved

from ablate.addons.evaluation.layer_removal import Benchmarks
from ablate.config import plugins
from ablate.diagnostics.opening import Opening, open_model
from ablate.diagnostics.run import diagnose
from ablate.experiment.tree import Experiment
from ablate.training.train import train

COMMITS = ["a" * 40, "b" * 40]


@pytest.fixture
def hub(store, tmp_path, monkeypatch):
    """hub(n): have the repository me/tiny at its n-th commit, as it is in the cache of a computer without network."""
    transformers = pytest.importorskip("transformers")
    repository = tmp_path / "hub" / "models--me--tiny"
    (repository / "refs").mkdir(parents=True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(repository.parent))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for commit in COMMITS:
        saved("LlamaForCausalLM", repository / "snapshots" / commit)
    model = transformers.LlamaForCausalLM.from_pretrained(repository / "snapshots" / COMMITS[1])
    with torch.no_grad():
        model.lm_head.weight.mul_(2.0)
    model.save_pretrained(repository / "snapshots" / COMMITS[1])
    (tmp_path / "text.txt").write_text(" ".join(WORDS * 20))
    tokenizer = repository / "snapshots" / COMMITS[0] / "tokenizer.json"
    data = (str(tmp_path / "text.txt"), "seq_len=8", f"tokenizer={tokenizer}")

    def open_commit(number):
        (repository / "refs" / "main").write_text(COMMITS[number])
        return open_model("hf:me/tiny", Opening(data)).subject

    return open_commit


def test_of_the_hub_it_is_the_commit(hub):
    one, other, again = (hub(number).identity for number in (0, 1, 0))
    assert one == again != other
    assert COMMITS[0] in one


def test_of_the_hub_without_a_commit_it_is_the_weights(hub, monkeypatch):
    monkeypatch.setattr("transformers.utils.hub.extract_commit_hash", lambda *words: None)
    one, other, again = (hub(number).identity for number in (0, 1, 0))
    assert one == again != other


def test_of_timm_it_is_the_weights(store, tmp_path, monkeypatch):
    import timm
    from PIL import Image

    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (16, 16), (60 * number, 20, 200)).save(tmp_path / "images" / name / f"{number}.png")
    create = timm.create_model
    settings = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 2}

    def build(seed):
        torch.manual_seed(seed)
        model = create("vit_tiny_patch16_224", **settings)
        model.pretrained_cfg["input_size"] = (3, 16, 16)
        return model

    identities = []
    for seed in (0, 1, 0):
        monkeypatch.setattr(timm, "create_model", lambda *words, seed=seed, **more: build(seed))
        data = ("image_folder", f"root={tmp_path / 'images'}")
        identities.append(open_model("timm:published", Opening(data)).subject.identity)
    assert identities[0] == identities[2] != identities[1]


PLUGIN = """
from typing import Literal
from ablate.norms import placements
from ablate.norms.placements import Pre
from ablate.norms.residuals import PreResidual

@placements.register
class Mine(Pre):
    \"\"\"Pre-LN whose norms are scaled.\"\"\"
    kind: Literal["mine"] = "mine"

    def residual(self, site):
        return PreResidual(site, SCALE)
"""


def test_a_plugin_that_was_changed_is_measured_anew(registries, store, tmp_path, monkeypatch, tiny_settings):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(PLUGIN.replace("SCALE", "0.5"))
    run = train(Experiment.from_mapping(tiny_settings, {"plugins": "mine.py", "norm": "mine"})).run_id

    def measure():
        (result,) = diagnose([run], ["variance"], tokens=64).results["variance"].values()
        return result.column("attention_variance")

    assert all(value > 0.0 for value in measure())
    Path("mine.py").write_text(PLUGIN.replace("SCALE", "0.0"))
    plugins.load(["mine.py"])
    assert measure() == [0.0, 0.0]  # attention to inputs of zero


def test_tasks_have_the_version_of_the_harness_and_local_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(metadata, "version", lambda name: {"lm_eval": "0.4.9"}[name])
    hub, local = Benchmarks(["mmlu"]), Benchmarks(["mmlu"], tmp_path / "tasks")
    before = hub.identify()
    monkeypatch.setattr(metadata, "version", lambda name: {"lm_eval": "0.4.10"}[name])
    assert hub.identify() != before
    before = hub.identify(), local.identify()
    (tmp_path / "tasks").mkdir()
    for file in (tmp_path / "tasks" / "mmlu.jsonl", tmp_path / "None"):  # which is no file of the hub's
        file.write_text("{}")
    assert hub.identify() == before[0]
    assert local.identify() != before[1]
    monkeypatch.setattr(metadata, "version", None)
    assert Benchmarks(["squad"]).identify()  # which needs no harness


def test_a_folder_is_known_by_its_files(store, tmp_path):
    from ablate.diagnostics.opening.libraries import identify_model

    pytest.importorskip("transformers")
    model = saved("LlamaForCausalLM", tmp_path / "model")
    before = identify_model(str(tmp_path / "model"), model)
    os.utime(tmp_path / "model" / "model.safetensors", (1, 1))
    assert identify_model(str(tmp_path / "model"), model) != before
