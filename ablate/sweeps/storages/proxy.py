"""Optuna's storage behind a proxy (`ablate proxy`), which holds the connections to the database for all processes."""

from __future__ import annotations

import contextlib
import random
import re
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import optuna
from optuna.storages import GrpcStorageProxy
from optuna.storages._grpc.auto_generated import api_pb2_grpc
from optuna.storages._grpc.client import GrpcClientCache
from optuna.trial import FrozenTrial

from ablate.config.errors import StoreError
from ablate.sweeps.storages.proxy_protocol import (
    DESCRIBE,
    HOLD,
    KEEPALIVE,
    PORT,
    TOKEN,
    decode,
    encode,
    name_method,
)
from ablate.sweeps.storages.waiting import ThreadValue, Waiting, wait_in
from ablate.tracking.databases import LOCKED, LostConnectionError

SCHEME = "grpc://"
CONNECT = 10.0  # seconds that a proxy is given to answer for the first time
_OPTIONS = [
    *KEEPALIVE,
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),  # one that restarts is back in a second, and not in two minutes
]
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.CANCELLED)
_OPTUNAS = (  # what Optuna's client translates
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
)


def parse_address(url: str) -> tuple[str, int]:
    """Return host and port of the proxy at `url`. Raises StoreError for an address that is none."""
    match = re.fullmatch(rf"{SCHEME}([^\s/:@]+|\[[0-9a-fA-F:]+\])(?::(\d{{1,5}}))?/?", url)
    port = int(match[2] or PORT) if match else 0
    if not match or not 0 < port < 65536:
        raise StoreError(
            f"{url} is not the address of a proxy: give {SCHEME}HOST:PORT, such as {SCHEME}127.0.0.1:{PORT}"
        )
    return match[1], port


def open_proxied(url: str) -> ProxiedStorage:
    """Return the storage behind the proxy at `url`. Raises StoreError if none of Ablate's answers there."""
    host, port = parse_address(url)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        storage = ProxiedStorage(url, host, port)
    start = f"Start one with: ablate proxy --storage postgresql://HOST/NAME --port {port}"
    try:
        storage.wait_server_ready(CONNECT)
        storage.describe()
    except ConnectionError:
        storage.close()
        away = LostConnectionError(f"no proxy answers at {url}")  # for who waits for one that was there before
        raise StoreError(f"No proxy answers at {url}, after {CONNECT:g} seconds. {start}") from away
    except LostConnectionError as error:
        storage.close()
        raise StoreError(f"The proxy {url} cannot be used: {error}.") from error
    except StoreError:
        storage.close()
        raise StoreError(f"What answers at {url} is no proxy of Ablate's, and has no lock. {start}") from None
    return storage


class ProxiedStorage(Waiting, GrpcStorageProxy):
    """Optuna's client; its calls wait for the proxy for at most two minutes. Within the lock each call carries the
    proof of it, and the proxy refuses one whose lock was lost meanwhile."""

    def __init__(self, url: str, host: str, port: int) -> None:
        self.url = url
        self._held = ThreadValue()
        super().__init__(host=host, port=port)

    def _setup(self) -> None:
        """Open the channel, with our calls on it."""
        channel = grpc.insecure_channel(f"{self._host}:{self._port}", options=_OPTIONS)
        self._channel = grpc.intercept_channel(channel, _Interceptor(self.url, self._held))
        self._stub = api_pb2_grpc.StorageServiceStub(self._channel)
        self._cache = GrpcClientCache(self._stub)
        coded = {"request_serializer": encode, "response_deserializer": decode}
        self._describe: Callable[..., Any] = self._channel.unary_unary(name_method(DESCRIBE), **coded)
        self._hold: Callable[..., Any] = self._channel.unary_stream(name_method(HOLD), **coded)

    def describe(self) -> str:
        """Return the address of the database behind the proxy, without its password."""
        return str(self._describe({})["url"])

    # ------------------------------------------------------------------ the lock

    @contextlib.contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the lock of the database, under which one process at a time decides what comes next. The proxy releases
        it when this process ends, or loses the connection."""
        token = uuid.uuid4().hex
        call = self._take(token)
        self._held.value = token
        try:
            yield
        finally:
            self._held.value = None
            call.cancel()

    def _take(self, token: str) -> Any:
        """Return the call that holds the lock for `token`."""
        end = time.monotonic() + LOCKED
        while True:
            call = self._hold({"token": token})
            try:
                next(call)
                return call
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:  # too many wait there
                    raise translate(error, self.url) from None
                if time.monotonic() > end:
                    raise StoreError("Other processes hold the lock of the database for two minutes.") from None
                time.sleep(random.uniform(0.1, 0.3))
            except BaseException:
                call.cancel()
                raise

    # ------------------------------------------------------------------ trials

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        create = super().create_new_trial
        return self.write_once(
            study_id, template_trial, lambda: create(study_id, template_trial), lambda trial: trial._trial_id
        )


REPEATABLE = (
    "create_new_study", "set_study_user_attr", "set_study_system_attr", "get_study_id_from_name",
    "get_study_name_from_id", "get_study_directions", "get_study_user_attrs", "get_study_system_attrs",
    "get_all_studies", "set_trial_param", "get_trial_id_from_study_id_trial_number", "set_trial_intermediate_value",
    "set_trial_user_attr", "set_trial_system_attr", "get_trial", "get_all_trials",
)  # fmt: skip
wait_in(ProxiedStorage, GrpcStorageProxy, REPEATABLE)


class _Interceptor(grpc.UnaryUnaryClientInterceptor):
    """Adds the proof of the lock to each call, and translates errors that Optuna's client does not."""

    def __init__(self, url: str, held: ThreadValue) -> None:
        self.url, self.held = url, held

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        if self.held.value is not None:
            details = details._replace(metadata=[*(details.metadata or ()), (TOKEN, self.held.value)])
        outcome = continuation(details, request)
        if isinstance(outcome, grpc.RpcError) and outcome.code() not in _OPTUNAS:
            raise translate(outcome, self.url)
        return outcome


def translate(error: Any, url: str) -> Exception:
    """Return the error of a call: one that is to be repeated, or a StoreError."""
    text = (error.details() or error.code().name).rstrip(".")
    if error.code() in _AWAY:
        return LostConnectionError(text)
    return StoreError(f"The proxy {url} failed: {text}.")
