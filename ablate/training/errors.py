"""Errors of Lightning's and torch's in a training, as ours."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import torch

from ablate.config.errors import DataError, OutOfMemory
from ablate.training.runs import describe_error

_NO_MEMORY = re.compile(
    r"can't allocate memory|out of memory|(CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_ALLOC_FAILED"
    r"|CUBLAS_STATUS_NOT_INITIALIZED when calling `?cublas\w*Create"
)
"""In the message of a plain RuntimeError: of the CPU's allocator, of a CUDA context, of NCCL, and of libraries that
allocate their own workspace."""


@contextlib.contextmanager
def translate_errors() -> Iterator[None]:
    """Raise errors of Lightning's and torch's within as ours: DataError, OutOfMemory, and KeyboardInterrupt for the
    SystemExit that Lightning makes of Ctrl-C."""
    try:
        yield
    except DataError as error:
        # the message of one out of a worker process has its whole traceback
        raise DataError(str(error).rpartition(f"{DataError.__qualname__}: ")[2].strip()) from error
    except SystemExit:
        raise KeyboardInterrupt from None
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and not _NO_MEMORY.search(str(error)):
            raise
        raise OutOfMemory(f"Out of memory: {describe_error(error)}") from error
