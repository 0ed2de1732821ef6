"""`ablate proxy`: a server in front of the database of the studies, so that many workers share few connections."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING

from ablate.cli.arguments import Verbs, add_storage, add_verb, build_error, parse_port
from ablate.cli.output import interrupt_on_signals
from ablate.config.lazy import LazyModule
from ablate.tracking import redact

if TYPE_CHECKING:
    from ablate.sweeps import storage
    from ablate.sweeps.storages import databases, kinds, proxy_server
else:
    storage = LazyModule("ablate.sweeps.storage")
    databases, kinds = LazyModule("ablate.sweeps.storages.databases"), LazyModule("ablate.sweeps.storages.kinds")
    proxy_server = LazyModule("ablate.sweeps.storages.proxy_server")

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_EXAMPLE = """\
ablate proxy --storage postgresql://me@db/ablate
  ablate sweep my.yaml --storage grpc://127.0.0.1:13000 --workers 32"""


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = (
        "run a proxy in front of the database of the studies, on loopback: any number of workers share its few "
        "connections"
    )
    parser = add_verb(verbs, "proxy", text, _EXAMPLE, run)
    parser.add_argument("--port", type=parse_port, default=13000, metavar="N", help="port (default: 13000)")
    text = "address to bind to (default: 127.0.0.1, this machine only)"
    parser.add_argument("--host", default="127.0.0.1", help=text)
    add_storage(parser)


def run(options: argparse.Namespace) -> int:
    """Serve the database until Ctrl-C, and return the exit status."""
    kinds.import_grpc()
    url = storage.storage_url(options.storage)
    if url.startswith(("journal://", "grpc://")):
        raise build_error(
            "--storage", f"a proxy stands in front of a database, such as postgresql://HOST/NAME, not {url}"
        )
    server, port = proxy_server.start_proxy(databases.open_behind_proxy(url), options.host, options.port)
    print(f"Proxy of {redact(url)}. Use it with: --storage grpc://{options.host}:{port}\nCtrl-C stops it.", flush=True)
    if options.host not in _LOOPBACK:
        text = "It has no password and no encryption: whoever reaches this address can read and change the studies."
        print(text, file=sys.stderr)
    with contextlib.suppress(KeyboardInterrupt), interrupt_on_signals():
        server.wait_for_termination()
    server.stop(grace=1).wait()
    return 0
