"""The benchmark that compares the plan with FSDP, as a command: what it measures takes a minute."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "memory_fsdp.py"


def called(*words):
    outside = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=120, env=outside
    )


def test_it_answers_help_and_says_how_it_is_started():
    told = called("--help")
    assert told.returncode == 0
    assert "torchrun --standalone --nproc-per-node 2" in told.stdout
    alone = called()
    assert alone.returncode == 2
    (line,) = alone.stderr.splitlines()
    assert line.endswith("torchrun --standalone --nproc-per-node 2 benchmarks/memory_fsdp.py")
