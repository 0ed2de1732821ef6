"""A hook that lets a torchvision without its compiled operators be imported.

A CPU build of torch beside a CUDA build of torchvision (what `pip install` gives on many machines) makes
`import torchvision` fail with "operator torchvision::nms does not exist", and with it lightning, torchmetrics and timm.
The failure is in one module, `torchvision._meta_registrations`, which describes operators that were never registered.
`install()` puts a hook in front of that module alone: where torchvision's operators are missing, their schemas are
defined first. On a matching install the hook does nothing; it imports neither torch nor torchvision itself.
Only torchvision's compiled operators stay unavailable; Ablate decodes and resizes images with PIL.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_TARGET = "torchvision._meta_registrations"
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[Any] = []  # a torch.library.Library undoes its definitions when it is collected


def define_missing_operators() -> bool:
    """Define the operator schemas that torchvision's Python code expects and its binary lacks; return whether there are
    any."""
    from torchvision.extension import _has_ops

    if _has_ops():
        return False
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        if not hasattr(torch.ops.torchvision, schema.partition("(")[0]):
            library.define(schema)
    _libraries.append(library)
    return True


class _Hook(MetaPathFinder):
    """Finds `torchvision._meta_registrations` as usual, with the definitions run just before its own code."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _TARGET:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                define_missing_operators()
                run(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Put the hook in place, once, unless torchvision is imported already."""
    if _TARGET not in sys.modules and not any(isinstance(finder, _Hook) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Hook())
