"""`ablate ui`: the MLflow UI on this project's store, and the saved views of an experiment's runs, the first of which
its link opens: filter, order, columns and charts, in the format of MLflow's UI.
"""

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
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ablate import tracking
from ablate.cli.arguments import Verbs, add_verb, parse_port
from ablate.cli.output import interrupt_on_signals
from ablate.config.errors import AblateError, StoreError
from ablate.config.lazy import postpone_imports
from ablate.distributed.launching import SAFE_PATH

if TYPE_CHECKING:
    from mlflow.entities import Experiment
    from mlflow.tracking import MlflowClient

with postpone_imports():
    from ablate.experiment import metrics
    from ablate.reports import labels
    from ablate.scheduler import storage

_VIEW = "ablate-"  # begins the keys of our views
_TRAINING = "workflowType=machine_learning"  # else the UI opens on language-model applications


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "open MLflow on this project's store, on loopback"
    parser = add_verb(verbs, "ui", text, "ablate ui --port 5000", run)
    parser.add_argument("--port", type=parse_port, default=5000, metavar="N", help="port (default: 5000)")
    text = "address to bind to (default: 127.0.0.1, this machine only)"
    parser.add_argument("--host", default="127.0.0.1", help=text)


def run(options: argparse.Namespace) -> int:
    """Serve the UI until Ctrl-C."""
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
    surroundings["MLFLOW_BACKEND_STORE_URI"] = client.tracking_uri  # a list of processes would show its password
    aside = tempfile.TemporaryDirectory()  # MLflow creates the folder of any path
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
    return {e.name: f"#/experiments/{e.experiment_id}/runs?{_TRAINING}{_store_views(client, e)}" for e in experiments}


def _store_views(client: MlflowClient, experiment: Experiment) -> str:
    """Return the URL parameters that open the first view of `build_views`, "" if none may be written: the UI keeps
    saved views, listed under *Views*, in tags of the experiment."""
    from mlflow.exceptions import MlflowException

    views = build_views(experiment.name)
    try:
        for name, view in views.items():
            saved = {"name": name, "createdAt": 0, "updatedAt": 0, "state": json.dumps(view)}
            value, tag = json.dumps(saved), f"mlflow.sharedViewState.{_VIEW}{name}"
            if experiment.tags.get(tag) != value:
                client.set_experiment_tag(experiment.experiment_id, tag, value)
    except MlflowException:
        return ""
    return f"&viewStateShareKey={_VIEW}{next(iter(views))}"


_SINGLE = ("norm.kind", "model.kind", "optimizer.lr", "seed")  # parameters that single runs show
_CREATED = "attributes.start_time"
_WIDTH = 110  # pixels of a column
_FIRST, _LOSSES, _COURSES, _STEPS = "Settings and result", "val", "train", "trainer"  # sections of charts


def build_views(title: str) -> dict[str, dict[str, Any]]:
    """Return name -> view of the experiment `title`, the first of which is opened: of a sweep the arms, as in its file,
    with the fresh seeds of each below it, the fresh seeds, and the search, or that alone, the best run first; of
    single runs the newest first. None groups runs: MLflow averages those that it has loaded, a hundred at most, and
    leaves out seeds that failed.
    """
    try:
        spec = storage.read_sweep(title).spec
    except (AblateError, ValueError, KeyError):  # single runs, or a sweep that this storage does not have, or not whole
        shown = _choose_columns("val/loss", [], _SINGLE, ["ablate.loss", "ablate.status"])
        shown |= _choose_charts("val/loss", ["optimizer.lr"])
        return {"runs": {**shown, "orderByKey": _CREATED, "orderByAsc": False}}
    metric, params = metrics.name_in_mlflow(spec.objective.metric), labels.list_searched(spec)
    common = [path for path in params if all(path in spec.space(arm) for arm in spec.all_arms)]
    runs = {
        **_choose_columns(metric, [], ["seed", *params], ["ablate.outcome", "ablate.status"]),
        **_choose_charts(metric, common, params),
        "runsHiddenMode": "SHOW_ALL",
        "orderByKey": "attributes.`run_name`",
        "orderByAsc": True,
    }
    search = {**runs, "searchFilter": "tags.`ablate.role` = 'trial'"}
    if not spec.confirm.first_seeds:
        best = {"orderByKey": f"metrics.`{metric}`", "orderByAsc": spec.objective.direction == "minimize"}
        return {"search": {**search, **best}}
    fresh = {**runs, "searchFilter": "tags.`ablate.role` = 'confirmation'"}
    verdict = _choose_columns(metric, ["verdict/failures", "verdict/seeds"], [], ["ablate.verdict", "ablate.outcome"])
    # the roles "arm" and "confirmation": MLflow has no IN for tags; and nests runs in this order alone
    arms = {"searchFilter": "tags.`ablate.role` LIKE '%rm%'", "orderByKey": _CREATED}
    return {"arms": {**fresh, **verdict, **arms}, "fresh seeds": fresh, "search": search}


def _choose_columns(metric: str, numbers: Sequence[str], params: Sequence[str], tags: Sequence[str]) -> dict[str, Any]:
    """Return the visible columns from left to right: the metric, which a narrow window shows as well, other metrics,
    parameters and tags."""
    named = {"metrics": [metric, *numbers], "params": params, "tags": tags}
    columns = [f"{kind}.`{name}`" for kind, names in named.items() for name in names]
    return {"selectedColumns": columns, "columnOrder": columns, "columnWidths": dict.fromkeys(columns, _WIDTH)}


def _choose_charts(metric: str, *settings: Sequence[str]) -> dict[str, Any]:
    """Return the charts and their sections; the UI adds one chart for each further metric after them. Sections about
    the course of training are collapsed. `settings`: for each chart, the parameters that it shows against the metric,
    for the runs that have all of them."""
    sections = [
        {"uuid": f"ablate-{name}", "name": name, "display": at < 2, "isReordered": True, "columns": 3 if at else 1}
        for at, name in enumerate((_FIRST, _LOSSES, _COURSES, _STEPS))
    ]
    common = {"metricSectionId": f"ablate-{_FIRST}", "deleted": False, "isGenerated": False, "runsCountToCompare": 100}
    parallel = {"type": "PARALLEL", "selectedMetrics": [metric], "showAllRuns": True}
    line = {"type": "LINE", "metricKey": metric, "selectedMetricKeys": [metric], "xAxisKey": "step"}
    charts = [
        {**common, **parallel, "uuid": f"ablate-settings-{number}", "selectedParams": list(params)}
        for number, params in enumerate(dict.fromkeys(tuple(params) for params in settings if params))
    ]
    charts.append({**common, **line, "uuid": "ablate-course", "lineSmoothness": 0, "scaleType": "linear"})
    return {"compareRunCharts": charts, "compareRunSections": sections, "isAccordionReordered": True}
