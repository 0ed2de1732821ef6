"""`ablate ui --studies`: Optuna's dashboard on this project's studies, read-only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from ablate.cli.output import interrupt_on_signals
from ablate.config.errors import StoreError
from ablate.config.lazy import import_library, postpone_imports

with postpone_imports():
    from ablate.scheduler import storage

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""A WSGI application."""

LOOPBACK = ("localhost", "127.0.0.1")


def serve_studies(host: str, port: int, url: str | None) -> int:
    """Serve Optuna's dashboard on the storage at `url` until Ctrl-C, and return the exit status.

    Raises StoreError if there is no study yet, the storage cannot be used or the port is in use, and AblateError if the
    dashboard is not installed.
    """
    app = build_app(host, url)
    try:
        server = make_server(host, port, app, server_class=_Server, handler_class=_Handler)
    except OSError as error:
        raise StoreError(f"{host}:{port} cannot be used: {error.strerror}. Choose another port with --port.") from None
    with server, contextlib.suppress(KeyboardInterrupt), interrupt_on_signals():
        print(f"Optuna's dashboard: http://{host}:{port}\nCtrl-C stops the server.", flush=True)
        server.serve_forever()
    return 0


def build_app(host: str, url: str | None) -> App:
    """Return the dashboard as a read-only WSGI application: unrestricted, it could delete studies with their finished
    trials. Served on loopback, it answers only requests to this machine's own address, so that a page from another host
    cannot use it."""
    dashboard = import_library("optuna_dashboard", "dashboard")
    opened = storage.open_existing(storage.storage_url(url))
    if opened is None:
        raise StoreError("There is no study yet. A sweep creates them: ablate sweep demo")
    app: App = dashboard.wsgi(opened)

    def guard(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        asked = environ.get("HTTP_HOST", "").partition(":")[0]
        if host in LOOPBACK and asked not in LOOPBACK:
            return _refuse(start, "403 Forbidden", "This server only answers requests from this machine.")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            text = "This dashboard is read-only. To change a sweep, edit its file."
            return _refuse(start, "405 Method Not Allowed", text)
        return app(environ, start)

    return guard


def _refuse(start: Callable[..., Any], status: str, text: str) -> Iterable[bytes]:
    start(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [text.encode()]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Print failures only: an open page requests a study every few seconds."""
        if args[1:2] and str(args[1]).startswith("5"):
            print(f"{self.address_string()}: {format % args}", file=sys.stderr)
