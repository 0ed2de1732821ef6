"""A program that computes something else than its model is not trained with."""

import contextlib
import functools
import math
import re

import pytest
import torch

from ablate import tracking
from ablate.config.errors import OutOfMemory
from ablate.experiment.tree import Experiment
from ablate.norms import placements
from ablate.parallel import compiling
from ablate.tracking.facts import read_facts
from ablate.training import program_check
from ablate.training.precision import Speed
from ablate.training.program_check import check_programs, find_fault
from ablate.training.train import train


@pytest.fixture(autouse=True)
def checks(monkeypatch):
    """A new process: nothing was checked before, there is no GPU, and the slow last step of torch.compile is left out,
    which needs a compiler."""
    original = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda forward, **settings: original(forward, dynamic=False, backend="aot_eager")
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(program_check, "_faults", {})
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
                return change(result) if result.dim() == 0 else Distort.apply(result, factor)

            return program

        monkeypatch.setattr(compiling, "_compile", functools.cache(compile_wrongly))

    return put


def build(settings, **more):
    return Experiment.from_mapping({**settings, **{key.replace("__", "."): value for key, value in more.items()}})


def check(experiment, folder, precision="32-true"):
    return find_fault(experiment, experiment.data.load(folder), precision)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("kind", ["pre", "deepnorm", "mix"])
def test_right_programs_are_trusted(tiny_settings, tmp_path, kind, precision):
    assert check(build(tiny_settings, norm=kind), tmp_path, precision) == ""


@pytest.mark.parametrize("kind", placements)
def test_rounding_is_no_fault_for_any_placement(tiny_settings, tmp_path, miscompile, kind, monkeypatch):
    """The programs compute in bfloat16 here, and the model in float32: more noise than any program may have."""
    experiment = build(tiny_settings, norm=kind)
    corpus = experiment.data.load(tmp_path)
    measure, precisions = program_check._measure, iter(("32-true", "bf16-mixed"))
    monkeypatch.setattr(
        program_check,
        "_measure",
        lambda one, model, batch, _, context: measure(one, model, batch, next(precisions), context),
    )
    miscompile()
    assert find_fault(experiment, corpus, "32-true") == ""


@pytest.mark.parametrize(
    ("factor", "told"), [(0.5, r"the gradient of .* differs by [\d.e-]+ of "), (math.nan, "is no finite number")]
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


COMPILED = Speed("32-true", True, "as set")


def test_what_is_found_does_not_depend_on_weights_and_seed_of_the_first_run(tiny_settings, tmp_path, miscompile):
    """With weights of 1e30 nothing could be compared."""
    miscompile(0.5)
    runs = [build(tiny_settings, init__std=1e30, init__embedding_std=10, seed=4), build(tiny_settings, seed=5)]
    speeds = [check_programs(run, run.data.load(tmp_path), COMPILED) for run in runs]
    assert speeds[0] == speeds[1]
    assert "the gradient of" in speeds[0].why


def test_the_model_stays_as_it_was(vit_settings, tmp_path):
    experiment = build(vit_settings, norm__layer="batchnorm")
    corpus = experiment.data.load(tmp_path)
    model = experiment.build_model(corpus.classes, corpus.shape)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = next(iter(corpus.train.batches(8, 0)))
    random = torch.get_rng_state()
    program_check._measure(experiment, model, batch, "32-true", contextlib.nullcontext())
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_each_model_is_checked_once_and_a_wrong_one_is_not_compiled(
    tiny_settings, tmp_path, miscompile, caplog, monkeypatch
):
    calls = []
    monkeypatch.setattr(
        program_check, "find_fault", lambda one, *_: calls.append(one.norm.kind) or "wrong" * (one.norm.kind == "post")
    )
    runs = [build(tiny_settings, norm=kind, seed=seed) for seed in (1, 2) for kind in ("pre", "post")]
    speeds = [check_programs(run, run.data.load(tmp_path), COMPILED) for run in runs]
    assert calls == ["pre", "post"]
    assert [speed.compile for speed in speeds] == [True, False, True, False]
    assert speeds[3].why == "as set; eager after all: wrong"
    assert caplog.messages.count("Not compiled: wrong") == 1


@pytest.mark.parametrize("settings", [{"norm": "post"}, {"init": "scaled"}, {"warm_start__freeze": ["embedding"]}])
def test_another_program_is_checked_anew(tiny_settings, tmp_path, monkeypatch, settings):
    calls = []
    monkeypatch.setattr(program_check, "find_fault", lambda one, *_: calls.append(one) or "")
    for run in (build(tiny_settings), build(tiny_settings, **settings)):
        check_programs(run, run.data.load(tmp_path), COMPILED)
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("speed", "settings"),
    [
        (Speed("32-true", False, "as set"), {}),
        (Speed("32-true", "reduce-overhead", "as set"), {}),
        (COMPILED, {"trainer__strategy": "fsdp"}),
    ],
)
def test_what_is_not_compiled_for_a_processor_is_not_checked(tiny_settings, tmp_path, monkeypatch, speed, settings):
    monkeypatch.setattr(program_check, "find_fault", lambda *_: pytest.fail("checked"))
    monkeypatch.setattr(program_check, "sharing_of", lambda config: config.strategy)
    run = build(tiny_settings, **settings)
    assert check_programs(run, run.data.load(tmp_path), speed) == speed


def test_a_check_that_fails_is_a_run_that_failed(store, tiny_settings, monkeypatch):
    def overflow(*_):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] data. DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(program_check, "_measure", overflow)
    with pytest.raises(OutOfMemory, match="By the plan a device needs"):
        train(build(tiny_settings, trainer__compile=True))
    (failed,) = tracking.client().search_runs(["1"])
    assert "OutOfMemory" in failed.data.tags["ablate.reason"]


def test_a_run_whose_programs_are_wrong_is_the_eager_run(store, tiny_settings, miscompile):
    eager = train(build(tiny_settings, trainer__compile=False))
    right = train(build(tiny_settings, trainer__compile=True))
    assert right.metrics["val/loss"] == pytest.approx(eager.metrics["val/loss"], rel=1e-4)
    assert read_facts(right.run_id)["ablate.compile"] == "true"
    program_check._faults.clear()
    miscompile(math.nan)
    saved = train(build(tiny_settings, trainer__compile=True))
    assert saved.status == "completed"
    assert saved.metrics == eager.metrics
    assert read_facts(saved.run_id)["ablate.compile"] == "false"
