"""`ablate status`: the trials of each arm, and a way on where there is no sweep."""

import io
import json

import pytest
from rich.console import Console

from ablate.cli import main
from ablate.cli.status import render
from ablate.sweeps.runs import STATUSES

VERDICT = "Verdict so far against peri: mix worse (+0.1 ± 0.05)."


def row(arm, failures=(), **counts):
    return {
        "sweep": "vision-small", "verdict": VERDICT, "arm": arm, "target": 8, **dict.fromkeys(STATUSES, 0), **counts,
        "metric": "val/loss", "best": 2.34567, "failures": list(failures),
        "selected": 3, "selection_target": 6, "confirmed": 2, "confirmed_failed": 1, "confirm_target": 5,
        "checkpoint_bytes": 12_345_678, "at_grid": False, "deleted": "",
        "params": {"optimizer.lr": 1e-3, "norm.alpha": 0.5, "optimizer.weight_decay": 0.1},
    }  # fmt: skip


def printed(rows, width=80):
    console = Console(file=io.StringIO(), width=width, soft_wrap=True, highlight=False)
    render(rows, console)
    return console.file.getvalue()


def test_without_a_sweep_there_is_a_sentence(store, capsys):
    assert main(["status"]) == 0
    assert capsys.readouterr().out == "No sweep has been started yet. Start one with: ablate sweep FILE.yaml\n"
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("width", [80, 200])
def test_words_are_whole_and_reasons_stand_below_the_table(width):
    reason = "#3: FileNotFoundError: /a/long/path/[that]/goes/on/and/on/and/on/for/more/than/80/characters.txt"
    counts = {"completed": 4, "pruned": 1, "diverged": 2, "failed": 1}
    text = printed([row("peri", **counts, failures=[reason]), row("mix", completed=8)], width)
    verdict, *table, last = text.splitlines()
    assert verdict == f"vision-small: {VERDICT}"
    assert last == f"vision-small, peri: failed {reason}"
    assert all(len(line) <= width for line in table)
    words = " ".join(table).split()
    for word in ("vision-small", "peri", "7/8", "8/8", "val/loss", "2.346", "weight_decay=0.1"):
        assert word in words
    assert "0 failed" not in " ".join(words)
    assert {"diverged", "stuck"} <= {word.strip(";,") for word in words}
