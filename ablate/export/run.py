"""`export`: the weights of a checkpoint in a form that others read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ablate.config.errors import AblateError, did_you_mean
from ablate.export.forms import FORMS
from ablate.training.trained import open_trained


def export(model: str, to: str, output: str | Path, ema: bool = False, finite: bool = True) -> str:
    """Write the model of a checkpoint or a run into the new folder `output`, and return a line on what was written.
    `ema`: with the average of the weights; `finite`: whether weights that are NaN or infinite are refused.

    Raises AblateError for an unknown form, a missing or damaged checkpoint, and an `output` that exists.
    """
    if to not in FORMS:
        raise AblateError(f"unknown form {to!r}. Accepted: {', '.join(FORMS)}.{did_you_mean(to, FORMS)}")
    folder = Path(output).expanduser()
    if os.path.exists(folder):
        raise AblateError(f"{folder} exists; give a folder that does not, or move it away.")
    source = open_trained(model, ema, finite)
    part = folder.with_name(folder.name + ".part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        words = FORMS[to](source, part)
        part.replace(folder)
    except OSError as error:
        raise AblateError(f"{folder} cannot be written: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    count = sum(p.numel() for p in source.model().parameters())
    of = "averaged parameters" if ema else "parameters"
    after = f" after {source.step:,} updates" if source.step else ""  # of an aligned model they are not known
    return f"{folder}: {count:,} {of}{after}, {words}"
