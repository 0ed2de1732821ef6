"""`export`: write the weights of a checkpoint in the format of another program."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from ablate.addons.export.forms import FORMS
from ablate.addons.export.registration import Registered, check_registration, register, require_run
from ablate.config.errors import AblateError, did_you_mean
from ablate.training.trained import open_trained


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    text: str
    """A line on the written files."""
    registered: Registered | None
    """The version in MLflow's model registry; None if none was requested."""


def export(
    model: str, to: str, output: str | Path, ema: bool = False, finite: bool = True, name: str | None = None
) -> Exported:
    """Write the model of a checkpoint or a run into the new folder `output`. `ema`: with the averaged weights;
    `finite`: whether weights that are NaN or infinite are refused; `name`: under which it is registered in MLflow's
    model registry. Raises AblateError for an unknown format, a missing or damaged checkpoint, an `output` that exists,
    a name that MLflow does not accept, and a model without a run to register; in these cases nothing is written."""
    if to not in FORMS:
        raise AblateError(f"unknown format {to!r}. Accepted: {', '.join(FORMS)}.{did_you_mean(to, FORMS)}")
    folder = Path(output).expanduser()
    if os.path.exists(folder):
        raise AblateError(f"{folder} exists; choose a folder that does not exist, or move it away.")
    if name is not None:
        check_registration(name, to)
    source = open_trained(model, ema, finite)
    run_id = require_run(model, source.run_id) if name is not None else None
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
    text = f"{folder}: {count:,} {of}{after}, {words}"
    if name is None or run_id is None:
        return Exported(text, None)
    registered = register(folder, to, run_id, name)
    text += f"\n{registered.uri}: registered in MLflow, version {registered.version} of {name}, from run {run_id}"
    return Exported(text, registered)
