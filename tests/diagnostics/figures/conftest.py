"""A finished sweep that keeps all checkpoints, and what is drawn of it."""

import contextlib
import io

import pytest
import yaml

from ablate import tracking
from ablate.cli import main
from ablate.sweeps.storage import read_sweep

ARMS = {"pre": {"norm": "pre"}, "post": {"norm": "post"}}


@pytest.fixture(scope="package")
def _swept(tmp_path_factory, _empty_database):
    folder = tmp_path_factory.mktemp("figures") / "mlruns"
    folder.mkdir()
    (folder / "mlflow.db").write_bytes(_empty_database.read_bytes())
    tree = {
        "name": "small",
        "experiment": {
            "model": {"hidden": 16, "layers": 3, "heads": 2, "mlp": 32},
            "data": {"kind": "topics", "seq_len": 32, "val_fraction": 0.0005},
            "trainer": {
                "max_steps": 4, "batch_size": 4, "val_check_interval": 4,
                "diagnose": {"what": ["variance"], "interval": 2, "tokens": 64},
            },
        },
        "arms": ARMS,
        "search": {"optimizer.lr": [1e-2]},
        "confirm": {"at": "grid", "seeds": 2},
        "checkpoints": "all",
    }  # fmt: skip
    file = folder.parent / "small.yaml"
    file.write_text(yaml.safe_dump(tree))
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.setenv("ABLATE_STORE", str(folder))
        tracking.client.cache_clear()
        assert main(["sweep", str(file)]) == 0
        tracking.client.cache_clear()
    return folder


@pytest.fixture
def swept(_swept, monkeypatch):
    """The record of the sweep, whose store is that of the test."""
    monkeypatch.setenv("ABLATE_STORE", str(_swept))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("ABLATE_STORAGE", raising=False)
    tracking.client.cache_clear()
    yield read_sweep("small")
    tracking.client.cache_clear()


@pytest.fixture(autouse=True)
def _plain_figures(monkeypatch):
    """Figures are drawn, and written as a word: laying one out twice takes a second."""

    def save(figure, file):
        paths = [file.with_suffix(suffix) for suffix in (".png", ".svg")]
        for path in paths:
            path.write_text("figure")
        return paths

    monkeypatch.setattr("ablate.diagnostics.figures.run.save", save)
