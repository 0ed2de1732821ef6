"""Tables through `datasets`: from the hub by name, from a folder, or from parquet and arrow files. Rows are
memory-mapped and read in any order."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ablate.data.files import absolute, reason, suggestion
from ablate.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from datasets import Dataset

SUFFIXES = (".parquet", ".arrow")


def splits_of(dataset: str, subset: str | None, cache: Path) -> dict[str, Dataset]:
    """All splits of a dataset, by name. `dataset` is a folder, as `datasets` saves one or the hub holds one, or a name
    on the hub; what is downloaded or unpacked stays in the cache of `datasets`, or in `cache` for a folder.

    Raises DataError for one that is missing or gated, without a network, and for a full disk.
    """
    import datasets

    folder = absolute(dataset)
    local = os.path.isdir(folder)
    if os.path.isfile(folder):
        raise DataError(
            f"{folder} is a file, not a folder or a name on the hub. Give files with data=image_files data.files=FILES."
        )
    if not local and dataset.startswith(("/", ".", "~")):
        raise DataError(f"There is no folder {folder}.{suggestion(folder)}")
    try:
        if local and any((folder / name).exists() for name in ("dataset_dict.json", "state.json")):
            found = datasets.load_from_disk(str(folder))
        elif local:
            found = datasets.load_dataset(str(folder), subset, cache_dir=str(cache / "datasets"))
        else:
            found = datasets.load_dataset(dataset, subset)
    except Exception as error:
        raise DataError(_what_to_do(dataset, local, error)) from error
    return dict(found) if isinstance(found, Mapping) else {"train": found}


def splits_of_files(files: Mapping[str, Sequence[Path]], cache: Path) -> dict[str, Dataset]:
    """The files of each split, by its name, as one table. Parquet is unpacked into `cache` once; arrow is read in
    place.

    Raises DataError for what cannot be read, and for a full disk.
    """
    import datasets

    found = {}
    for split, paths in files.items():
        parts = []
        for path in paths:
            try:
                if path.suffix.lower() == ".arrow":
                    parts.append(datasets.Dataset.from_file(str(path)))
                else:
                    cached = str(cache / "datasets")
                    parts.append(
                        datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=cached)
                    )
            except Exception as error:
                raise DataError(_what_to_do(str(path), True, error)) from error
        try:
            found[split] = datasets.concatenate_datasets(parts)
        except Exception as error:
            raise DataError(f"{paths[0]} and {len(paths) - 1} more have different columns: {reason(error)}") from error
    return found


def split_named(splits: Mapping[str, Dataset], name: str, what: str) -> Dataset:
    """One split. Raises DataError that lists what there is."""
    if name not in splits:
        raise DataError(f"{what} has no split {name!r}, only {', '.join(splits)}.{did_you_mean(name, splits)}")
    return splits[name]


def column_named(data: Dataset, name: str, what: str, field: str) -> str:
    """`name`, if there is a column of that name. Raises DataError that lists the columns; `field` chooses
    one."""
    if name not in data.column_names:
        columns, hint = ", ".join(data.column_names), did_you_mean(name, data.column_names)
        raise DataError(f"{what} has no column {name!r}, only {columns}. Set {field}.{hint}")
    return name


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _what_to_do(dataset: str, local: bool, error: Exception) -> str:
    """The message for an error of `datasets`, which wraps what went wrong several times."""
    causes = list(_causes(error))
    full = [cause for cause in causes if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)]
    if full:
        return f"There is no room to unpack {dataset}: {reason(full[0])}. Make room, or set HF_HOME and ABLATE_STORE."
    if local:
        return f"{dataset} cannot be read as a table: {reason(causes[-1])}"
    copy = "A folder with a copy of its parquet files will do: data.dataset=FOLDER."
    if "gated" in str(error):
        return (
            f"The dataset {dataset} is gated: accept its terms on https://huggingface.co/datasets/{dataset}, then log "
            f"in with `hf auth login` or set HF_TOKEN. {copy}"
        )
    unreachable = any(isinstance(c, ConnectionError) or type(c).__module__.startswith("http") for c in causes)
    if unreachable and not any(getattr(c, "response", None) is not None for c in causes):
        return f"The hub cannot be reached for the dataset {dataset}, and no copy of it is in the cache here. {copy}"
    if "doesn't exist" in str(error):
        return (
            f"There is no dataset {dataset} on the hub that you may read, and no folder {dataset} here. "
            f"If it is private, log in with `hf auth login` or set HF_TOKEN. {copy}"
        )
    return f"The dataset {dataset} cannot be loaded: {reason(error)}"
