"""Effective rank and composed mixing maps, against singular values and matrices that are solved for by hand."""

import math

import numpy as np
import pytest
import torch
from norms.cases import shaken

from ablate.config.errors import ConfigError
from ablate.data import Corpus
from ablate.diagnostics.callback import LayerDiagnostics
from ablate.diagnostics.measures import Batch, Layers, Pruning, Streams, Subject, measurements
from ablate.diagnostics.measures.streams import find_effective_rank
from ablate.diagnostics.measuring import measure
from ablate.experiment.tree import Experiment
from ablate.norms import placements
from ablate.training.module import TrainingModule

TOKENS = torch.randint(11, (4, 5), generator=torch.Generator().manual_seed(1))
SIZES = {"hidden": 8, "layers": 4, "heads": 2, "mlp": 12}


def subject_of(norm, attention="none", there=None, moved=0.5, **settings):
    model = {**SIZES, "attention.value_residual": attention}
    experiment = Experiment.from_mapping({"model": model, "norm": norm, "init.std": 0.3}, settings)
    torch.manual_seed(0)
    model = shaken(experiment.model.build(experiment.norm, experiment.init, 11, (5,)), moved).double().eval()
    parts = [Batch(TOKENS[i : i + 1], TOKENS[i : i + 1], None if there is None else there[i : i + 1]) for i in range(4)]
    return Subject("m", Layers(model), lambda b: model(b.inputs), 4, lambda first, last: parts[first], 5, "tokens")


def measured(subject, kind=Streams):
    return measure(subject, [kind], batch_tokens=5)[kind.name]


def test_the_effective_rank_of_streams_that_are_known():
    row, entropy = torch.tensor([3.0, 4.0]), -0.9 * math.log(0.9) - 0.1 * math.log(0.1)
    cases = {
        "copies": (torch.stack([row, row, -2 * row]), 1.0),
        "orthogonal": (3 * torch.eye(4), 4.0),
        "energies of 0.9 and 0.1": (torch.diag(torch.tensor([3.0, 1.0])), math.exp(entropy)),
        "small": (1e-12 * torch.eye(2), 2.0),
    }
    for name, (streams, expected) in cases.items():
        assert find_effective_rank(streams).item() == pytest.approx(expected), name
    both = find_effective_rank(torch.stack([torch.eye(2), torch.tensor([[1.0, math.inf], [0.0, 1.0]])]))
    assert both[0] == pytest.approx(2.0)
    assert both[1].isnan()


@pytest.mark.parametrize(
    "norm", [{"kind": "hc", "n": 3}, {"kind": "hc", "dynamic": False}, {"kind": "mhc", "mix_start": 1.0}]
)
def test_gains_are_those_of_the_maps_between_what_goes_in_and_comes_out(norm):
    """With f = 0 the wiring computes H' = M H, of which M is solved for, token by token; of the first sequence a token
    is padding."""
    there = torch.ones(4, 5, dtype=torch.bool)
    there[0, -1] = False
    subject = subject_of(norm, there=there)
    noise = torch.randn(5, placements.parse(norm).n, 8, dtype=torch.float64)  # no copies, whose mixtures are not unique
    subject.layers.model.open.register_forward_hook(lambda m, args, output: output + noise)
    states, wirings = [], [w for block in subject.layers.blocks for w in (block.attn_residual, block.mlp_residual)]
    hooks = [w.register_forward_hook(lambda m, args, output: states.append((args[0], output))) for w in wirings]
    with torch.no_grad():
        subject.layers.model(TOKENS)
        for hook in hooks:
            hook.remove()
        maps = [
            (w(h, lambda x, *args: torch.zeros_like(x)) @ torch.linalg.pinv(h)).numpy()
            for w, (h, _) in zip(wirings, states, strict=True)
        ]
    found = measured(subject)
    for layer, row in enumerate(found.rows):
        product = np.eye(maps[0].shape[-1])
        for matrix in maps[2 * layer :]:
            product = matrix @ product
        energies = np.linalg.svd(states[2 * layer + 1][1].numpy(), compute_uv=False) ** 2
        shares = energies / energies.sum(-1, keepdims=True)
        expected = {
            "effective_rank": np.exp(-(shares * np.log(shares)).sum(-1)),
            "forward_gain": np.abs(product).sum(-1).max(-1),
            "backward_gain": np.abs(product).sum(-2).max(-1),
        }
        for column, values in expected.items():
            assert row[column] == pytest.approx(values[there.numpy()].mean(), rel=1e-6), (layer, column)
    assert found.facts["vectors"] == 19


@pytest.mark.parametrize("norm", ["siamese", "x0", "attnres", {"kind": "prores", "base": "hc"}])
@pytest.mark.parametrize("attention", ["none", "fixed"])
def test_other_states_have_a_rank_and_no_map_unless_they_name_one(norm, attention):
    found = measured(subject_of(norm, attention))
    most = 1 + 2 * SIZES["layers"]
    assert all(1 < rank <= most for rank in found.column("effective_rank"))
    assert found.has("forward_gain") == (norm not in ("siamese", "x0", "attnres"))
    assert Streams.draw({"m": found}).panels


@pytest.mark.parametrize("block", [1, 4])
def test_at_the_start_a_layer_of_attention_residuals_is_missed_as_one_of_pre_ln_is(block):
    """Queries are 0, and a norm cannot tell a mean of sources from their sum, where a source of 0 counts nothing."""
    exact = {"norm.layer": {"kind": "rmsnorm", "eps": 1e-14}, "moved": 0.0}
    expected = measured(subject_of("pre", **exact), Pruning).column("loss_increase")
    found = measured(subject_of({"kind": "attnres", "block": block}, **exact), Pruning).column("loss_increase")
    assert found == pytest.approx(expected, abs=1e-5)
    assert min(map(abs, expected)) > 1e-3


@pytest.mark.parametrize("norm", ["hc", "siamese", "attnres"])
def test_a_first_layer_that_is_left_out_still_hands_on_its_values(norm):
    found = measured(subject_of(norm, "fixed"), Pruning)
    assert all(increase != 0 for increase in found.column("loss_increase"))


def test_what_cannot_be_measured_is_said_and_all_means_the_rest():
    reasons = {
        ("streams", "pre"): "its layers hand on one stream",
        ("streams", None): "its layers hand on one stream",
        ("jacobian", "hc"): "its layers hand on 4 streams",
        ("spectral", "attnres"): "its layers hand on the outputs of all blocks",
        ("block_jacobian", "siamese"): "its layers hand on a pair of streams",
        ("streams", "mhc"): "",
        ("jacobian", "b2t"): "",
        ("pruning", "attnres"): "",
    }
    for (name, kind), reason in reasons.items():
        placement = kind and placements.parse(kind)
        assert measurements[name].find_obstacle(True, placement) == reason, (name, kind)
    for name, kind in (("streams", "pre"), ("jacobian", "hc")):
        with pytest.raises(ConfigError, match=rf"{name} cannot be measured of this model: {reasons[name, kind]}\. Acc"):
            Experiment.from_mapping({"norm": kind, "trainer.diagnose.what": name})


@pytest.mark.parametrize(("kind", "without"), [("pre", {"streams"}), ("hc", {"jacobian"})])
def test_in_training_all_leaves_out_what_the_model_cannot_have(kind, without):
    settings = {"model": SIZES, "norm": kind, "trainer.diagnose.what": "all", "trainer.diagnose.share": 1.0}
    experiment = Experiment.from_mapping(settings)
    corpus = Corpus([], [0], "", 11, (5,), None, "")
    taken = LayerDiagnostics(TrainingModule(experiment, corpus), corpus).every
    assert set(taken) == set(experiment.trainer.diagnose.names) - without
