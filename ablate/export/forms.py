"""The forms that others read, each written into a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ablate.export import timm_weights, tokenizer, transformers_files
from ablate.training.trained import EXPORTED, Source


def _consolidated(source: Source, folder: Path) -> str:
    torch.save(dict(source.state), folder / "model.pt")
    _config(source, folder)
    return "model.pt for torch.load"


def _safetensors(source: Source, folder: Path) -> str:
    save(source.state, folder)
    _config(source, folder)
    return f"{EXPORTED} by Ablate's names"


def _hub(source: Source, folder: Path) -> str:
    files = transformers_files.files(source)
    save(files.weights, folder, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(files.config, indent=2) + "\n", encoding="utf-8")
    for name, text in files.texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return f"{files.words}; {tokenizer.write(source.experiment, folder)}"


def _timm(source: Source, folder: Path) -> str:
    weights, config = timm_weights.plain(source)
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
