"""Reward models: the folder of one, its hash, and its rewards of answers."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch

from ablate import tracking
from ablate.config.errors import AblateError, ConfigError, Problem
from ablate.config.extras import import_library
from ablate.data.files import hash_file
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


def load_reward(name: str) -> measures.Reward:
    """Return the reward function of a reward model. Raises AblateError for what is none."""
    folder = find_reward_folder(name)
    transformers: Any = import_library("transformers", "hf")
    auto = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(folder, trust_remote_code=True)
    if model.config.num_labels != 1:
        raise AblateError(f"{folder} is no reward model: it gives {model.config.num_labels} numbers and not one.")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    return lambda prompts, answers: measures.score_answers(model, tokenizer, prompts, answers)
