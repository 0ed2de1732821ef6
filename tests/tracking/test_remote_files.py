"""Data and checkpoints at addresses, through fsspec's file systems of this machine and of memory."""

import ftplib
import socket

import fsspec
import pytest
import torch
import yaml
from run_table import by_arm

from ablate import tracking
from ablate.addons.export.run import export
from ablate.config.errors import ConfigError, DataError, StoreError
from ablate.experiment.tree import Experiment
from ablate.scheduler.run import sweep
from ablate.sweeps.spec.sweep import Sweep
from ablate.tracking import remote_files
from ablate.training.train import train
from ablate.training.trained import open_trained


@pytest.fixture
def memory():
    """fsspec's file system in memory, empty."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()


def test_text_is_read_from_addresses_as_from_files(memory, tmp_path):
    for name, text in (("b.txt", "more of it " * 100), ("a.txt", "some text " * 100)):
        (tmp_path / name).write_text(text)
        memory.pipe(f"/data/{name}", text.encode())
    cache = tmp_path / "cache"

    def corpus(*files):
        return Experiment.from_mapping({"data": {"kind": "text", "files": [*files], "seq_len": 16}}).data.load(cache)

    local = corpus(str(tmp_path / "*.txt"))
    for files in (("memory://data/*.txt",), ("memory://data/a.txt", f"file://{tmp_path}/b.txt")):
        found = corpus(*files)
        assert found.fingerprint == local.fingerprint
        assert torch.equal(found.val.__getitems__([0])[0], local.val.__getitems__([0])[0])


def test_what_has_changed_is_fetched_again_and_nothing_else(memory, tmp_path, monkeypatch):
    fetches = []
    get = type(memory).get_file
    monkeypatch.setattr(type(memory), "get_file", lambda *given, **more: (fetches.append(1), get(*given, **more))[1])
    memory.pipe("/data/a.txt", b"one")
    (first,) = remote_files.fetch("memory://data/a.txt", tmp_path)
    assert remote_files.fetch("memory://data/a.txt", tmp_path) == [first]
    assert (first.read_text(), fetches) == ("one", [1])
    memory.pipe("/data/a.txt", b"another")
    (second,) = remote_files.fetch("memory://data/a.txt", tmp_path)
    assert (second.read_text(), fetches) == ("another", [1, 1])


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://data/none.txt", "There is no file memory://data/none.txt"),
        ("memory://data/*.gz", r"There is no file memory://data/\*\.gz"),
        ("memory://data", r"is a folder. Name its files, for instance by a glob: memory://data/\*"),
        ("s4://bucket/a.txt", "of an unknown kind. Accepted: file, s3, gs"),
        ("hdfs-not-there://x/a.txt", "of an unknown kind"),
        ("github://x", r"github://x cannot be reached: .* missing 2 .*'org' and 'repo'\. Accepted: file, s3, gs, az"),
    ],
)
def test_a_wrong_address_is_told(memory, tmp_path, url, message):
    memory.pipe("/data/a.txt", b"one")
    with pytest.raises(DataError, match=message):
        remote_files.fetch(url, tmp_path)


def test_a_package_that_is_missing_and_a_refusal_are_told(memory, tmp_path, monkeypatch):
    def missing(url):
        raise ImportError("Install s3fs to access S3")

    def refused(self, *given, **more):
        raise PermissionError(13, "Access Denied")

    memory.pipe("/data/a.txt", b"one")
    monkeypatch.setattr(type(memory), "get_file", refused)
    with pytest.raises(DataError, match=r"memory://data/a.txt cannot be read: Access Denied"):
        remote_files.fetch("memory://data/a.txt", tmp_path)
    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(DataError, match=r"s3://bucket/a.txt cannot be reached: Install s3fs"):
        remote_files.fetch("s3://bucket/a.txt", tmp_path)


def test_a_server_that_does_not_answer_is_told(tmp_path, monkeypatch):
    def connect(self, *given, **more):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(ftplib.FTP, "connect", connect)
    for open_address in (remote_files.check_url, lambda url: remote_files.fetch(url, tmp_path)):
        with pytest.raises(DataError, match=r"^ftp://nowhere/a.txt cannot be reached: Name or service not known\. Acc"):
            open_address("ftp://nowhere/a.txt")


def test_a_finished_run_is_copied_and_its_copy_is_a_checkpoint(store, memory, tiny_settings, tmp_path):
    run = Experiment.from_mapping(tiny_settings, {"trainer.copy_to": "memory://runs/"})
    result = train(run)
    folder = f"memory://runs/{result.run_id}"
    assert tracking.client().get_run(result.run_id).data.tags["ablate.copy"] == folder
    assert yaml.safe_load(memory.cat(f"/runs/{result.run_id}/config.yaml")) == run.to_tree()
    own = open_trained(result.run_id)
    for given in (folder, f"{folder}/last.ckpt"):
        copy = open_trained(given)
        assert copy.step == own.step == 12
        assert all(torch.equal(copy.state[name], value) for name, value in own.state.items())
    export(folder, "safetensors", tmp_path / "weights")
    assert (tmp_path / "weights" / "model.safetensors").stat().st_size > 0
    with pytest.raises(DataError, match="There is no checkpoint at memory://runs/other"):
        open_trained("memory://runs/other")


def test_a_checkpoint_of_shards_is_copied_whole(memory, tmp_path):
    shards = tmp_path / "last.ckpt"
    (shards / "inner").mkdir(parents=True)
    names = ("sums-0-of-1.json", "__0_0.distcp", "meta.pt", "inner/x")
    for name in names:
        (shards / name).write_text(name)
    remote_files.copy({"last.ckpt": shards}, "memory://runs/1")
    for given in ("memory://runs/1", "memory://runs/1/last.ckpt"):
        found = remote_files.fetch_checkpoint(given, "last.ckpt", tmp_path / "cache")
        assert found.name == "last.ckpt"
        assert {str(p.relative_to(found)) for p in found.rglob("*") if p.is_file()} == set(names)


def test_a_sweep_copies_the_best_trial_of_each_arm(store, memory, tiny_settings):
    spec = {
        "name": "copied",
        "experiment": {**tiny_settings, "trainer": {**tiny_settings["trainer"], "copy_to": "memory://runs"}},
        "search": {"optimizer.lr": [1e-3, 1e-2]},
        "sampler": "grid",
        "budget": {"trials": 2},
    }
    record = sweep(Sweep.from_tree(spec))
    (arm,) = by_arm(record)
    assert [path.rpartition("/")[2] for path in memory.ls("/runs", detail=False)] == [record.best(arm).run_id]


def test_an_address_that_cannot_be_written_is_told(store, tiny_settings, monkeypatch):
    with pytest.raises(DataError, match="of an unknown kind"):
        train(Experiment.from_mapping(tiny_settings, {"trainer.copy_to": "s4://runs"}))
    with pytest.raises(ConfigError, match="copy_to"):
        Experiment.from_mapping(tiny_settings, {"trainer.copy_to": "runs"})
    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.put_file", lambda *given: 1 / 0)
    with pytest.raises(StoreError, match=r"Nothing can be copied to memory://runs/.*: division by zero"):
        train(Experiment.from_mapping(tiny_settings, {"trainer.copy_to": "memory://runs"}))


def test_the_store_is_a_folder(monkeypatch):
    monkeypatch.setenv("ABLATE_STORE", "s3://bucket/mlruns")
    with pytest.raises(StoreError, match="must be a folder"):
        tracking.store_path()
