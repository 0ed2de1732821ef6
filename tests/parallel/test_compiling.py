"""Programs that are compiled once and serve all models of one shape in a process, with the numbers of eager models."""

import contextlib
import copy

import pytest
import torch
from norms.cases import WIRED, mark_rest
from torch._dynamo.utils import counters

from ablate.experiment.tree import Experiment
from ablate.models import models
from ablate.parallel import compiling
from ablate.parallel.compiling import CompiledParts, allow_programs, forget_programs, keep_programs

SHAPES = {"llama": (12,), "hf": (12,), "gru": (6,), "vit": (1, 8, 8), "convpool": (3, 32, 32)}
SIZE = {"hidden": 16, "layers": 4, "heads": 2}
CLASSES = 11


@pytest.fixture
def programs(monkeypatch):
    """A function that counts the programs compiled so far. All of torch.compile runs but its slow last step."""
    original = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda forward, **settings: original(forward, dynamic=False, backend="aot_eager")
    )
    compiling._compile.cache_clear()
    forget_programs()
    keep_programs("this test")
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    compiling._compile.cache_clear()
    forget_programs()


def build(family, kind, **model):
    size = {**SIZE, **model} if family in ("llama", "vit") else {**models[family].example, **model}
    return Experiment.from_mapping(
        {"model": {"kind": family, **size}, "norm": {"kind": kind, **({"alpha": 0.5} if kind == "mix" else {})}}
    )


def step(experiment, model, compiled):
    """The loss of a batch and its gradients, by the programs or without."""
    model.zero_grad()
    inputs, targets = experiment.task.build_batch(4, SHAPES[experiment.model.kind], CLASSES)
    generator = torch.Generator().manual_seed(1)
    if inputs.is_floating_point():
        inputs = torch.randn(inputs.shape, generator=generator)
    else:
        inputs = torch.randint(CLASSES, inputs.shape, generator=generator)
    targets = torch.randint(CLASSES, targets.shape, generator=generator)
    torch.manual_seed(0)  # of stochastic depth
    with CompiledParts(model).run() if compiled else contextlib.nullcontext():
        loss = experiment.task.compute_loss(model, inputs, targets)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters())]


def new_model(experiment, seed):
    torch.manual_seed(seed)
    return experiment.build_model(CLASSES, SHAPES[experiment.model.kind])


def check_one_compilation(experiment, programs):
    """Check that a second model compiles nothing, and that both compute what they compute without programs. Return the
    number of programs."""
    counted = []
    for seed in (0, 1):
        model = new_model(experiment, seed)
        eager, compiled = (step(experiment, model, how) for how in (False, True))
        torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-7)
        counted.append(programs())
    assert counted[0] == counted[1]
    return counted[0]


@pytest.mark.parametrize(("family", "kind"), mark_rest(WIRED, [("llama", kind) for kind in ("deepnorm", "lns")]))
def test_a_second_model_of_one_shape_compiles_nothing(programs, family, kind):
    """Also where a factor differs by layer: one program for the kinds of layers, of which the first of lns is another
    for it has no factor, and one for head and loss."""
    kinds = 2 if kind in ("mix", "by_depth", "lns") else 1
    assert check_one_compilation(build(family, kind), programs) == kinds + (family == "llama")


@pytest.mark.chaos
@pytest.mark.skipif(not compiling.has_compiler(), reason="no C++ compiler on this machine")
@pytest.mark.parametrize(("family", "kind"), WIRED)
def test_machine_code_gives_the_numbers_of_eager_models(family, kind):
    """All of torch.compile, for every placement. The default run does so for one, in tests/training/test_train.py."""
    keep_programs("these tests")
    experiment = build(family, kind, drop_path=0.2, layers=3) if family == "vit" else build(family, kind)
    model = new_model(experiment, 0)
    eager, compiled = (step(experiment, model, how) for how in (False, True))
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-6)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("hf", "library"),
        ("hf", "post"),
        pytest.param("gru", "summed_inputs", marks=pytest.mark.addons),
        pytest.param("convpool", "summed_inputs", marks=pytest.mark.addons),
    ],
)
def test_models_of_other_families_share_programs_too(programs, family, kind):
    check_one_compilation(build(family, kind), programs)


def test_layers_of_one_kind_share_a_program_across_placements(programs):
    """Mix-LN has layers of Post-LN and of Pre-LN."""
    for kind in ("pre", "post"):
        experiment = build("llama", kind)
        step(experiment, new_model(experiment, 0), compiled=True)
    before, mixed = programs(), build("llama", "mix")
    step(mixed, new_model(mixed, 0), compiled=True)
    assert programs() == before


def test_a_placement_with_a_pair_of_streams_is_compiled_after_another(programs):
    """Where one tensor was both streams, torch looked for a factor of the other placement, and failed."""
    for kind in ("siamese", "x0"):
        experiment = build("llama", kind)
        step(experiment, new_model(experiment, 0), compiled=True)
    assert programs() == 3  # head and loss are shared


@pytest.mark.parametrize("family", ["llama", "vit"])
def test_what_is_inside_of_attention_costs_a_program_where_the_first_layer_differs(programs, family):
    """One with the default, and one more for the first layer where all others take its values."""
    inside = {"gate": "headwise", "sink": "learned", "temperature": True}
    for options, count in (({}, 1), (inside, 1), (inside | {"value_residual": "learned"}, 2)):
        before = programs()
        found = check_one_compilation(build(family, "pre", attention=options), programs) - before
        head = before == 0 and family == "llama"  # which all models share
        assert found == count + head, options


def test_stochastic_depth_draws_what_it_draws_without_programs(programs):
    check_one_compilation(build("vit", "pre", drop_path=0.3, layers=2), programs)


def test_only_the_step_within_is_compiled_and_a_copy_has_weights_of_its_own(programs):
    experiment = build("llama", "pre")
    model = new_model(experiment, 0)
    parts = CompiledParts(model)
    with parts.run():
        twin = copy.deepcopy(model)  # the copy of an average of the weights
    assert "forward" not in vars(model.layers[0])
    before = step(experiment, model, compiled=False)
    assert programs() == 0
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    torch.testing.assert_close(step(experiment, model, compiled=False), before)


def test_a_hook_on_a_part_of_a_layer_is_called_though_an_earlier_run_had_none(programs):
    experiment = build("llama", "pre")
    step(experiment, new_model(experiment, 0), compiled=True)
    model = new_model(experiment, 0)
    model.layers[0].attn.register_forward_hook(lambda attention, inputs, output: 2 * output)
    eager, compiled = (step(experiment, model, how) for how in (False, True))
    torch.testing.assert_close(compiled, eager)


def test_programs_of_too_many_shapes_are_forgotten(programs, monkeypatch):
    monkeypatch.setattr(compiling, "KEPT", 2)
    experiment = build("llama", "pre")

    def compile_for(shapes):
        keep_programs(shapes)
        before = programs()
        step(experiment, new_model(experiment, 0), compiled=True)
        return programs() - before

    forget_programs()
    assert [compile_for(shapes) for shapes in "aba"] == [2, 0, 0]
    assert compile_for("c") == 2
    assert compile_for("c") == 0


def test_torch_is_never_allowed_fewer_programs():
    from torch._dynamo import config

    with config.patch(recompile_limit=8, accumulated_recompile_limit=10**6):  # what monkeypatch restores is hidden
        allow_programs(100)
        allow_programs(10)
        assert (config.recompile_limit, config.accumulated_recompile_limit) == (100, 10**6)
