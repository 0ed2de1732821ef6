"""`ablate ui`: the MLflow UI on this project's store, or Optuna's dashboard on its studies (`dashboard`)."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from ablate import tracking
from ablate.cli.arguments import Verbs, add_storage, add_verb, build_error, parse_port
from ablate.cli.mlflow_view import build_view
from ablate.cli.output import interrupt_on_signals
from ablate.config.errors import StoreError
from ablate.config.lazy import postpone_imports
from ablate.distributed.launching import SAFE_PATH

if TYPE_CHECKING:
    from mlflow.entities import Experiment
    from mlflow.tracking import MlflowClient

with postpone_imports():
    from ablate.cli import dashboard

_VIEW = "ablate"  # names the view of the runs that the links open
_TRAINING = "workflowType=machine_learning"  # else the UI opens on language-model applications


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "open MLflow, or Optuna's dashboard, on this project's store, on loopback"
    parser = add_verb(verbs, "ui", text, "ablate ui --port 5000\n  ablate ui --studies", run)
    parser.add_argument(
        "--studies", action="store_true", help=("open Optuna's dashboard on the studies instead of MLflow")
    )
    parser.add_argument("--port", type=parse_port, default=5000, metavar="N", help="port (default: 5000)")
    text = "address to bind to (default: 127.0.0.1, this machine only)"
    parser.add_argument("--host", default="127.0.0.1", help=text)
    add_storage(parser)


def run(options: argparse.Namespace) -> int:
    """Serve the UI until Ctrl-C."""
    if options.studies:
        return dashboard.serve_studies(options.host, options.port, options.storage)
    if options.storage:
        raise build_error(
            "--storage",
            "is the address of the studies and needs --studies; set the address of MLflow's store with "
            "MLFLOW_TRACKING_URI",
        )
    return serve(options.host, options.port)


def serve(host: str, port: int) -> int:
    """Run the MLflow server on `host`:`port` until Ctrl-C, print the link of each experiment, and return the exit
    status.

    Raises StoreError if the port is in use or the store cannot be used.
    """
    uri = tracking.tracking_uri()
    client = tracking.client()
    links = _find_links(client)
    if tracking.is_remote():
        _print_links(tracking.redact(uri).rstrip("/"), links)
        return 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise StoreError(
                f"{host}:{port} cannot be used: {error.strerror}. Choose another port with --port."
            ) from None
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
    command += ["--default-artifact-root", (tracking.store_path() / "artifacts").as_uri()]
    # without eight processes, of a quarter of a gigabyte each, that judge language models' answers in the background
    surroundings = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ, **SAFE_PATH}
    surroundings["MLFLOW_BACKEND_STORE_URI"] = client.tracking_uri  # its password is not for who lists the processes
    aside = tempfile.TemporaryDirectory()  # MLflow makes the folder of what it takes for a path
    process = subprocess.Popen(
        command,
        env=surroundings,
        cwd=aside.name if "uri=true" in client.tracking_uri else None,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        with aside, interrupt_on_signals():
            _wait_until_ready(process, host, port)
            _print_links(f"http://{host}:{port}", links)
            print("Ctrl-C stops the server.", flush=True)
            assert process.stderr is not None
            for _ in process.stderr:  # keeps the pipe from filling
                pass
            return process.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    """Stop the server and the processes that it has started, which are in its session."""
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
    text = " ".join(tracking.redact(process.stderr.read()).split()[-60:])
    raise StoreError(f"The MLflow server did not start: {text}")


def _print_links(address: str, links: dict[str, str]) -> None:
    print(f"MLflow: {address}/#/experiments?{_TRAINING}")
    for name, path in links.items():
        print(f"  {name}: {address}/{path}")


# ---------------------------------------------------------------------------------------------------- links


def _find_links(client: MlflowClient) -> dict[str, str]:
    """Return experiment -> the URL path of its table of runs, the newest first; print what was deleted."""
    from mlflow.entities import ViewType

    experiments = [e for e in client.search_experiments(order_by=["creation_time DESC"]) if e.name != "Default"]
    for deleted in client.search_experiments(ViewType.DELETED_ONLY):
        print(tracking.describe_deleted("experiment", deleted.experiment_id, repr(deleted.name)))
    return {e.name: f"#/experiments/{e.experiment_id}/runs?{_TRAINING}{_store_view(client, e)}" for e in experiments}


def _store_view(client: MlflowClient, experiment: Experiment) -> str:
    """Return the URL parameters with which a link opens the view of `mlflow_view`, a sweep's with its best trial first.
    The UI stores such a view, like the one of its Share button, in a tag of the experiment. Empty if the tag may not be
    written.
    """
    from mlflow.exceptions import MlflowException

    value, tag = json.dumps(build_view(experiment.name)), f"mlflow.sharedViewState.{_VIEW}"
    try:
        if experiment.tags.get(tag) != value:
            client.set_experiment_tag(experiment.experiment_id, tag, value)
    except MlflowException:
        return ""
    return f"&viewStateShareKey={_VIEW}"
