"""`export`: write the weights of a checkpoint in the format of another program, each into a folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ablate.addons.export import timm_weights, tokenizer, transformers_files
from ablate.addons.export.card import build_card
from ablate.config.errors import AblateError, did_you_mean
from ablate.training.trained import EXPORTED, TrainedModel, open_trained


def _write_consolidated(source: TrainedModel, folder: Path) -> str:
    torch.save(dict(source.state), folder / "model.pt")
    _write_config(source, folder)
    return "model.pt for torch.load"


def _write_safetensors(source: TrainedModel, folder: Path) -> str:
    write_weights(source.state, folder)
    _write_config(source, folder)
    return f"{EXPORTED} by Ablate's names"


def _write_transformers(source: TrainedModel, folder: Path) -> str:
    files = transformers_files.build_files(source)
    write_weights(files.weights, folder, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(files.config, indent=2) + "\n", encoding="utf-8")
    for name, text in files.texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return f"{files.words}; {tokenizer.write_tokenizer(source.experiment, folder)}"


def _write_timm(source: TrainedModel, folder: Path) -> str:
    weights, config = timm_weights.convert_to_timm(source)
    write_weights(weights, folder, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return f'timm.create_model("local-dir:{folder.name.removesuffix(".part")}", pretrained=True)'


def write_weights(weights: Any, folder: Path, metadata: dict[str, str] | None = None) -> None:
    """Write tensors as safetensors. One with two names is written under the first."""
    from safetensors.torch import save_file

    seen: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            tensors[name] = tensor.contiguous()
    save_file(tensors, folder / EXPORTED, metadata)


def _write_config(source: TrainedModel, folder: Path) -> None:
    (folder / "config.yaml").write_text(source.experiment.to_yaml(), encoding="utf-8")


FORMS: dict[str, Callable[[TrainedModel, Path], str]] = {
    "consolidated": _write_consolidated,
    "safetensors": _write_safetensors,
    "hf": _write_transformers,
    "timm": _write_timm,
}
"""Format -> the function that writes it into a folder and returns a sentence on it."""


def export(model: str, to: str, output: str | Path, ema: bool = False, finite: bool = True) -> str:
    """Write the model of a checkpoint or a run into the new folder `output`, with a card, and return a line on its
    files. `ema`:
    with the averaged weights; `finite`: whether weights that are NaN or infinite are refused. Raises AblateError for an
    unknown format, a missing or damaged checkpoint, and an `output` that exists; then nothing is written."""
    if to not in FORMS:
        raise AblateError(f"unknown format {to!r}. Accepted: {', '.join(FORMS)}.{did_you_mean(to, FORMS)}")
    folder = Path(output).expanduser()
    if os.path.exists(folder):
        raise AblateError(f"{folder} exists; choose a folder that does not exist, or move it away.")
    source = open_trained(model, ema, finite)
    part = folder.with_name(folder.name + ".part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        words = FORMS[to](source, part)
        (part / "README.md").write_text(build_card(source, to, words, ema), encoding="utf-8")
        part.replace(folder)
    except OSError as error:
        raise AblateError(f"{folder} cannot be written: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    count = sum(p.numel() for p in source.model().parameters())
    of = "averaged parameters" if ema else "parameters"
    after = f" after {source.step:,} updates" if source.step else ""  # of an aligned model they are not known
    return f"{folder}: {count:,} {of}{after}, {words}"
