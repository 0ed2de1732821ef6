"""Workers that share GPUs: as many as the plan of the memory says fit."""

from collections import Counter
from types import SimpleNamespace

import pytest
from scheduler.small import run_here

from ablate.cli import main
from ablate.config.errors import ConfigError
from ablate.estimate.gpus import GIB
from ablate.estimate.memory import Memory
from ablate.scheduler import devices, own_runs, preparation, worker
from ablate.sweeps.spec.sweep import Sweep
from ablate.tracking import provenance
from ablate.training.procedures import Result

SWEEP = {
    "name": "shared",
    "experiment": {
        "model": {"hidden": 32, "layers": 2, "heads": 2, "mlp": 64, "vocab_size": 100},
        "data": {"seq_len": 32},
        "trainer": {"max_steps": 10, "batch_size": 64},
    },
    "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
    "search": {"optimizer.lr": [1e-3, 1e-2]},
}


@pytest.fixture
def gpus(monkeypatch):
    """gpus(N, GiB each): what torch then finds."""

    def found(number, gib=8.0):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr("torch.cuda.device_count", lambda: number)
        monkeypatch.setattr("torch.cuda.is_available", lambda: number > 0)
        monkeypatch.setattr(devices, "read_free_memory", lambda: [int(gib * GIB)] * number)

    return found


@pytest.mark.parametrize(("number", "each"), [(1, 4), (2, 3), (3, 1)])
def test_each_gpu_gets_as_many_workers(gpus, number, each):
    gpus(number)
    workers = devices.count_workers(Sweep.from_tree(SWEEP), each)
    given = Counter(devices.pick_devices(slot, workers) for slot in range(workers))
    assert given == {(str(gpu), each): each for gpu in range(number)}


def test_workers_that_share_a_gpu_know_with_how_many(gpus):
    gpus(2)
    assert [devices.pick_devices(slot, 3).sharing for slot in range(3)] == [2, 1, 2]
    assert [devices.pick_devices(slot, 2).sharing for slot in range(2)] == [1, 1]
    gpus(0)
    assert devices.pick_devices(0, 4) == (None, 1)


@pytest.mark.parametrize(("sharing", "gib", "part"), [(1, 80, None), (4, 80, 19 / 80), (8, 8, 0.5 / 8)])
def test_a_worker_takes_its_part_of_the_memory_of_a_gpu(gpus, monkeypatch, sharing, gib, part):
    """A part, less a GiB for CUDA's context; where that would be all, half of it."""
    gpus(1)
    asked = []
    monkeypatch.setattr(
        "torch.cuda.get_device_properties", lambda device: SimpleNamespace(total_memory=float(gib * GIB))
    )
    monkeypatch.setattr("torch.cuda.set_per_process_memory_fraction", asked.append)
    devices.cap_memory(sharing)
    assert asked == ([] if part is None else [pytest.approx(part)])


def test_a_trial_is_capped_before_it_begins(store, tiny_settings, monkeypatch):
    order = []
    monkeypatch.setenv(devices.SHARING, "3")
    monkeypatch.setattr(own_runs, "cap_memory", lambda sharing: order.append(sharing))
    monkeypatch.setattr(worker, "await_store", lambda *given: order.append("store"))
    monkeypatch.setattr(own_runs, "train", lambda *given: order.append("trained") or Result("pruned", {}, 1, None, 0.0))
    tree = {**SWEEP, "experiment": tiny_settings, "arms": {}, "search": {"optimizer.lr": [1e-3]}, "sampler": "grid"}
    run_here(Sweep.from_tree(tree))
    assert order == ["store", 3, "trained"]


def test_the_process_of_a_sweep_uses_no_gpu(store, tiny_settings, gpus, monkeypatch):
    """It counts them, opens studies and parent runs, and picks devices for workers."""

    def fails(*given):
        raise AssertionError("CUDA was initialised")

    gpus(2)
    provenance.describe_environment.cache_clear()
    for name in ("_lazy_init", "init", "get_device_name", "get_device_properties", "mem_get_info", "current_device"):
        monkeypatch.setattr(f"torch.cuda.{name}", fails)
    spec = Sweep.from_tree({**SWEEP, "experiment": tiny_settings})
    queue, _ = preparation.open_sweep(spec, f"sqlite:///{store}/optuna.db", False, 1)
    assert [*queue.spec.all_arms] == ["pre", "post"]
    assert [devices.pick_devices(slot, 2).visible for slot in range(2)] == ["0", "1"]


def test_too_many_are_refused_with_how_many_fit(gpus, monkeypatch):
    needs = Memory({"parameters": 1.94 * GIB}, 0)  # 2 GiB with what the allocator loses, and 1 GiB for CUDA
    assert needs.needs == pytest.approx(3 * GIB)
    monkeypatch.setattr(devices, "estimate_memory", lambda experiment: needs)
    gpus(2, 8.0)
    assert devices.count_workers(Sweep.from_tree(SWEEP), 2) == 4
    with pytest.raises(
        ConfigError, match=r"2 workers at most: each needs 3\.0 GiB.* 8\.0 GiB are free.* Use 2, or auto"
    ):
        devices.count_workers(Sweep.from_tree(SWEEP), 3)
    monkeypatch.setattr(devices, "count_cores", lambda: 32)
    assert devices.count_workers(Sweep.from_tree(SWEEP), "auto") == 4
    monkeypatch.setattr(devices, "count_cores", lambda: 2)  # each worker needs a core to keep its GPU busy
    assert devices.count_workers(Sweep.from_tree(SWEEP), "auto") == 2
    gpus(1, 2.5)
    with pytest.raises(ConfigError, match="not even one worker fits"):
        devices.count_workers(Sweep.from_tree(SWEEP), "auto")


def test_the_values_that_need_most_memory_count():
    arms = {"pre": {"norm": "pre"}, "wide": {"norm": "pre", "search": {"model.mlp": [64, 4096, 128]}}}
    arm, memory = devices.find_largest(Sweep.from_tree({**SWEEP, "arms": arms, "confounds": ["model.mlp"]}))
    wide = Sweep.from_tree(SWEEP).base("pre").model_copy()
    wide = type(wide).from_mapping(wide.to_tree(), {"model.mlp": 4096})
    assert arm == "wide"
    assert (
        memory.peak
        == devices.estimate_memory(wide).peak
        > 2 * devices.estimate_memory(Sweep.from_tree(SWEEP).base("pre")).peak
    )


def test_what_makes_no_sense_is_told(gpus, tmp_path, capsys):
    gpus(0)
    with pytest.raises(ConfigError, match="finds no GPU on this machine; use --workers N"):
        devices.count_workers(Sweep.from_tree(SWEEP), 2)
    for words, message in (
        (["--workers", "2"], "cannot be combined with --workers"),
        (["--submit", "cluster=local"], "cannot be combined with --submit"),
    ):
        assert main(["sweep", "any.yaml", "--workers-per-gpu", "auto", *words]) == 2
        assert message in capsys.readouterr().err
