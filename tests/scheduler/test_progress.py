"""The display of a sweep: in a log file lines of events, and one now and then while trials are trained; on a terminal a
table, of which nothing is cut."""

import io
import re

from rich.console import Console

from ablate.cli import output
from ablate.scheduler import progress


def test_a_long_trial_shows_in_a_log_file_that_it_goes_on(monkeypatch):
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    written = io.StringIO()
    with progress.Display(Console(file=written, width=40), "val/loss", 2) as display:
        display.total = 4
        trial = progress.Running("pre #0", "optimizer.lr=0.001", 20_000)
        display.show_start(0, trial)
        display.show_start(1, progress.Running("post #0", "optimizer.lr=0.001", 20_000))
        for step in range(1, 20_000):
            now += 1.0
            display.show_progress(0, step, 3.25)
        display.show_end(0, trial, "completed, val/loss 3.2", 1.0)
    first, second, *lines, last = written.getvalue().splitlines()
    assert (first, second) == ("pre #0 started: optimizer.lr=0.001", "post #0 started: optimizer.lr=0.001")
    assert last.startswith("[0/4] pre #0 completed, val/loss 3.2: optimizer.lr=0.001, about ")
    assert lines[0] == "training pre #0 at update 600/20,000 (loss 3.250) and post #0 at update 0/20,000"
    assert len(lines) == 33  # every ten minutes


def test_on_a_terminal_of_80_columns_no_line_is_cut(monkeypatch):
    written = io.StringIO()
    written.isatty = lambda: True
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(output.sys, "stdout", written)
    words = [[f"{part}{number}" for number in range(20)] for part in ("verdict", "best", "setting")]
    with progress.Display(output.build_console(), "val/loss", 2) as display:
        display.verdict, display.best, params = map(" ".join, words)
        display.show_start(0, progress.Running("pre #0", params, 60))
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", written.getvalue())
    assert {word for part in words for word in part} <= {*shown.split()}
    assert all(len(line) <= 80 for line in re.split(r"[\r\n]+", shown))
