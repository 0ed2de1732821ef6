"""The folder of a bundle: its values, figures and page, written as a whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ablate.addons.ledger import bundles, page
from ablate.addons.ledger.over_sizes import OverSizes, compare_sizes
from ablate.addons.ledger.places import find_places
from ablate.addons.ledger.schema import CHECKS, FILE, NOTES, PAGE, SWEEP, Bundle
from ablate.config.errors import StoreError, SweepError
from ablate.data.files import hash_file
from ablate.plots.panels import save_png
from ablate.reports.figures import draw_figures, draw_over_seeds
from ablate.sweeps.comparison import compare_record
from ablate.sweeps.records import SweepRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_folder(folder: Path) -> None:
    """Raise StoreError for a folder that has something else in it."""
    if os.path.exists(folder) and not folder.is_dir():
        raise StoreError(f"{folder} is a file. Give a folder: -o FOLDER.")
    if os.path.isdir(folder) and not (folder / FILE).exists() and any(file.name != NOTES for file in folder.iterdir()):
        raise StoreError(f"{folder} has other files in it. Give an empty or a new folder: -o FOLDER.")


def fill_folder(bundle: Bundle, content: Path) -> Bundle:
    """Draw the figures of a bundle and write its page and its values into `content`, which has its sweep files, plugins
    and notes; return the bundle with what its sizes show together and its digests. Raises SweepError for a text that
    names a place of this machine."""
    records = bundles.restore_records(bundle, content, trusts_plugins=True)
    together = compare_sizes(bundle.name, records) if len(records) > 1 else None
    over_sizes = {"kind": together.kind, **together.values} if together else None
    captions = _draw(records, together, content)
    bundle = bundle.model_copy(update={"over_sizes": over_sizes})
    text = page.render(bundle, records, together, captions, _read(content / SWEEP))
    (content / PAGE).write_text(page.add_notes(text, _read(content / NOTES)), encoding="utf-8")
    files = {path.name: hash_file(path) for path in sorted(content.iterdir()) if path.is_file()}
    bundle = bundle.model_copy(update={"files": files})
    bundle = bundle.model_copy(update={"digest": bundles.compute_digest(bundles.dump_bundle(bundle))})
    (content / FILE).write_text(bundles.to_json(bundle), encoding="utf-8")
    _refuse_places(content)
    return bundle


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


def _draw(records: Mapping[str, SweepRecord], together: OverSizes | None, content: Path) -> dict[str, str]:
    """Draw the figures of several sizes together, and the curves and layers of each, or where there are none together
    those of each sweep; return file -> caption."""
    if not together:
        captions = {}
        for key, record in records.items():
            for path, caption in draw_figures(record, content).items():
                name = path.name if len(records) == 1 else f"{key}-{path.name}"
                path.rename(content / name)
                captions[name] = caption
        return captions
    figures = {name: (figure, "") for name, figure in together.draw().items()}
    for size, record in records.items():
        figures |= draw_size(size, record)
    for name, (figure, _) in figures.items():
        save_png(figure, content / name)
    return {name: caption for name, (_, caption) in figures.items()}


def draw_size(size: str, record: SweepRecord) -> dict[str, tuple[Figure, str]]:
    """Return file -> figure and caption, of one of several sizes: its curves over fresh seeds, and its layers."""
    drawn = draw_over_seeds(record, compare_record(record))
    return {f"{size}-{name}.png": (figure, f"{size}: {caption}") for name, figure, caption in drawn}


def _refuse_places(content: Path) -> None:
    """Raise SweepError where a text would publish a folder or a secret of this machine."""
    for file in sorted(content.rglob("*")):
        if file.suffix in (".json", ".yaml", ".py", ".md") and (places := find_places(file.read_text("utf-8"))):
            text = f"{file.name} would publish {', '.join(places)}. Remove it there; nothing was written."
            raise SweepError(text)


def copy_notes(folder: Path, content: Path) -> None:
    """Copy the author's notes of the bundle in `folder`, if there are any."""
    if (folder / NOTES).exists():
        shutil.copy(folder / NOTES, content / NOTES)


def replace_folder(folder: Path, content: Path) -> None:
    """Put what was written in the place of an earlier bundle, whose notes and checks stay. Raises StoreError."""
    kept = {NOTES, CHECKS}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            if old.name not in kept:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        content.chmod(folder.stat().st_mode)  # it is copied too, and a temporary folder is its owner's alone
        there = [NOTES] if (folder / NOTES).exists() else []
        shutil.copytree(content, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*there))
    except OSError as error:
        text = f"The bundle cannot be written to {folder}: {error.strerror or error}. Choose another folder."
        raise StoreError(text) from None
