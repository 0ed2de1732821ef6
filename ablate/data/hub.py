"""Datasets of the Hugging Face hub, and folders of the same kind, read by `datasets` as a stream: only requested data
is downloaded."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ablate.config.errors import DataError
from ablate.config.hub import TIMEOUT, is_path
from ablate.data.files import expand_path, explain, hold_lock, suggest_name, write_whole

RETRIES = 5
"""Number of times, five seconds apart, that an interrupted download is resumed."""

INSTEAD = (
    "A downloaded copy also works: give its folder as data.dataset, or its files as data.files, which replace dataset, "
    "subset and splits (of a further validation set: data.val_sets.NAME.dataset or data.val_sets.NAME.files)."
)


def find_folder(name: str) -> Path | None:
    """Return the folder that `name` refers to; None for the name of a dataset on the hub. Raises DataError for a
    missing one."""
    path = expand_path(name)
    if path == path.parent:
        raise DataError(
            f"{path} is the root of the file system, not a dataset. Give the folder of a dataset, or its files."
        )
    if os.path.isdir(path):
        return path
    if os.path.isfile(path):
        raise DataError(
            f"{path} is a file, and `dataset` must be a folder or a dataset on the hub. Give the file in `files`."
        )
    if is_path(name):
        raise DataError(f"There is no folder {path}.{suggest_name(path)}")
    return None


def list_files(folder: Path) -> list[Path]:
    """Return all files in a folder and its subfolders, sorted, without hidden files."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def pin_commit(name: str, revision: str | None, cache: Path) -> str:
    """Return the current commit of a dataset on the hub. The first answer is kept in `cache`: later runs read the same
    data, and need no network if its tokens are in the cache too. Raises DataError if the dataset is missing or gated,
    or the hub cannot be reached.
    """
    key = hashlib.sha256(json.dumps([name, revision]).encode()).hexdigest()
    note = expand_path(cache) / "hub" / f"{key}.json"
    with hold_lock(note):
        try:
            known = json.loads(note.read_bytes())
            if isinstance(known["commit"], str):
                return str(known["commit"])
        except (OSError, ValueError, TypeError, KeyError):
            pass
        commit = _ask_hub(name, revision)
        write_whole(note, json.dumps({"dataset": name, "revision": revision, "commit": commit}).encode())
    return commit


def _ask_hub(name: str, revision: str | None) -> str:
    from huggingface_hub import HfApi

    try:
        info = HfApi().dataset_info(name, revision=revision, timeout=TIMEOUT)
        if info.gated:
            HfApi().auth_check(name, repo_type="dataset")
    except Exception as error:  # of the network, of the hub, and of the library
        raise explain_hub_error(name, error) from error
    return str(info.sha)


def explain_hub_error(name: str, error: Exception) -> DataError:
    """Return a DataError for an error that the hub raised for the dataset `name`."""
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    chain = _list_causes(error)
    if any(isinstance(link, GatedRepoError) or "gated dataset" in str(link) for link in chain):
        return DataError(
            f"The dataset {name!r} is gated: its owner asks for an agreement. Agree to it on "
            f"https://huggingface.co/datasets/{name}, then log in with: hf auth login, or set HF_TOKEN. {INSTEAD}"
        )
    if any(isinstance(link, RevisionNotFoundError) for link in chain):
        return DataError(f"The dataset {name!r} has no such revision. Omit it, or give a branch, tag or commit.")
    if any(isinstance(link, (RepositoryNotFoundError, HFValidationError, DatasetNotFoundError)) for link in chain):
        return DataError(
            f"There is no dataset {name!r} on the Hugging Face hub, or it is private, and there is no local folder of "
            f"that name. Names look like allenai/c4; for a private one log in with: hf auth login. {INSTEAD}"
        )
    if any(isinstance(link, ImportError) for link in chain):
        return DataError(f"The dataset {name!r} needs a library that is not installed: {explain(error)}")
    if full := explain_full_disk(error):
        return DataError(
            f"There is no space for the dataset {name!r}: {full}. Set HF_HOME to a folder on another disk."
        )
    if isinstance(error, ValueError):  # a subset or a split that is not there; the message lists those that are
        return DataError(f"The dataset {name!r} cannot be read: {explain(error)}")
    return DataError(
        f"The Hugging Face hub could not be reached for the dataset {name!r} ({explain(error)}). {INSTEAD}"
    )


def explain_full_disk(error: BaseException) -> str | None:
    """Return the system's message if an error comes from a full disk, otherwise None."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return next(
        (explain(link) for link in _list_causes(error) if isinstance(link, OSError) and link.errno in full), None
    )


def _list_causes(error: BaseException) -> list[BaseException]:
    causes: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in causes:
        causes.append(link)
        link = link.__cause__ or link.__context__
    return causes


def open_hub(name: str, revision: str, subset: str | None, split: str) -> Any:
    """Open a split of a dataset on the hub as a stream of rows (`datasets.IterableDataset`). Raises DataError."""
    datasets = import_datasets()
    try:
        return datasets.load_dataset(name, subset, split=split, revision=revision, streaming=True)
    except Exception as error:
        raise explain_hub_error(name, error) from error


def open_folder(folder: Path, subset: str | None, split: str) -> Any:
    """Open a split of a folder in the same way: files that `datasets` can read, or the output of its `save_to_disk`.
    Raises DataError."""
    datasets = import_datasets()
    below = folder / subset if subset and os.path.isdir(folder / subset) else folder
    try:
        for saved in (below / split, below):
            if os.path.isfile(saved / "state.json"):
                table = datasets.load_from_disk(str(saved))
                if saved == below and split not in ("train", str(table.split)):
                    raise DataError(f"{saved} contains one split, {table.split or 'train'}, and not {split!r}.")
                return table.to_iterable_dataset()
        if os.path.isfile(below / "dataset_dict.json"):
            splits = json.loads((below / "dataset_dict.json").read_bytes())["splits"]
            raise DataError(f"{below} has no split {split!r}. Splits: {', '.join(map(repr, splits))}.")
        return datasets.load_dataset(str(folder), subset, split=split, streaming=True)
    except DataError:
        raise
    except Exception as error:
        text = f"The dataset in {folder} cannot be read: {explain(error)}."
        if isinstance(error, FileNotFoundError):  # those of another subset, which its README.md names first
            raise DataError(f"{text} If it is a part of one, give its files as data.files.") from error
        raise DataError(text + (_advise_on_parts(subset, split) if isinstance(error, ValueError) else "")) from error


def _advise_on_parts(subset: str | None, split: str) -> str:
    """Return advice for a folder that may lack the requested subset or split; "" for the default ones."""
    ways = [f"without a subset {subset!r} needs data.subset=null"] if subset else []
    ways += [f"without a split {split!r} needs data.val_split=null, or data.val_files"] if split != "train" else []
    own = " (of a further validation set: data.val_sets.NAME.subset, data.val_sets.NAME.split)"
    return f" A folder {'; one '.join(ways)}{own}." if ways else ""


def import_datasets() -> Any:
    """Return the library `datasets`, without progress bars and with `RETRIES` for the hub."""
    import datasets

    datasets.disable_progress_bars()
    datasets.config.STREAMING_OPEN_MAX_RETRIES = datasets.config.STREAMING_READ_MAX_RETRIES = RETRIES
    return datasets
