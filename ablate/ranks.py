"""The processes of a torchrun group, which train one model together: who they are and how they agree.

Rank 0 does everything but the computing alone: it asks, tells, tracks and prints. The others wait for what it calls
`together`. In a process that torchrun did not start, or started alone, everything here does nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import pickle
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ablate import launch
from ablate.errors import StoreError
from ablate.slurm import STOPPING

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed import Store

T = TypeVar("T")
POLL = 0.05  # seconds between two looks at what rank 0 wants
GRACE = 5.0  # seconds that one rank waits for the others where they should all end a call


class Lost(StoreError):  # noqa: N818 - in the words of the group
    """A rank is gone or stands still, so that the group cannot compute any more."""


@dataclass
class _Group:
    rank: int
    size: int
    store: Store
    """Where calls and their ends are written: no collective, so that waiting may take days and one rank may fail."""
    calls: int = 0
    signals: list[float] = field(default_factory=list)
    """When this process was asked to end."""

    def hears(self, *keys: str, seconds: float = math.inf) -> bool:
        """Whether all `keys` are written within so many seconds; where torchrun ends us, there are hardly any left."""
        begin = time.monotonic()
        while not self._check(keys):
            asked = self.signals[0] if self.signals else math.inf
            if time.monotonic() > min(begin + seconds, asked + GRACE):
                return False
            time.sleep(POLL)
        return True

    def _check(self, keys: Sequence[str]) -> bool:
        try:
            return self.store.check(list(keys))
        except RuntimeError:
            raise Lost("torchrun is gone.") from None

    def write(self, key: str, content: Any) -> None:
        try:
            self.store.set(key, pickle.dumps(content))  # type: ignore[arg-type]
        except RuntimeError:
            raise Lost("torchrun is gone.") from None

    def read(self, key: str) -> Any:
        return pickle.loads(self.store.get(key))  # noqa: S301 - what rank 0 of this group wrote


_group: _Group | None = None


def rank() -> int:
    """The number of this process in its group; 0 without one."""
    return _group.rank if _group else 0


def world_size() -> int:
    """The processes of the group; 1 without one."""
    return _group.size if _group else 1


def local_size() -> int:
    """Those of them on this machine."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if _group else 1


def grouped() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def command() -> str:
    """How this program was started, for messages: "ablate", or what starts a group of it."""
    if _group is None or launch.LAUNCHED in os.environ:
        return "ablate"
    return f"torchrun --nproc-per-node {local_size()} ... -m ablate"


# ---------------------------------------------------------------------------------------------------- calls


def led(function: Callable[[], int]) -> int:
    """Runs `function` on rank 0 while the other ranks do what it calls `together`; its result, on every rank.

    Without a group that is `function()`.
    """
    global _group
    if not grouped() or int(os.environ["WORLD_SIZE"]) == 1:
        return function()
    try:
        _group = _joined()
    except Lost as error:
        print(f"ablate: {error}", file=sys.stderr)
        return launch.ends(2, int(os.environ["RANK"]))
    if _group.rank:
        try:
            return launch.ends(_follow(_group), _group.rank)
        except Lost as error:
            print(f"rank {_group.rank}: {error}", file=sys.stderr)
            return 1
    launch.begins()
    status = 1
    try:
        status = function()
    finally:
        with contextlib.suppress(Lost):
            _group.write(f"call/{_group.calls}", (None, status))
    return launch.ends(status, 0)


@contextlib.contextmanager
def together(function: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """While rank 0 is within, the other ranks run `function(*arguments)`, which does the same there.

    An error that all ranks meet leaves the group as it was; one of a single rank, while the others wait for it, is
    raised as Lost.
    """
    if _group is None:
        yield
        return
    number, _group.calls = _group.calls, _group.calls + 1
    _group.write(f"call/{number}", (function, arguments))
    try:
        yield
    except Exception as error:
        _group.write(f"end/{number}/0", None)
        if not _group.hears(*(f"end/{number}/{rank}" for rank in range(_group.size)), seconds=GRACE):
            said = str(error).strip().partition("\n")[0]
            first = re.sub(r"^\[\S+\] ", "", said).partition(". ")[0]  # gloo's goes on for lines
            raise Lost(f"A rank of this group is gone or stands still ({type(error).__name__}: {first}).") from error
        raise
    _group.write(f"end/{number}/0", None)


@contextlib.contextmanager
def ready() -> Iterator[None]:
    """What every rank prepares for itself: where one cannot, all raise."""
    if _group is None:
        yield
        return
    from torch import distributed

    reason, failed = None, None
    try:
        yield
    except Exception as error:
        reason, failed = f"rank {_group.rank}: {type(error).__name__}: {error}", error
    reasons: list[str | None] = [None] * _group.size
    distributed.all_gather_object(reasons, reason)
    if failed:
        raise failed
    if found := next(filter(None, reasons), None):
        raise RuntimeError(found)


def _joined() -> _Group:
    """This process as a part of the group that torchrun started."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # or each rank remarks on sockets and unused parameters
    asked: list[float] = []
    if int(os.environ["RANK"]):
        for number in STOPPING:  # rank 0 answers them, and we follow it
            signal.signal(number, lambda *_: asked.append(time.monotonic()))
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
        raise Lost(f"The ranks cannot meet at {address}:{port}: {_why(error, port)}") from None
    return _Group(distributed.get_rank(), distributed.get_world_size(), store, signals=asked)


def _why(error: RuntimeError, port: int) -> str:
    """What torch says, without the stack of its C++ code, and what to do where another program has the port."""
    if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
        return (
            f"port {port} is in use by another program. Leave the choice to torchrun (--standalone), or give another "
            "port: --rdzv-endpoint HOST:PORT."
        )
    return str(error).strip().partition("\n")[0]


def _follow(group: _Group) -> int:
    """What the ranks above 0 do: one call after another, until rank 0 says that it is over."""
    while group.hears(f"call/{group.calls}"):
        function, content = group.read(f"call/{group.calls}")
        if function is None:
            return int(content)
        failed = False
        try:
            function(*content)
        except Exception:
            failed, trace = True, traceback.format_exc()
        group.write(f"end/{group.calls}/{group.rank}", None)
        if failed and not group.hears(f"end/{group.calls}/0", seconds=GRACE):
            raise Lost(f"It failed alone.\n{trace}")
        group.calls += 1
    raise Lost("Rank 0 is gone.")


# ---------------------------------------------------------------------------------------------------- collectives


def first(function: Callable[[], T]) -> T:
    """What `function` returns on rank 0, on every rank; it is called there alone. An error there is one on all."""
    if _group is None:
        return function()
    from torch import distributed

    message: list[Any] = [None, None]
    failed: Exception | None = None
    if _group.rank == 0:
        try:
            message = [function(), None]
        except Exception as error:
            message, failed = [None, f"rank 0: {type(error).__name__}: {error}"], error
    distributed.broadcast_object_list(message, src=0)
    if failed:
        raise failed
    if message[1]:
        raise RuntimeError(message[1])
    answer: T = message[0]
    return answer


def gathered(value: Tensor) -> Tensor:
    """The tensors of all ranks, stacked in their order."""
    import torch

    if _group is None:
        return value.unsqueeze(0)
    parts = [torch.empty_like(value) for _ in range(_group.size)]
    torch.distributed.all_gather(parts, value.contiguous())
    return torch.stack(parts)


def total(value: Tensor) -> Tensor:
    """The sum over all ranks, the same in every bit on each."""
    return value if _group is None else gathered(value).sum(0)


def mean(value: Tensor) -> Tensor:
    """The mean over all ranks, the same in every bit on each."""
    return value if _group is None else gathered(value.double()).mean(0)


def variance(value: Tensor) -> Tensor:
    """The variance of the elements of all ranks, as many on each, in float64."""
    import torch

    wide = value.double()
    if _group is None:
        return wide.var(correction=0)
    variances, means = gathered(torch.stack([wide.var(correction=0), wide.mean()])).unbind(1)
    return variances.mean() + means.var(correction=0)


def sharded_alike(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """`tensors` in as many lists as there are meshes of ranks that have shards of them; torch computes with those of
    one mesh at a time. One list where nothing is sharded, or all of it in the same way."""
    by_mesh: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        by_mesh.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
    return list(by_mesh.values())


def norm(tensors: Iterable[Tensor]) -> Tensor:
    """The Euclidean norm of all elements of `tensors` together, some of which the ranks may have shards of."""
    import torch

    norms = []
    for own in sharded_alike(tensors):
        part = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(own)))
        # of rank 0: what is summed over two dimensions of a mesh may differ in its last bit
        norms.append(gathered(part.full_tensor())[0] if hasattr(part, "full_tensor") else part)
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def unify(module: nn.Module) -> None:
    """Gives every rank the parameters and buffers of rank 0, but what is shared by the ranks."""
    if _group is not None:
        from torch import distributed

        for tensor in [*module.parameters(), *module.buffers()]:
            if not hasattr(tensor, "full_tensor"):
                distributed.broadcast(tensor.detach(), src=0)
