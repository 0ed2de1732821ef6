"""A compiled program that computes something else than its model is refused."""

import functools
import math
import re

import pytest
import torch
from torch.utils._pytree import tree_map

from ablate import tracking
from ablate.config.errors import AblateError, OutOfMemory
from ablate.experiment.tree import Experiment
from ablate.norms import placements
from ablate.parallel import compiling
from ablate.training import module as training_module
from ablate.training import program_check
from ablate.training.module import TrainingModule
from ablate.training.program_check import find_fault
from ablate.training.train import train


@pytest.fixture(autouse=True)
def checks(monkeypatch):
    """There is no GPU, and the slow last step of torch.compile is left out, which needs a compiler."""
    original = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda forward, **settings: original(forward, dynamic=False, backend="aot_eager")
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    compiling.forget_programs()
    yield
    compiling.forget_programs()


class Distort(torch.autograd.Function):
    """The same value with another gradient."""

    @staticmethod
    def forward(context, value, factor):
        context.factor = factor
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * context.factor, None


@pytest.fixture
def miscompile(monkeypatch):
    """miscompile(factor, change): a compiler by which layers have `factor` times their gradient, and a head has another
    loss."""

    def put(factor=1.0, change=lambda loss: loss):
        def compile_wrongly(forward):
            def program(part, *inputs, **more):
                result = forward(part, *inputs, **more)
                if isinstance(result, torch.Tensor) and result.dim() == 0:
                    return change(result)
                return tree_map(lambda part: part if part is None else Distort.apply(part, factor), result)

            return program

        monkeypatch.setattr(compiling, "_compile", functools.cache(compile_wrongly))

    return put


def build(settings, **more):
    return Experiment.from_mapping({**settings, **{key.replace("__", "."): value for key, value in more.items()}})


def check(experiment, folder, precisions=("32-true", "32-true")):
    """Return the fault of a model in these arithmetics: eager, and by programs."""
    corpus = experiment.data.load(folder)
    torch.manual_seed(experiment.seed)
    module = TrainingModule(experiment, corpus, compiled=True)
    batch = next(iter(corpus.train.batches(8, 0)))

    def compute(loss, precision):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
            return loss()

    eager = functools.partial(compute, lambda: module.loss(*batch), precisions[0])
    compiled = functools.partial(compute, lambda: module._compute_compiled(batch), precisions[1])
    return find_fault(module.model, eager, compiled, 2.0**-8 if "bf16-mixed" in precisions else 2.0**-23)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("kind", ["pre", "deepnorm", "mix"])
def test_right_programs_are_trusted(tiny_settings, tmp_path, kind, precision):
    assert check(build(tiny_settings, norm=kind), tmp_path, (precision, precision)) == ""


@pytest.mark.parametrize("kind", placements)
def test_rounding_is_no_fault_for_any_placement(tiny_settings, tmp_path, miscompile, kind):
    """The programs compute in bfloat16 here, and the model in float32: more noise than any program may have."""
    miscompile()
    assert check(build(tiny_settings, norm=kind), tmp_path, ("32-true", "bf16-mixed")) == ""


@pytest.mark.parametrize(
    ("factor", "told"), [(0.5, r"the gradient of .* differs by [\d.e-]+ of "), (math.nan, "is not a finite number")]
)
def test_another_gradient_is_a_fault(tiny_settings, tmp_path, miscompile, factor, told):
    miscompile(factor)
    assert re.search(told, check(build(tiny_settings), tmp_path))


def test_another_loss_is_a_fault(tiny_settings, tmp_path, miscompile):
    miscompile(change=lambda loss: 1.05 * loss)
    assert "the loss differs by" in check(build(tiny_settings), tmp_path)


def test_a_vision_transformer_is_checked_too(vit_settings, tmp_path, miscompile):
    experiment = build(vit_settings, model__drop_path=0.3)
    assert check(experiment, tmp_path) == ""  # both draw the same layers to drop
    miscompile(0.0)
    assert "the gradient of" in check(experiment, tmp_path)


def test_a_model_that_has_no_finite_gradient_is_not_the_compilers_fault(tiny_settings, tmp_path, miscompile):
    miscompile(0.5)
    assert check(build(tiny_settings, init__std=1e30), tmp_path) == ""


def test_a_model_that_makes_much_of_rounding_is_not_the_compilers_fault():
    """Its gradient changes by more than the program's does, if its weights are only rounded."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)

    def compute(frequency, shift):
        return (torch.sin(frequency * model.weight + shift) / frequency).sum()

    assert find_fault(model, lambda: compute(1e8, 0.0), lambda: compute(1e8, 1.0), 2.0**-23) == ""
    assert "differs by" in find_fault(model, lambda: compute(1.0, 0.0), lambda: compute(1.0, 1.0), 2.0**-23)
    assert model.weight.item() == 1.0


def test_the_model_stays_as_it_was(vit_settings, tmp_path):
    experiment = build(vit_settings, norm__layer="batchnorm")
    corpus = experiment.data.load(tmp_path)
    model = experiment.build_model(corpus.classes, corpus.shape)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = next(iter(corpus.train.batches(8, 0)))
    random = torch.get_rng_state()
    program_check._measure(model, lambda: experiment.task.compute_loss(model, *batch))
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("compiled", [False, True])
def test_each_compiled_run_is_checked_once(store, tiny_settings, monkeypatch, compiled):
    calls = []
    monkeypatch.setattr(training_module, "check_program", lambda *arguments: calls.append(arguments))
    for seed in (1, 2):
        train(build(tiny_settings, trainer__compile=compiled, seed=seed))
    assert len(calls) == 2 * compiled


def test_a_check_that_fails_is_a_run_that_failed(store, tiny_settings, monkeypatch):
    def overflow(*_):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] data. DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(program_check, "_measure", overflow)
    with pytest.raises(OutOfMemory, match="By the plan a device needs"):
        train(build(tiny_settings, trainer__compile=True))
    (failed,) = tracking.client().search_runs(["1"])
    assert "OutOfMemory" in failed.data.tags["ablate.reason"]


def test_a_run_whose_program_is_wrong_is_refused(store, tiny_settings, miscompile):
    eager = train(build(tiny_settings, trainer__compile=False))
    right = train(build(tiny_settings, trainer__compile=True))
    assert right.metrics["val/loss"] == pytest.approx(eager.metrics["val/loss"], rel=1e-4)
    miscompile(math.nan)
    with pytest.raises(AblateError, match=r"wrongly for this processor: .*: trainer\.compile=false, in a sweep"):
        train(build(tiny_settings, trainer__compile=True))
    wrong, *_ = tracking.client().search_runs(["1"], order_by=["attributes.start_time DESC"])
    assert wrong.data.tags["ablate.status"] == "failed"
