"""A model that is given its weights from the meta device is, bit for bit, the one that is built at once."""

import pytest
import torch
from norms.cases import takes

from ablate.experiment.tree import Experiment
from ablate.norms import placements
from ablate.parallel.deferred import defer_weights, materialize

MORE = [
    ("vit", {"norm.layer": "batchnorm", "model.drop_path": 0.2}),
    ("llama", {"norm.layer": "dyt", "model.tie_embeddings": True}),
    ("llama", {"norm.layer": "gatednorm", "parametrization": {"kind": "mup", "base.hidden": 8}}),
    ("llama", {"norm": "mix", "norm.first": "deepnorm", "init": "small_scaled"}),
]
SHAPES = {"llama": (12,), "vit": (1, 8, 8)}


@pytest.mark.parametrize(
    ("family", "settings"),
    [(family, {"norm": name}) for family in SHAPES for name in placements.names if takes(family, name)] + MORE,
    ids=str,
)
def test_every_weight_factor_and_later_draw_is_that_of_a_model_built_at_once(family, settings):
    sizes = {"model": {"kind": family, "hidden": 16, "layers": 3, "heads": 2}}
    run = Experiment.from_mapping(sizes, settings)

    def build():
        return run.model.build(run.norm, run.init, 11, SHAPES[family])

    torch.manual_seed(3)
    wanted, after = build(), torch.rand(3)
    torch.manual_seed(3)
    model, recipes = defer_weights(build)
    assert all(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
    torch.rand(7)  # the weights do not depend on when they are asked for
    made = {}
    for block in reversed(list(model.blocks())):
        materialize(block, recipes, made, None)
    materialize(model, recipes, made, None)
    torch.manual_seed(3)
    defer_weights(build)
    assert torch.equal(torch.rand(3), after)
    state = wanted.state_dict()
    assert {name: value.tolist() for name, value in model.state_dict().items()} == {
        name: value.tolist() for name, value in state.items()
    }
    assert len(list(model.parameters())) == len(list(wanted.parameters()))
    for ours, theirs in zip(model.modules(), wanted.modules(), strict=True):
        numbers = {key: value for key, value in vars(theirs).items() if isinstance(value, float)}
        assert numbers == {key: value for key, value in vars(ours).items() if isinstance(value, float)}
    inputs = torch.randint(11, (2, 12)) if family == "llama" else torch.randn(2, 1, 8, 8)
    assert torch.equal(model.eval()(inputs), wanted.eval()(inputs))


def test_weights_are_made_one_module_at_a_time_in_the_precision_that_is_asked_for():
    torch.manual_seed(0)
    wanted = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
    torch.manual_seed(0)
    model, recipes = defer_weights(lambda: torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4))))
    materialize(model[2], recipes, {}, torch.bfloat16)
    assert [layer.weight.is_meta for layer in model] == [True, True, False, True]
    assert torch.equal(model[2].weight, wanted[2].weight.bfloat16())
