"""The output of a worker: a file in the store, which the command that started it shows."""

from __future__ import annotations

from pathlib import Path

from ablate import tracking

ERROR = "ablate work: "  # what the message begins with of a worker that ends with exit status 2


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


def read_error(log: str | Path) -> str:
    """Return the message with which a worker ended that wrote to `log`."""
    text = Path(log).read_text(encoding="utf-8", errors="replace")
    return text.rpartition(ERROR)[2].strip() or f"A worker ended with exit status 2. See {log}"
