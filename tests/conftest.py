"""Fixtures that several folders share: tiny models of every family, registries that a test may add to, and a store."""

import functools
import gc
import json
import os
import re
import shutil
import signal
import sqlite3
from contextlib import closing
from importlib.util import find_spec

import pytest
import torch
import yaml
from forked import fork_server, fork_worker, run_ranks, start_server

from ablate import tracking
from ablate.config import plugins
from ablate.config.registry import Registry
from ablate.experiment.tree import Experiment
from ablate.scheduler import optuna_storages
from ablate.scheduler.executors import local
from ablate.tracking.databases import sqlite_file

if "PYTEST_XDIST_WORKER" in os.environ:
    # also in the processes that tests start: with as many threads as there are cores they would fight for them
    os.environ.setdefault("OMP_NUM_THREADS", "1")
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores, and a test sends
local.start_process = fork_worker
torch.set_num_threads(1)  # the models are tiny: a second thread costs more than it does, most of all beside other work


IMPORT_OF_AN_ADDON = re.compile(
    r"^from (ablate\.addons|docs\.pages|bundles|evaluation|export|papers|post_training|scaling)\b", re.MULTILINE
)
WITHOUT_ADDONS = find_spec("ablate.addons") is None


def pytest_ignore_collect(collection_path):
    """Where the addons were deleted, the files that import one are left out, and so are (see below) the cases marked
    `addons`: the others are the core's."""
    if WITHOUT_ADDONS and collection_path.suffix == ".py":
        return bool(IMPORT_OF_AN_ADDON.search(collection_path.read_text(encoding="utf-8"))) or None
    return None


def pytest_collection_finish(session):
    """What is imported by now stays: looking for garbage in it, a million objects, again and again takes time. The
    server of a sweep's workers is forked while nothing is open yet, and so has it too."""
    gc.collect()
    gc.freeze()
    if "PYTEST_XDIST_WORKER" in os.environ:
        with fork_server():
            start_server()


LONGEST = ("gpu", "parallel", "test_devices.py", "test_group.py", "test_install.py", "test_floors.py", "test_ui.py")


def pytest_collection_modifyitems(items):
    """What takes longest goes first, so that no worker is at it while the others have nothing left."""
    for item in items:
        if WITHOUT_ADDONS and item.get_closest_marker("addons"):
            item.add_marker(pytest.mark.skip("the addons were deleted"))
    items.sort(key=lambda item: not {*item.path.parts} & {*LONGEST})


plugins.load()  # the papers' families are cases of many tests
CREATE_TABLES = optuna_storages._create_tables
CLASSES = 11
SHAPES = {"language_modeling": (12,), "image_classification": (1, 8, 8)}  # of one input, by task
SIZES = {
    "gru": {"hidden": 16, "layers": 3},
    "convpool": {"width": 4, "last_padding": 1, "noise": 0.0, "dropout": 0.0},
}  # of tiny models whose sizes have other names


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
    """tiny(family, {dotted path: value}, seed, updates) -> (experiment, model in float64 whose branches have grown for
    so many updates, a batch of 3 inputs)."""

    def build(family, settings=None, seed=0, updates=10**9):
        sizes = SIZES.get(family, {"hidden": 16, "layers": 3, "heads": 2})
        experiment = Experiment.from_mapping({"model": {"kind": family, **sizes}}, settings or {})
        shape = SHAPES[experiment.model.task]
        torch.manual_seed(seed)
        model = experiment.model.build(experiment.norm, experiment.init, CLASSES, shape).double()
        experiment.after_update(model, updates)
        generator = torch.Generator().manual_seed(7)
        if experiment.model.task == "language_modeling":
            inputs = torch.randint(CLASSES, (3, *shape), generator=generator)
        else:
            inputs = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
        return experiment, model, inputs

    return build


TINY = {
    "model": {"hidden": 16, "layers": 2, "heads": 2, "mlp": 32},
    "data": {"kind": "topics", "seq_len": 32, "val_fraction": 0.0005},
    "trainer": {"max_steps": 12, "batch_size": 4, "val_check_interval": 4, "log_every_n_steps": 2},
}
TINY_VIT = {
    "model": {"kind": "vit", "hidden": 16, "layers": 2, "heads": 2},
    "data": {"kind": "digits", "val_fraction": 0.02},
    "trainer": {"max_steps": 12, "batch_size": 8, "val_check_interval": 4, "log_every_n_steps": 2},
}


@pytest.fixture
def write_sweep(tmp_path):
    """write_sweep(tree, part=value) -> a sweep file of the name of `tree`, with some parts replaced."""

    def write(tree, **more):
        path = tmp_path / f"{tree['name']}.yaml"
        path.write_text(yaml.safe_dump({**tree, **more}, sort_keys=False))
        return path

    return write


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
def corpus(tmp_path):
    """The files of a corpus: training text, validation text and a tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: i for i, word in enumerate(["a", "b", "c", "[UNK]", "</s>"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "train.txt").write_text("a b c a b " * 300)
    (tmp_path / "val.txt").write_text("c b a " * 100)
    return tmp_path


@pytest.fixture
def run_by_two(tmp_path):
    """run_by_two(script, word, ...): runs the text of a script in a group of two ranks; the exit status, the output and
    the errors of each, rank 0 first."""

    def run(script, *words):
        file = tmp_path / "script.py"
        file.write_text(script)
        return run_ranks(file, *words, cwd=tmp_path, seconds=280)

    return run


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


with groups.lead() as ending:
    if ending.leads:
        ending.status = everything()
sys.exit(ending.status)
"""


@pytest.fixture
def trained_by_two(run_by_two, tmp_path):
    """trained_by_two({name: tree}, stopped): name -> result of two ranks. Each is stopped after 7 updates and, but for
    those in `stopped`, gone on with."""

    def run(trees, stopped=()):
        trees_file, out = tmp_path / "trees.json", tmp_path / "out.json"
        trees_file.write_text(json.dumps([trees, list(stopped)]))
        ended = run_by_two(TRAINING, trees_file, out)
        assert [status for status, *_ in ended] == [0, 0], ended
        return json.loads(out.read_text())

    return run


@pytest.fixture
def begun(monkeypatch):
    """The weights before the first update of each training that follows."""
    from ablate.training.module import TrainingModule  # which imports Lightning

    seen = []
    plain = TrainingModule.on_train_start

    def note(self):
        plain(self)
        seen.append({name: value.clone() for name, value in self.model.state_dict().items()})

    monkeypatch.setattr(TrainingModule, "on_train_start", note)
    return seen


@pytest.fixture(params=[TINY, TINY_VIT], ids=["llama", "vit"])
def family_settings(request):
    """The same for both families."""
    return request.param


@pytest.fixture(scope="session")
def _empty_database(tmp_path_factory):
    """An MLflow database, made once for all test processes: making one takes seconds."""
    from mlflow.store.db import utils

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder /= "empty-store"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABLATE_STORE", str(folder))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        tracking.client.cache_clear()
        tracking.client()  # takes a lock where it makes the database
        tracking.client.cache_clear()
    with pytest.MonkeyPatch.context() as patch:  # which reads all of MLflow's migrations for each new store
        patch.setattr(utils, "_get_latest_schema_revision", functools.cache(utils._get_latest_schema_revision))
        yield folder / "mlflow.db"


@pytest.fixture(scope="session")
def _empty_storage(tmp_path_factory):
    """Optuna's tables in an SQLite file, made once: making them takes a second."""
    file = tmp_path_factory.mktemp("empty") / "optuna.db"
    CREATE_TABLES(f"sqlite:///{file}")
    return file


@pytest.fixture(autouse=True)
def _copied_tables(monkeypatch, request):
    """Have SQLite files made by copying that one, but where it is tested how they are made."""

    def create(url):
        if file := sqlite_file(url):
            copy_database(request.getfixturevalue("_empty_storage"), file)
        else:
            CREATE_TABLES(url)

    monkeypatch.setattr(optuna_storages, "_create_tables", create)


def copy_database(source, target):
    """Copies an SQLite database, also what is still in its write-ahead log."""
    with closing(sqlite3.connect(source)) as before, closing(sqlite3.connect(target)) as copy:
        before.backup(copy)
        copy.execute("PRAGMA journal_mode=WAL")


@pytest.fixture
def store(tmp_path, monkeypatch, _empty_database):
    """An empty store of the test's own; its folder."""
    folder = tmp_path / "mlruns"
    folder.mkdir()
    copy_database(_empty_database, folder / "mlflow.db")
    monkeypatch.setenv("ABLATE_STORE", str(folder))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("ABLATE_STORAGE", raising=False)
    tracking.client.cache_clear()
    yield folder
    tracking.client.cache_clear()


SHARED = {
    "llama": (TINY, {"norm": "pre"}),
    "lns": (TINY, {"norm": "lns"}),
    "vit": (TINY_VIT, {}),
    "measured": (
        TINY,
        {
            "norm": "pre",
            "trainer.diagnose.what": "all",
            "trainer.diagnose.interval": 4,
            "trainer.diagnose.tokens": 64,
        },
    ),
}  # of runs that several tests read, each trained once


@pytest.fixture(scope="session")
def _shared_runs(tmp_path_factory, _empty_database):
    """(their store, name -> its result after training it there if it is not there yet)."""
    from ablate.training.train import train

    folder, results = tmp_path_factory.mktemp("shared"), {}
    copy_database(_empty_database, folder / "mlflow.db")

    def train_once(name):
        if name not in results:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("ABLATE_STORE", str(folder))
                tracking.client.cache_clear()
                results[name] = train(Experiment.from_mapping(*SHARED[name]))
                tracking.client.cache_clear()
        return results[name]

    return folder, train_once


@pytest.fixture
def trained(store, _shared_runs):
    """trained(name, ...): the results of runs of `SHARED`, whose store is copied into the test's own. To be called
    before anything else is written there."""
    from mlflow.tracking._tracking_service.utils import _artifact_repos_cache

    shared, train_once = _shared_runs

    def copy(*names):
        results = [train_once(name) for name in names]
        shutil.copytree(shared, store, dirs_exist_ok=True, ignore=shutil.ignore_patterns("mlflow.db*"))
        copy_database(shared / "mlflow.db", store / "mlflow.db")
        with closing(sqlite3.connect(store / "mlflow.db")) as database, database:
            for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
                database.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (str(shared), str(store)))
        _artifact_repos_cache.clear()  # in which MLflow keeps where a run's artifacts are, by its id alone
        return results if len(results) > 1 else results[0]

    return copy


@pytest.fixture(scope="session")
def _trained(tmp_path_factory):
    """Runs that were trained once in the session: configuration -> (result, a copy of the run's folder)."""
    return {}, tmp_path_factory.mktemp("trained")


@pytest.fixture
def trained_once(store, _trained):
    """trained_once(experiment): the result of its training, by the first test that asks for it; the others get a copy
    of its folder in their own store, where it is no run of MLflow."""
    from ablate.training.train import train

    results, folder = _trained

    def run(experiment):
        key = json.dumps(experiment.to_tree(), sort_keys=True)
        if key not in results:
            results[key] = train(experiment)
            shutil.copytree(store / "runs" / results[key].run_id, folder / results[key].run_id)
        elif not (store / "runs" / results[key].run_id).exists():
            shutil.copytree(folder / results[key].run_id, store / "runs" / results[key].run_id)
        return results[key]

    return run
