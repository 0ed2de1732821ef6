"""`export`: the weights of a checkpoint in a form that others read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ablate.errors import AblateError, did_you_mean
from ablate.exporting import hub, tokenizer, vision
from ablate.sweeping.references import resolved
from ablate.training.source import EXPORTED, Source, find


def export(given: str, to: str, output: str | Path, ema: bool = False) -> str:
    """Writes the model of a checkpoint, a run or `sweep:NAME/ARM` into the new folder `output`; says in words what was
    written. `ema`: with the average of the weights.

    Raises AblateError for an unknown form, a missing or damaged checkpoint, and an `output` that exists.
    """
    if to not in FORMS:
        raise AblateError(f"unknown form {to!r}. Accepted: {', '.join(FORMS)}.{did_you_mean(to, FORMS)}")
    folder = Path(output).expanduser()
    if folder.exists():
        raise AblateError(f"{folder} exists; give a folder that does not, or move it away.")
    source = find(resolved(given), ema)
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
    return f"{folder}: {count:,} {of} after {source.step:,} updates, {words}"


def _consolidated(source: Source, folder: Path) -> str:
    torch.save(dict(source.state), folder / "model.pt")
    _config(source, folder)
    return "model.pt for torch.load"


def _safetensors(source: Source, folder: Path) -> str:
    save(source.state, folder)
    _config(source, folder)
    return f"{EXPORTED} by Ablate's names"


def _hub(source: Source, folder: Path) -> str:
    files = hub.files(source)
    save(files.weights, folder, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(files.config, indent=2) + "\n", encoding="utf-8")
    for name, text in files.texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return f"{files.words}; {tokenizer.write(source.experiment, folder)}"


def _timm(source: Source, folder: Path) -> str:
    weights, config = vision.plain(source)
    save(weights, folder, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return f'timm.create_model("local-dir:{folder.name.removesuffix(".part")}", pretrained=True)'


def save(weights: Any, folder: Path, metadata: dict[str, str] | None = None) -> None:
    """Writes tensors as safetensors. One that is there under two names is written under the first."""
    from safetensors.torch import save_file

    seen: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            tensors[name] = tensor.contiguous()
    save_file(tensors, folder / EXPORTED, metadata)


def _config(source: Source, folder: Path) -> None:
    (folder / "config.yaml").write_text(source.experiment.to_yaml(), encoding="utf-8")


FORMS: dict[str, Callable[[Source, Path], str]] = {
    "consolidated": _consolidated,
    "safetensors": _safetensors,
    "hf": _hub,
    "timm": _timm,
}
"""Form -> what writes it into a folder, and says so in words."""
