"""The benchmark that compares the plan with FSDP, as a command: what it measures takes a minute."""

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "memory_fsdp.py"


def test_it_answers_help_and_says_how_it_is_started(monkeypatch, capsys):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    main = runpy.run_path(str(SCRIPT))["main"]
    monkeypatch.setattr("sys.argv", [str(SCRIPT), "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "torchrun --standalone --nproc-per-node 2" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", [str(SCRIPT)])
    assert main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("torchrun --standalone --nproc-per-node 2 benchmarks/memory_fsdp.py")
