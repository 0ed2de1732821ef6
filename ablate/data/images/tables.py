"""Images in the rows of tables. `datasets` reads the tables: from the hub by name, from a folder, or from parquet and
arrow files, memory-mapped and in any order."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ablate.config.errors import DataError, did_you_mean
from ablate.data import hub
from ablate.data.files import expand_path, explain, hold_lock, read_stamps
from ablate.data.images.sources import ImageSource, check_same_classes
from ablate.data.readers import is_plain_stream, open_table

if TYPE_CHECKING:
    from datasets import Dataset

IMAGE_FIELD, LABEL_FIELD = "data.image_column", "data.label_column"
SUFFIXES = (".parquet", ".arrow")


def load_splits(dataset: str, subset: str | None, cache: Path) -> dict[str, Dataset]:
    """Return all splits of a dataset, by name. `dataset` is a folder, saved by `datasets` or copied from the hub, or a
    name on the hub; downloaded and unpacked files are kept in the cache of `datasets`, or in `cache` for a folder.
    Raises DataError for a missing or gated dataset, without a network, and for a full disk.
    """
    folder = hub.find_folder(dataset)
    revision = hub.pin_commit(dataset, None, cache) if folder is None else None
    datasets = hub.import_datasets()
    try:
        if folder is None:
            loaded = datasets.load_dataset(dataset, subset, revision=revision)
        elif any((folder / name).exists() for name in ("dataset_dict.json", "state.json")):
            loaded = datasets.load_from_disk(str(folder))
        else:
            loaded = datasets.load_dataset(str(folder), subset, cache_dir=str(cache / "datasets"))
    except Exception as error:
        raise (
            hub.explain_hub_error(dataset, error) if folder is None else _explain_unreadable(dataset, error)
        ) from error
    return dict(loaded) if isinstance(loaded, Mapping) else {"train": loaded}


def load_files(files: Mapping[str, Sequence[Path]], cache: Path) -> dict[str, Dataset]:
    """Return the files of each split, by its name, as one table, memory-mapped: arrow files in place, parquet from a
    copy in `cache`, and so arrow of another form than `datasets` maps.

    Raises DataError for files that cannot be read, and for a full disk.
    """
    import datasets

    tables = {}
    for split, paths in files.items():
        parts = []
        for path in paths:
            try:
                parts.append(datasets.Dataset.from_file(str(_prepare_file(path, cache))))
            except DataError:
                raise
            except Exception as error:
                raise _explain_unreadable(str(path), error) from error
        try:
            tables[split] = datasets.concatenate_datasets(parts)
        except Exception as error:
            raise DataError(f"{paths[0]} and {len(paths) - 1} more have different columns: {explain(error)}") from error
    return tables


def _prepare_file(path: Path, cache: Path) -> Path:
    """Return the table of a file as a stream of arrow in plain types: the file itself, or a copy in `cache`. Raises
    DataError."""
    import pyarrow as pa

    if path.suffix.lower() == ".arrow" and is_plain_stream(path):
        return path
    key = hashlib.sha256(json.dumps(read_stamps([path])).encode()).hexdigest()
    copy = expand_path(cache) / "tables" / f"{key}.arrow"
    with hold_lock(copy):
        if not copy.exists():
            with (
                open_table(path) as (schema, batches),
                pa.OSFile(f"{copy}.part", "wb") as file,
                pa.ipc.new_stream(file, schema) as stream,
            ):
                for batch in batches:
                    stream.write_batch(batch)
            os.replace(f"{copy}.part", copy)
    return copy


def get_split(splits: Mapping[str, Dataset], name: str, what: str) -> Dataset:
    """Return one split. Raises DataError that lists the existing splits."""
    if name not in splits:
        raise DataError(f"{what} has no split {name!r}, only {', '.join(splits)}.{did_you_mean(name, splits)}")
    return splits[name]


def check_column(data: Dataset, name: str, what: str, field: str) -> str:
    """Return `name`, if there is a column of that name. Raises DataError that lists the columns; `field` is the setting
    that selects one."""
    if name not in data.column_names:
        columns, hint = ", ".join(data.column_names), did_you_mean(name, data.column_names)
        raise DataError(f"{what} has no column {name!r}, only {columns}. Set {field}.{hint}")
    return name


def _explain_unreadable(name: str, error: Exception) -> DataError:
    """Return a DataError for an error that reading local files as tables raised."""
    if full := hub.explain_full_disk(error):
        return DataError(
            f"There is no space to unpack {name}: {full}. Free some space, or set ABLATE_STORE to a folder on another "
            "disk."
        )
    return DataError(f"{name} cannot be read as a table: {explain(error.__cause__ or error)}")


class TableImages(ImageSource):
    """The rows of one split, as `datasets` holds images: {bytes, path}, bytes, or the path of a file.

    Labels are class labels, integers or text; the classes of the last two are their sorted values, unless `classes`
    names them. `role` enters the fingerprint, `what` is the split's name in messages. Raises DataError for a column
    that is missing or contains something else, for a row without a label, and for a label that is not one of `classes`.
    """

    def __init__(
        self,
        data: Dataset,
        role: str,
        what: str,
        image_column: str | None = None,
        label_column: str | None = None,
        classes: tuple[str, ...] | None = None,
    ) -> None:
        self._open(data, role, what, image_column)
        self.label_column = _find_label_column(data, label_column, what)
        self.labels, self.classes = _read_labels(data, self.label_column, what, classes)

    def _open(self, data: Dataset, role: str, what: str, image_column: str | None) -> None:
        """Take the images of a column, as they are encoded."""
        import datasets

        self.role, self.what = role, what
        self.image_column = _find_image_column(data, image_column, what)
        if isinstance(data.features[self.image_column], datasets.Image):  # the bytes, not a decoded image
            data = data.cast_column(self.image_column, datasets.Image(decode=False))
        self.data = data.select_columns([self.image_column])

    def read(self, row: int) -> bytes:
        value: Any = self.data[row][self.image_column]
        path = value if isinstance(value, str) else None
        if isinstance(value, dict):
            value, path = value.get("bytes"), value.get("path")
        if isinstance(value, bytes):
            return value
        if path is None:
            raise DataError("there is no image in this row")
        read_stamps([Path(path)])
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise DataError(f"{path}: {explain(error)}") from error

    def name(self, row: int) -> str:
        return f"in row {row} of {self.what}"

    def identity(self, row: int) -> str:
        return f"{self.role}/{self.classes[self.labels[row]]}"

    def files(self) -> list[Path]:
        return [Path(file["filename"]) for file in self.data.cache_files]


class TableMasks(TableImages):
    """The rows of one split whose images, or masks, have no label."""

    def __init__(self, data: Dataset, role: str, what: str, image_column: str | None) -> None:
        self._open(data, role, what, image_column)
        self.labels, self.classes = np.zeros(len(data), np.int64), ("",)


def _find_image_column(data: Dataset, name: str | None, what: str) -> str:
    """Return the column of images: the named one, the only one of that type, or the one called image."""
    import datasets

    images = [column for column, feature in data.features.items() if isinstance(feature, datasets.Image)]
    if name is None:
        return images[0] if len(images) == 1 else check_column(data, "image", what, IMAGE_FIELD)
    feature = data.features[check_column(data, name, what, IMAGE_FIELD)]
    if isinstance(feature, datasets.Image):
        return name
    kinds = ("binary", "large_binary", "binary_view", "string", "large_string", "string_view")
    encoded = isinstance(feature, dict) and ("bytes" in feature or "path" in feature)
    if not encoded and getattr(feature, "dtype", None) not in kinds:
        held = getattr(feature, "dtype", type(feature).__name__)
        hint = f" Did you mean {images[0]}?" if images else ""
        raise DataError(f"The column {name!r} of {what} contains {held}, not images. Set {IMAGE_FIELD}.{hint}")
    return name


def _find_label_column(data: Dataset, name: str | None, what: str) -> str:
    """Return the column of labels: the named one, the only one of class labels, or the one called label."""
    import datasets

    if name is not None:
        return check_column(data, name, what, LABEL_FIELD)
    labels = [column for column, feature in data.features.items() if isinstance(feature, datasets.ClassLabel)]
    return labels[0] if len(labels) == 1 else check_column(data, "label", what, LABEL_FIELD)


def _read_labels(
    data: Dataset, column: str, what: str, known: tuple[str, ...] | None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return (index of each row's class, the names of the classes)."""
    import datasets
    import pyarrow as pa

    feature = data.features[column]
    values = data.select_columns([column]).with_format("arrow")[:][column]
    kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if not any(is_kind(values.type) for is_kind in kinds):
        raise DataError(f"The column {column!r} of {what} contains {values.type}, not labels. Set {LABEL_FIELD}.")
    if values.null_count:
        raise DataError(f"Row {values.is_null().to_pylist().index(True)} of {what} has no {column}.")
    values = values.to_numpy()
    if isinstance(feature, datasets.ClassLabel):
        names = tuple(feature.names)
        outside = np.flatnonzero((values < 0) | (values >= len(names)))
        if len(outside):
            text = "is not labelled" if values[outside[0]] == -1 else f"has the label {values[outside[0]]}"
            raise DataError(f"Row {outside[0]} of {what} {text}; its {len(names)} classes are 0 to {len(names) - 1}.")
        if known is not None:
            check_same_classes(known, names, "training", what)
            return np.array([known.index(name) for name in names])[values], known
        return values.astype(np.int64), _check_two_classes(names, what)
    distinct, codes = np.unique(values.astype(str) if values.dtype == object else values, return_inverse=True)
    names = tuple(map(str, distinct))
    if known is None:
        return codes.astype(np.int64), _check_two_classes(names, what)
    if unknown := [name for name in names if name not in known]:
        raise DataError(f"{what} has labels that are missing in the training split: {', '.join(unknown[:10])}.")
    return np.array([known.index(name) for name in names])[codes].astype(np.int64), known


def _check_two_classes(names: Sequence[str], what: str) -> tuple[str, ...]:
    if len(names) < 2:
        only = f"only the class {names[0]!r}" if names else "no classes"
        raise DataError(f"{what} has {only}. A classifier needs at least two.")
    return tuple(names)
