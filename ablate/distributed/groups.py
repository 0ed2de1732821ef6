"""The processes of a torchrun group, from their start to their end. Rank 0 alone does everything except the
computation: input, messages, tracking and output. The other ranks wait for the calls that it makes with
`run_together`. In a process that torchrun did not start, or started alone, nothing here has an effect."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ablate.config.logs import name_program
from ablate.distributed import launching, ranks
from ablate.distributed.ranks import GRACE, Group, Lost, is_grouped, local_size
from ablate.distributed.signals import STOPPING

logger = logging.getLogger(__name__)


def describe_command() -> str:
    """Return the command that started this program, for messages: `ablate`, or the torchrun command of a group."""
    if ranks.group is None or launching.LAUNCHED in os.environ:
        return name_program()
    return f"torchrun --nproc-per-node {local_size()} ... -m ablate"


@dataclass
class Ending:
    """The end of this process."""

    leads: bool = True
    """Whether it runs the command: on rank 0, and without a group."""
    status: int = 1
    """Its exit status."""


@contextlib.contextmanager
def lead() -> Iterator[Ending]:
    """Within this context the process that `leads` runs the command and sets its status, with which all ranks end. The
    other ranks have then run its calls of `run_together`."""
    ending = Ending()
    if not is_grouped() or int(os.environ["WORLD_SIZE"]) == 1:
        yield ending
        return
    try:
        group = ranks.group = _join()
    except Lost as error:
        logger.error(f"ablate: {error}")
        yield Ending(False, launching.report_end(2, int(os.environ["RANK"])))
        return
    if group.rank:
        try:
            status = launching.report_end(_follow(group), group.rank)
        except Lost as error:
            logger.error(f"rank {group.rank}: {error}")
            status = 1
        yield Ending(False, status)
        return
    launching.report_start()
    try:
        yield ending
    finally:
        with contextlib.suppress(Lost):
            group.write(f"call/{group.calls}", (None, ending.status))
    ending.status = launching.report_end(ending.status, 0)


@contextlib.contextmanager
def run_together(function: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Within this context on rank 0, let the other ranks run `function(*arguments)`, which does the same there. An
    error on all ranks leaves the group usable; an error on a single rank, while the others wait for it, is raised as
    Lost.
    """
    group = ranks.group
    if group is None:
        yield
        return
    number, group.calls = group.calls, group.calls + 1
    group.write(f"call/{number}", (function, arguments))
    try:
        yield
    except Exception as error:
        group.write(f"end/{number}/0", None)
        if not group.wait_for(*(f"end/{number}/{rank}" for rank in range(group.size)), seconds=GRACE):
            raise _describe_loss(error) from error
        raise
    group.write(f"end/{number}/0", None)


_CLOSED = re.compile(r"Connection (closed|reset) by|Broken pipe|remote process exited", re.IGNORECASE)
"""What gloo and NCCL say where another rank is no longer there."""


def _describe_loss(error: Exception) -> Lost:
    """Return what the error of one rank says of another."""
    said = str(error).strip().partition("\n")[0]
    first = re.sub(r"^\[\S+\] ", "", said).partition(". ")[0]  # gloo's goes on for lines
    return Lost(f"A rank of this group has ended or does not respond ({type(error).__name__}: {first}).")


@contextlib.contextmanager
def prepare_together() -> Iterator[None]:
    """Let every rank run its own preparation; if one of them fails, raise on all."""
    group = ranks.group
    if group is None:
        yield
        return
    reason, failed = None, None
    try:
        yield
    except Exception as error:
        reason, failed = f"rank {group.rank}: {type(error).__name__}: {error}", error
    reasons = ranks.gather_objects(reason)
    if failed:
        raise failed
    if other := next(filter(None, reasons), None):
        raise RuntimeError(other)


def _join() -> Group:
    """Return the group that torchrun started, joined by this process."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # or each rank remarks on sockets and unused parameters
    signalled: list[float] = []
    if int(os.environ["RANK"]):
        for number in STOPPING:  # rank 0 answers them, and we follow it
            signal.signal(number, lambda *_: signalled.append(time.monotonic()))
    else:
        for number in STOPPING[1:]:
            signal.signal(number, signal.default_int_handler)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: we do not outlive torchrun
    import torch
    from torch import distributed

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    prefix = f"ablate/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
    try:
        distributed.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
        store = distributed.PrefixStore(prefix, distributed.TCPStore(address, port, is_master=False))
    except RuntimeError as error:
        raise Lost(f"The ranks cannot connect at {address}:{port}: {_explain(error, port)}") from None
    return Group(distributed.get_rank(), distributed.get_world_size(), store, signals=signalled)


def _explain(error: RuntimeError, port: int) -> str:
    """Return the first line of torch's error, or what to do if another program uses the port."""
    if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
        return (
            f"port {port} is in use by another program. Let torchrun choose a port (--standalone), or give another "
            "port: --rdzv-endpoint HOST:PORT."
        )
    return str(error).strip().partition("\n")[0]


def _follow(group: Group) -> int:
    """Run the calls of rank 0, one after another, until it has ended; return its exit status."""
    while group.wait_for(f"call/{group.calls}"):
        function, content = group.read(f"call/{group.calls}")
        if function is None:
            return int(content)
        failed: Exception | None = None
        try:
            function(*content)
        except Exception as error:
            failed, trace = error, traceback.format_exc()
        group.write(f"end/{group.calls}/{group.rank}", None)
        if failed and not group.wait_for(f"end/{group.calls}/0", seconds=GRACE):
            if isinstance(failed, RuntimeError) and _CLOSED.search(str(failed)):  # others connect to servers, too
                raise _describe_loss(failed)
            raise Lost(f"It failed on this rank only.\n{trace}")
        group.calls += 1
    raise Lost("Rank 0 has ended.")
