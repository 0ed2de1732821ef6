"""The plan of a sweep, and that looking creates nothing."""

import pytest
import yaml
from rich.console import Console

from ablate.cli import main
from ablate.config.errors import SweepError
from ablate.sweeps.dry_run import plan
from ablate.sweeps.run import sweep
from ablate.sweeps.spec.sweep import Sweep
from ablate.sweeps.status import read_statuses


@pytest.fixture
def spec(tiny_settings):
    def build(rates=(1e-3, 1e-2), trials=2):
        tree = {"name": "planned", "experiment": tiny_settings, "sampler": "grid", "search": {"optimizer.lr": rates}}
        return Sweep.from_tree({**tree, "budget": {"trials": trials}})

    return build


def test_plan_counts_what_is_left_and_refuses_a_changed_file_as_the_run_would(store, spec):
    assert "to do: 1 trial," in plan(spec(trials=1), 1, None)
    record = sweep(spec(trials=1), console=Console(quiet=True))
    assert record.validation_items == len(spec().base("all").data.load(store / "cache").val)
    text = plan(spec(), 1, None)
    assert "2 trials (1 done)" in text
    assert "to do: 1 trial," in text
    with pytest.raises(SweepError, match=r"search.optimizer.lr: \[0.001, 0.01\] -> \[0.001, 0.1\]"):
        plan(spec(rates=[1e-3, 1e-1]), 1, None)
    assert "to do: 2 trials" in plan(spec(rates=[1e-3, 1e-1]), 1, None, fresh=True)


def test_looking_at_sweeps_creates_nothing(store):
    assert read_statuses() == []
    with pytest.raises(SweepError, match="There are none yet"):
        read_statuses("nosuch")
    assert not (store / "optuna.db").exists()


def test_the_plan_says_what_is_compared_and_what_else_differs(store, tiny_settings):
    tree = {
        "name": "planned",
        "experiment": tiny_settings,
        "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post", "init": "scaled"}},
        "confounds": "init",
        "search": {"optimizer.lr": {"low": 1e-3, "high": 1e-2}},
        "fixed": [{"optimizer.lr": 2e-3}],
        "budget": {"tokens": 5 * 12 * 4 * 32},
        "confirm": {"seeds": 2},
    }
    text = plan(Sweep.from_tree(tree), 1, None)
    assert "compares norm; besides it the arms differ in init.kind: normal (pre), scaled (post)" in text
    assert "arm post: 5 trials of 12 updates = 1,536 tokens each" in text
    assert text.count("starting from optimizer.lr=0.002") == 2
    assert "on the fresh seeds 1, 2" in text
    assert "to do: 14 trials, 21,504 tokens" in text


def test_without_its_data_the_plan_says_what_it_can_and_what_is_missing(store, tiny_settings, tmp_path, capsys):
    file = tmp_path / "absent.yaml"
    data = {"kind": "text", "files": str(tmp_path / "none.txt"), "seq_len": 32}
    search = {"optimizer.lr": [1e-3, 1e-2]}
    tree = {"name": "absent", "experiment": {**tiny_settings, "data": data}, "search": search, "budget": {"trials": 2}}
    file.write_text(yaml.safe_dump(tree))
    assert main(["sweep", str(file), "--dry-run"]) == 2
    told = capsys.readouterr()
    assert "to do: 2 trials, 3,072 tokens" in told.out
    assert "none.txt" in told.err
