"""Reward models: the folder of one, its hash, and its rewards of answers."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch

from ablate import tracking
from ablate.config.errors import AblateError, ConfigError, Problem
from ablate.config.extras import import_library
from ablate.data.files import hash_file
from ablate.export.transformers_files import CODE
from ablate.post_training.alignment import measures
from ablate.training.trained import ALIGNED


def find_reward_folder(name: str) -> Path:
    """Return the folder of a reward model, which a run or a folder names. Raises AblateError."""
    places = (Path(name).expanduser(), tracking.store_path() / "runs" / name / ALIGNED)
    folder = next((place for place in places if os.path.isfile(place / "config.json")), None)
    if folder is None:
        raise AblateError(
            f"There is no reward model {name}: it is the run or the folder of align.method=reward (ablate align "
            "--method reward)."
        )
    return folder


def hash_reward(name: str) -> str:
    """Return the SHA-256 of a reward model's stored weights. Raises AblateError where there is none."""
    files = sorted(find_reward_folder(name).glob("*.safetensors"))
    return hashlib.sha256("".join(map(hash_file, files)).encode()).hexdigest()


def check_sha256(name: str, expected: str | None) -> str:
    """Return the SHA-256 of a reward model. Raises AblateError where there is none, ConfigError where it is not what
    is `expected`."""
    digest = hash_reward(name)
    if expected not in (None, digest):
        text = f"the weights of {name} are others now ({digest}). Leave it out to take these"
        raise ConfigError([Problem("align.reward_sha256", text, expected)])
    return digest


def check_trust(name: str, trusted: bool) -> bool:
    """Return whether code that comes with a reward model may be run: where the user says so (`trusted`), or of a run of
    this store, which wrote the code itself. Raises ConfigError where there is code that may not."""
    folder = find_reward_folder(name)
    if trusted or _is_own(folder):
        return True
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AblateError(f"{folder / 'config.json'} of the reward model cannot be read: {error}.") from None
    if "auto_map" in config or (folder / CODE).exists():
        text = "comes with code of its own, which is not run unasked. Where you trust it: --trust-remote-code of align,"
        raise ConfigError([Problem("align.reward", f"{text} or align.trust_remote_code=true", name)])
    return False


def _is_own(folder: Path) -> bool:
    """Return whether `folder` is that of a run which lies in the store."""
    runs = (tracking.store_path() / "runs").resolve()
    return folder.name == ALIGNED and folder.resolve().parent.parent == runs


def load_reward(name: str, trusted: bool = False) -> measures.Reward:
    """Return the reward function of a reward model; `trusted`: see `check_trust`. Raises AblateError for what is
    none."""
    folder, trusted = find_reward_folder(name), check_trust(name, trusted)
    transformers: Any = import_library("transformers", "hf")
    auto = transformers.AutoModelForSequenceClassification
    try:
        model = auto.from_pretrained(folder, trust_remote_code=trusted)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=trusted)
    except MemoryError:
        raise
    except Exception as error:  # whatever transformers, tokenizers, safetensors and the disk raise
        raise AblateError(f"The reward model {folder} cannot be loaded: {' '.join(str(error).split())[:400]}") from None
    if model.config.num_labels != 1:
        raise AblateError(f"{folder} is no reward model: it gives {model.config.num_labels} numbers and not one.")
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    return lambda prompts, answers: measures.score_answers(model, tokenizer, prompts, answers)
