"""The traced step, against what torch keeps and allocates in a real one."""

import contextlib

import numpy as np
import pytest
import torch
from norms.cases import WIRED
from torch.profiler import ProfilerActivity, profile

from ablate.estimate import tracing
from ablate.estimate.inputs import build_skeleton
from ablate.estimate.tracing import LABELS, Step, trace
from ablate.experiment.tree import Experiment
from ablate.tasks import tasks

SHAPES = {"llama": ((24,), 97), "vit": ((3, 16, 16), 10)}
SHAPES |= {"gru": SHAPES["llama"], "convpool": SHAPES["vit"]}
FAMILIES = {"llama": {"hidden": 32, "mlp": 84, "heads": 4}, "vit": {"hidden": 32, "heads": 4, "patch_size": 4}}
OTHERS = {"gru": {"hidden": 32}, "convpool": {"width": 8, "dropout": 0.0}}
TASKS = {"llama": tasks.parse("language_modeling"), "vit": tasks.parse("image_classification")}
TASKS |= {"gru": TASKS["llama"], "convpool": TASKS["vit"]}
CASES = [
    *WIRED,
    *((family, "summed_inputs") for family in OTHERS),
]
BATCH = 6


def experiment_of(family, kind, layers=3, **more):
    depth = {} if family == "convpool" else {"layers": layers}
    model = {"kind": family, **depth, **(FAMILIES | OTHERS)[family]}
    return Experiment.from_mapping({"model": model, "norm": kind}, more)


def real(family, kind, **more):
    """(model, inputs, targets, shape, classes)."""
    experiment = experiment_of(family, kind, **more)
    shape, classes = SHAPES[family]
    model = experiment.model.build(experiment.norm, experiment.init, classes, shape)
    if len(shape) == 1:
        inputs, targets = (torch.randint(classes, (BATCH, *shape)) for _ in range(2))
    else:
        inputs, targets = torch.randn(BATCH, *shape), torch.randint(classes, (BATCH,))
    return model, inputs, targets


def traced(family, kind, precision="32-true", checkpointing=False, gpu=False, batch=BATCH, **more):
    shape, classes = SHAPES[family]
    model = build_skeleton(experiment_of(family, kind, **more), classes, shape)
    return trace(model, Step(TASKS[family], shape, classes, precision, checkpointing, gpu), batch)


def update(model, inputs, targets, precision, checkpointing):
    """A step without an optimizer, with torch's own autocast and checkpoints."""
    with contextlib.ExitStack() as stack:
        if checkpointing:
            stack.enter_context(tracing.checkpoint_layers(list(model.blocks()), gpu=False))
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
            value = torch.nn.functional.cross_entropy(model(inputs).float().flatten(0, -2), targets.flatten())
        value.backward()


@pytest.mark.parametrize(
    ("family", "kind", "precision"),
    [
        pytest.param(
            *case,
            precision,
            marks=[pytest.mark.chaos] * ((number // 2 + place) % 2) + [pytest.mark.addons] * (case[0] in OTHERS),
        )
        for number, case in enumerate(CASES)
        for place, precision in enumerate(("32-true", "bf16-mixed"))
    ],
)
def test_what_is_kept_for_the_backward_pass_is_what_autograd_saves(family, kind, precision):
    model, inputs, targets = real(family, kind)
    known = {value.untyped_storage().data_ptr() for value in model.state_dict().values()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = (tensor, storage.nbytes())  # held, so that no address is used twice
        return tensor

    saving = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with saving, torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
        loss = TASKS[family].compute_loss(model, inputs, targets)
    timeline = traced(family, kind, precision)
    inputs_too = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in (inputs, targets)}
    extra = sum(size for key, size in inputs_too.items() if key not in kept)  # batches live outside of the graph
    expected = sum(size for _, size in kept.values()) + extra + loss.untyped_storage().nbytes()
    assert timeline.bytes[: timeline.backward].sum() == expected


@pytest.mark.parametrize(
    ("precision", "checkpointing"),
    [
        ("32-true", False),
        ("bf16-mixed", True),
        pytest.param("32-true", True, marks=pytest.mark.chaos),
        pytest.param("bf16-mixed", False, marks=pytest.mark.chaos),
    ],
)
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("llama", "pre"),
        ("llama", "hybrid"),
        ("vit", "mix"),
        ("vit", "peri"),
        *(pytest.param(*case, marks=pytest.mark.addons) for case in CASES[-2:]),
    ],
)
def test_the_peak_is_that_of_the_allocator(family, kind, precision, checkpointing):
    model, inputs, targets = real(family, kind, layers=6)
    update(model, inputs, targets, precision, checkpointing)
    model.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        update(model, inputs, targets, precision, checkpointing)
    events = [(e.start_ns(), e.nbytes()) for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    measured = np.cumsum([size for _, size in sorted(events)]).max() + sum(t.nbytes for t in (inputs, targets))
    predicted = np.cumsum(traced(family, kind, precision, checkpointing, layers=6).bytes).max()
    assert predicted == pytest.approx(measured, rel=0.1)


def peak(timeline):
    """What is there at the peak, by label."""
    moment = np.cumsum(timeline.bytes).argmax() + 1
    return [timeline.bytes[:moment][timeline.label[:moment] == i].sum() for i in range(len(LABELS))]


@pytest.mark.parametrize("checkpointing", [False, True], ids=["eager", "checkpointed"])
@pytest.mark.parametrize(
    ("family", "kind", "precision"),
    [("llama", "b2t", "32-true"), ("llama", "lns", "bf16-mixed"), ("vit", "by_depth", "bf16-true")],
)
def test_layers_that_are_left_out_count_as_if_they_were_traced(family, kind, precision, checkpointing, monkeypatch):
    short = traced(family, kind, precision, checkpointing, gpu=True, layers=9)
    monkeypatch.setattr(tracing, "KEPT", 100)
    whole = traced(family, kind, precision, checkpointing, gpu=True, layers=9)
    assert peak(short) == peak(whole)
    assert short.bytes[: short.backward].sum() == whole.bytes[: whole.backward].sum()
    assert short.bytes.sum() == whole.bytes.sum()


@pytest.mark.parametrize("family", FAMILIES)
def test_only_gradients_and_the_batch_are_left_in_the_end(family):
    model, inputs, targets = real(family, "post", layers=9)
    timeline = traced(family, "post", "bf16-mixed", layers=9)
    left = [timeline.bytes[timeline.label == i].sum() for i in range(len(LABELS))]
    assert left[LABELS.index("gradients")] == sum(4 * p.numel() for p in model.parameters())
    assert sum(left) - left[LABELS.index("gradients")] == inputs.nbytes + targets.nbytes + 4  # and the loss


def test_the_model_is_left_as_it_was():
    shape, classes = SHAPES["llama"]
    model = build_skeleton(experiment_of("llama", "pre", layers=9), classes, shape)
    before = {name: (id(p), p.shape) for name, p in model.named_parameters()}
    trace(model, Step(TASKS["llama"], shape, classes, "bf16-true", True), 2)
    assert {name: (id(p), p.shape) for name, p in model.named_parameters()} == before
    assert all("forward" not in vars(layer) for layer in model.layers)
    assert all(p.is_meta and p.grad is None for p in model.parameters())


def test_the_step_is_that_of_a_task():
    from ablate.data import Corpus
    from ablate.training.module import TrainingModule

    model, inputs, targets = real("llama", "pre")
    shape, classes = SHAPES["llama"]
    corpus = Corpus([], [], "", classes, shape, None, "")
    module = TrainingModule(experiment_of("llama", "pre"), corpus)
    module.model = model
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as ours:
        module.task.compute_loss(model, inputs, targets).backward()
    model.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as theirs:
        module.loss(inputs, targets).backward()
    sizes = [
        [e.nbytes() for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"] for seen in (ours, theirs)
    ]
    assert sorted(sizes[0]) == sorted(sizes[1])
