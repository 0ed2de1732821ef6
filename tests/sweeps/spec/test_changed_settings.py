"""What the command line changed besides the scale is said with both values."""

import pytest
import yaml

from ablate.sweeps.spec.changed_settings import describe_changes
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.scale import describe_scale
from ablate.sweeps.spec.sweep import Sweep

TREE = {
    "name": "full",
    "experiment": {
        "model": "llama-71m",
        "data": {"kind": "c4", "seq_len": 256, "train_tokens": 2 * 10**9},
        "trainer": {"max_steps": 10_000, "batch_size": 512, "val_check_interval": 500},
    },
    "arms": {"pre": {"norm": "pre"}, "mix": {"norm": "mix"}},
    "search": {"optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": True}},
    "confirm": {"seeds": {"min": 3, "max": 8}, "effect": 0.01},
    "budget": {"trials": 6},
}


@pytest.fixture
def load(tmp_path):
    def scale(overrides, factor=0.01, tree=TREE, **more):
        file = tmp_path / "full.yaml"
        file.write_text(yaml.safe_dump(tree))
        return load_sweeps(file, overrides, factor=factor, **more)[0]

    return scale


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"trainer.batch_size": 8}, ["trainer.batch_size 8 instead of 512"]),
        ({"experiment.trainer.batch_size": 8}, ["trainer.batch_size 8 instead of 512"]),
        ({"trainer": {"batch_size": 8}}, ["trainer.batch_size 8 instead of 512"]),
        ({"trainer.batch_size": 512, "norm": "post", "name": "mine"}, []),  # arms have their own norms
        ({"trainer.val_check_interval": 50}, ["trainer.val_check_interval 50 instead of 500"]),  # of the file, not 5
        ({"data": "topics", "data.seq_len": 64}, ["data topics instead of c4", "data.seq_len 64 instead of 256"]),
        ({"data.kind": "topics"}, ["data topics instead of c4"]),
        (
            {"data": {"kind": "text", "dataset": None, "subset": None, "val_split": None, "files": ["a.txt"]}},
            ["data text instead of c4", "data.dataset null instead of allenai/c4", "data.subset null instead of en",
             "data.val_split null instead of validation", "data.files ['a.txt'] instead of []"],
        ),
        ({"model": "llama-9m"}, ["model llama-9m instead of llama-71m"]),
        ({"budget.trials": 2, "confirm.seeds": 2}, ["budget.trials 2 instead of 6", "confirm.seeds 2 instead of min=3"
         " max=8"]),
        ({"search.optimizer.lr": [1e-3]}, ["search.optimizer.lr [0.001] instead of 0.0001 ... 0.01 (log)"]),
        ({"trainer.max_steps": 20}, ["trainer.max_steps 20 instead of 10000"]),
    ],
)  # fmt: skip
def test_each_changed_setting_has_its_value_and_that_of_the_file(load, overrides, said):
    spec = load(overrides)
    assert [f"{path} {change}" for path, change in spec.scale.changed.items()] == said
    assert Sweep.from_tree(spec.to_tree()) == spec
    assert "and further settings" in describe_scale(spec) or not said


def test_the_note_names_them_after_the_length(load):
    text = describe_scale(load({"trainer.batch_size": 8, "data.seq_len": 64, "trainer.max_steps": 20}))
    assert text == (
        "Not the full setting (--scale 0.01 and further settings): a trial has 20 of 10,000 updates and 10.2 k of "
        "1.31 G tokens. The command line set trainer.batch_size 8 instead of 512 and data.seq_len 64 instead of 256."
    )
    assert load({"trainer.batch_size": 8}, factor=1).scale is None
    assert "command line" not in describe_scale(load({}))


def test_fields_of_the_method_are_set_at_a_scale_too(load):
    """The scaled sweep has its method outside of `search`, where the file has it inside."""
    tree = {**TREE, "search": {"method": "rungs", "keep": 0.5, **TREE["search"]}}
    changed = load({"search.rungs": 4}, tree=tree, factor=0.5)
    assert (changed.method.kind, changed.method.rungs, changed.method.keep) == ("rungs", 4, 0.5)
    assert load({"search.method": "trials"}, tree=tree, factor=0.5).method.kind == "trials"
    assert load({"search.optimizer.lr": [1e-3, 2e-3]}, factor=0.5).method.kind == "trials"


def test_of_many_the_first_eight_are_named():
    changes = {f"path.{i}": str(i) if i == 3 else f"{i} instead of 9" for i in range(11)}
    text = describe_changes(changes, told=["path.0"])
    assert "path.1 1 instead of 9, path.2 2 instead of 9, path.3 3, path.4 4 instead of 9" in text
    assert text.endswith("path.8 8 instead of 9 and 2 others.")
    assert describe_changes(dict(list(changes.items())[:9]), told=["path.0"]).endswith("and path.8 8 instead of 9.")


def test_each_size_has_the_values_of_its_own_full_setting(load):
    tree = {**TREE, "sizes": {"9m": {"model": "llama-9m", "trainer.batch_size": 64}, "71m": None}}
    changed = [load({"trainer.batch_size": 8}, tree=tree, size=size).scale.changed for size in ("9m", "71m")]
    assert [one["trainer.batch_size"] for one in changed] == ["8 instead of 64", "8 instead of 512"]
