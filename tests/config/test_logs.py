"""What is logged, and what a run says, at the width of a terminal and in a file."""

import fcntl
import io
import logging
import os
import pty
import re
import struct
import sys
import termios

import pytest
from rich.console import Console

from ablate.config.logs import log_to_stderr, name_program, print_wrapped, wrap_lines

PATH = f"/data/{'folder/' * 14}file.txt"
TEXT = f"The checkpoint of this run is damaged and has been set aside, so that it begins again, as {PATH}, one said."


@pytest.fixture
def terminal(monkeypatch):
    """The two ends of a terminal of 80 columns: what is written to the second is read from the first."""
    monkeypatch.delenv("COLUMNS", raising=False)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with os.fdopen(theirs, "w") as stream:
        yield ours, stream
    os.close(ours)


def test_a_line_breaks_between_words_and_hangs():
    lines = wrap_lines(f"  data  {TEXT}\nshort", 80).split("\n")
    assert " ".join(" ".join(lines).split()) == " ".join(f"data {TEXT} short".split())
    assert lines[0].startswith("  data  The")
    assert lines[-1] == "short"
    assert all(re.match(r"    \S", line) for line in lines[1:-1])
    assert all(len(line) <= 80 or line.strip() == f"{PATH}," for line in lines)
    assert wrap_lines(TEXT, 5) == TEXT  # no terminal is that narrow


def test_a_log_line_at_80_columns(terminal, monkeypatch):
    ours, stream = terminal
    monkeypatch.setattr("sys.stderr", stream)
    with log_to_stderr():
        logging.getLogger("ablate.data").warning(TEXT)
    stream.flush()
    lines = os.read(ours, 4096).decode().splitlines()
    assert len(lines) > 2
    assert " ".join(line.strip() for line in lines) == TEXT
    assert all(len(line) <= 80 or line.strip() == f"{PATH}," for line in lines)


def test_in_a_file_a_line_stays_whole(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    with log_to_stderr():
        logging.getLogger("ablate.data").info(TEXT)
    print_wrapped(Console(file=written, width=80), TEXT)
    assert written.getvalue() == f"{TEXT}\n{TEXT}\n"


def test_on_a_terminal_a_line_of_a_run_breaks_between_words():
    written = io.StringIO()
    print_wrapped(Console(file=written, width=80, force_terminal=True, color_system=None), f"{TEXT} [bold]")
    assert " ".join(written.getvalue().split()) == f"{TEXT} [bold]"
    assert written.getvalue() == wrap_lines(f"{TEXT} [bold]", 80) + "\n"


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A program `ablate` in a folder that is not on PATH."""
    file = tmp_path / "bin" / "ablate"
    file.parent.mkdir()
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(file), "sweep"])
    monkeypatch.setenv("PATH", str(tmp_path))
    return file


def test_a_program_that_is_not_on_the_path_is_named_by_its_file(program):
    assert name_program() == str(program)


def test_a_program_on_the_path_is_named_alone(program, monkeypatch):
    monkeypatch.setenv("PATH", str(program.parent))
    assert name_program() == "ablate"


def test_another_program_of_the_name_is_not_meant(program, tmp_path, monkeypatch):
    other = tmp_path / "other" / "ablate"
    other.parent.mkdir()
    other.write_bytes(program.read_bytes())
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(other.parent))
    assert name_program() == str(program)


def test_a_notebook_names_the_command(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/lib/ipykernel_launcher.py"])
    assert name_program() == "ablate"
