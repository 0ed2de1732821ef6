"""The MLflow UI on this project's store."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

from ablate import tracking
from ablate.errors import StoreError


def serve(host: str, port: int) -> int:
    """Runs the MLflow server on `host`:`port` until Ctrl-C and prints the link of each experiment. The exit status.

    Raises StoreError where the port is taken or the store cannot be used.
    """
    uri = tracking.tracking_uri()
    client = tracking.client()
    experiments = [e for e in client.search_experiments() if e.name != "Default"]
    if uri.startswith("http"):
        _print_links(uri.rstrip("/"), experiments)
        return 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise StoreError(f"{host}:{port} cannot be used: {error.strerror}. Give another with --port.") from None
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        uri,
        "--host",
        host,
        "--port",
        str(port),
    ]
    command += ["--workers", "1", "--default-artifact-root", str(tracking.store() / "artifacts")]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    try:
        _wait_until_ready(process, host, port)
        _print_links(f"http://{host}:{port}", experiments)
        print("Ctrl-C stops the server.", flush=True)
        assert process.stderr is not None
        for _ in process.stderr:  # keeps the pipe from filling
            pass
        return process.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        signal.signal(signal.SIGTERM, before)
        _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    """Ends the server with the processes that it has started, which are of its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)


def _wait_until_ready(process: subprocess.Popen[str], host: str, port: int) -> None:
    print("Starting the MLflow server ...", flush=True)
    while process.poll() is None:
        try:
            socket.create_connection((host, port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.2)
    assert process.stderr is not None
    raise StoreError(f"The MLflow server did not start: {' '.join(process.stderr.read().split()[-60:])}")


def _print_links(address: str, experiments: list[object]) -> None:
    print(f"MLflow: {address}")
    for experiment in experiments:
        name, number = getattr(experiment, "name", ""), getattr(experiment, "experiment_id", "")
        print(f"  {name}: {address}/#/experiments/{number}/runs")
