"""Masks of dropout and stochastic depth: a stream for each part of a batch, and gone on with where a run stopped."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from ablate.training import random_states
from ablate.training.random_states import undisturbed

DROPS = {"model.drop_path": 0.5, "trainer.precision": "32-true", "trainer.log_every_n_steps": 1}


def strategy(part=0, parts=1, device="cpu"):
    return SimpleNamespace(
        root_device=torch.device(device), distributed_sampler_kwargs={"rank": part, "num_replicas": parts}
    )


def weights(store, run_id):
    return torch.load(store / "runs" / run_id / "last.ckpt", weights_only=True)["state_dict"]


@pytest.fixture
def gpu(monkeypatch):
    """A stand-in for torch.cuda's generator: its state is a number; seeding all devices seeds it."""
    state = {"now": torch.tensor([0], dtype=torch.uint8)}
    module = SimpleNamespace(
        get_rng_state=lambda: state["now"].clone(), set_rng_state=lambda new: state.update(now=new.clone())
    )
    seeds, plain = [], torch.manual_seed
    monkeypatch.setattr(torch, "get_device_module", {"cuda": module}.__getitem__)
    monkeypatch.setattr(torch, "manual_seed", lambda seed: (seeds.append(seed), plain(seed % 2**32)))
    with torch.random.fork_rng([]):
        yield SimpleNamespace(state=state, seeds=seeds)


def test_the_state_of_a_gpu_is_saved_and_restored(gpu):
    gpu.state["now"] = torch.tensor([7], dtype=torch.uint8)
    saved = random_states.gather_states(strategy(device="cuda"))
    wanted = torch.get_rng_state()
    gpu.state["now"] = torch.tensor([9], dtype=torch.uint8)
    torch.rand(1)
    random_states.restore_states(strategy(device="cuda"), 0, 5, saved)
    assert gpu.state["now"].item() == 7
    assert torch.equal(torch.get_rng_state(), wanted)


def test_what_a_checkpoint_does_not_have_begins_a_new_stream_for_each_part(gpu):
    """A checkpoint of one process on the CPU goes on with two on GPUs."""
    saved = random_states.gather_states(strategy())
    for part in range(2):
        random_states.restore_states(strategy(part, 2, "cuda"), 0, 5, saved)
    assert len(set(gpu.seeds)) == 2
    assert gpu.state["now"].item() == 0  # no state was set over them


def test_a_run_of_one_process_begins_as_it_always_did():
    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        before = torch.get_rng_state()
        random_states.begin_states(strategy(), 3)
        assert torch.equal(torch.get_rng_state(), before)
        random_states.begin_states(strategy(1, 2), 3)
        assert not torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("fails", [False, True])
def test_modes_and_random_states_come_back(fails):
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout()))
    model[1].eval()  # a frozen part stays so
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    wanted = random.random(), np.random.rand(), torch.rand(1).item()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    try:
        with undisturbed(model):
            assert not any(module.training for module in model.modules())
            random.random(), np.random.rand(), torch.rand(1)
            if fails:
                raise ValueError
    except ValueError:
        pass
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == wanted
    assert [module.training for module in model.modules()] == [True, True, False, False]
