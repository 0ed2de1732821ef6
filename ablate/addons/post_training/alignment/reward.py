"""Reward models: their folder, their hash, and the rewards of answers."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch

from ablate import tracking
from ablate.addons.export.transformers_files import CODE
from ablate.addons.post_training.alignment import measures
from ablate.config.errors import AblateError, ConfigError, Problem
from ablate.config.lazy import import_library
from ablate.config.yaml import parse_json
from ablate.data.files import hash_file
from ablate.training.trained import ALIGNED


def find_reward_folder(name: str) -> Path:
    """Return the folder of a reward model, given a run or a folder. Raises AblateError."""
    places = (Path(name).expanduser(), tracking.store_path() / "runs" / name / ALIGNED)
    folder = next((place for place in places if os.path.isfile(place / "config.json")), None)
    if folder is None:
        raise AblateError(
            f"There is no reward model {name}: give the run or the folder of a model trained with align.method=reward "
            "(ablate align --method reward)."
        )
    return folder


def hash_reward(name: str) -> str:
    """Return the SHA-256 of a reward model's stored weights. Raises AblateError if there are none."""
    files = sorted(find_reward_folder(name).glob("*.safetensors"))
    return hashlib.sha256("".join(map(hash_file, files)).encode()).hexdigest()


def check_sha256(name: str, expected: str | None) -> str:
    """Return the SHA-256 of a reward model. Raises AblateError if there is none, ConfigError if it differs from
    `expected`."""
    digest = hash_reward(name)
    if expected not in (None, digest):
        text = (
            f"the weights of {name} have changed (now {digest}). Remove this setting to use the new weights, or start "
            "a sweep from the beginning with --fresh"
        )
        raise ConfigError([Problem("align.reward_sha256", text, expected)])
    return digest


def check_trust(name: str, trusted: bool) -> bool:
    """Return whether code that comes with a reward model may be run: if the user allows it (`trusted`), or for a run of
    this store, whose code Ablate wrote. Raises ConfigError if there is code that may not be run."""
    folder = find_reward_folder(name)
    if trusted or _is_own(folder):
        return True
    try:
        config = parse_json((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AblateError(f"{folder / 'config.json'} of the reward model cannot be read: {error}.") from None
    if "auto_map" in config or (folder / CODE).exists():
        text = "comes with its own code, which is only run on request. If you trust it: --trust-remote-code of align,"
        raise ConfigError([Problem("align.reward", f"{text} or align.trust_remote_code=true", name)])
    return False


def _is_own(folder: Path) -> bool:
    """Return whether `folder` belongs to a run in the store."""
    runs = (tracking.store_path() / "runs").resolve()
    return folder.name == ALIGNED and folder.resolve().parent.parent == runs


def load_reward(name: str, trusted: bool = False) -> measures.Reward:
    """Return the reward function of a reward model; `trusted`: see `check_trust`. Raises AblateError for a folder that
    is not a reward model."""
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
        raise AblateError(f"{folder} is not a reward model: it returns {model.config.num_labels} numbers and not one.")
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    return lambda prompts, answers: measures.score_answers(model, tokenizer, prompts, answers)
