"""The proxy of a database: Optuna's gRPC server with the lock of the order of trials. Any number of
processes work through it on a few connections. It keeps nothing: when it is restarted, its clients go on.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from optuna.storages import BaseStorage
from optuna.storages._grpc.auto_generated import api_pb2_grpc
from optuna.storages._grpc.servicer import OptunaStorageProxyService

from ablate.config.errors import StoreError
from ablate.sweeps.storages.kinds import find_kind
from ablate.sweeps.storages.proxy_protocol import (
    DESCRIBE,
    HOLD,
    KEEPALIVE,
    SERVICE,
    TOKEN,
    decode,
    encode,
)
from ablate.tracking.databases import LOCKED, LostConnectionError, describe_failure, is_away, redact

logger = logging.getLogger(__name__)

CALLS = 32  # that are answered at a time
WAITING = 64  # clients that wait for the lock in the proxy; others ask again
_LOOK = 1.0  # seconds between two looks whether a waiting client is still there


class ProxyLock:
    """The lock of the database, which one client holds at a time, named by its token.

    Args:
        storage: Optuna's, with its own lock, which processes without the proxy take as well.
    """

    def __init__(self, storage: BaseStorage) -> None:
        self._storage: Any = find_kind(storage)
        self._turn = threading.Lock()
        self._waiting = threading.Semaphore(WAITING)
        self._calls = threading.Condition()
        self._token: str | None = None
        self._proof: Any = None
        self._under_way = 0  # calls of the client that holds the lock

    @contextlib.contextmanager
    def hold(self, token: str, is_there: Callable[[], bool]) -> Iterator[None]:
        """Hold the lock for `token`. Raises BlockingIOError if too many wait, StoreError after two minutes of waiting
        for another, LostConnectionError if `is_there` says that the client has gone."""
        if not self._waiting.acquire(blocking=False):
            raise BlockingIOError
        with contextlib.ExitStack() as stack:
            try:
                self._wait_for_turn(is_there)
                stack.callback(self._turn.release)
                proof = stack.enter_context(self._storage.hold_lock())
            finally:
                self._waiting.release()
            self._token, self._proof = token, proof
            try:
                yield
            finally:
                with self._calls:  # a call of a client that has gone is not to write within the lock of the next one
                    self._token = None
                    self._calls.wait_for(lambda: self._under_way == 0)

    def _wait_for_turn(self, is_there: Callable[[], bool]) -> None:
        waited = 0.0
        while not self._turn.acquire(timeout=_LOOK):
            waited += _LOOK
            if not is_there():
                raise LostConnectionError("the client has gone")
            if waited >= LOCKED:
                raise StoreError("Another process has held the lock of the database for two minutes. Stop it, or wait.")

    @contextlib.contextmanager
    def enter(self, token: str | None) -> Iterator[None]:
        """Make one call of a client; with a `token`, within its lock. Raises LostConnectionError if it has lost it."""
        if token is None:
            yield
            return
        with self._calls:
            if token != self._token:
                raise LostConnectionError("the lock of the database was lost")
            self._under_way += 1
        try:
            with self._storage.guard_writes(self._proof):
                yield
        finally:
            with self._calls:
                self._under_way -= 1
                self._calls.notify_all()


class _Service:
    """Answers what Optuna's service does not: the lock."""

    def __init__(self, storage: Any, lock: ProxyLock) -> None:
        self.storage, self.lock = storage, lock

    def describe(self, request: Any, context: Any) -> Any:
        """Return the database."""
        return {"url": redact(find_kind(self.storage).url)}

    def hold(self, request: Any, context: Any) -> Iterator[Any]:
        """Hold the lock until the client ends the call, or has gone; the one answer says that it is held."""
        ended = threading.Event()
        if not context.add_callback(ended.set):
            return
        try:
            with self.lock.hold(request["token"], context.is_active):
                yield {}
                ended.wait()
        except BlockingIOError:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many processes wait for the lock")
        except StoreError as error:
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, str(error))
        except Exception as error:
            if not is_away(error):
                raise
            context.abort(grpc.StatusCode.UNAVAILABLE, describe_failure(error))


class _Interceptor(grpc.ServerInterceptor):
    """Makes each call within the lock that it says it is in, and says of a database that is away that it is."""

    def __init__(self, lock: ProxyLock) -> None:
        self.lock = lock

    def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        handler = continuation(details)
        if handler is None or handler.unary_unary is None:
            return handler
        token = dict(details.invocation_metadata).get(TOKEN)

        def call(request: Any, context: Any) -> Any:
            try:
                with self.lock.enter(token):
                    return handler.unary_unary(request, context)
            except Exception as error:  # abort raises one, too
                if is_away(error):
                    context.abort(grpc.StatusCode.UNAVAILABLE, describe_failure(error))
                raise

        return grpc.unary_unary_rpc_method_handler(call, handler.request_deserializer, handler.response_serializer)


def start_proxy(storage: BaseStorage, host: str, port: int) -> tuple[grpc.Server, int]:
    """Return a server of `storage` that has started, and its port; port 0 is any free one. Raises StoreError if the
    port cannot be used."""
    lock = ProxyLock(storage)
    options = [*KEEPALIVE, ("grpc.so_reuseport", 0), ("grpc.http2.min_ping_interval_without_data_ms", 10_000)]
    options += [("grpc.max_receive_message_length", -1)]
    pool = ThreadPoolExecutor(max_workers=CALLS + WAITING + 1)
    server = grpc.server(pool, interceptors=(_Interceptor(lock),), options=options)
    api_pb2_grpc.add_StorageServiceServicer_to_server(OptunaStorageProxyService(storage), server)
    service = _Service(storage, lock)
    handlers = {
        DESCRIBE: grpc.unary_unary_rpc_method_handler(service.describe, decode, encode),
        HOLD: grpc.unary_stream_rpc_method_handler(service.hold, decode, encode),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError:
        raise StoreError(f"{host}:{port} cannot be used, or is in use. Choose another port with --port.") from None
    server.start()
    return server, bound
