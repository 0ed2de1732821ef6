"""A finished sweep that keeps all checkpoints, of two arms with two seeds each, and what is drawn of it."""

import pytest
from run_table import join

from ablate import tracking
from ablate.diagnostics.figures import groups
from ablate.experiment.tree import Experiment
from ablate.plots.drawing import draw
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FRESH, Run
from ablate.sweeps.spec.sweep import Sweep
from ablate.training.train import train

SEEDS, STEPS, TOKENS = (1, 2), 4, 4 * 32
TREE = {
    "name": "small",
    "experiment": {
        "model": {"hidden": 16, "layers": 3, "heads": 2, "mlp": 32},
        "data": {"kind": "topics", "seq_len": 32, "val_fraction": 0.0005},
        "trainer": {
            "max_steps": STEPS, "batch_size": 4, "val_check_interval": STEPS,
            "diagnose": {"what": ["variance"], "interval": 2, "tokens": 64},
        },
    },
    "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
    "budget": {"trials": 1},
    "confirm": {"seeds": 2},
    "checkpoints": "all",
}  # fmt: skip


@pytest.fixture(scope="package")
def _runs(tmp_path_factory, _empty_database):
    """(their store, arm -> the trials of its seeds)."""
    folder = tmp_path_factory.mktemp("figures") / "mlruns"
    folder.mkdir()
    (folder / "mlflow.db").write_bytes(_empty_database.read_bytes())
    spec = Sweep.from_tree(TREE)
    trials = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABLATE_STORE", str(folder))
        tracking.client.cache_clear()
        for arm in spec.all_arms:
            trials[arm] = []
            for seed in SEEDS:
                result = train(Experiment.from_mapping(spec.base(arm).to_tree(), {"seed": seed}))
                fields = "completed", {}, 3.0, {"val/loss": 3.0}, {}, STEPS, 1.0, result.run_id, "", TOKENS
                trials[arm].append(Run(arm, 0, *fields, seed=seed))
        tracking.client.cache_clear()
    return folder, trials


@pytest.fixture
def runs(_runs, monkeypatch):
    """Arm -> the trials of its seeds, whose store is that of the test."""
    folder, trials = _runs
    monkeypatch.setenv("ABLATE_STORE", str(folder))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tracking.client.cache_clear()
    yield trials
    tracking.client.cache_clear()


@pytest.fixture
def sweep(runs, monkeypatch):
    """sweep({arm: trials}, tree): have the sweep `small` read with these trials on fresh seeds; by default all."""

    def change(confirmed, tree=TREE):
        spec = Sweep.from_tree(tree)
        searched = {arm: trials[:1] for arm, trials in runs.items() if arm in spec.all_arms}
        table = join({"search": searched, FRESH: confirmed}, 4.0)
        record = SweepRecord("small", 1, spec, table, chosen=dict.fromkeys(searched, 0))
        monkeypatch.setattr(groups, "read_sweep", lambda title, storage: record)
        return record

    monkeypatch.setattr(groups, "list_sweeps", lambda url: {"small": [1]})
    change(runs)
    return change


@pytest.fixture(autouse=True)
def _plain_figures(monkeypatch):
    """Figures are drawn, and written as a word: laying one out takes a second."""

    def save(figure, folder):
        paths = [folder / f"{figure.name}{suffix}" for suffix in (".png", ".svg")]
        for path in paths:
            path.write_text(str(draw(figure)))
        return paths

    monkeypatch.setattr("ablate.diagnostics.figures.run.save", save)
