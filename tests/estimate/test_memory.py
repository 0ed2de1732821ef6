"""The whole memory of training, against torch's allocator over real updates on the CPU."""

from __future__ import annotations

import contextlib
import itertools
import runpy
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from ablate.estimate.memory import Meter, Setup
from ablate.estimate.tracing import checkpoint_layers
from ablate.experiment.extensions import restrict
from ablate.experiment.tree import Experiment
from ablate.optim.optimizers import OptimizerConfig

SHAPE, CLASSES = (32,), 300


def experiment_of(kind, **more):
    model = {"kind": "llama", "hidden": 64, "mlp": 172, "layers": 7, "heads": 4}
    return Experiment.from_mapping({"model": model, "norm": kind, **more})


def train(experiment, setup):
    """Two updates, in the order of Lightning: gradients go before the first backward pass of an update."""
    model = experiment.model.build(experiment.norm, experiment.init, CLASSES, SHAPE)
    restrict(model, experiment)
    optimizer = experiment.optimizer.build(model)
    with checkpoint_layers(list(model.blocks())) if setup.checkpointing else contextlib.nullcontext():
        for _ in range(2):
            for part in range(setup.accumulate):
                inputs, targets = (torch.randint(CLASSES, (setup.micro_batch, *SHAPE)) for _ in range(2))
                with torch.autocast("cpu", torch.bfloat16, enabled=setup.precision == "bf16-mixed"):
                    value = model(inputs, targets)
                if part == 0:
                    optimizer.zero_grad()
                value.backward()
            optimizer.step()


@pytest.mark.parametrize(
    ("checkpointing", "accumulate", "batch"),  # the weights or the activations weigh most
    [
        pytest.param(*case, marks=[] if place in (0, 3, 5, 6) else pytest.mark.chaos)
        for place, case in enumerate(itertools.product((False, True), (1, 2), (2, 24)))
    ],
)
@pytest.mark.parametrize(("kind", "precision"), [("mix", "32-true"), ("peri", "bf16-mixed")])
def test_the_peak_of_training_is_that_of_the_allocator(kind, precision, checkpointing, accumulate, batch):
    compare(experiment_of(kind), Setup("one", 1, precision, batch, accumulate, checkpointing, False))


@pytest.mark.parametrize(("checkpointing", "batch"), [(False, 2), (True, 24)])
@pytest.mark.parametrize("frozen", [["embedding", "head"], ["embedding", "layers.0", "layers.1.attn"], ["layers.6"]])
@pytest.mark.addons
def test_so_it_is_with_frozen_parts(frozen, checkpointing, batch):
    setup = Setup("one", 1, "32-true", batch, 1, checkpointing, False)
    compare(experiment_of("pre", warm_start={"freeze": frozen}), setup)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["eager", "checkpointed"])
@pytest.mark.parametrize(("dropout", "batch"), [(0.0, 2), (0.0, 24), (0.1, 24)])
@pytest.mark.addons
def test_so_it_is_with_adapters(dropout, checkpointing, batch):
    pytest.importorskip("peft")
    start = {"from": "somewhere", "copy": "all"}
    lora = {"rank": 4, "dropout": dropout, "targets": ["attn", "down_proj"]}
    setup = Setup("one", 1, "32-true", batch, 1, checkpointing, False)
    compare(experiment_of("mix", warm_start=start, lora=lora), setup)


@pytest.mark.parametrize("fields", [{"model.layers": 0}, {"model.sublayers": "attn"}])
def test_so_it_is_for_the_models_of_a_first_stage(fields):
    setup = Setup("one", 1, "32-true", 8, 1, False, False)
    compare(experiment_of("pre", **fields), setup)


@pytest.fixture
def sgd(registries):
    """Plugins: SGD, which keeps nothing or with `momentum` one number a weight, and one that looks at a gradient."""

    class Sgd(OptimizerConfig):
        kind: Literal["sgd"] = "sgd"
        momentum: float = 0.0

        def build(self, model):
            return torch.optim.SGD(self.build_groups(model), lr=self.lr, momentum=self.momentum)

    class Looking(torch.optim.SGD):
        def step(self, closure=None):
            assert all(p.grad.norm().item() < 1e9 for group in self.param_groups for p in group["params"])

    class Looks(OptimizerConfig):
        kind: Literal["looks"] = "looks"

        def build(self, model):
            return Looking(self.build_groups(model), lr=self.lr)

    registries["optimizer"].register(Sgd)

    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("no numbers")

    class Fails(OptimizerConfig):
        kind: Literal["fails"] = "fails"

        def build(self, model):
            return Failing(self.build_groups(model), lr=self.lr)

    registries["optimizer"].register(Looks)
    registries["optimizer"].register(Fails)


@pytest.mark.parametrize(("momentum", "moments"), [(0.0, 0), (0.9, 1)])
def test_the_memory_of_an_optimizer_is_what_it_keeps(sgd, momentum, moments):
    """Not always Adam's two moments: also of a plugin, in the type of the weights, on the host where it is there."""
    experiment = experiment_of("pre", optimizer={"kind": "sgd", "momentum": momentum})
    compare(experiment, Setup("one", 1, "32-true", 2, 1, False, False))
    meter, adamw = (Meter(e, CLASSES, SHAPE) for e in (experiment, experiment_of("pre")))
    total = meter.counts.total
    for precision, weight in (("32-true", 4), ("bf16-mixed", 4), ("bf16-true", 2)):
        setup = Setup("one", 1, precision, 2, 1, False, False)
        assert meter.memory(setup).parts["optimizer"] == moments * weight * total
        assert adamw.memory(setup).parts["optimizer"] == 2 * weight * total
        assert meter.memory(setup).peak < adamw.memory(setup).peak
        assert meter.states(setup) == (2 + moments) * weight * total
    offloaded = Setup("fsdp", 2, "32-true", 2, 1, False, True)
    assert meter.memory(offloaded).host == (2 + moments) * 4 * total / 2


def test_an_update_may_look_at_numbers(sgd):
    setup = Setup("one", 1, "32-true", 2, 1, False, False)
    assert Meter(experiment_of("pre", optimizer="looks"), CLASSES, SHAPE).memory(setup).parts["optimizer"] == 0


def test_adamw_is_taken_for_a_plugin_that_fails_without_numbers(sgd, caplog):
    setup = Setup("one", 1, "32-true", 2, 1, False, False)
    fails, adamw = (Meter(experiment_of("pre", optimizer=kind), CLASSES, SHAPE) for kind in ("fails", "adamw"))
    assert fails.memory(setup) == adamw.memory(setup)
    assert "The state of optimizer fails is planned as AdamW's" in caplog.text


@pytest.mark.parametrize("name", ["muon", "adafactorbv", "novograd"])
def test_the_memory_of_a_librarys_optimizer_is_what_it_keeps(name):
    experiment = experiment_of("pre", optimizer={"kind": "timm", "name": name})
    compare(experiment, Setup("one", 1, "32-true", 2, 1, False, False))


def compare(experiment, setup):
    """The plan's peak with the allocator's."""
    train(experiment, setup)  # what is made once for all
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        train(experiment, setup)
    events = [(e.start_ns(), e.nbytes()) for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    measured = np.cumsum([size for _, size in sorted(events)]).max()
    predicted = Meter(experiment, CLASSES, SHAPE, gpu=False).memory(setup)
    assert predicted.peak == pytest.approx(measured, rel=0.02)


SCRIPT = Path(__file__).parents[2] / "benchmarks" / "memory_fsdp.py"


def test_it_answers_help_and_says_how_it_is_started(monkeypatch, capsys):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    main = runpy.run_path(str(SCRIPT))["main"]
    monkeypatch.setattr("sys.argv", [str(SCRIPT), "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "torchrun --standalone --nproc-per-node 2" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", [str(SCRIPT)])
    assert main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("torchrun --standalone --nproc-per-node 2 benchmarks/memory_fsdp.py")
