"""The report of a transfer, of losses whose truth is known, through the engine; and the verb, on real runs."""

import json
import math
from dataclasses import replace

import pytest
import yaml
from optuna.storages import InMemoryStorage
from scaling.test_sizes import FILE, build_chain

from ablate import tracking
from ablate.addons.scaling.over_sizes import compare, report_sizes
from ablate.addons.scaling.rates import state_findings, tabulate_losses, tabulate_optima
from ablate.addons.scaling.transfer import fit_transfer
from ablate.cli import main
from ablate.config.errors import SweepError
from ablate.verdict.intervals import find_t_limit
from ablate.verdict.looks import Looks, nominal_levels
from benchmarks.simulation.sweeps import simulate

RATES = [2.0**k / 1000 for k in range(-2, 5)]


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    path = tmp_path_factory.mktemp("chain") / "toy.yaml"
    more = {"search": {"optimizer.lr": RATES}, "confirm": {"at": "grid", "seeds": 4, "effect": 0.05}}
    path.write_text(yaml.safe_dump({**FILE, **more}, sort_keys=False))
    return build_chain(path)


def run(chain, failing=(), storages=None):
    """Records of both sizes. The best rate of pre is 0.002 at both; that of post halves from 0.004 to 0.002 and a bit,
    differently for each seed. Cells of `failing` diverge on all seeds."""
    records = []
    for k, size in enumerate(chain.sizes):

        def lose(arm, params, seed, k=k):
            rate = params["optimizer.lr"]
            best = 1.0 if arm == "pre" else 2.0 - k * (1 + 0.02 * seed)
            if (arm, k, rate) in failing:
                return math.nan
            return 2 - 0.2 * k + 0.05 * (math.log2(rate / 1e-3) - best) ** 2 + 0.01 * math.sin(seed)

        records.append(simulate(size.spec, lose, storages[k] if storages else InMemoryStorage()))
    return records


@pytest.fixture(scope="module")
def records(chain):
    """Those where no cell diverges, run once."""
    return run(chain)


def write_report(chain, records):
    sizes = {size.name: record for size, record in zip(chain.sizes, records, strict=True)}
    return report_sizes(compare("toy-wide", sizes))


def test_what_is_told_is_what_is_true_and_is_written_down(chain, records, store):
    transfer = fit_transfer(chain, records)
    pre, post = transfer.arms["pre"], transfer.arms["post"]
    assert [optimum.rate for optimum in pre.optima] == pytest.approx([2e-3, 2e-3])
    assert post.optima[0].rate == pytest.approx(4e-3)
    assert post.slope.mean == pytest.approx(-(1 + 0.02 * 2.5), abs=0.01)  # seeds 1 to 4
    assert (post.moves, post.word) == (-1, "costs")
    assert (pre.moves, pre.word) == (0, "holds")
    assert transfer.family == 4
    assert transfer.saved_items == 7 * 20 * 8 * 32
    written = write_report(chain, records)
    content = json.loads((written.folder / "transfer.json").read_text())
    assert content["axis"] == "width"
    assert [size["width"] for size in content["sizes"]] == [16, 32]
    assert content["arms"]["post"]["verdict"] == "costs"
    assert content["arms"]["post"]["losses"][0]["1"]["0.004"] == pytest.approx(2 + 0.01 * math.sin(1))
    text = " ".join((written.folder / "transfer.txt").read_text().split())
    assert "post: the best rate falls: times 0.4" in text
    assert (
        "w16 and w32 choose the same rate of the grid, whichever seed is left out: it holds, as far as the grid tells"
        in text
    )
    page = (written.folder / "transfer.html").read_text()
    assert "the best rate falls" in page
    assert "<svg" in page
    stored = {item.path for item in tracking.client().list_artifacts(written.mlflow["run_id"])}
    assert stored == {"transfer.png", "transfer.svg", "transfer.json", "transfer.txt", "transfer.html"}


def test_one_size_has_its_best_rates_and_nothing_that_needs_two(chain, records, store):
    alone = replace(chain, sizes=chain.sizes[1:], places=chain.places[1:])
    transfer, both = fit_transfer(alone, records[1:]), fit_transfer(chain, records)
    assert {arm: one.optima for arm, one in transfer.arms.items()} == {
        arm: one.optima[1:] for arm, one in both.arms.items()
    }
    assert {(one.slope, one.cost, one.moves) for one in transfer.arms.values()} == {(None, None, 0)}
    assert tabulate_optima(transfer).table.header == ["arm", "w32: width 32"]
    content = json.loads((write_report(alone, records[1:]).folder / "transfer.json").read_text())
    assert (content["saved_items"], content["saved_operations"], content["comparisons"]) == (0, 0, 0)
    pre, post, more = content["verdict"]
    assert pre == "pre: the best optimizer.lr at w32 is 0.002 (n = 4)."  # all seeds have the same, so no interval
    low, high = both.arms["post"].optima[1].interval
    assert post == f"post: the best optimizer.lr at w32 is 0.0019 ({low:.2g} ... {high:.2g})."
    assert "a second size shows" in more
    failing = {(arm, 0, rate) for arm in ("pre", "post") for rate in RATES if arm == "post" or rate > 0.26e-3}
    pre, post, _ = state_findings(fit_transfer(alone, run(alone, failing)))
    assert pre == "pre: the best optimizer.lr at w32 is 0.00025, 4 of 4 at the edge: search lower rates."
    assert post == "post: no seed trained at w32, at any rate."


def test_failures_and_edges_are_in_the_tables(chain):
    failing = {("post", 1, rate) for rate in RATES if rate > 1e-3}
    transfer = fit_transfer(chain, run(chain, failing))
    optima, (_, large) = tabulate_optima(transfer).table, (losses.table for losses in tabulate_losses(transfer))
    assert large.rows[1][-1] == "failed"
    assert optima.rows[1][-2].endswith("4 of 4 failed")
    assert transfer.arms["post"].word == "undecided"
    failing = {("post", 1, rate) for rate in RATES if rate > 0.26e-3}
    transfer = fit_transfer(chain, run(chain, failing))
    assert tabulate_optima(transfer).table.rows[1][2] == "0.00025, 4 of 4 at the edge"
    sentences = " ".join(state_findings(transfer))
    assert "lies at an edge of the searched ones at w32 (search lower rates)" in sentences


def test_nothing_that_ended_is_refused(chain):
    everything = {(arm, k, rate) for arm in ("pre", "post") for k in (0, 1) for rate in RATES}
    transfer = fit_transfer(chain, run(chain, everything))
    assert {one.word for one in transfer.arms.values()} == {"undecided"}
    records = [simulate(size.spec, lambda *_: 2.0, InMemoryStorage(), 0) for size in chain.sizes]
    with pytest.raises(SweepError, match="ended at every rate at two sizes"):
        fit_transfer(chain, records)
    with pytest.raises(SweepError, match=r"ended at every rate\. To see"):
        fit_transfer(replace(chain, sizes=chain.sizes[:1], places=chain.places[:1]), records[:1])


def test_every_look_at_the_seeds_counts(tmp_path):
    """Three seeds, and then five more: the intervals are at the level that the verdict of a sweep has then."""
    slopes = []
    for first in (8, 3):
        path, storages = tmp_path / "toy.yaml", [InMemoryStorage(), InMemoryStorage()]
        for seeds in (first, 8):
            confirm = {"at": "grid", "seeds": seeds, "effect": 0.05}
            path.write_text(yaml.safe_dump({**FILE, "search": {"optimizer.lr": RATES}, "confirm": confirm}))
            chain = build_chain(path)
            transfer = fit_transfer(chain, run(chain, storages=storages))
        slopes.append(transfer.arms["post"].slope)
    once, twice = slopes
    levels = [nominal_levels(Looks(sizes, planned), 0.05 / 4)[-1] for sizes, planned in (((8,), 8), ((3, 8), 3))]
    assert once.mean == twice.mean
    ratio = find_t_limit(levels[1], 8) / find_t_limit(levels[0], 8)
    assert twice.half_width / once.half_width == pytest.approx(ratio)
    assert ratio > 1


def test_the_verb_trains_and_tells(tmp_path, store, capsys):
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump({**FILE, "arms": {"pre": {"norm": "pre"}}}, sort_keys=False))
    words = ["trainer.max_steps=2", "trainer.val_check_interval=2", "data.val_fraction=0.0005"]
    with pytest.raises(SystemExit, match="2"):
        main(["sweep", str(path), "--size", ",", "--dry-run"])
    told = "--size: expected one name or more, with commas between them, given ','"
    assert told in capsys.readouterr().err
    assert main(["sweep", str(path), *words, "--size", "w16", "--json"]) == 0
    assert {*json.loads(capsys.readouterr().out)} == {"sweeps"}
    assert main(["report", str(path), "--json"]) == 0
    assert [size["size"] for size in json.loads(capsys.readouterr().out)["sizes"]] == ["w16"]
    assert main(["sweep", str(path), *words, "--dry-run"]) == 0
    planned = capsys.readouterr().out
    assert "arm pre: 3 points of 2 updates" in planned
    assert "to do: 0 trials, 0 tokens" in planned  # those of the size that was tuned
    assert f"to do: 9 trials, {9 * 2 * 8 * 32:,} tokens" in planned
    assert main(["sweep", str(path), *words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [sweep["sweep"] for sweep in document["sweeps"]] == ["toy-wide-w16", "toy-wide-w32"]
    content = document["over_sizes"]
    assert [len(losses) for losses in content["arms"]["pre"]["losses"]] == [3, 3]
    assert content["saved_items"] == 3 * 2 * 8 * 32
    assert main(["report", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == content
    assert main(["sweep", str(path), *words, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("to do: 0 trials, 0 tokens") == 2
    other = f"sqlite:///{tmp_path}/other.db"
    assert main(["sweep", str(path), *words, "--dry-run", "--json", "--storage", other]) == 0
    document = json.loads(capsys.readouterr().out)
    plans = document["sweeps"]
    assert "notes" not in document
    assert [plan["sweep"] for plan in plans] == ["toy-wide-w16", "toy-wide-w32"]
    assert all("to do: 9 trials" in plan["plan"] for plan in plans)
    assert main(["sweep", str(path), *words, "model.heads=1", "--dry-run", "--storage", other]) == 0
    assert "Note: The heads differ in width (16 at w16, 32 at w32)" in capsys.readouterr().out
    assert main(["sweep", str(path), *words, "confirm.seeds=2", "--dry-run", "--storage", other]) == 0
    assert "3 seeds or more" in capsys.readouterr().out
