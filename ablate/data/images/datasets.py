"""Tables through `datasets`: from the hub by name, from a folder, or from parquet and arrow files. Rows are
memory-mapped and read in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ablate.config.errors import DataError, did_you_mean
from ablate.data import hub
from ablate.data.files import reason

if TYPE_CHECKING:
    from datasets import Dataset

SUFFIXES = (".parquet", ".arrow")


def splits_of(dataset: str, subset: str | None, cache: Path) -> dict[str, Dataset]:
    """All splits of a dataset, by name. `dataset` is a folder, as `datasets` saves one or the hub holds one, or a name
    on the hub; what is downloaded or unpacked stays in the cache of `datasets`, or in `cache` for a folder.

    Raises DataError for one that is missing or gated, without a network, and for a full disk.
    """
    folder = hub.folder_of(dataset)
    revision = hub.commit(dataset, None, cache) if folder is None else None
    datasets = hub.library()
    try:
        if folder is None:
            found = datasets.load_dataset(dataset, subset, revision=revision)
        elif any((folder / name).exists() for name in ("dataset_dict.json", "state.json")):
            found = datasets.load_from_disk(str(folder))
        else:
            found = datasets.load_dataset(str(folder), subset, cache_dir=str(cache / "datasets"))
    except Exception as error:
        raise (hub.hub_error(dataset, error) if folder is None else _unreadable(dataset, error)) from error
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
                raise _unreadable(str(path), error) from error
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


def _unreadable(name: str, error: Exception) -> DataError:
    """What to tell of an error that reading local files as tables raised."""
    if full := hub.disk_full(error):
        return DataError(
            f"There is no room to unpack {name}: {full}. Make room, or let ABLATE_STORE name another disk."
        )
    return DataError(f"{name} cannot be read as a table: {reason(error.__cause__ or error)}")
