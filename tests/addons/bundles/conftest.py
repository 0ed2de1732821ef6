"""Sweeps of every kind, through the engine, with losses in the place of training."""

import functools
import gzip
import json
import math
import shutil

import pytest
from optuna.storages import InMemoryStorage

from ablate.addons.bundles import publish as publishing
from ablate.addons.bundles.files import compute_digest
from ablate.addons.bundles.schema import FILE
from ablate.scheduler.storage import open_storage, storage_url
from ablate.sweeps.spec.sweep import Sweep
from benchmarks.simulation.losses import Valley
from benchmarks.simulation.sweeps import simulate

TRIVIAL = 3.3
RATES = [1e-3, 3e-3, 9e-3]
NINE = {"low": 3e-4, "high": 3e-2, "log": True, "num": 9}
ARMS = {"pre": {"norm": "pre"}, "post": {"norm": "post"}, "mix": {"norm": "mix", "search": {"norm.alpha": [0.25, 0.5]}}}
TWO = {arm: ARMS[arm] for arm in ("pre", "post")}
LNS = {"pre": ARMS["pre"], "lns": {"norm": "lns"}}
KINDS = {
    "searched": {
        "arms": ARMS, "search": {"optimizer.lr": RATES}, "sampler": "random", "budget": {"trials": 3},
        "confirm": {"seeds": 4},
    },
    "rungs": {
        "arms": TWO,
        "search": {"method": "rungs", "optimizer.lr": NINE},
        "confirm": {"seeds": 3},
    },
    "challenged": {
        "arms": LNS, "search": {"optimizer.lr": {"low": 3e-4, "high": 3e-2, "log": True}}, "sampler": "random",
        "budget": {"trials": 3}, "confirm": {"seeds": 3},
    },
    "extended": {
        "arms": LNS, "search": {"optimizer.lr": {"low": 1e-4, "high": 1e-3, "log": True}}, "sampler": "random",
        "budget": {"trials": 2}, "confirm": {"seeds": 3},
    },
    "grid": {
        "arms": TWO, "search": {"optimizer.lr": RATES}, "sampler": "grid",
        "confirm": {"at": "grid", "seeds": 4, "effect": 0.3},
    },
    "factorial": {
        "components": {"norm": ["pre", "lns"], "norm.layer": ["rmsnorm", "layernorm"]}, "design": "factorial",
        "search": {"optimizer.lr": RATES[:2]}, "sampler": "grid", "confirm": {"seeds": 3},
    },
    "unconfirmed": {"arms": TWO, "search": {"optimizer.lr": RATES}, "sampler": "random", "budget": {"trials": 3}},
}  # fmt: skip


class Failing(Valley):
    """A valley in which Post-LN diverges at the highest rate, and gets stuck on every third seed."""

    def at(self, share, arm, params, seed):
        if arm.startswith("post") and params["optimizer.lr"] > 8e-3:
            return math.inf
        if arm.startswith("post") and seed % 3 == 2:
            return TRIVIAL - 0.01
        return super().at(share, arm, params, seed)

    def __call__(self, arm, params, seed):
        return self.at(1.0, arm, params, seed)


def build_tree(kind, **parts):
    return {"name": kind, "experiment": {"model": "llama", "data": "topics"}, **KINDS[kind], **parts}


def lose(spec):
    best = {"pre": 2.1, "post": 2.0, "mix": 2.05}
    return Failing({arm: best.get(arm.partition(" ")[0], 2.2) for arm in (*spec.all_arms, *spec.own_arms)}, own=0.02)


@functools.cache
def run_in_memory(kind):
    """The record of a sweep."""
    return run_spec(build_tree(kind), InMemoryStorage())


def run_spec(tree, storage):
    spec = Sweep.from_tree(tree)
    return simulate(spec, lose(spec), storage, trivial_loss=TRIVIAL)


def read_json(folder):
    """The values of the bundle in `folder`."""
    return json.loads(gzip.decompress((folder / FILE).read_bytes()))


def write_json(folder, values, seal=False):
    """Write other values of a bundle; with `seal`, with the digest of those."""
    if seal:
        values["digest"] = compute_digest(values)
    (folder / FILE).write_bytes(gzip.compress(json.dumps(values).encode(), 1))


@pytest.fixture
def run_sweep(store):
    """run_sweep(kind, part=value) -> the record of a sweep in the store."""
    return lambda kind, **parts: run_spec(build_tree(kind, **parts), open_storage(storage_url()))


def publish_in(folder):
    """The folder of a bundle of the sweep `searched`, which is run and published in a store in `folder`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABLATE_STORE", str(folder / "mlruns"))
        patch.delenv("ABLATE_STORAGE", raising=False)
        (folder / "mlruns").mkdir()
        run_spec(build_tree("searched"), open_storage(storage_url()))
        publishing.publish(["searched"], folder / "bundle")
    return folder / "bundle"


@pytest.fixture(scope="session")
def _published(tmp_path_factory):
    """The folder of a bundle that no test changes."""
    return publish_in(tmp_path_factory.mktemp("published"))


@pytest.fixture
def bundle(_published, store, tmp_path):
    """The folder of the published sweep `searched`."""
    shutil.copytree(_published, tmp_path / "bundle")
    return tmp_path / "bundle"
