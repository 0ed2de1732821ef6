"""A training knows of the others that this machine trained beside it."""

import subprocess
import sys

from ablate.training.company import watch_company

CHILD = """
import pathlib, sys
from ablate.training.company import watch_company
with watch_company(pathlib.Path(sys.argv[1])) as met:
    print(met(), flush=True)
    sys.stdin.readline()
    print(met(), flush=True)
"""


def start(folder):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_both_know_of_each_other_and_later_ones_of_neither(tmp_path):
    with watch_company(tmp_path) as met:
        assert met() == 0
        other = start(tmp_path)
        assert other.stdout.readline() == "1\n"
        assert met() == 1
        assert other.communicate("\n")[0] == "1\n"
        assert met() == 1  # it was not alone, though it is now
    with watch_company(tmp_path) as met:
        assert met() == 0
    assert list(tmp_path.iterdir()) == []


def test_one_that_was_killed_is_no_company(tmp_path):
    other = start(tmp_path)
    other.stdout.readline()
    other.kill()
    other.wait()
    with watch_company(tmp_path) as met:
        assert met() == 0
    assert list(tmp_path.iterdir()) == []


def test_where_it_cannot_be_known_nothing_is_said(tmp_path):
    (tmp_path / "file").touch()
    with watch_company(tmp_path / "file" / "folder") as met:
        assert met() is None
