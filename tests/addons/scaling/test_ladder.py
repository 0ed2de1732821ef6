"""Ladders: what the sizes are, and what is told of losses whose truth is known, through the engine."""

import json
import math
from dataclasses import replace
from functools import partial

import pytest
from optuna.storages import InMemoryStorage
from run_table import by_arm, put

from ablate.addons.scaling.figures import draw_differences
from ablate.addons.scaling.ladder import fit_ladder
from ablate.addons.scaling.over_sizes import compare, report_sizes
from ablate.addons.scaling.sizes import Size, arrange_ladder
from ablate.addons.scaling.statements import list_caveats, state_findings, tabulate
from ablate.cli import main
from ablate.config.errors import ConfigError, SweepError
from ablate.models import models
from ablate.plots.marks import Text
from ablate.scheduler.storage import open_storage, storage_url
from ablate.sweeps.runs import FRESH
from ablate.sweeps.spec.files import load_sweeps
from benchmarks.simulation.sweeps import simulate

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

RATIO = 10  # tokens for each weight of the layers of s, and so of the named models


def build_size(name):
    """A named model, trained on as many tokens for each weight as s."""
    steps = round(RATIO * models.parse(name).layer_parameters() / (8 * 32))
    return {"model": name, "trainer.max_steps": steps}


SIZES = {**FILE["sizes"], "9m": build_size("llama-9m"), "20m": build_size("llama-20m")}


@pytest.fixture
def file(write_sweep):
    return partial(write_sweep, FILE)


def build_sizes(path):
    specs = load_sweeps(path)
    return arrange_ladder([Size.of(spec.name.removeprefix("toy-"), spec) for spec in specs], str(path))


def pick(*names):
    return {name: SIZES[name] for name in names}


def test_the_sizes_of_a_file_are_its_sweeps_from_the_smallest_on(file):
    small, middle = build_sizes(file())
    assert [size.spec.name for size in (small, middle)] == ["toy-s", "toy-m"]
    assert small.parameters == 2 * (4 * 16 * 16 + 3 * 16 * 32)
    assert (small.items, middle.items) == (200 * 8 * 32, 400 * 8 * 32)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"sizes": pick("s")}, "a comparison over sizes needs two or more"),
        ({"confirm": {"seeds": 0}}, "confirm.seeds: fresh seeds decide the comparison at s"),
        ({"published": [], "confirm": {"at": "grid", "seeds": 3}}, "confirm.at: a sweep with a grid has no ladder"),
        (
            {"sizes": {"a": FILE["sizes"]["s"], "b": {**FILE["sizes"]["s"], "trainer.max_steps": 100}}},
            "a and b have the same number of parameters",
        ),
        ({"arms": {"pre": {"norm": "pre"}}}, "every size needs the same two arms or more"),
    ],
)
def test_sizes_that_can_not_be_compared(file, more, message):
    with pytest.raises(ConfigError, match=message):
        build_sizes(file(**more))


def run(known, gap, floor=0.0, failing=(), trivial=None):
    """Records of every size: loss floor + 3 (N / 1e4)^-0.3, of post less by `gap`(N), noise of the seed shared. Post
    diverges on the fresh seeds of `failing` (size, place among the fresh seeds)."""
    records = []
    for k, size in enumerate(known):
        fresh = size.spec.fresh_seeds()
        lost = {fresh[place] for at, place in failing if at == k}

        def loss(arm, params, seed, n=size.parameters, lost=lost):
            if arm == "post" and seed in lost:
                return math.nan
            noise = 0.01 * math.sin(seed) + 0.002 * math.sin(7 * seed + len(arm) + n)
            worse = 0.2 * abs(math.log10(params["optimizer.lr"] / 1e-3))
            return floor + 3 * (n / 1e4) ** -0.3 + worse + noise + (gap(n) if arm == "post" else 0)

        record = simulate(size.spec, loss, InMemoryStorage())
        records.append(put(record, trivial_loss=trivial))
    return records


def say(ladder):
    return " ".join([*state_findings(ladder), *list_caveats(ladder)])


def test_what_is_told_is_what_is_true_and_is_written_down(file, store, capsys):
    known = build_sizes(file(sizes=pick("s", "m", "9m", "20m")))
    found = fit_ladder("toy-ladder", known, run(known, lambda n: -0.1 * math.log10(n / 1e3), floor=1.5), "35m")
    trend = found.compared.pairs["post"].trend
    truth = [-0.1 * math.log10(known[k].parameters / 1e3) for k in (0, 3)]
    assert trend.ends == pytest.approx(truth, abs=0.01)
    assert (trend.word, trend.sizes) == ("grows", (0, 3))
    assert found.compared.family == 5
    target = models.parse("llama-35m").layer_parameters()
    assert found.compared.arms["pre"].curve.at(target).value == pytest.approx(
        1.5 + 3 * (target / 1e4) ** -0.3, abs=0.05
    )
    text = say(found)
    assert "post and pre: the difference grows with size, from -0." in text
    assert text.startswith("The loss of post is lower than that of pre at s, m, 9m and 20m, each at its own settings.")
    assert "At 35m the curves predict a difference of post to pre of -0." in text
    assert "times the parameters of the largest size trained" in text
    assert "that requires 5 sizes" in text
    assert "5 comparisons share an error of 5 %, every look counted: 4 differences at a size and 1 trend." in text
    records = run(known, lambda n: -0.1 * math.log10(n / 1e3), floor=1.5)
    sizes = {size.name: record for size, record in zip(known, records, strict=True)}
    made = report_sizes(compare("toy", sizes, "35m"))
    told = json.loads((made.folder / "ladder.json").read_text())
    assert told["differences"]["post"]["trend"]["verdict"] == "grows"
    assert told["sizes"][2]["parameters"] == known[2].parameters
    assert told["failures"]["post"]["sizes"][0]["n"] == 3
    printed = (made.folder / "ladder.txt").read_text()
    assert "35m, by the curves" in printed
    assert "Fresh seeds that failed" in printed
    assert all((made.folder / name).stat().st_size > 10_000 for name in ("ladder.png", "ladder-differences.png"))
    from ablate import tracking

    stored = {item.path for item in tracking.client().list_artifacts(made.mlflow["run_id"])}
    figures = {"ladder.png", "ladder-differences.png", "ladder-differences.svg"}
    assert stored == {*figures, "ladder.json", "ladder.txt", "ladder.html"}


def test_the_sizes_at_which_a_difference_is_shown_are_told(file):
    known = build_sizes(file(sizes=pick("s", "m", "9m")))
    gaps = {known[0].parameters: 0.1, known[1].parameters: 0.0, known[2].parameters: -0.1}
    text = say(fit_ladder("toy-ladder", known, run(known, gaps.get)))
    assert text.startswith("The loss of post is lower than that of pre at 9m and higher than that of pre at s, each at")
    assert "The loss of post" not in say(fit_ladder("toy-ladder", known, run(known, lambda n: 0.0)))


def test_what_the_sweep_of_a_size_does_not_claim_is_told_apart(file):
    """Both arms stand at the lower end of their range, which is not extended."""
    search = {"optimizer.lr": {"low": 1e-3, "high": 4e-3, "log": True, "num": 3}}
    known = build_sizes(file(sizes=pick("s", "m", "9m"), search=search, challenge={"extend": 0}))
    text = say(fit_ladder("toy-ladder", known, run(known, lambda n: -0.1)))
    assert text.startswith(
        "The loss of post is lower than that of pre at s, m and 9m, which the sweep of the size does not claim."
    )
    assert "each at its own settings" not in text


def test_three_sizes_are_not_extrapolated(file):
    known = build_sizes(file(sizes=pick("s", "m", "9m")))
    found = fit_ladder("toy-ladder", known, run(known, lambda n: 0.0), "1b")
    assert found.compared.arms["pre"].curve is None
    assert found.compared.pairs["post"].gap is None
    assert ("1b cannot be predicted: 3 sizes cannot determine a floor, which requires 4.") in say(found).replace(
        "1B", "1b"
    )
    losses, differences, _ = (section.table for section in tabulate(found))
    assert losses.rows[-1] == ["1b, by the curves", losses.rows[-1][1], "", "-", "-"]
    assert differences.header == ["size", "post, difference to pre"]
    assert [row[0] for row in differences.rows] == ["s", "m", "9m"]


def test_an_interval_that_is_far_wider_does_not_flatten_the_figure_and_its_ends_and_seeds_are_told(file):
    known = build_sizes(file(confirm={"seeds": 6}, sizes=pick("s", "m", "9m")))
    records = run(known, lambda n: -0.1)
    large = records[2]
    far = [
        replace(one, value=loss, metrics={**one.metrics, "val/loss": loss})
        for k, one in enumerate(large.fresh("post"))
        for loss in [one.value + (k < 2)]
    ]
    records[2] = put(large, confirmed={**by_arm(large, FRESH), "post": far})
    ladder = fit_ladder("toy-ladder", known, records)
    (panel,) = draw_differences(ladder).panels
    assert -0.2 < panel.y.limits[0] < panel.y.limits[1] < 0.1
    low, high = ladder.compared.pairs["post"].measured[2].difference.interval
    assert low < -0.2  # cut off too, with no seed beyond
    told = {mark.text for mark in panel.marks if isinstance(mark, Text)}
    assert told == {f"to {high:+.2f}; 2 seeds", f"to {low:+.2f}"}


def test_failed_seeds_are_told_and_leave_the_fits_with_their_number(file):
    known = build_sizes(file(confirm={"seeds": 6}, sizes=pick("s", "m", "9m")))
    failing = [(1, 0), (1, 1), (1, 2), *((2, place) for place in range(6))]
    found = fit_ladder("toy-ladder", known, run(known, lambda n: 0.0, failing=failing))
    post, pair = found.compared.arms["post"], found.compared.pairs["post"]
    assert [share.failed for share in post.failures] == [0, 3, 6]
    assert [versus.left_out for versus in pair.measured] == [0, 3, 6]
    assert pair.trend.sizes == (0, 1)
    text = say(found)
    assert "The share of seeds on which post fails rises with size: 0 of 6 at s, 3 of 6 at m and 6 of 6 at 9m" in text
    assert "pre failed on none of its seeds; at the size with the fewest, up to 39 % may fail" in text
    assert "without the failed seeds: 9 of 18 of post." in text
    assert found.compared.failure_tests == 1  # the trend; six seeds are too few to tell the arms apart at one size
    losses, _, failures = (section.table for section in tabulate(found))
    assert losses.rows[1][-1].endswith("(3 of 6)")
    assert losses.rows[2][-1] == "none trained"
    assert failures.rows[2][-1] == "6 of 6 seeds (6 diverged; at least 61 %, one-sided 95 %)"


def test_few_failures_can_not_tell_a_trend(file):
    known = build_sizes(file(sizes=pick("s", "m")))
    text = say(fit_ladder("toy-ladder", known, run(known, lambda n: 0.0, failing=[(1, 0)])))
    assert "post failed on 0 of 3 at s and 1 of 3 at m; whether the share changes with size is unknown" in text


def test_seeds_that_learned_nothing_fail_by_the_trivial_loss_of_their_size(file):
    known = build_sizes(file(sizes=pick("s", "m")))
    records = run(known, lambda n: 3.0, trivial=3.2)
    found = fit_ladder("toy-ladder", known, [put(records[0], trivial_loss=99.0), records[1]])
    assert [share.stuck for share in found.compared.arms["post"].failures] == [0, 3]
    assert "At m: A seed fails when it diverges or is stuck" in say(found)


def test_an_arm_that_no_search_could_train_is_told(file):
    known = build_sizes(file())
    text = say(fit_ladder("toy-ladder", known, run(known, lambda n: math.nan)))
    assert "post has no fresh seed that ended. At s and m it could not be trained within the budget" in text
    assert "fewer than two sizes have a seed on which both trained" in text


def test_without_fresh_seeds_at_two_sizes_there_is_no_ladder(file):
    known = build_sizes(file())
    records = run(known, lambda n: 0.0)
    with pytest.raises(SweepError, match="needs fresh seeds that ended at two sizes"):
        fit_ladder("toy-ladder", known, [records[0], put(records[1], confirmed={})])


def test_the_plan_of_sizes_says_why_they_will_not_be_compared(file, store, capsys):
    assert main(["sweep", str(file()), "--dry-run"]) == 0
    assert "Note:" not in capsys.readouterr().out
    assert main(["sweep", str(file()), "--size", "s,m", "confirm.seeds=0", "--dry-run"]) == 0
    told = "Note: The sizes will not be compared with each other: confirm.seeds: fresh seeds decide"
    assert told in capsys.readouterr().out


def test_the_sizes_that_were_run_are_reported_together(file, store, capsys):
    path = file(sizes=pick("s", "m", "9m", "20m"))
    assert main(["report", str(path)]) == 2
    assert "No size of" in capsys.readouterr().err
    for size in build_sizes(path)[:3]:
        simulate(size.spec, lambda arm, params, seed: 3 + 0.1 * len(arm) + 0.01 * seed, open_storage(storage_url()))
    assert main(["report", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [size["size"] for size in told["sizes"]] == ["s", "m", "9m"]
    assert told["extrapolate"] is None
    assert main(["report", str(path), "--extrapolate", "35m"]) == 0
    assert "35m cannot be predicted: 3 sizes cannot determine a floor" in " ".join(capsys.readouterr().out.split())
    assert main(["report", str(path), "--extrapolate", "1x"]) == 2
    assert "--extrapolate: no such size. Accepted: s, m, 9m, 20m, " in capsys.readouterr().err
    assert main(["report", "toy-s", "--extrapolate", "35m"]) == 2
    assert "--extrapolate: needs a sweep file with sizes" in capsys.readouterr().err


def test_without_addons_the_sizes_are_run_and_not_compared(file, store, capsys, monkeypatch):
    monkeypatch.setattr("ablate.cli.report.find_spec", lambda name: None)
    assert main(["sweep", str(file()), "--dry-run"]) == 0
    assert "Note: This installation lacks ablate.addons" in capsys.readouterr().out
    for spec in load_sweeps(file()):
        simulate(spec, lambda *_: 3.0, open_storage(storage_url()))
    assert main(["report", str(file())]) == 2
    assert "lacks ablate.addons" in capsys.readouterr().err
