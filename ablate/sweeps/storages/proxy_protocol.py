"""What the proxy of a database and its clients say to each other beside Optuna's own calls: the lock."""

from __future__ import annotations

import json
from typing import Any

SERVICE = "ablate.Storage"
DESCRIBE, HOLD = "Describe", "Hold"
TOKEN = "ablate-lock"  # the field of a call that is made within the lock
PORT = 13000  # Optuna's
KEEPALIVE = [  # a client whose machine went away, or whose process is stopped, loses its lock within half a minute
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


def name_method(name: str) -> str:
    """Return the path of a method, as gRPC names it."""
    return f"/{SERVICE}/{name}"


def encode(message: Any) -> bytes:
    """Return a message as it is sent."""
    return json.dumps(message).encode()


def decode(text: bytes) -> Any:
    """Return a message that was received."""
    return json.loads(text)
