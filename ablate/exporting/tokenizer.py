"""The tokenizer's files beside an exported model."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from ablate.config import Experiment
from ablate.data.files import absolute
from ablate.data.tokenizers import END_OF_TEXT


def write(experiment: Experiment, folder: Path) -> str:
    """Writes the run's tokenizer so that `AutoTokenizer` finds it, and says in words what came of it. One that is not
    there any more is no reason to keep the weights back."""
    name: str = getattr(experiment.data, "tokenizer", "bytes")
    if name == "bytes":
        return "no tokenizer: tokens are bytes"
    path = absolute(name)
    if os.path.isfile(path / "tokenizer.json"):
        path /= "tokenizer.json"
    try:
        if path.suffix == ".json" and path.is_file():
            _tokenizer(path.read_text(encoding="utf-8"), folder)
        elif path.is_file():
            shutil.copyfile(path, folder / "tokenizer.model")
        else:
            from tokenizers import Tokenizer

            _tokenizer(Tokenizer.from_pretrained(name).to_str(), folder)
    except Exception as error:  # whatever disk, network, hub and library raise
        return f"the tokenizer {name} could not be written beside it ({' '.join(str(error).split())})"
    return f"with the tokenizer {name}"


def _tokenizer(text: str, folder: Path) -> None:
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    known = {token["content"] for token in json.loads(text).get("added_tokens", [])}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "padding_side": "right"}
    if end := next((token for token in END_OF_TEXT if token in known), None):
        config["eos_token"] = end
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
