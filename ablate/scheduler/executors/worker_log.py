"""The output of a worker: a file in the store, which the command that started it shows."""

from __future__ import annotations

import shutil
from pathlib import Path

from ablate import tracking
from ablate.config.errors import StoreError

ERROR = "ablate work: "  # what the message begins with of a worker that ends with exit status 2


_LEAST = 2**18  # bytes without which neither a database nor a message can be written


class WorkerLog:
    """The file with the output of the worker `number` of the sweep `title`, emptied."""

    def __init__(self, title: str, number: int) -> None:
        self.path = tracking.open_folder("workers") / f"{title}-{number}.log"
        self.path.unlink(missing_ok=True)
        self.path.touch(mode=0o600)
        self._read = 0  # bytes

    def read_lines(self) -> list[str]:
        """Return the whole lines that were written since the last call, but for the error that a worker ends with."""
        with open(self.path, "rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole + newline)
        lines = [line for line in whole.decode(errors="replace").split("\n") if line]
        ends = [i for i, line in enumerate(lines) if line.startswith(ERROR)]
        return lines[: ends[0]] if ends else lines

    def keep(self, name: object) -> Path:
        """Rename the file, so that the next worker does not empty it; return its new path."""
        return self.path.rename(self.path.with_suffix(f".{name}.log"))


def check_space(log: Path) -> None:
    """Raise StoreError if the disk of `log` is full, of which a worker cannot write a word there."""
    if shutil.disk_usage(log.parent).free < _LEAST:
        raise StoreError(
            f"The disk of {log.parent} is full. Free some space. Finished trials are safe, and the same command "
            "continues."
        )


def read_error(log: str | Path) -> str:
    """Return the message with which a worker ended that wrote to `log`."""
    check_space(Path(log))
    text = Path(log).read_text(encoding="utf-8", errors="replace")
    return text.rpartition(ERROR)[2].strip() or f"A worker ended with exit status 2. See {log}"
