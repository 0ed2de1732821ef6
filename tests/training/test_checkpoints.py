"""Checkpoints: one that is damaged is found out, and there is always one to go on from."""

import errno
import os
import zipfile

import pytest
import torch
from lightning.pytorch import Trainer

from ablate import tracking
from ablate.config.errors import StoreError
from ablate.experiment.tree import Experiment
from ablate.training.checkpoints import find_newest
from ablate.training.procedures import Hooks, Place
from ablate.training.runs import discard_checkpoint, keep_checkpoint, measure_checkpoint
from ablate.training.train import train


class Killed(BaseException):
    pass


def histories(run_id):
    """Metric -> its points, without those that time."""
    keys = [k for k in tracking.client().get_run(run_id).data.metrics if not k.endswith("_per_second")]
    return {key: [(m.step, m.value) for m in tracking.client().get_metric_history(run_id, key)] for key in keys}


def killed_at(run, update):
    """The id of a run of `run` that ends without a word after `update` updates."""
    started = []

    def die(step, loss):
        if step == update:
            raise Killed

    with pytest.raises(Killed):
        train(run, Place(), Hooks(started=lambda run_id, *_: started.append(run_id), progress=die))
    return started[0]


def truncate(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file):
    """Changes one byte in the middle of the largest tensor; torch.load takes such a file."""
    with zipfile.ZipFile(file) as archive:
        part = max(archive.infolist(), key=lambda info: info.file_size)
        content = archive.read(part)
    data = bytearray(file.read_bytes())
    data[data.index(content) + len(content) // 2] ^= 1
    file.write_bytes(data)
    torch.load(file, weights_only=True)


@pytest.mark.parametrize("damage", [truncate, flip])
@pytest.mark.parametrize("damaged", [["last"], ["last", "previous"]], ids=["last", "both"])
def test_a_damaged_checkpoint_is_set_aside_and_costs_no_number(store, tiny_settings, caplog, damage, damaged):
    run = Experiment.from_mapping(tiny_settings)
    whole = train(run)
    run_id = killed_at(run, 10)
    folder = store / "runs" / run_id
    for name in damaged:
        damage(folder / f"{name}.ckpt")
    heard = []
    rest = train(run, Place(run_id=run_id), Hooks(started=lambda run_id, text, before: heard.append(before.updates)))
    told = caplog.text
    assert heard == [4 if damaged == ["last"] else 0]
    assert "the previous one is used" in told
    assert ("starts from the beginning" in told) == (len(damaged) == 2)
    assert {file.name for file in folder.glob("*.damaged")} == {f"{name}.damaged" for name in damaged}
    assert (rest.run_id, rest.metrics, rest.step) == (run_id, whole.metrics, whole.step)
    assert histories(run_id) == histories(whole.run_id)
    assert all(len({step for step, _ in points}) == len(points) for points in histories(run_id).values())


def test_only_checkpoints_that_are_there_and_not_kept_are_discarded_and_nothing_is_written_to_see_it(
    store, monkeypatch
):
    """A sweep does so for every trial that has ended, whenever one ends."""
    for name in ("kept", "dropped"):
        (store / "runs" / name).mkdir(parents=True)
        (store / "runs" / name / "last.ckpt").touch()
    keep_checkpoint("kept")
    monkeypatch.setattr("pathlib.Path.touch", lambda *_, **__: pytest.fail("a file was made"))
    for name in ("kept", "dropped", "never there"):
        discard_checkpoint(name)
    assert [folder.name for folder in (store / "runs").iterdir()] == ["kept"]


def test_a_finished_run_keeps_one_checkpoint(store, tiny_settings):
    run_id = train(Experiment.from_mapping(tiny_settings)).run_id
    (file,) = (store / "runs" / run_id).glob("*.*")
    assert file.name == "last.ckpt"
    assert measure_checkpoint(run_id) == file.stat().st_size
    assert measure_checkpoint("nothing") == 0
    assert not (store / "runs" / "nothing").exists()


@pytest.mark.parametrize(("call", "number"), [("fsync", 5), ("fsync", 6), ("replace", 4), ("replace", 5)])
def test_a_kill_at_any_write_leaves_a_checkpoint_to_go_on_from(store, tiny_settings, monkeypatch, call, number):
    """The third validation writes its checkpoint, and the process dies before the call of that number."""
    run = Experiment.from_mapping({**tiny_settings, "trainer": {**tiny_settings["trainer"], "max_steps": 16}})
    whole = train(run)
    real, calls, started = getattr(os, call), [], []

    def dies(*given):
        if call == "fsync" or str(given[0]).endswith((".ckpt", ".part")):
            calls.append(given)
        if len(calls) == number:
            raise Killed
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(f"ablate.training.checkpoints.os.{call}", dies)
        with pytest.raises(Killed):
            train(run, hooks=Hooks(started=lambda run_id, *_: started.append(run_id)))
    file, before = find_newest(store / "runs" / started[0])
    assert before.updates in (8, 12)
    assert file.name in ("last.ckpt", "previous.ckpt")
    assert train(run, Place(run_id=started[0])).metrics == whole.metrics
    assert histories(started[0]) == histories(whole.run_id)


def test_a_full_disk_leaves_the_earlier_checkpoints(store, tiny_settings, monkeypatch):
    run = Experiment.from_mapping(tiny_settings)
    whole = train(run)
    save, written, started = Trainer.save_checkpoint, [], []

    def full(self, path, *more):
        written.append(path)
        if len(written) < 3:
            return save(self, path, *more)
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save_checkpoint", full)
        with pytest.raises(StoreError, match=r"cannot be written: No space left on device\. Free some space"):
            train(run, hooks=Hooks(started=lambda run_id, *_: started.append(run_id)))
    folder = store / "runs" / started[0]
    assert sorted(file.name for file in folder.glob("*.*")) == ["last.ckpt", "previous.ckpt"]
    assert find_newest(folder)[1].updates == 8
    assert train(run, Place(run_id=started[0])).metrics == whole.metrics
    assert histories(started[0]) == histories(whole.run_id)


def test_metrics_that_could_not_be_sent_are_in_the_checkpoint(store, tiny_settings, monkeypatch):
    """The store is away, and then the process dies: what it had not sent is sent by the one that goes on."""
    run = Experiment.from_mapping(tiny_settings)
    whole = train(run)
    with monkeypatch.context() as away:
        away.setattr(tracking.Tracker, "flush", lambda self: False)
        away.setattr(tracking.Tracker, "end", lambda *_: None)
        run_id = killed_at(run, 10)
    assert histories(run_id) == {}
    train(run, Place(run_id=run_id))
    assert histories(run_id) == histories(whole.run_id)


def test_a_point_that_was_sent_in_part_is_completed(store, tiny_settings):
    """Killed while it validates: the training loss of that update is sent, the validation is not."""
    tracker = tracking.Tracker.start("e", "r", {})
    tracker.log_metrics({"train/loss": 2.0, "trainer/step": 4}, 512)
    tracker.flush()
    again = tracking.Tracker.resume(tracker.run_id)
    again.log_metrics({"train/loss": 2.0, "trainer/step": 4}, 512)
    again.log_metrics({"val/loss": 3.0, "trainer/step": 4}, 512)
    again.end("completed")
    found = histories(tracker.run_id)
    assert found == {"train/loss": [(512, 2.0)], "trainer/step": [(512, 4.0)], "val/loss": [(512, 3.0)]}
