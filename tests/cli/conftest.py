"""Shared by the tests of the verbs, and only read: a sweep that the command line has run, and the lists of choices."""

import contextlib
import io
import shutil
from types import SimpleNamespace

import pytest
import yaml

from ablate import tracking
from ablate.cli import main
from ablate.cli.list import list_choices

TINY = [
    "model.hidden=16", "model.layers=2", "model.heads=2", "model.mlp=32", "data=topics", "data.seq_len=32",
    "data.val_fraction=0.0005", "trainer.max_steps=4", "trainer.batch_size=4", "trainer.val_check_interval=2",
]  # fmt: skip
SWEEP = {
    "name": "demo",
    "experiment": {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in TINY)},
    "arms": {
        "pre": {"norm": "pre"},
        "post": {"norm": "post"},
        "mix": {"norm": "mix", "search": {"norm.alpha": [0.5, 1.0]}},
    },
    "search": {"optimizer.lr": {"low": 1e-3, "high": 1e-2, "log": True}},
    "budget": {"trials": 2},
}
"""With the arms and the search space of the demo, at a tiny size."""


@pytest.fixture(scope="session")
def _swept(tmp_path_factory, _empty_database):
    """The folder of a finished sweep and its store, and what was printed meanwhile."""
    folder = tmp_path_factory.mktemp("swept")
    store = folder / "mlruns"
    store.mkdir()
    shutil.copy(_empty_database, store / "mlflow.db")
    (folder / "demo.yaml").write_text(yaml.safe_dump(SWEEP))
    printed = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ABLATE_STORE", str(store))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("ABLATE_STORAGE", raising=False)
        tracking.client.cache_clear()
        for name, words in {"plan": ["--dry-run"], "run": ["--workers", "2"]}.items():
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = main(["sweep", "demo.yaml", *words])
            assert status == 0, err.getvalue()
            printed[name] = out.getvalue()
        tracking.client.cache_clear()
    return SimpleNamespace(folder=folder, store=store, printed=printed)


@pytest.fixture
def swept(_swept, monkeypatch):
    """That sweep as the current folder and store: `folder`, `store`, and what was `printed` by its plan and its run."""
    monkeypatch.chdir(_swept.folder)
    monkeypatch.setenv("ABLATE_STORE", str(_swept.store))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("ABLATE_STORAGE", raising=False)
    tracking.client.cache_clear()
    yield _swept
    tracking.client.cache_clear()


@pytest.fixture(scope="session")
def choices():
    """List -> rows; of models they take seconds."""
    return {what: list_choices(what) for what in ("placements", "norms", "models", "data", "optimizers")}
