"""A file with sizes is as many sweeps, each as if it had a file of its own."""

from functools import partial

import pytest
import yaml

from ablate.config.building import json_schema
from ablate.config.errors import ConfigError
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.sweep import Sweep

FILE = {
    "name": "t",
    "experiment": {"model": {"hidden": 16, "heads": 2, "mlp": 32}, "data": "topics", "trainer": {"batch_size": 4}},
    "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
    "search": {"optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": True}},
    "fixed": [{"optimizer.lr": 1e-3}],
    "budget": {"trials": 4},
    "published": [
        {"source": "table 1", "size": "wide", "values": {"pre": 2.0}},
        {"source": "table 1", "size": "small", "values": {"pre": 3.0}},
        {"source": "table 2", "values": {"post": 4.0}},
    ],
    "sizes": {
        "wide": {"model.hidden": 32, "trainer": {"max_steps": 40}, "budget": {"trials": 2}, "confirm": {"seeds": 3}},
        "small": None,
        "two": {"model.layers": 2, "arms": {"pre": {"norm": "pre"}, "lns": {"norm": "lns"}}, "published": [],
                "search": {"optimizer.lr": [1e-3, 2e-3]}, "fixed": []},
    },
}  # fmt: skip


@pytest.fixture
def file(write_sweep):
    """file(part=value) -> a sweep file with sizes."""
    return partial(write_sweep, FILE)


@pytest.fixture
def loaded(file):
    sizes = {**FILE["sizes"], "two": {k: v for k, v in FILE["sizes"]["two"].items() if k != "published"}}
    published = [entry for entry in FILE["published"] if entry["source"] == "table 1"]
    return lambda *args, **more: load_sweeps(file(sizes=sizes, published=published), *args, **more)


def test_each_size_is_the_sweep_that_a_file_of_its_own_would_be(loaded):
    two, small, wide = loaded()  # from the fewest parameters on: 2 layers, 6 layers, 6 wider layers
    plain = {key: value for key, value in FILE.items() if key != "sizes"}
    expected = Sweep.from_tree(
        {
            **plain,
            "name": "t-wide",
            "experiment": {**FILE["experiment"], "model": {**FILE["experiment"]["model"], "hidden": 32},
                           "trainer": {"batch_size": 4, "max_steps": 40}},
            "budget": {"trials": 2},
            "confirm": {"seeds": 3},
            "published": [{"source": "table 1", "values": {"pre": 2.0}}],
        }
    )  # fmt: skip
    for arm in expected.all_arms:
        assert wide.base(arm) == expected.base(arm)
    without = {"experiment": {}}
    assert wide.to_tree() | without == expected.to_tree() | without
    assert (small.name, small.budget.trials, small.confirm.seeds) == ("t-small", 4, 0)
    assert [entry.values for entry in small.published] == [{"pre": 3.0}]
    assert list(two.all_arms) == ["pre", "lns"]
    assert (two.search, two.fixed, two.base("lns").model.layers) == ({"optimizer.lr": [1e-3, 2e-3]}, [], 2)
    assert "sizes" not in wide.to_tree()
    assert Sweep.from_tree(yaml.safe_load(wide.to_yaml())) == wide


def test_figures_of_no_size_are_shown_at_every_size(file):
    sizes = {"wide": {"model.hidden": 32}, "small": None}
    small, wide = load_sweeps(file(sizes=sizes))
    assert [entry.source for entry in small.published] == ["table 1", "table 2"]
    assert [entry.source for entry in wide.published] == ["table 1", "table 2"]


def test_what_the_command_line_says_goes_over_the_size(loaded):
    overrides = {"trainer.max_steps": 5, "model.hidden": 8, "budget.trials": 1, "data": "topics", "name": "mine"}
    for sweep in loaded(overrides):
        base = sweep.base("pre")
        assert (base.trainer.max_steps, base.model.hidden, sweep.budget.trials) == (5, 8, 1)
        assert sweep.name.startswith("mine-")


def test_one_size_is_asked_for(loaded, file):
    assert [sweep.name for sweep in loaded(size="wide")] == ["t-wide"]
    path = file(sizes={"wide": None, "small": None})
    assert Sweep.load(path, size="small").name == "t-small"
    with pytest.raises(ConfigError, match=r"sizes: the file has several: choose one of wide, small"):
        Sweep.load(path)
    with pytest.raises(ConfigError, match=r"--size: no such size. Accepted: wide, small. Did you mean small"):
        load_sweeps(path, size="smal")
    with pytest.raises(ConfigError, match="the file has no sizes; omit it"):
        load_sweeps(file(sizes={}, published=[]), size="small")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"sizes": {"wide": {"trainer.max_step": 4}}, "published": []},
            "size wide:\n  experiment.trainer.max_step: unkn",
        ),
        ({"sizes": {"wide": 3}, "published": []}, "sizes.wide"),
        ({"sizes": [1]}, "sizes: must be a mapping"),
        ({"sizes": {"wide": {"budget": {"trial": 3}}}, "published": []}, "budget.trial: unknown key"),
        ({"sizes": {"wide": None}}, r"published.1.size: is no size. Accepted: wide"),
        ({"sizes": {"a/b": None}, "published": []}, "name: must consist of letters"),
    ],
)
def test_mistakes_are_told_with_their_place(file, more, message):
    with pytest.raises(ConfigError, match=message):
        load_sweeps(file(**more))


def test_a_sweep_itself_has_no_sizes():
    with pytest.raises(ConfigError, match="divides the file into several sweeps, and one is needed: wide, small, two"):
        Sweep.from_tree(FILE)


def test_editors_are_told_of_sizes():
    schema = json_schema(Sweep)
    assert "sizes" in schema["properties"]
    fields = schema["$defs"]["Division"]["properties"]
    assert set(fields) == {
        "arms", "search", "fixed", "budget", "confirm", "objective", "compare", "target", "published",
    }  # fmt: skip
    assert fields["confirm"]["$ref"] == "#/properties/confirm"


def test_sizes_that_are_the_same_are_refused(file):
    sizes = {"a": None, "b": {"model.hidden": 16}, "c": {"model.layers": 2}}
    with pytest.raises(ConfigError, match=r"sizes: a and b train the same. Remove one"):
        load_sweeps(file(sizes=sizes, published=[]))
    assert [spec.name for spec in load_sweeps(file(sizes=sizes, published=[]), size="b")] == ["t-b"]
