"""Samplers of OptunaHub, by a stand-in for its package: what is loaded when, and what is told before a sweep starts."""

import sys

import optuna
import pytest

from ablate.config.errors import ConfigError
from ablate.sweeps.dry_run import outline
from ablate.sweeps.search import hub
from ablate.sweeps.spec.sweep import Sweep
from benchmarks.simulation.losses import Valley
from benchmarks.simulation.sweeps import simulate

REF = "0123456789abcdef" * 2 + "01234567"
OPTUNAHUB = """
import types

from optuna.samplers import RandomSampler

loaded = []


class Mine(RandomSampler):
    def __init__(self, seed=None, width=3, independent_sampler=None):
        if width < 1:
            raise ValueError("width must be positive")
        super().__init__(seed=seed)
        self.width = width


class Unseeded(RandomSampler):
    def __init__(self):
        super().__init__()


def load_module(package, ref):
    loaded.append((package, ref))
    if package == "samplers/away":
        raise OSError("Cmd('git') failed\\n  stderr: 'fatal: Could not resolve host: github.com'")
    if package == "samplers/needy":
        raise ModuleNotFoundError("No module named 'hebo'", name="hebo")
    classes = {"samplers/mine": [Mine], "samplers/both": [Mine, Unseeded], "samplers/unseeded": [Unseeded]}[package]
    module = types.ModuleType(package)
    module.RandomSampler = RandomSampler  # imported there
    for cls in classes:
        setattr(module, cls.__name__, cls)
    return module
"""


@pytest.fixture
def optunahub(tmp_path, monkeypatch):
    """A package of that name, which notes what it loads."""
    (tmp_path / "optunahub.py").write_text(OPTUNAHUB)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "optunahub", raising=False)
    hub._load.cache_clear()
    import optunahub

    yield optunahub
    sys.modules.pop("optunahub", None)
    hub._load.cache_clear()


def sweep(name="samplers/mine", **fields):
    rates = {"optimizer.lr": {"low": 3e-4, "high": 3e-2, "log": True}}
    sampler = {"kind": "optunahub", "name": name, "ref": REF, **fields}
    return Sweep.from_tree({"name": "hub", "search": rates, "sampler": sampler, "budget": {"trials": 4}})


def test_only_a_sweep_that_starts_loads_it(optunahub):
    spec = sweep(width=2)
    text = outline(spec)
    again = Sweep.model_validate(spec.to_tree())
    assert f"samplers/mine of OptunaHub at {REF[:7]}, whose code is run when the sweep starts" in text
    assert optunahub.loaded == []
    again.sampler.prepare()
    assert again.sampler.build(0).width == 2
    assert optunahub.loaded == [("samplers/mine", REF)]


def test_its_points_are_those_of_the_seed_and_the_number(optunahub):
    records = []
    for seed in (0, 0, 1):
        spec = sweep(seed=seed)
        valley = Valley(dict.fromkeys(spec.all_arms, 2.0))
        records.append(simulate(spec, valley, optuna.storages.InMemoryStorage()))
    points = [[trial.params for trials in one.trials.values() for trial in trials] for one in records]
    assert points[0] == points[1] != points[2]
    assert len(points[0]) == 4


@pytest.mark.parametrize(
    ("name", "fields", "path", "message"),
    [
        ("samplers/mine", {"widht": 2}, "widht", "Did you mean width?"),
        ("samplers/mine", {"width": 0}, "", "Mine refuses its arguments: width must be positive"),
        ("samplers/both", {}, "class_name", "Accepted: Mine, Unseeded."),
        ("samplers/both", {"class_name": "Min"}, "class_name", "Did you mean Mine?"),
        ("samplers/unseeded", {}, "name", "Unseeded takes no seed"),
        ("samplers/away", {}, "name", "needs a network on first use: stderr: 'fatal: Could not resolve"),
        (
            "samplers/needy",
            {},
            "name",
            "needs the Python module hebo, which is not installed. Most are by: pip install hebo",
        ),
    ],
)
def test_what_is_wrong_is_told_before_the_first_trial(optunahub, name, fields, path, message):
    with pytest.raises(ConfigError) as told:
        sweep(name, **fields).sampler.prepare()
    (problem,) = told.value.problems
    assert problem.path == f"sampler.{path}".rstrip(".")
    assert message in problem.message
    assert "\n" not in problem.message


def test_a_class_can_be_chosen(optunahub):
    assert type(sweep("samplers/both", class_name="Mine").sampler.build(0)).__name__ == "Mine"


@pytest.mark.parametrize(("fields", "path"), [({"ref": "main"}, "sampler.ref"), ({"name": "../mine"}, "sampler.name")])
def test_a_moving_reference_or_another_place_is_refused(optunahub, fields, path):
    with pytest.raises(ConfigError) as told:
        sweep(**fields)
    assert [problem.path for problem in told.value.problems] == [path]


def test_without_the_package_it_is_told_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optunahub", None)
    with pytest.raises(ConfigError, match=r"needs the library optunahub, .* Type: pip install optunahub"):
        sweep()
