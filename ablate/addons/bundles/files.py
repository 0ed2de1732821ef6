"""Bundles as files: read, written, and checked for damage."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from ablate.addons.bundles.records import Shared, restore_record
from ablate.addons.bundles.schema import FILE, SCHEMA, Bundle
from ablate.config import plugins
from ablate.config.building import describe_errors, load_plugins
from ablate.config.errors import ConfigError, DataError
from ablate.config.yaml import parse_json
from ablate.data.files import hash_file
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.spec.sweep import Sweep

MOST_BYTES = 100_000_000
"""Most bytes of the JSON of a bundle: some 30,000 runs. No more is unpacked, as a megabyte of gzip can hold a
gigabyte."""
_LONGEST = 255  # of the name of a file, in bytes
_MISFITS = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def compute_digest(values: dict[str, Any]) -> str:
    """Return the SHA-256 of the values of a bundle, without its digest."""
    content = {key: value for key, value in values.items() if key != "digest"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def seal(bundle: Bundle) -> Bundle:
    """Return the bundle with its digest."""
    return bundle.model_copy(update={"digest": compute_digest(_dump(bundle))})


def _dump(bundle: Bundle) -> dict[str, Any]:
    """Return the values of a bundle, without those that are the defaults of the format."""
    head = {"format": bundle.format, "version": bundle.version}
    return {**head, **bundle.model_dump(mode="json", exclude_defaults=True)}


def write_bundle(bundle: Bundle, folder: Path) -> None:
    """Write the values of a bundle into `folder`, the same bytes for the same values. Raises DataError for one that is
    too large to be read again."""
    content = json.dumps(_dump(bundle), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    if len(content) > MOST_BYTES:
        raise DataError(f"The bundle has {len(content):,} bytes of JSON, more than {MOST_BYTES:,}. Publish its parts.")
    (folder / FILE).write_bytes(gzip.compress(content, mtime=0))


def read_values(folder: str | Path) -> dict[str, Any]:
    """Return the values of the bundle in `folder`, unchecked but for what they are. Raises DataError."""
    file = Path(folder) / FILE
    if os.path.isfile(folder):
        raise DataError(f"{folder} is a file. Give the folder that it is in: {Path(folder).parent}.")
    if not os.path.isfile(file):
        text = f"There is no bundle in {folder}: it has no {FILE}. ablate publish SWEEP -o FOLDER writes one."
        raise DataError(text)
    try:
        with gzip.open(file) as stream:
            content = stream.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes of JSON")
        values = parse_json(content.decode())
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataError(f"{file} cannot be read as JSON in gzip: {error}.") from None
    if not isinstance(values, dict) or values.get("format") != "ablate bundle":
        raise DataError(f"{file} is not a bundle of Ablate.")
    version = values.get("version")
    if isinstance(version, int) and version > SCHEMA:
        raise DataError(
            f"{file} has version {version} of the format, and this Ablate reads up to {SCHEMA}. Install a later one."
        )
    return values


def read_bundle(folder: str | Path) -> Bundle:
    """Return the bundle in `folder`. Raises DataError for a file that is missing, of a later version or no JSON, and
    ConfigError with all that does not fit the schema."""
    return _validate(read_values(folder), folder)


def _validate(values: dict[str, Any], folder: str | Path) -> Bundle:
    try:
        return Bundle.model_validate_json(json.dumps(values))
    except ValidationError as error:
        raise ConfigError(describe_errors(Bundle, values, error), str(Path(folder) / FILE)) from None


def list_damage(folder: str | Path, free: Collection[str] = ()) -> list[str]:
    """Return the changes in the files of a bundle since it was published, and new files. Those named in `free` may
    differ. Raises as `read_bundle` does, and DataError for files outside of the folder that it names or links to."""
    folder, values = Path(folder), read_values(folder)
    bundle, names, damage = _validate(values, folder), _list_files(folder), []
    if compute_digest(values) != values.get("digest"):
        damage.append(f"{FILE}: its values are not those that were published (the digest differs)")
    expected = {**bundle.files, **bundle.plugins}
    for name, digest in expected.items():
        file = folder / _check_inside(name)
        if name in free:
            continue
        try:
            if not os.path.isfile(file):
                damage.append(f"{name}: the file is missing")
            elif hash_file(file) != digest:
                damage.append(f"{name}: the file was changed")
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror or error}.") from None
    for name in sorted(names - {FILE, *expected, *free}):
        is_at_top = "/" not in name and name.startswith(".")  # as .gitattributes
        if not is_at_top and not name.startswith(".git/"):
            damage.append(f"{name}: the file was not published with it")
    return damage


def _list_files(folder: Path) -> set[str]:
    """Return everything but folders in a folder and its subfolders. Raises DataError for a link out of
    it."""
    names = set()
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
                raise DataError(f"{path} is a link that leads out of the folder of the bundle. Remove the link.")
        names |= {Path(place, name).relative_to(folder).as_posix() for name in files}
    return names


def _check_inside(name: str) -> str:
    """Return the name of a file inside a folder. Raises DataError for one that leads out of it, or that no file can
    have."""
    parts = PurePosixPath(name).parts
    if not parts or ".." in parts or PurePosixPath(name).is_absolute() or "\\" in name:
        raise DataError(f"The bundle names the file {name!r}, which is outside of its folder.")
    if not name.isprintable() or max(len(part.encode()) for part in parts) > _LONGEST:
        raise DataError(f"The bundle names the file {name!r}, which is no name that a file can have.")
    return name


@contextlib.contextmanager
def refuse_misfits(folder: str | Path) -> Iterator[None]:
    """Raise DataError for Python's errors within this context from values of a bundle that fit the schema but not each
    other, such as a run of an unknown arm."""
    try:
        yield
    except _MISFITS as error:
        text = f"{type(error).__name__}: {error}"
        raise DataError(f"The values of the bundle in {folder} do not go together ({text}).") from error


def restore_records(bundle: Bundle, folder: str | Path, trusts_plugins: bool = False) -> dict[str, SweepRecord]:
    """Return size or name -> the record of each sweep of the bundle in `folder`.

    Its plugins are loaded from there, and no other file is, now or when an experiment of a record is built. Raises
    DataError where it has some and they are not trusted, as loading runs them; where its settings name one that it does
    not have; and where its values do not go together; ConfigError for an invalid sweep.
    """
    if bundle.plugins and not trusts_plugins:
        text = (
            f"The bundle has plugins, whose code would be run: {', '.join(bundle.plugins)}. Read them, and then add "
            "--trust-plugins."
        )
        raise DataError(text)
    settings = [[s.spec, *(run.params for run in s.runs)] for s in bundle.sweeps]
    if missing := [file for file in plugins.list_named({"sweeps": settings}) if file not in bundle.plugins]:
        raise DataError(
            f"Settings of the bundle name the plugin {missing[0]!r}, which it does not have. It was not run."
        )
    records, shared = {}, Shared(bundle.surroundings, bundle.questions)
    files = {  # one that is loaded already is not loaded again under another name
        name: plugins.find_loaded(digest) or str(Path(folder) / _check_inside(name))
        for name, digest in bundle.plugins.items()
    }
    known = frozenset(bundle.plugins.values())
    refusal = "the bundle has none of that content (SHA-256 {sha256}). It was not run."
    with refuse_misfits(folder), plugins.restrict(known.__contains__, str(folder), refusal):
        for sweep in bundle.sweeps:
            spec = rename_plugins(sweep.spec, files)
            load_plugins(spec, source=sweep.name)
            try:
                record = restore_record(sweep.model_copy(update={"spec": spec}), shared)
            except ValidationError as error:
                raise ConfigError(describe_errors(Sweep, spec, error), f"{sweep.name} of {folder}") from None
            records[sweep.size or sweep.name] = replace(record, spec=record.spec.mark_stored(known))
    return records


def rename_plugins(value: Any, names: dict[str, str], inside: bool = False) -> Any:
    """Return nested values with the texts below each key `plugins` renamed."""
    if isinstance(value, dict):
        return {key: rename_plugins(item, names, inside or key == "plugins") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rename_plugins(item, names, inside) for item in value]
    return names.get(value, value) if inside and isinstance(value, str) else value
