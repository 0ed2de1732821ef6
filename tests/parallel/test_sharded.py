"""The folder that ranks write together: begun beside, whole or not there, verified, and never needed in one piece."""

import json

import pytest
import torch
from forked import run_ranks

from ablate.addons.export.run import export
from ablate.distributed.matrices import regroup, ungroup
from ablate.experiment.tree import Experiment
from ablate.parallel import sharded
from ablate.training.checkpoints import find_newest
from ablate.training.runs import measure_checkpoint

# A quarter of the layers of LLaMA-7B, 16 wide: three updates, stopped after two, gone on with. Then a rank dies.
SCRIPT = """
import faulthandler, json, os, signal, sys, time
from pathlib import Path

from ablate.distributed import groups
from ablate.experiment.tree import Experiment
from ablate.training.train import Hooks, Place, train

tree = json.loads(sys.argv[1])
asked = iter(range(1, 1000))
faulthandler.dump_traceback_later(240)  # where it stands, should it be killed for its time


def everything():
    whole = train(Experiment.from_mapping(tree))
    part = train(Experiment.from_mapping(tree), hooks=Hooks(asked_to_stop=lambda: next(asked) == 2))
    rest = train(Experiment.from_mapping(tree), Place(run_id=part.run_id))
    print(json.dumps([whole.to_dict(), part.to_dict(), rest.to_dict()]), flush=True)
    train(Experiment.from_mapping(tree, {"trainer.max_steps": 1000}))
    return 0


if os.environ["RANK"] == "1":
    import threading

    def die():
        runs = Path(os.environ["ABLATE_STORE"]) / "runs"
        while len(list(runs.glob("*/last.ckpt"))) < 3:  # before, the ranks may wait for one another in the store
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=die, daemon=True).start()
with groups.lead() as ending:
    if ending.leads:
        ending.status = everything()
sys.exit(ending.status)
"""


@pytest.fixture
def seven(tiny_settings):
    """The settings of LLaMA-7B, but narrow and with a quarter of its layers."""
    return {
        **tiny_settings,
        "model": {"kind": "llama-7b", "hidden": 16, "layers": 8, "heads": 4, "mlp": 24},
        "norm": {"kind": "mix", "alpha": 0.0625},
        "trainer": {
            "max_steps": 3, "batch_size": 4, "val_check_interval": 1, "strategy": "fsdp", "precision": "bf16-true",
            "activation_checkpointing": True, "log_every_n_steps": 1, "gradient_clip_val": 1.0,
        },
    }  # fmt: skip


def test_the_layers_of_the_7b_model_train_stop_and_go_on_and_a_dead_rank_ends_all(store, seven, run_by_two, tmp_path):
    (status, output, errors), (killed, _, _) = run_by_two(SCRIPT, json.dumps(seven))
    whole, part, rest = json.loads(next(line for line in output.splitlines() if line.startswith("[")))
    assert (part["status"], part["step"], rest["step"]) == ("interrupted", 2, 3)
    assert rest["metrics"] == whole["metrics"]
    assert (status, killed) == (1, -9), errors
    assert "A rank of this group has ended or does not respond" in errors

    folder = store / "runs" / rest["run_id"]
    path, before = find_newest(folder)
    assert (path.name, before.updates, list(before.validations)) == ("last.ckpt", 3, [1, 2, 3])
    assert sorted(name.name for name in folder.iterdir()) == ["last.ckpt", "lock"]
    written = sorted(name.name for name in path.iterdir())
    assert written == [
        ".metadata", "__0_0.distcp", "__1_0.distcp", "meta.pt", "sums-0-of-2.json", "sums-1-of-2.json",
    ]  # fmt: skip
    assert measure_checkpoint(rest["run_id"]) >= sum(file.stat().st_size for file in path.glob("__*"))
    sizes = [file.stat().st_size for file in path.glob("__*")]
    assert max(sizes) < 0.6 * sum(sizes)  # each rank has its half, and the names

    assert "after 3 updates" in export(str(path), "consolidated", tmp_path / "whole")
    weights = torch.load(tmp_path / "whole" / "model.pt", weights_only=True)
    assert {tuple(w.shape) for name, w in weights.items() if name.endswith("qkv_proj.weight")} == {(48, 16)}

    moved = folder / "last.part"
    path.rename(moved)  # the process ended before it could
    assert find_newest(folder)[0] == path
    assert not moved.exists()
    shards = path / "__1_0.distcp"
    data = bytearray(shards.read_bytes())
    data[len(data) // 2] ^= 1
    shards.write_bytes(data)
    with pytest.raises(ValueError, match=r"the checksum of __1_0\.distcp is wrong"):
        sharded.verify(path)
    (path / "sums-1-of-2.json").unlink()
    with pytest.raises(ValueError, match="some ranks did not finish it"):
        sharded.verify(path)
    assert find_newest(folder) is None
    assert (folder / "last.damaged").is_dir()


LOST = """
import os, signal

import torch

from ablate.distributed import ranks
from ablate.parallel.sharded import Writer

torch.distributed.init_process_group("gloo")
ranks.group = ranks.Group(torch.distributed.get_rank(), 2, None)
ranks.gather_objects(None)
if ranks.rank():
    os.kill(os.getpid(), signal.SIGKILL)
Writer()
"""


def test_a_rank_that_dies_before_the_first_checkpoint_is_not_waited_for(tmp_path):
    script = tmp_path / "lost.py"
    script.write_text(LOST)
    (status, _, errors), (killed, _, _) = run_ranks(script, cwd=tmp_path, seconds=60)
    assert (status, killed) == (1, -9)
    assert "Connection closed by peer" in errors or "Connection reset by peer" in errors


def test_the_7b_model_takes_no_memory_until_it_is_sharded():
    run = Experiment.from_mapping({"model": "llama-7b", "norm": {"kind": "mix", "alpha": 0.0625}})
    with torch.device("meta"):
        model = run.model.build(run.norm, run.init, 32000, (256,))
    assert 6.7e9 < model.parameter_count() < 6.8e9
    assert len(list(model.blocks())) == 32
    inside = sum(p.numel() for block in model.blocks() for p in block.parameters())
    assert inside + 2 * 32000 * 4096 + 4096 == model.parameter_count()  # what is no block's is the root's


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_the_rows_of_fused_matrices_go_to_their_ranks_and_back(parts):
    q, k, v = torch.arange(8), 100 + torch.arange(4), 200 + torch.arange(4)
    weight = torch.cat([q, k, v]).unsqueeze(1) * torch.ones(3, dtype=torch.long)
    grouped = regroup(weight, [8, 4, 4], parts)
    for rank, rows in enumerate(grouped.chunk(parts)):
        own = torch.cat([matrix.chunk(parts)[rank] for matrix in (q, k, v)])
        assert rows[:, 0].tolist() == own.tolist()
    assert torch.equal(ungroup(grouped, [8, 4, 4], parts), weight)
