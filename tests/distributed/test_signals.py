"""A closed terminal stops a run as SIGTERM does, unless `nohup` is to keep it."""

import os
import pty
import runpy
import signal
import sys

import pytest

from ablate.distributed import signals


@pytest.mark.parametrize("ignored", [False, True])
def test_a_closed_terminal_stops_a_run_unless_it_was_started_with_nohup(ignored):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        stopping = runpy.run_path(signals.__file__)["STOPPING"]
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (signal.SIGHUP in stopping) is not ignored
    assert {signal.SIGINT, signal.SIGTERM} < {*stopping}


def test_after_the_terminal_was_closed_a_line_that_is_written_is_no_error(monkeypatch):
    ours, theirs = pty.openpty()
    with open(theirs, "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "__stdout__", stream)
        signals.leave_terminal(signal.SIGHUP)
        stream.write("still open\n")
        assert os.read(ours, 100).split() == [b"still", b"open"]
        os.close(ours)
        signals.leave_terminal(signal.SIGTERM)
        with pytest.raises(OSError, match="Input/output"):
            os.write(theirs, b"gone")
        signals.leave_terminal(signal.SIGHUP)
        stream.write("gone\n")
