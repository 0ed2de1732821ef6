"""The formats of other programs, each written into a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ablate.addons.export import timm_weights, tokenizer, transformers_files
from ablate.training.trained import EXPORTED, TrainedModel


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
