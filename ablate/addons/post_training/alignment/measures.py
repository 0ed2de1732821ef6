"""Measurements of an aligned model: rewards, divergence from the start, and win rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ablate.data.conversations.preferences import Pair

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
