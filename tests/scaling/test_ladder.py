"""Ladders: what the rungs are, and what is told of losses whose truth is known, through the engine."""

import json
import math

import pytest
import yaml
from optuna.storages import InMemoryStorage

from ablate.cli import main
from ablate.cli.ladder import to_text
from ablate.config.errors import ConfigError, SweepError
from ablate.models import models
from ablate.scaling.ladder import build_rungs, count_parameters, fit_ladder
from ablate.scaling.report import describe_trends, report_ladder
from ablate.sweeps.simulation import simulate

FILE = {
    "name": "toy",
    "experiment": {
        "data": {"kind": "topics", "seq_len": 32},
        "schedule": {"warmup_steps": 20},
        "trainer": {"batch_size": 8, "max_steps": 200, "val_check_interval": 50},
    },
    "arms": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
    "search": {"optimizer.lr": [1e-3, 3e-3]},
    "sampler": "grid",
    "confirm": {"seeds": 3},
    "published": [{"source": "table 1", "values": {"pre": 2.0}}],
    "sizes": {
        "m": {"model": {"hidden": 32, "layers": 2, "heads": 2, "mlp": 64}, "trainer.max_steps": 400},
        "s": {"model": {"hidden": 16, "layers": 2, "heads": 2, "mlp": 32}},
    },
}


@pytest.fixture
def file(tmp_path):
    def write(**more):
        path = tmp_path / "toy.yaml"
        path.write_text(yaml.safe_dump({**FILE, **more}, sort_keys=False))
        return path

    return write


def test_the_rungs_of_a_file_are_its_sweeps_from_the_smallest_on(file):
    small, middle = build_rungs(file())
    assert [rung.spec.name for rung in (small, middle)] == ["toy-s", "toy-m"]
    assert small.parameters == 2 * (4 * 16 * 16 + 3 * 16 * 32)
    assert (small.items, middle.items) == (200 * 8 * 32, 400 * 8 * 32)


def test_a_named_model_gets_the_tokens_per_parameter_of_the_smallest_size(file):
    small, named = build_rungs(file(), ["9m", "s"])
    llama = models.parse("llama-9m")
    assert named.parameters == llama.layer_parameters() == count_parameters("9m", [small])
    base = named.spec.base("post")
    assert (base.model.hidden, base.model.layers, base.model.mlp) == (llama.hidden, llama.layers, llama.mlp)
    ratio = small.items / small.parameters
    assert named.items / named.parameters == pytest.approx(ratio, rel=0.01)
    assert base.schedule.warmup_steps / base.trainer.max_steps == pytest.approx(20 / 200, rel=0.01)
    assert base.trainer.val_check_interval / base.trainer.max_steps == pytest.approx(50 / 200, rel=0.01)
    assert named.spec.published == []
    assert named.spec.name.startswith("toy-9m-")


def test_a_length_that_is_given_holds_for_every_size_under_another_name(file):
    for rung in build_rungs(file(), ["s", "m", "9m"], tokens_per_parameter=20):
        assert rung.items / rung.parameters == pytest.approx(20, rel=0.01)
        assert rung.spec.name == f"toy-{rung.size}-20per"


@pytest.mark.parametrize(
    ("more", "sizes", "message"),
    [
        ({}, ["s", "12m"], r"--sizes: no such size. Accepted: m, s, 9m, 20m, .*given: '12m'"),
        ({}, ["s"], "a ladder needs two sizes or more"),
        ({"confirm": {"seeds": 0}}, [], "confirm.seeds: fresh seeds are what s is told by"),
        (
            {"sizes": {"a": FILE["sizes"]["s"], "b": FILE["sizes"]["s"]}},
            [],
            "a and b have the same number of parameters",
        ),
        ({"arms": {"pre": {"norm": "pre"}}}, [], "every size needs the same two arms or more"),
    ],
)
def test_mistakes_are_told_before_anything_runs(file, more, sizes, message):
    with pytest.raises(ConfigError, match=message):
        build_rungs(file(**more), sizes)


def run(known, gap):
    """Records of every rung: loss 3 (N / 1e4)^-0.1, of post less by `gap`(N), noise of the seed shared."""
    records = []
    for rung in known:

        def loss(arm, params, seed, n=rung.parameters):
            noise = 0.01 * math.sin(seed) + 0.002 * math.sin(7 * seed + len(arm) + n)
            worse = 0.2 * abs(math.log10(params["optimizer.lr"] / 1e-3))
            return 3 * (n / 1e4) ** -0.1 + worse + noise + (gap(n) if arm == "post" else 0)

        records.append(simulate(rung.spec, loss, InMemoryStorage()))
    return records


def test_what_is_told_is_what_is_true_and_is_written_down(file, store, capsys):
    known = build_rungs(file(), ["s", "m", "9m"])
    found = fit_ladder("toy-ladder", known, run(known, lambda n: -0.1 * math.log10(n / 1e3)), "20m")
    assert found.trends["post"].slope.value == pytest.approx(-0.1, abs=0.01)
    (sentence,) = describe_trends(found)
    assert sentence.startswith("post and pre: the difference grows (-0.")
    target = models.parse("llama-20m").layer_parameters()
    assert found.trends["post"].at(target).value == pytest.approx(-0.1 * math.log10(target / 1e3), abs=0.02)
    assert found.curves["pre"].at(target).value == pytest.approx(3 * (target / 1e4) ** -0.1, abs=0.05)
    made = report_ladder(found, to_text)
    told = json.loads((made.folder / "ladder.json").read_text())
    assert told["differences"]["post"]["verdict"] == "grows"
    assert told["rungs"][2]["parameters"] == known[2].parameters
    text = (made.folder / "ladder.txt").read_text()
    assert sentence.split(" (")[0] in text
    assert "20m, extrapolated" in text
    assert "20m has 3.94 times the parameters of 9m" in text.replace("\n", " ")
    assert all((made.folder / name).stat().st_size > 10_000 for name in ("ladder.png", "ladder-differences.png"))
    from ablate import tracking

    stored = {item.path for item in tracking.client().list_artifacts(made.mlflow["run_id"])}
    assert stored == {"ladder.png", "ladder-differences.png", "ladder.json", "ladder.txt"}


def test_without_a_common_seed_at_two_sizes_there_is_no_ladder(file):
    known = build_rungs(file())
    records = run(known, lambda n: math.nan)
    with pytest.raises(SweepError, match="needs pre and another arm trained to the end"):
        fit_ladder("toy-ladder", known, records)


def test_the_command_plans_a_ladder_and_tells_mistakes(file, store, capsys):
    assert main(["ladder", str(file()), "--sizes", "s,9m", "--tokens-per-parameter", "20", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "sweep toy-s-20per" in out
    assert "sweep toy-9m-20per" in out
    assert main(["ladder", str(file()), "--extrapolate", "1x"]) == 2
    assert "--extrapolate: no such size" in capsys.readouterr().err
