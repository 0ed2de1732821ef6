"""The checkpoint of a run whose model is sharded over its ranks: a folder in which each rank writes its own shards.

The folder is one of torch's distributed checkpoints, with Lightning's state (`meta.pt`) and, from each rank, the
checksums of the files that it has written: it is complete when all of these exist. The layout is Lightning's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ablate.distributed import ranks
from ablate.models.base import strip_wrapper

META = "meta.pt"
_SUMS = re.compile(r"sums-(\d+)-of-(\d+)\.json")
_PIECE = 1 << 24  # bytes read at once


class Writer:
    """Writes one folder at a time, in the background: `begin` copies the state and returns. Ranks coordinate in a
    separate process group, so that training continues meanwhile."""

    def __init__(self) -> None:
        ranks.gather_objects(None)  # fails at once if a rank has ended; a new group would wait half an hour for it
        self._group = torch.distributed.new_group(backend="gloo")
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    def begin(self, state: dict[str, Any], meta: dict[str, Any], folder: Path) -> None:
        """Start writing. `state`: this rank's shards; `meta`: the further state that rank 0 writes."""
        from torch.distributed import checkpoint as dcp

        def prepare() -> None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            torch.save(meta, folder / META)

        self.finish()
        ranks.run_on_first(prepare)
        written = dcp.async_save(state, storage_writer=dcp.FileSystemWriter(folder), process_group=self._group)
        assert isinstance(written, Future)
        self._pending = self._thread.submit(_sum, written, folder)

    def finish(self) -> None:
        """Wait until the folder is on the disk, on all ranks. Raises OSError, on all ranks, if one could not write
        it."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        error = pending.exception()
        failures = getattr(error, "failures", {})  # torch combines the errors of all ranks
        first = next((failure[0] for failure in failures.values()), error)
        own = first and (getattr(first, "strerror", None) or f"{type(first).__name__}: {first}")
        reasons = ranks.gather_objects(own)
        if reason := next(filter(None, reasons), None):
            raise OSError(reason)


def _sum(written: Future[Any], folder: Path) -> None:
    """Write the checksums of this rank's files after the shards are on the disk."""
    written.result()
    mine = sorted(folder.glob(f"__{ranks.rank()}_*"))
    if ranks.rank() == 0:
        mine += [folder / META, folder / ".metadata"]
    name = folder / f"sums-{ranks.rank()}-of-{ranks.world_size()}.json"
    part = name.with_suffix(".part")
    with open(part, "w", encoding="utf-8") as file:
        json.dump({path.name: _crc(path) for path in mine}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, name)


def _crc(path: Path) -> int:
    value = 0
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            value = zlib.crc32(piece, value)
    return value


def is_whole(folder: Path) -> bool:
    """Return whether all ranks have written all their files."""
    sums = [match for path in folder.glob("sums-*") if (match := _SUMS.fullmatch(path.name))]
    return bool(sums) and len(sums) == int(sums[0][2])


def verify(folder: Path) -> None:
    """Compare every byte with the checksums. Raises ValueError with the problem."""
    if not is_whole(folder):
        raise ValueError("some ranks did not finish it")
    sums = {name: crc for file in folder.glob("sums-*.json") for name, crc in json.loads(file.read_text()).items()}

    def compare(name: str) -> str | None:
        path = folder / name
        if not path.exists():
            return f"{name} is missing"
        return None if _crc(path) == sums[name] else f"the checksum of {name} is wrong"

    with ThreadPoolExecutor(8) as pool:
        if problem := next(filter(None, pool.map(compare, sums)), None):
            raise ValueError(problem)


def read(folder: Path) -> dict[str, Any]:
    """Return the content without the shards."""
    content: dict[str, Any] = torch.load(folder / META, map_location="cpu", weights_only=True)
    return content


# ---------------------------------------------------------------------------------------------------- conversions

Change = Callable[[str, Tensor], Tensor]  # of a weight, or of its state in the optimizer, by the weight's name


def name_parameters(module: nn.Module, groups: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Return the names of the parameters of each of an optimizer's `groups`."""
    known = {parameter: strip_wrapper(name) for name, parameter in module.named_parameters()}
    return [[known[parameter] for parameter in group["params"]] for group in groups]


def consolidate(folder: Path, change: Change, groups: list[list[str]]) -> dict[str, Any]:
    """Return the whole checkpoint in this process, in the form that a single training process with an optimizer of such
    `groups` writes."""
    state = _read_whole(folder)
    weights = {name: change(name, weight) for name, weight in state["state_dict"].items()}
    moments, saved = _apply_change(state["optimizer_0"]["state"], change), state["optimizer_0"]["param_groups"]
    numbers = {name: number for number, name in enumerate(name for group in groups for name in group)}
    optimizer: dict[str, Any] = {
        "state": {numbers[name]: value for name, value in moments.items()},
        "param_groups": [
            {**group, "params": [numbers[name] for name in group["params"]]} for group in _group(saved, groups)
        ],
    }
    content = {**read(folder), "state_dict": weights, "optimizer_states": [optimizer]}
    _schedule(content, optimizer["param_groups"])
    return content


def read_weights(folder: Path, change: Change) -> dict[str, Tensor]:
    """Return only the weights, in this process."""
    return {name: change(name, weight) for name, weight in _read_whole(folder, {"state_dict"})["state_dict"].items()}


def _read_whole(folder: Path, keys: set[str] | None = None) -> dict[str, Any]:
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    state: dict[str, Any] = {}
    _load_state_dict(state, FileSystemReader(folder), planner=_EmptyStateDictLoadPlanner(keys), no_dist=True)
    return state


def load_whole(
    checkpoint: dict[str, Any], whole: list[list[str]], module: nn.Module, optimizer: Optimizer, change: Change
) -> None:
    """Load the checkpoint of a single process, with an optimizer of the groups `whole`, into the sharded `module` and
    its `optimizer`; the weights are removed from `checkpoint`."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict

    options = StateDictOptions(full_state_dict=True)
    weights = checkpoint.pop("state_dict")
    set_model_state_dict(module, {name: change(name, value) for name, value in weights.items()}, options=options)
    groups = name_parameters(module, optimizer.param_groups)
    (state,) = checkpoint["optimizer_states"]
    saved = [{**group, "params": names} for group, names in zip(state["param_groups"], whole, strict=True)]
    names = [name for group in whole for name in group]
    moments = _apply_change({names[number]: value for number, value in state["state"].items()}, change)
    known: dict[str, Any] = {"state": moments, "param_groups": _group(saved, groups)}
    set_optimizer_state_dict(module, optimizer, known, options=options)
    _schedule(checkpoint, known["param_groups"])


def _apply_change(moments: Mapping[str, Any], change: Change) -> dict[str, Any]:
    return {
        name: {
            key: change(name, value) if isinstance(value, Tensor) and value.ndim else value
            for key, value in known.items()
        }
        for name, known in moments.items()
    }


def _group(saved: Sequence[Mapping[str, Any]], groups: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Return the `saved` groups' settings for `groups` of names."""
    of = {name: group for group in saved for name in group["params"]}
    return [{**of[names[0]], "params": list(names)} for names in groups]


def _schedule(checkpoint: dict[str, Any], groups: Sequence[Mapping[str, Any]]) -> None:
    """Have the schedule know these `groups` of the optimizer, with their learning rates."""
    rates = {"base_lrs": [group["initial_lr"] for group in groups], "_last_lr": [group["lr"] for group in groups]}
    for state in checkpoint["lr_schedulers"]:
        state |= {key: value[:1] * len(groups) for key, value in state.items() if isinstance(value, list)}
        state |= {key: value for key, value in rates.items() if key in state}
