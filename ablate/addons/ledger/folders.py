"""The folder of a bundle: its values, figures and page, written as a whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ablate.addons.ledger import bundles, page
from ablate.addons.ledger.places import find_places
from ablate.addons.ledger.schema import CHECKS, FILE, NOTES, PAGE, Bundle
from ablate.addons.scaling.over_sizes import OverSizes, find_comparison
from ablate.config.errors import StoreError, SweepError
from ablate.data.files import hash_file
from ablate.plots.drawing import save_png
from ablate.reports.figures import draw_figures
from ablate.reports.layer_seeds import LAYERS
from ablate.sweeps.records import SweepRecord

COLOURS = 64
"""Of the palette of a figure."""


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
    together = find_comparison(bundle.name, records) if len(records) > 1 else None
    over_sizes = together.to_plain() if together else None
    figures = _draw(records, together, content)
    files = {path.name: hash_file(path) for path in sorted(content.iterdir()) if path.is_file()}
    bundle = bundle.model_copy(update={"over_sizes": over_sizes, "files": files})
    notes = (content / NOTES).read_text(encoding="utf-8") if (content / NOTES).exists() else ""
    (content / PAGE).write_text(page.render(bundle, records, together, figures, notes), encoding="utf-8")
    files = dict(sorted({**files, PAGE: hash_file(content / PAGE)}.items()))
    bundle = bundles.seal(bundle.model_copy(update={"files": files}))
    _refuse_places(content, bundle)
    bundles.write_bundle(bundle, content)
    return bundle


def _draw(records: Mapping[str, SweepRecord], together: OverSizes | None, content: Path) -> list[str]:
    """Draw the figure of what several sizes show together, or else of the verdict on each sweep, and that of the layers
    (of the largest size), where they were measured; return the files. All others can be drawn again from the runs."""
    from PIL import Image

    figures = together.draw()[:1] if together else []
    for key, record in records.items():
        drawn = draw_figures(record)
        layers = [figure for figure in drawn if figure.name == LAYERS]
        first = [figure for figure in drawn[:1] if not together and figure not in layers]
        own = [*first, *(layers if key == [*records][-1] else [])]
        figures += own if len(records) == 1 else [replace(one, name=f"{key}-{one.name}") for one in own]
    names = [save_png(figure, content).name for figure in figures]
    for name in names:
        with Image.open(content / name) as image:
            small = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        small.save(content / name, optimize=True)  # in a third of the bytes: a figure has few colours
    return names


def _refuse_places(content: Path, bundle: Bundle) -> None:
    """Raise SweepError where a text would publish a folder or a secret of this machine."""
    files = [file for file in sorted(content.rglob("*")) if file.suffix in (".yaml", ".py", ".md")]
    texts = {file.name: file.read_text("utf-8") for file in files} | {FILE: bundle.model_dump_json()}
    for name, text in texts.items():
        if places := find_places(text):
            raise SweepError(f"{name} would publish {', '.join(places)}. Remove it there; nothing was written.")


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
