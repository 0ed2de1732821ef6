"""The output layer and its loss in parts: the numbers of torch's own, and never all logits at once."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torchmetrics.text import Perplexity

from ablate.config.errors import ConfigError
from ablate.experiment.tree import Experiment
from ablate.models import head

VOCABULARY, WIDTH, POSITIONS = 300, 16, 45


@pytest.fixture
def small_parts(monkeypatch):
    """Seven positions at a time."""
    monkeypatch.setattr(head, "LOGITS", 7 * VOCABULARY)


def case(dtype=torch.float32):
    torch.manual_seed(0)
    x = torch.randn(3, POSITIONS // 3, WIDTH, dtype=dtype, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, dtype=dtype, requires_grad=True)
    targets = torch.randint(VOCABULARY, (3, POSITIONS // 3))
    targets[0, 5:] = targets[2, -1] = -100
    return x, weight, targets


def plain(x, weight, targets):
    """As written in the docstring, by torch's own functions on all logits."""
    return F.cross_entropy((x @ weight.T).flatten(0, 1).float(), targets.flatten(), reduction="sum") / targets.numel()


def with_gradients(function, x, weight, targets, scale=1.0):
    loss = function(x, weight, targets)
    (loss * scale).backward()
    found = loss.detach(), x.grad.clone(), weight.grad.clone()
    x.grad = weight.grad = None
    return found


def test_parts_have_the_loss_and_the_gradients_of_the_whole(small_parts):
    given = case()
    torch.testing.assert_close(with_gradients(head.cross_entropy, *given, 3.0), with_gradients(plain, *given, 3.0))


@pytest.mark.parametrize("in_parts", [False, True])
def test_the_z_loss_is_the_square_of_the_log_of_the_sum(in_parts, monkeypatch):
    """Against the formula in float64: of each target, padding left out, beside the cross-entropy."""
    monkeypatch.setattr(head, "LOGITS", (7 if in_parts else 1000) * VOCABULARY)

    def by_hand(x, weight, targets):
        logits = x.double() @ weight.double().T
        log_z = logits.exp().sum(-1).log()
        right = logits.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return (((log_z - right) + 0.01 * log_z**2) * (targets >= 0)).sum() / targets.numel()

    given = case()
    ours = with_gradients(lambda *own: head.cross_entropy(*own, z_loss=0.01), *given, 3.0)
    for own, reference in zip(ours, with_gradients(by_hand, *given, 3.0), strict=True):
        torch.testing.assert_close(own, reference.float(), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("model", ["llama", "gru"])
def test_training_has_the_z_loss_and_a_validation_none(model):
    tree = {"model": {"kind": model, "hidden": 16, "layers": 1}, "task.z_loss": 0.1}
    experiment, plain = (Experiment.from_mapping({**tree, "task.z_loss": z}) for z in (0.1, 0.0))
    tokens = torch.randint(50, (2, 8))
    losses = []
    for one in (experiment, plain):
        torch.manual_seed(0)
        built = one.build_model(50, (8,))
        losses.append([one.task.compute_loss(built.train(mode), tokens, tokens).item() for mode in (True, False)])
    (trained, validated), (without, also) = losses
    assert trained > without + 0.5  # about 0.1 log(50)^2
    assert validated == also == without


def test_a_model_with_a_loss_of_its_own_has_no_z_loss():
    experiment = Experiment.from_mapping({"model": {"kind": "hf", "config": "gemma2"}, "task.z_loss": 1e-4})
    with torch.device("meta"), pytest.raises(ConfigError, match=r"task\.z_loss: model .*gemma2 computes its loss w"):
        experiment.build_model(50, (8,))


def test_the_whole_in_one_part_is_that_of_torch_bit_for_bit():
    given = case()
    for ours, theirs in zip(with_gradients(head.cross_entropy, *given), with_gradients(plain, *given), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bfloat16(small_parts, dtype):
    """Under autocast and in bfloat16 altogether: products in bfloat16, the loss in float32."""
    given = case(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
        ours = with_gradients(head.cross_entropy, *given)
    theirs = with_gradients(plain, *(t.detach().float().requires_grad_() for t in given[:2]), given[2])
    assert [t.dtype for t in ours] == [torch.float32, dtype, dtype]
    for one, other in zip(ours, theirs, strict=True):
        assert (one.float() - other).norm() < 0.01 * other.norm()


def test_compiled(small_parts):
    given = case()
    compiled = torch.compile(head.cross_entropy, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(with_gradients(compiled, *given), with_gradients(plain, *given))


def test_all_logits_are_never_there(small_parts):
    class Largest(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(tensor, torch.Tensor):
                    self.seen = max(self.seen, tensor.numel())
            return result

    x, weight, targets = case()
    with Largest() as ours:
        head.cross_entropy(x, weight, targets).backward()
    with Largest() as theirs:
        plain(x, weight, targets).backward()
    assert ours.seen == max(7 * VOCABULARY, VOCABULARY * WIDTH)
    assert theirs.seen == POSITIONS * VOCABULARY


def test_the_model_with_targets_has_the_loss_of_its_logits(small_parts):
    experiment = Experiment.from_mapping({"model": {"hidden": 16, "mlp": 24, "layers": 2, "heads": 2}})
    torch.manual_seed(0)
    model = experiment.model.build(experiment.norm, experiment.init, VOCABULARY, (15,))
    tokens = torch.randint(VOCABULARY, (3, 16))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    with torch.no_grad():
        logits, loss = model(inputs), model(inputs, targets)
    torch.testing.assert_close(loss.exp(), Perplexity()(logits, targets))


def test_a_language_models_loss_is_compiled_on_its_own_where_its_layers_are(tiny):
    _, model, tokens = tiny("llama")
    programs = []

    def backend(program, inputs):
        programs.append(program)
        return program.forward

    wanted = model(tokens, tokens)
    names = list(model.state_dict())
    for part in model.heads():
        assert not list(part.parameters())
        part.forward = torch.compile(part.forward, backend=backend)
    assert torch.equal(model(tokens, tokens), wanted)
    assert len(programs) == 1
    assert list(model.state_dict()) == names


def test_a_frozen_head_hands_the_gradient_on(small_parts):
    x, weight, targets = case()
    expected = with_gradients(head.cross_entropy, x, weight, targets)
    weight.requires_grad_(False)
    loss = head.cross_entropy(x, weight, targets)
    loss.backward()
    assert weight.grad is None
    assert torch.equal(loss, expected[0])
    assert torch.equal(x.grad, expected[1])
