"""A measurement in the middle of a training leaves no trace."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from ablate.training.undisturbed import undisturbed


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
