"""Reward models, their folder and hash, and the measurements of an aligned model: rewards, divergence from the start,
and win rate.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ablate import tracking
from ablate.addons.export.transformers_files import CODE
from ablate.config.errors import AblateError, ConfigError, Problem
from ablate.config.lazy import import_library
from ablate.config.yaml import parse_json
from ablate.data.conversations.preferences import Pair
from ablate.data.files import hash_file
from ablate.training.trained import ALIGNED

AT_A_TIME = 8
"""Number of answers whose distributions over the whole vocabulary are in memory at a time."""

Reward = Callable[[Sequence[str], Sequence[str]], list[float]]
"""Prompts and their answers -> a number for each, higher for a better answer."""


def sample_answers(model: Any, tokenizer: Any, prompts: Sequence[str], length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return answers sampled at temperature 1, at most `length` tokens each: (prompt and answer [n, tokens], whether a
    token is of the answer, its end of text included [n, tokens])."""
    torch.manual_seed(seed)
    inputs = {name: value.to(model.device) for name, value in _pad(tokenizer, prompts).items()}
    ids = model.generate(
        **inputs, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=length,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    new = ids[:, inputs["input_ids"].shape[1] :]
    ended = (new == tokenizer.eos_token_id).cumsum(1)
    inside = (ended == 0) | ((ended == 1) & (new == tokenizer.eos_token_id))
    return ids, torch.cat([torch.zeros_like(inputs["input_ids"], dtype=torch.bool), inside], 1)


def _pad(tokenizer: Any, prompts: Sequence[str]) -> dict[str, Tensor]:
    """Return ids padded on the left, and a mask of the ids that are not padding."""
    options = {"return_tensors": "pt", "padding": True, "padding_side": "left", "add_special_tokens": False}
    encoded = tokenizer(list(prompts), **options)
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}


@torch.no_grad()
def compute_log_probabilities(model: Any, ids: Tensor, attended: Tensor) -> Tensor:
    """Return log probabilities of the whole vocabulary, in nats, at each place but the first [n, tokens - 1,
    vocabulary]."""
    positions = (attended.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=attended, position_ids=positions).logits[:, :-1]
    return logits.double().log_softmax(-1)


@torch.no_grad()
def measure_divergence(
    policy: Any, start: Any, tokenizer: Any, prompts: Sequence[str], length: int, seed: int
) -> float:
    """Return KL(policy | start) of whole answers, in nats: of each token's distribution, summed over sampled answers of
    the policy and averaged over prompts. Its mean equals that of log p(answer) - log q(answer), with less noise."""
    divergences: list[float] = []
    for first in range(0, len(prompts), AT_A_TIME):
        part = list(prompts[first : first + AT_A_TIME])
        ids, inside = sample_answers(policy, tokenizer, part, length, seed + first)
        attended = torch.ones_like(ids)
        mask = _pad(tokenizer, part)["attention_mask"]
        attended[:, : mask.shape[1]] = mask.to(ids.device)
        ours, theirs = (compute_log_probabilities(model, ids, attended) for model in (policy, start))
        each = (ours.exp() * (ours - theirs)).sum(-1)
        divergences += (each * inside[:, 1:]).sum(1).tolist()
    return fmean(divergences)


@torch.no_grad()
def reward_answers(
    policy: Any, tokenizer: Any, prompts: Sequence[str], reward: Reward, length: int, seed: int
) -> list[float]:
    """Return the rewards of sampled answers, one for each prompt."""
    sampled = zip(*sample_answers(policy, tokenizer, prompts, length, seed), strict=True)
    return reward(prompts, [tokenizer.decode(row[inside], skip_special_tokens=True) for row, inside in sampled])


def compute_win_rate(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the share of prompts on which the first reward is higher; equal rewards count as half a win."""
    return sum(0.5 if a == b else float(a > b) for a, b in zip(ours, theirs, strict=True)) / len(ours)


def measure_margins(policy: Any, start: Any, tokenizer: Any, pairs: Sequence[Pair], beta: float) -> list[float]:
    """Return DPO's reward of each chosen answer minus that of the rejected answer: beta times the difference of the log
    ratios of `policy` to `start`."""
    margins = []
    for pair in pairs:
        sides = []
        for answer in (pair.chosen, pair.rejected):
            prompt, whole = (_tokenize(tokenizer, text) for text in (pair.prompt, answer))
            ids = torch.tensor([[*prompt, *whole, tokenizer.eos_token_id]], device=policy.device)
            ours, theirs = (
                compute_log_probabilities(model, ids, torch.ones_like(ids)).gather(-1, ids[:, 1:, None])[0, :, 0]
                for model in (policy, start)
            )
            sides.append(float((ours - theirs)[len(prompt) - 1 :].sum()))
        margins.append(beta * (sides[0] - sides[1]))
    return margins


@torch.no_grad()
def score_answers(model: Any, tokenizer: Any, prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
    """Return the reward of each answer, with its end of text."""
    rewards = []
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = [*_tokenize(tokenizer, prompt + answer), tokenizer.eos_token_id]
        tokens = torch.tensor([ids], device=model.device)
        rewards.append(float(model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits[0, 0]))
    return rewards


def _tokenize(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


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


def load_reward(name: str, trusted: bool = False) -> Reward:
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
    return lambda prompts, answers: score_answers(model, tokenizer, prompts, answers)
