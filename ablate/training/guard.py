"""Runs a command in a process group of its own, and ends the group when stdin is closed: the worker that holds the
other end asks for that by closing it, or has died. Started by its path, with the seconds of grace and the command."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

MISSING = 127
"""The exit status where the command cannot be started, as of a shell."""


def main() -> int:
    """Return the exit status of the command; 128 + N if signal N ended it."""
    grace, *command = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the worker decides; the command does not inherit it
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return MISSING

    def end_group(number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)

    def watch() -> None:
        while os.read(0, 1024):
            pass
        end_group(signal.SIGTERM)
        deadline = time.monotonic() + float(grace)
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        end_group(signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    status = child.wait()
    end_group(signal.SIGKILL)  # what it left behind
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # the thread may still wait
