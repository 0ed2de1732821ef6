"""`ablate export --register`: the exported files as a version in MLflow's model registry."""

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import torch
from safetensors.torch import load_file

from ablate import tracking
from ablate.cli import main
from ablate.training.trained import open_trained


def test_a_version_has_the_files_and_its_run(trained, store, tmp_path, capsys):
    run_id = trained("llama").run_id
    for version in ("1", "2"):
        out = tmp_path / version
        words = ["export", run_id, "--to", "safetensors", "--output", str(out), "--register", "best pre", "--json"]
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out)["registered"] == {
            "name": "best pre",
            "version": version,
            "run_id": run_id,
            "uri": f"models:/best pre/{version}",
        }
    stored = tracking.client().get_model_version("best pre", "2")
    assert stored.run_id == run_id
    files = Path(unquote(urlsplit(stored.source).path))
    assert sorted(file.name for file in files.iterdir()) == ["config.yaml", "model.safetensors"]
    ours = open_trained(run_id).state
    assert all(torch.equal(weight, ours[name]) for name, weight in load_file(files / "model.safetensors").items())


@pytest.mark.parametrize(
    ("form", "name", "text"),
    [("consolidated", "a", "a pickle"), ("hf", "a/b", "no / or :"), ("hf", " ", "at least one letter")],
)
def test_what_cannot_be_registered_is_refused_before_anything_is_written(trained, tmp_path, capsys, form, name, text):
    out = tmp_path / "out"
    assert main(["export", trained("llama").run_id, "--to", form, "--output", str(out), "--register", name]) == 2
    assert text in capsys.readouterr().err
    assert not out.exists()


def test_a_model_of_no_run_is_refused(trained, store, tmp_path, capsys):
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "last.ckpt").write_bytes((store / "runs" / trained("llama").run_id / "last.ckpt").read_bytes())
    words = ["--to", "safetensors", "--output", str(tmp_path / "out"), "--register", "a"]
    assert main(["export", str(copy), *words]) == 2
    assert "not a run of this store" in capsys.readouterr().err
