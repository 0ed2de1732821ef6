"""The ranks that train one model together: the number of this process, and the collectives.

In a process that torchrun did not start, or started alone, there is one rank and a collective returns its argument.
"""

from __future__ import annotations

import math
import os
import pickle
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ablate.config.errors import StoreError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed import Store

T = TypeVar("T")
POLL = 0.05  # seconds between two looks at what rank 0 wants
GRACE = 5.0  # seconds that one rank waits for the others where they should all end a call


class Lost(StoreError):  # noqa: N818 - in the words of the group
    """A rank has ended or does not respond, so that the group cannot continue."""


@dataclass
class Group:
    """The group of this process."""

    rank: int
    size: int
    store: Store
    """The key-value store of calls and their ends: it is not a collective, so that waiting may take days and one rank
    may fail."""
    calls: int = 0
    waits: int = 0
    signals: list[float] = field(default_factory=list)
    """The times at which this process received a signal to end."""

    def wait_for(self, *keys: str, seconds: float = math.inf) -> bool:
        """Return whether all `keys` are written within `seconds`, or within GRACE of a signal to end."""
        begin = time.monotonic()
        while not self._check(keys):
            signalled = self.signals[0] if self.signals else math.inf
            if time.monotonic() > min(begin + seconds, signalled + GRACE):
                return False
            time.sleep(POLL)
        return True

    def _check(self, keys: Sequence[str]) -> bool:
        try:
            return self.store.check(list(keys))
        except RuntimeError:
            raise Lost("torchrun has ended.") from None

    def write(self, key: str, content: Any) -> None:
        try:
            self.store.set(key, pickle.dumps(content))  # type: ignore[arg-type]
        except RuntimeError:
            raise Lost("torchrun has ended.") from None

    def read(self, key: str) -> Any:
        return pickle.loads(self.store.get(key))  # noqa: S301 - what rank 0 of this group wrote


group: Group | None = None
"""The group of this process; `groups.lead` sets it."""


def rank() -> int:
    """Return the number of this process in its group; 0 without one."""
    return group.rank if group else 0


def world_size() -> int:
    """Return the number of processes in the group; 1 without one."""
    return group.size if group else 1


def local_size() -> int:
    """Return the number of processes of the group on this machine."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if group else 1


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_grouped() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


# ---------------------------------------------------------------------------------------------------- collectives


def run_on_first(function: Callable[[], T], slow: bool = False) -> T:
    """Call `function` on rank 0 only and return its result on every rank; its error is raised on all. `slow`: the call
    may take longer than the half hour for which a collective waits; the others then wait on the store without a limit.
    """
    if group is None:
        return function()
    from torch import distributed

    message: list[Any] = [None, None]
    failed: Exception | None = None
    if group.rank == 0:
        try:
            message = [function(), None]
        except Exception as error:
            message, failed = [None, f"rank 0: {type(error).__name__}: {error}"], error
    if slow:
        key, group.waits = f"wait/{group.waits}", group.waits + 1
        if group.rank == 0:
            group.write(key, None)
        else:
            group.wait_for(key)
    distributed.broadcast_object_list(message, src=0)
    if failed:
        raise failed
    if message[1]:
        raise RuntimeError(message[1])
    answer: T = message[0]
    return answer


def gather_objects(value: T) -> list[T]:
    """Return the values of all ranks, in their order."""
    if group is None:
        return [value]
    from torch import distributed

    values: list[Any] = [None] * group.size
    distributed.all_gather_object(values, value)
    return values


def gather(value: Tensor) -> Tensor:
    """Return the tensors of all ranks, stacked in their order."""
    import torch

    if group is None:
        return value.unsqueeze(0)
    parts = [torch.empty_like(value) for _ in range(group.size)]
    torch.distributed.all_gather(parts, value.contiguous())
    return torch.stack(parts)


def total(value: Tensor) -> Tensor:
    """Return the sum over all ranks, bitwise equal on each."""
    return value if group is None else gather(value).sum(0)


def mean(value: Tensor) -> Tensor:
    """Return the mean over all ranks, bitwise equal on each."""
    return value if group is None else gather(value.double()).mean(0)


def variance(value: Tensor) -> Tensor:
    """Return the variance of the elements of all ranks in float64; each rank must have the same number."""
    import torch

    wide = value.double()
    if group is None:
        return wide.var(correction=0)
    variances, means = gather(torch.stack([wide.var(correction=0), wide.mean()])).unbind(1)
    return variances.mean() + means.var(correction=0)


def group_by_mesh(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Return `tensors` in one list for each mesh of ranks that they are sharded over: torch's functions accept tensors
    of one mesh only. One list if nothing is sharded."""
    by_mesh: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        by_mesh.setdefault(getattr(tensor, "device_mesh", None), []).append(tensor)
    return list(by_mesh.values())


def norm(tensors: Iterable[Tensor]) -> Tensor:
    """Return the Euclidean norm of all elements of `tensors` together, sharded or not."""
    import torch

    norms = []
    for own in group_by_mesh(tensors):
        part = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(own)))
        # of rank 0: what is summed over two dimensions of a mesh may differ in its last bit
        norms.append(gather(part.full_tensor())[0] if hasattr(part, "full_tensor") else part)
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def clip_gradients(parameters: Iterable[nn.Parameter], most: float) -> None:
    """Scale the gradients so that the norm of all of them together, sharded or not, is `most` at most."""
    import torch

    trained = [parameter for parameter in parameters if parameter.grad is not None]
    total_norm = norm([parameter.grad for parameter in trained])  # type: ignore[misc]
    for own in group_by_mesh(trained):
        torch.nn.utils.clip_grads_with_norm_(own, most, total_norm)


def unify(module: nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0, except for sharded ones."""
    if group is not None:
        from torch import distributed

        for tensor in [*module.parameters(), *module.buffers()]:
            if not hasattr(tensor, "full_tensor"):
                distributed.broadcast(tensor.detach(), src=0)
