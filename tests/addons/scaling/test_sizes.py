"""Which files tell whether a learning rate transfers, and what they are refused for."""

from functools import partial

import pytest

from ablate.addons.scaling.sizes import arrange_chain
from ablate.config.errors import ConfigError
from ablate.sweeps.spec.files import load_sweeps

FILE = {
    "name": "toy-wide",
    "experiment": {
        "model": {"kind": "llama", "hidden": 16, "layers": 2, "heads": 1, "mlp": 48},
        "data": {"kind": "topics", "seq_len": 32},
        "trainer": {"batch_size": 8, "max_steps": 20, "val_check_interval": 20},
    },
    "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
    "search": {"optimizer.lr": [1e-3, 2e-3, 4e-3]},
    "sampler": "grid",
    "confirm": {"at": "grid", "seeds": 3, "effect": 0.05},
    "sizes": {
        "w32": {"model": {"hidden": 32, "heads": 2, "mlp": 96}},
        "w16": {"model": {"hidden": 16, "heads": 1, "mlp": 48}},
    },
}


def build_chain(path, sizes=None):
    specs = load_sweeps(path, size=sizes)
    return arrange_chain({spec.name.rpartition("-")[2]: spec for spec in specs}, str(path))


@pytest.fixture
def write(write_sweep):
    return partial(write_sweep, FILE)


def test_sizes_that_differ_in_width_are_a_chain_over_it(write):
    chain = build_chain(write())
    assert (chain.axis, chain.places) == ("width", [16, 32])
    assert [size.spec.name for size in chain.sizes] == ["toy-wide-w16", "toy-wide-w32"]
    assert [size.name for size in chain.sizes] == ["w16", "w32"]
    assert chain.name == "toy-wide-transfer"
    assert chain.arms == ["pre", "post"]
    assert chain.list_rates(0) == [1e-3, 2e-3, 4e-3]


def test_sizes_that_differ_in_depth_or_in_both(write):
    deep = {f"d{n}": {"model": {"layers": n}} for n in (2, 4)}
    assert build_chain(write(sizes=deep)).axis == "depth"
    both = {"s": {"model": {"layers": 2}}, "l": {"model": {"layers": 4, "hidden": 32, "heads": 2}}}
    chain = build_chain(write(sizes=both))
    assert chain.axis == "parameters"
    assert chain.places == [size.parameters for size in chain.sizes]


def test_some_of_the_sizes(write):
    sizes = {**FILE["sizes"], "w64": {"model": {"hidden": 64, "heads": 4, "mlp": 192}}}
    assert build_chain(write(sizes=sizes), ["w16", "w64"]).places == [16, 64]


def test_one_size_is_a_chain_whose_rates_are_tuned(write):
    chain = build_chain(write(), ["w32"])
    assert (chain.axis, chain.places, chain.name) == ("width", [32], "toy-wide-transfer")
    assert chain.sizes[0].spec == build_chain(write()).sizes[1].spec  # so that what it trains counts for both


def test_heads_of_two_widths_are_told(write):
    assert build_chain(write()).describe_heads() == ""
    sizes = {**FILE["sizes"], "w32": {"model": {"hidden": 32, "heads": 1, "mlp": 96}}}
    assert "differ in width (16 at w16, 32 at w32)" in build_chain(write(sizes=sizes)).describe_heads()
    arms = {"pre": {"norm": "pre"}, "two": {"norm": "pre", "model": {"heads": 2}}}  # which is what is compared
    same = {name: {"model": {"hidden": 16, "layers": layers}} for name, layers in (("d2", 2), ("d4", 4))}
    assert build_chain(write(arms=arms, sizes=same, factor="model")).describe_heads() == ""


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"confirm": {"seeds": 3}}, "sampler: grid and confirm: {at: grid, seeds: 3}"),
        ({"confirm": {"at": "grid", "seeds": 2}}, "3 seeds or more"),
        ({"search": {"optimizer.lr": [1e-3, 2e-3]}}, "3 rates or more"),
        ({"search": {"optimizer.weight_decay": [0.0, 0.1, 0.2]}}, "one learning rate is searched"),
        ({"sizes": {"a": {"model": {"mlp": 48}}, "b": {"model": {"mlp": 96}}}}, "two have the same width"),
    ],
)
def test_files_that_tell_nothing_are_refused(write, more, words):
    with pytest.raises(ConfigError, match=words):
        build_chain(write(**more))
