"""Each measurement against what is known of the stack that it measures."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from diagnostics.models import Linear, Network, Scaled, loss_by_hand, subject_of

from ablate.config.errors import AblateError
from ablate.diagnostics.figures.rows import average
from ablate.diagnostics.measures import (
    Batch,
    BlockJacobian,
    Gradients,
    Jacobian,
    Layers,
    Options,
    Pruning,
    Spectral,
    Subject,
    Variance,
    block_jacobian,
)
from ablate.diagnostics.measuring import measure
from ablate.experiment.tree import Experiment


@pytest.fixture
def inputs():
    return torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def targets():
    return torch.randint(11, (6, 5), generator=torch.Generator().manual_seed(2))


def one(kind, subject, **options):
    return measure(subject, [kind], **options)[kind.name]


def test_a_layer_that_is_the_identity_is_not_missed_at_all(inputs, targets):
    torch.manual_seed(0)
    model = Network([Scaled(8, 1.0), Scaled(8, 0.0), Scaled(8, 1.0)], 11)
    found = one(Pruning, subject_of(model, inputs, targets), batch_tokens=10)
    first, second, third = found.column("loss_increase")
    assert second == 0.0
    assert first != 0.0
    assert third != 0.0


def test_the_loss_without_a_layer_is_that_of_the_model_built_without_it(inputs, targets):
    torch.manual_seed(0)
    layers = [Scaled(8, 1.0) for _ in range(3)]
    found = one(Pruning, subject_of(Network(layers, 11), inputs, targets), batch_tokens=15)
    model = Network(layers, 11)
    model.head.load_state_dict((whole := Network(layers, 11)).head.state_dict())
    found = one(Pruning, subject_of(whole, inputs, targets), batch_tokens=15)
    before = loss_by_hand(whole, inputs, targets).item()
    assert found.facts["whole"]["loss"] == pytest.approx(before, abs=1e-6)
    for index, increase in enumerate(found.column("loss_increase")):
        model.layers = torch.nn.ModuleList([layer for i, layer in enumerate(layers) if i != index])
        assert increase == pytest.approx(loss_by_hand(model, inputs, targets).item() - before, abs=1e-6)


def test_of_classifiers_the_accuracy_too_and_benchmarks_where_they_are_given():
    torch.manual_seed(0)
    images, classes = torch.randn(40, 8), torch.randint(3, (40,))
    model = Network([Scaled(8, 1.0), Scaled(8, 0.0)], 3)
    options = Options(metrics={"benchmark": lambda m: m(images[:1]).sum().item()})
    subject = subject_of(model, images, classes, unit="images")
    found = measure(subject, [Pruning], options, batch_tokens=7)["pruning"]
    right = (model(images).argmax(-1) == classes).float().mean().item()
    without = (model.head(model.layers[1](images)).argmax(-1) == classes).float().mean().item()
    assert found.facts["whole"]["accuracy"] == pytest.approx(right)
    assert found.column("accuracy_change") == pytest.approx([without - right, 0.0])
    changed = (model.head(images[:1]) - model(images[:1])).sum().item()
    assert found.column("benchmark_change") == pytest.approx([changed, 0.0], abs=1e-5)


def test_gradient_norms_are_those_of_a_backward_pass(inputs, targets):
    torch.manual_seed(0)
    model = Network([Scaled(8, 1.0) for _ in range(3)], 11)
    found = one(Gradients, subject_of(model, inputs, targets), batch_tokens=15)
    expected = []
    for part in (slice(0, 3), slice(3, 6)):
        model.zero_grad()
        loss_by_hand(model, inputs[part], targets[part]).backward()
        expected.append([math.hypot(*(p.grad.norm().item() for p in layer.parameters())) for layer in model.layers])
    a, b = expected
    assert found.column("gradient_norm") == pytest.approx([(x + y) / 2 for x, y in zip(a, b, strict=True)], rel=1e-5)
    errors = [abs(x - y) / 2 for x, y in zip(a, b, strict=True)]  # of a mean of two
    assert found.column("gradient_norm_error") == pytest.approx(errors, rel=1e-3)
    assert found.facts["batches"] == 2


def test_measuring_leaves_no_gradient(inputs, targets):
    model = Network([Scaled(8, 1.0)], 11)
    measure(subject_of(model, inputs, targets), [Gradients, Jacobian])
    assert all(p.grad is None for p in model.parameters())


def test_the_variance_of_a_linear_stack_is_its_closed_form():
    """Of independent standard normal inputs, y = W2 W1 x has the variance |W2 W1|^2 / d."""
    torch.manual_seed(0)
    weights = [torch.randn(16, 16) / 4 for _ in range(2)]
    x = torch.randn(400, 64, 16)
    found = one(Variance, subject_of(Network([Linear(w) for w in weights], 3), x), batch_tokens=640)
    closed = [weights[0].square().sum().item() / 16, (weights[1] @ weights[0]).square().sum().item() / 16]
    assert found.column("variance") == pytest.approx(closed, rel=0.02)
    exact = (x @ weights[0].T).double().var(correction=0).item()
    assert found.column("variance")[0] == pytest.approx(exact, rel=1e-6)


def test_the_variance_of_large_means_is_not_lost_and_sublayers_have_theirs():
    torch.manual_seed(0)
    model, x = Network([Scaled(8, 1.0)], 3), 1000 + torch.randn(50, 4, 8)
    found = one(Variance, subject_of(model, x), batch_tokens=12)
    y = model.layers[0].mlp(x).double()
    assert found.column("mlp_variance") == pytest.approx([y.var(correction=0).item()], rel=1e-4)
    assert not found.has("attention_variance")


def test_the_jacobian_of_a_linear_map_is_its_norm_within_the_standard_error():
    torch.manual_seed(0)
    weights = [torch.randn(8, 8) for _ in range(2)]
    x = torch.randn(3000, 5, 8)
    found = one(Jacobian, subject_of(Network([Linear(w) for w in weights], 3), x), batch_tokens=500)
    exact = [((weights[1] @ weights[0]).norm() * 5**0.5).item(), (weights[1].norm() * 5**0.5).item()]
    for value, error, norm in zip(
        found.column("jacobian_norm"), found.column("jacobian_norm_error"), exact, strict=True
    ):
        assert 0 < error < 0.03 * norm
        assert abs(value - norm) < 3 * error
    gains = [norm / (5 * 8) ** 0.5 for norm in exact]
    assert found.column("jacobian_gain") == pytest.approx(gains, rel=0.03)
    assert found.facts["samples"] == 3000


def test_the_gain_of_the_identity_is_one_also_where_there_is_padding():
    there = torch.arange(6) < torch.randint(1, 7, (400, 1))
    found = one(Jacobian, subject_of(Network([Linear(torch.eye(4))], 3), torch.randn(400, 6, 4), there=there))
    (value,), (error,) = found.column("jacobian_gain"), found.column("jacobian_gain_error")
    assert abs(value - 1) < 3 * error


@pytest.mark.parametrize(
    ("settings", "inputs"),
    [
        ({"model": {"hidden": 8, "layers": 3, "heads": 2, "mlp": 16}, "norm": "mix"}, torch.arange(8).view(2, 4)),
        ({"model": {"kind": "vit", "hidden": 8, "layers": 2, "heads": 2}}, torch.rand(2, 1, 4, 4).double()),
    ],
    ids=["llama", "vit"],
)
def test_the_spectral_norm_is_the_largest_singular_value_of_the_whole_derivative(settings, inputs):
    """In float64, with the matrix [tokens * d, tokens * d] of each sequence written out."""
    experiment = Experiment.from_mapping(settings, {"init.std": 0.5})
    torch.manual_seed(0)
    model = experiment.model.build(experiment.norm, experiment.init, 11, tuple(inputs.shape[1:])).double().eval()
    layers = Layers(model)
    load = {"load": lambda first, last: Batch(inputs[first:last], inputs[first:last])}
    found = one(Spectral, Subject("model", layers, lambda b: model(b.inputs), 2, per_item=4, unit="tokens", **load))
    with torch.no_grad(), layers.record_states() as states:
        model(inputs)

    def run_from(layer, sequence, x):
        """The output of the last layer where `x` is the input of `layer`."""
        handle = layers.blocks[layer].register_forward_pre_hook(lambda _, args: (x.unsqueeze(0), *args[1:]))
        with layers.record_states() as again:
            model(inputs[sequence : sequence + 1])
        handle.remove()
        return again[-1][0]

    for layer, value in enumerate(found.column("spectral_norm")):
        largest = []
        for sequence, x in enumerate(states[layer]):
            matrix = torch.autograd.functional.jacobian(partial(run_from, layer, sequence), x)
            largest.append(torch.linalg.svdvals(matrix.reshape(x.numel(), x.numel()))[0].item())
        assert value == pytest.approx(sum(largest) / 2, rel=2e-3)
    assert found.facts["samples"] == 2
    assert found.facts["converged"] == 1.0


def test_the_spectral_norm_of_the_identity_is_one_also_where_there_is_padding():
    there = torch.arange(6) < torch.randint(1, 7, (20, 1))
    found = one(Spectral, subject_of(Network([Linear(torch.eye(4))], 3), torch.randn(20, 6, 4), there=there))
    assert found.column("spectral_norm") == pytest.approx([1.0])
    assert found.facts["samples"] == 8


@pytest.mark.parametrize("broken", [1, 3])
def test_a_sequence_that_overflows_has_no_spectral_norm_and_did_not_converge(broken):
    class Power(torch.nn.Module):
        """y = x^60, which overflows at 10."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))

        def forward(self, x):
            return (x * self.weight) ** 60

    x = torch.linspace(0.9, 1.0, 24).view(3, 2, 4).flip(0)  # several steps
    x[:broken] = 10.0
    measured = one(Spectral, subject_of(Network([Power()], 3), x))
    assert math.isnan(measured.column("spectral_norm")[0])
    assert measured.facts["converged"] == pytest.approx((3 - broken) / 3)
    whole = one(Spectral, subject_of(Network([Power()], 3), torch.ones(2, 2, 4)))
    assert whole.column("spectral_norm") == pytest.approx([60.0])


def run_block(model, block, tokens, x):
    """The output of `block` where `x` is its input."""
    outputs = []
    with (
        block.register_forward_pre_hook(lambda _, args: (x, *args[1:])),
        block.register_forward_hook(lambda _, args, output: outputs.append(output)),
    ):
        model(tokens)
    return outputs[0]


def test_the_jacobian_of_a_layer_is_the_mean_of_its_diagonal_blocks():
    """By torch.func on each sequence, at the positions that were drawn; every batching draws the same."""
    torch.manual_seed(0)
    experiment = Experiment.from_mapping(
        {"model": {"hidden": 8, "layers": 2, "heads": 2, "mlp": 16}, "norm": "pre"}, {"init.std": 0.5}
    )
    model = experiment.model.build(experiment.norm, experiment.init, 11, (4,)).double().eval()
    tokens, layers = torch.randint(11, (5, 4)), Layers(model)
    load = {"load": lambda first, last: Batch(tokens[first:last], tokens[first:last])}
    subject = Subject("model", layers, lambda b: model(b.inputs), 5, per_item=4, unit="tokens", **load)
    found = [one(BlockJacobian, subject, batch_tokens=n) for n in (4, 20)]
    for name in BlockJacobian.columns:
        assert found[0].column(name) == pytest.approx(found[1].column(name))
    with torch.no_grad(), layers.record_states() as states:
        model(tokens)
    drawn = BlockJacobian(subject)._choose_positions(Batch(tokens, tokens), states[1], 0).tolist()
    assert len(set(drawn)) > 1
    for layer, block in enumerate(layers.blocks):
        mean = torch.zeros(8, 8, dtype=torch.float64)
        for item, t in enumerate(drawn):
            x = states[layer][item : item + 1]
            whole = torch.autograd.functional.jacobian(partial(run_block, model, block, tokens[item : item + 1]), x)
            mean += whole[0, t, :, 0, t, :] / 5
        share = (mean.diagonal().abs().sum() / mean.abs().sum()).item()
        assert found[0].column("diagonal_share")[layer] == pytest.approx(share)
        expected = (mean - torch.eye(8)).norm().item() / 8**0.5
        assert found[0].column("identity_distance")[layer] == pytest.approx(expected)
        assert torch.allclose(torch.tensor(found[0].facts["matrices"][layer]).double(), mean.abs(), rtol=6e-3)


def test_of_a_wide_layer_the_jacobian_of_a_block_of_features_is_kept(monkeypatch):
    monkeypatch.setattr(block_jacobian, "FEATURES", 3)
    weight = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    there = torch.arange(6) < torch.tensor([[1], [6], [3]])
    found = one(BlockJacobian, subject_of(Network([Linear(weight)], 3), torch.randn(3, 6, 8), there=there))
    assert torch.allclose(torch.tensor(found.facts["matrices"][0]), weight[:3, :3].abs(), rtol=6e-3)
    share = (weight.diagonal()[:3].abs().sum() / weight[:3].abs().sum()).item()  # of whole rows
    assert found.column("diagonal_share") == pytest.approx([share])
    assert found.facts["vectors"] == 3


def test_the_jacobian_of_a_layer_that_does_nothing_is_the_identity():
    found = one(BlockJacobian, subject_of(Network([Scaled(8, 0.0)], 3), torch.randn(3, 6, 8)))
    assert found.rows == [{"layer": 1, "diagonal_share": 1.0, "identity_distance": 0.0}]


def test_of_a_jacobian_what_is_not_finite_is_blank(tmp_path):
    weight = torch.eye(4)
    weight[1, 2], weight[3, 0] = math.nan, math.inf
    subject = subject_of(Network([Linear(weight), Linear(torch.eye(4))], 3), torch.randn(3, 6, 4))
    measured = one(BlockJacobian, subject, results=tmp_path)
    assert one(BlockJacobian, subject, results=tmp_path).facts == measured.facts  # JSON has no NaN
    averaged = average([measured, measured])
    for result in (measured, averaged):
        broken, whole = result.facts["matrices"]
        assert broken == [[None, float(row == 1), None, float(row == 3)] for row in range(4)]  # 0 times NaN is NaN
        assert whole == torch.eye(4).tolist()
        shown = [panel.marks[0].values for panel in BlockJacobian.draw({"model": result}).panels]
        blank = np.zeros((4, 4), dtype=bool)
        blank[:, [0, 2]] = True
        assert (np.isnan(shown[0]) == blank).all()
        assert np.isfinite(shown[1]).all()


def test_how_it_is_batched_does_not_matter(inputs, targets):
    torch.manual_seed(0)
    model = Network([Scaled(8, 1.0) for _ in range(2)], 11)
    kinds = [Pruning, Variance]
    whole, parts = (measure(subject_of(model, inputs, targets), kinds, batch_tokens=n) for n in (1000, 5))
    for name in whole:
        for a, b in zip(whole[name].rows, parts[name].rows, strict=True):
            assert a == pytest.approx(b, rel=1e-5, abs=1e-7)


def test_no_more_tokens_than_asked_for(inputs):
    seen = []
    subject = subject_of(Network([Scaled(8, 1.0)], 11), inputs)
    load = subject.load

    def counted(first, last):
        seen.append((first, last))
        return load(first, last)

    subject = Subject("m", subject.layers, subject.forward, 6, counted, 5, "tokens")
    assert one(Variance, subject, tokens=18, batch_tokens=10).facts["tokens"] == 20  # whole sequences
    assert seen == [(0, 2), (2, 4)]


def test_a_model_that_uses_a_layer_twice_is_refused(inputs):
    class Twice(Network):
        def forward(self, x):
            return super().forward(self.layers[0](x))

    with pytest.raises(AblateError, match="uses a layer twice"):
        one(Variance, subject_of(Twice([Scaled(8, 1.0), Scaled(8, 1.0)], 11), inputs))
