"""The files of sweeps/: each loads and has a plan, and its arms differ in what they compare and in nothing else."""

from pathlib import Path

import pytest

from ablate.norms import norm_layers
from ablate.sweeping.plan import plan
from ablate.sweeping.spec import Sweep

FOLDER = Path(__file__).parents[1] / "sweeps"
FILES = sorted(FOLDER.glob("*.yaml"))
COMPARED = {"rmsnorm": {"norm.layer"}, "rmsnorm-vision": {"norm.layer"}}  # for others: what their arms set
SHARED = ("data", "model", "optimizer", "schedule", "seed", "trainer")  # the same for a fair comparison


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def spec(request):
    return Sweep.load(request.param)


def below(path, parts):
    return any(path == part or path.startswith(f"{part}.") for part in parts)


def test_the_plan_of_each_resolves_and_names_every_arm(spec, store):
    text = plan(spec, 2, None)
    assert text.startswith(f"sweep {spec.name}: ")
    for arm in spec.all_arms:
        assert f"arm {arm}: {spec.trials(arm)} trials of {spec.base(arm).trainer.max_steps} updates" in text


def test_the_arms_differ_only_in_what_they_compare(spec):
    first, *others = [spec.base(arm).flat() for arm in spec.all_arms]
    differing = {path for other in others for path in {*first, *other} if first.get(path) != other.get(path)}
    set_by_arms = {path for arm in spec.all_arms.values() for path in [*arm.settings, *arm.search]}
    compared = COMPARED.get(spec.name, set_by_arms)
    assert differing, "nothing is compared"
    assert not [path for path in differing if not below(path, compared) or below(path, SHARED)]


def test_each_arm_is_tuned_over_the_same_range_with_the_same_budget(spec):
    assert "optimizer.lr" in spec.search
    assert len({spec.trials(arm) for arm in spec.all_arms}) == 1
    assert len({str(spec.space(arm)["optimizer.lr"]) for arm in spec.all_arms}) == 1
    assert not [path for arm in spec.all_arms.values() for path in arm.search if below(path, SHARED)]


def test_the_norm_layers_are_compared_on_language_and_on_vision_with_batch_norm_on_vision_alone():
    language = ["none", "layernorm", "rmsnorm", "prmsnorm", "groupnorm", "dyt"]
    for name, layers in {"rmsnorm": language, "rmsnorm-vision": [*language, "batchnorm"]}.items():
        sweep = Sweep.load(FOLDER / f"{name}.yaml")
        assert set(sweep.all_arms) == set(layers)
        for arm in sweep.all_arms:
            norm = sweep.base(arm).norm
            assert (norm.kind, norm.layer) == ("pre", norm_layers.validate(arm))  # at its defaults
