"""A sweep whose worker is a torchrun group: stopped and killed in every way, it ends as one that nobody disturbed."""

import os
import signal
import sys
from pathlib import Path

import pytest
import yaml
from forked import Forked
from run_table import by_arm, counts
from scheduler.small import table
from stored_facts import read_facts

from ablate import tracking
from ablate.config.errors import SweepError
from ablate.distributed import ranks
from ablate.scheduler import run
from ablate.scheduler.storage import read_sweep
from ablate.sweeps.spec.sweep import Sweep


def tree(settings, **more):
    return {
        "name": "small",
        "experiment": {**settings, "trainer": {**settings["trainer"], "max_steps": 120, "val_check_interval": 40}},
        "arms": {"pre": {"norm": "pre"}, "mix": {"norm": "mix", "search": {"norm.alpha": [0.5, 1.0]}}},
        "search": {"optimizer.lr": {"low": 1e-3, "high": 1e-2, "log": True}},
        "budget": {"trials": 2},
        **more,
    }


def ctrl_c(torchrun):
    torchrun.send_signal(signal.SIGINT)


def kill_rank_1(torchrun):
    ranks = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
    assert len(ranks) == 2
    os.kill(max(map(int, ranks)), signal.SIGKILL)  # which was started last


WITHOUT_REPORT = """
import sys

from ablate.distributed import groups
from ablate.scheduler.run import sweep
from ablate.sweeps.spec.sweep import Sweep

with groups.lead() as ending:
    if ending.leads:
        ending.status = int([sweep(Sweep.load(file)) for file in ("small.yaml", "plain.yaml")] == [])
sys.exit(ending.status)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks in /proc")
@pytest.mark.parametrize("ends", [(kill_rank_1,), pytest.param((ctrl_c, kill_rank_1), marks=pytest.mark.chaos)])
def test_a_group_that_is_stopped_or_killed_is_continued_by_the_same_command(
    ends, store, tiny_settings, run_by_two, tmp_path, monkeypatch
):
    for name in ("plain", "small"):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(tree(tiny_settings, name=name)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for done, end in enumerate(ends, 1):
        process = Forked(*torchrun, "-m", "ablate", "sweep", "small.yaml", cwd=tmp_path)
        for line in process.stdout:
            if any(line.startswith(f"[{ended}/4]") for ended in range(done, 4)):  # more, if it was slow to stop
                break
        end(process)
        _, errors = process.communicate(timeout=100)
        assert process.returncode
        assert done <= counts(read_sweep("small"))["completed"] < 4, errors
        if end is ctrl_c:
            assert "resume from their last checkpoints with:\n  torchrun --nproc-per-node 2" in errors
            assert counts(read_sweep("small"))["running"] == 0
    ended = run_by_two(WITHOUT_REPORT)
    assert [status for status, *_ in ended] == [0, 0], ended
    assert table(read_sweep("small")) == table(read_sweep("plain"))
    client = tracking.client()
    experiment = client.get_experiment_by_name("small").experiment_id
    runs = client.search_runs([experiment], "tags.`ablate.role` = 'trial'")
    assert sorted(r.info.run_name for r in runs) == ["mix #0", "mix #1", "pre #0", "pre #1"]
    assert {read_facts(r.info.run_id)["ablate.ranks"] for r in runs} == {"2"}
    assert {t.facts["ablate.ranks"] for trials in by_arm(read_sweep("small")).values() for t in trials} == {"2"}


def test_a_group_trains_one_trial_at_a_time(store, tiny_settings, monkeypatch):
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
    with pytest.raises(SweepError, match="start more groups on the same storage"):
        run.sweep(Sweep.from_tree(tree(tiny_settings)), workers=2)
