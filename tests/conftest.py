"""Fixtures that several folders share: tiny models of every family, registries that a test may add to, and a store."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
import torch

from ablate import tracking
from ablate.config import plugins
from ablate.config.registry import Registry
from ablate.experiment.tree import Experiment

if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    # each test process on a core of its own: trials with as many threads as there are cores would fight for them
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {allowed[int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")) % len(allowed)]})
torch.set_num_threads(1)  # the models are tiny: a second thread costs more than it does, most of all beside other work

CLASSES = 11
SHAPES = {"language_modeling": (12,), "image_classification": (1, 8, 8)}  # of one input, by task


@pytest.fixture
def registries(monkeypatch):
    """All registries by name. What a test or a plugin that it loads registers is forgotten after it."""
    for registry in Registry.all.values():
        monkeypatch.setattr(registry, "_kinds", dict(registry._kinds))
        monkeypatch.setattr(registry, "_presets", dict(registry._presets))
    monkeypatch.setattr(Registry, "all", dict(Registry.all))
    monkeypatch.setattr(plugins, "_files", {})
    return Registry.all


@pytest.fixture
def tiny():
    """tiny(family, {dotted path: value}, seed) -> (experiment, model in float64, a batch of 3 inputs)."""

    def build(family, settings=None, seed=0):
        sizes = {"model": {"kind": family, "hidden": 16, "layers": 3, "heads": 2}}
        experiment = Experiment.from_mapping(sizes, settings or {})
        shape = SHAPES[experiment.model.task]
        torch.manual_seed(seed)
        model = experiment.model.build(experiment.norm, experiment.init, CLASSES, shape).double()
        generator = torch.Generator().manual_seed(7)
        if experiment.model.task == "language_modeling":
            inputs = torch.randint(CLASSES, (3, *shape), generator=generator)
        else:
            inputs = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
        return experiment, model, inputs

    return build


TINY = {
    "model": {"hidden": 16, "layers": 2, "heads": 2, "mlp": 32},
    "data": {"kind": "topics", "seq_len": 32, "val_fraction": 0.01},
    "trainer": {"max_steps": 12, "batch_size": 4, "val_check_interval": 4, "log_every_n_steps": 2},
}
TINY_VIT = {
    "model": {"kind": "vit", "hidden": 16, "layers": 2, "heads": 2},
    "trainer": {"max_steps": 12, "batch_size": 8, "val_check_interval": 4, "log_every_n_steps": 2},
}


@pytest.fixture
def tiny_settings():
    """Settings of a language model that trains in a second."""
    return TINY


@pytest.fixture
def vit_settings():
    """Those of a Vision Transformer."""
    return TINY_VIT


@pytest.fixture
def pairs(tmp_path):
    """Preference pairs: yes is better than no, whatever is asked."""
    rows = [{"prompt": f"is it {n}?", "chosen": "yes", "rejected": "no"} for n in range(30)]
    (tmp_path / "pairs.json").write_text(json.dumps(rows))
    return str(tmp_path / "pairs.json")


@pytest.fixture
def torchrun(monkeypatch):
    """torchrun(word, ...): the command that starts a group of two ranks on this machine."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    group = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return lambda *words: [*group, *words]


TRAINING = """
import json, sys
from pathlib import Path

from ablate.distributed import groups
from ablate.experiment.tree import Experiment
from ablate.training.runs import load_experiment
from ablate.training.train import Hooks, Place, train

trees, stopped = json.loads(Path(sys.argv[1]).read_text())


def everything():
    results = {}
    for name, tree in trees.items():
        asked = iter(range(1, 1000))
        result = train(Experiment.from_mapping(tree), hooks=Hooks(asked_to_stop=lambda: next(asked) == 7))
        if name not in stopped:
            result = train(load_experiment(result.run_id, {}), Place(run_id=result.run_id))
        results[name] = result.to_dict()
    Path(sys.argv[2]).write_text(json.dumps(results))
    return 0


sys.exit(groups.lead(everything))
"""


@pytest.fixture
def trained_by_two(torchrun, tmp_path):
    """trained_by_two({name: tree}, stopped): name -> result of two ranks. Each is stopped after 7 updates and, but for
    those in `stopped`, gone on with."""

    def run(trees, stopped=()):
        file, given, out = tmp_path / "everything.py", tmp_path / "given.json", tmp_path / "out.json"
        file.write_text(TRAINING)
        given.write_text(json.dumps([trees, list(stopped)]))
        command = torchrun(str(file), str(given), str(out))
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(out.read_text())

    return run


@pytest.fixture
def begun(monkeypatch):
    """The weights before the first update of each training that follows."""
    from ablate.tasks.base import Task  # which imports Lightning

    seen = []
    plain = Task.on_train_start

    def note(self):
        plain(self)
        seen.append({name: value.clone() for name, value in self.model.state_dict().items()})

    monkeypatch.setattr(Task, "on_train_start", note)
    return seen


@pytest.fixture(params=[TINY, TINY_VIT], ids=["llama", "vit"])
def family_settings(request):
    """The same for both families."""
    return request.param


@pytest.fixture(scope="session")
def _empty_database(tmp_path_factory):
    """An MLflow database, made once: making one takes seconds."""
    folder = tmp_path_factory.mktemp("empty")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABLATE_STORE", str(folder))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        tracking.client.cache_clear()
        tracking.client()
        tracking.client.cache_clear()
    return folder / "mlflow.db"


@pytest.fixture
def store(tmp_path, monkeypatch, _empty_database):
    """An empty store of the test's own; its folder."""
    folder = tmp_path / "mlruns"
    folder.mkdir()
    with closing(sqlite3.connect(_empty_database)) as source, closing(sqlite3.connect(folder / "mlflow.db")) as copy:
        source.backup(copy)  # also what is still in the write-ahead log
        copy.execute("PRAGMA journal_mode=WAL")
    monkeypatch.setenv("ABLATE_STORE", str(folder))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("ABLATE_STORAGE", raising=False)
    tracking.client.cache_clear()
    yield folder
    tracking.client.cache_clear()
