"""Opening models of transformers with a span head, such as a BERT that was fine-tuned on SQuAD."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ablate.addons.papers.spans.answers import Spans, Windows, build_windows, choose_answers, find_spans, score_answers
from ablate.addons.papers.spans.squad import NAME, load_questions
from ablate.config.errors import AblateError, DataError
from ablate.diagnostics.measures import Batch, Layers, Subject
from ablate.diagnostics.opening import Opened, Opening
from ablate.diagnostics.opening.libraries import find_tokenizer, identify_model, import_transformers, translate_errors

BATCH = 16
"""Windows in a batch when answers are scored."""


def open_span_model(name: str, config: Any, opening: Opening) -> Opened:
    """Return the model with a span head of a folder, or of the hub's repository, `name`. Its data are the questions of
    `opening`. Raises AblateError, also for a model that has no weights of a span head."""
    if NAME not in opening.tasks:
        raise DataError(
            f"hf:{name} has a span head, so it is measured on questions of SQuAD: --what pruning --tasks squad "
            "--task-data FOLDER"
        )
    if config.is_encoder_decoder:
        raise AblateError(f"hf:{name} has an encoder and a decoder; a model with one stack of layers can be measured.")
    if find_tokenizer(name) is None:
        raise DataError(f"hf:{name} has no tokenizer: save its tokenizer.json or vocab.txt in the same folder.")
    transformers = import_transformers()
    with translate_errors(name):
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=opening.trust_remote_code)
        model, info = transformers.AutoModelForQuestionAnswering.from_pretrained(
            name,
            config=config,
            dtype=opening.dtype,
            trust_remote_code=opening.trust_remote_code,
            output_loading_info=True,
        )
    _check_model(name, config, info["missing_keys"], tokenizer)
    model = model.to(opening.device).eval()
    questions = load_questions(opening.task_data, opening.limit)
    accepted = list(inspect.signature(model.forward).parameters)
    longest = min(
        getattr(config.get_text_config(), "max_position_embeddings", None) or 10**9, tokenizer.model_max_length
    )
    windows = build_windows(questions, tokenizer, accepted, longest)
    digest = hashlib.sha256(repr(questions).encode()).hexdigest()[:16]
    subject = Subject(
        label=Path(name).name,
        layers=Layers(model),
        forward=lambda batch: _forward(model, batch),
        items=len(windows),
        load=lambda first, last: _load(windows, first, last),
        per_item=windows.length,
        unit="tokens",
        sum_losses=lambda batch: _sum_losses(_forward(model, batch), batch),
        task=NAME,
        score=lambda: {f"squad/{metric}": value for metric, value in _score(subject, windows).items()},
        device=opening.device,
        identity=f"{identify_model(name, model)} {digest} {windows.length} {opening.dtype}",
    )
    return Opened(
        subject, f"squad: {len(questions):,} questions in {len(windows):,} windows of {windows.length} tokens"
    )


def _check_model(name: str, config: Any, missing: Sequence[str], tokenizer: Any) -> None:
    """Raise AblateError if a model that is loaded cannot answer."""
    if missing:
        raise AblateError(
            f"hf:{name} has no weights of {', '.join(sorted(missing)[:4])}: give a model that was fine-tuned on SQuAD."
        )
    if not tokenizer.is_fast:
        raise AblateError(f"The tokenizer of hf:{name} has no fast form, which knows the characters of its tokens.")
    size = config.get_text_config().vocab_size
    if len(tokenizer) > size:
        raise AblateError(f"The tokenizer of hf:{name} has {len(tokenizer)} tokens and the model {size}.")


def _load(windows: Windows, first: int, last: int) -> Batch:
    """Return some windows, without the padding that all of them have."""
    inputs = {name: values[first:last] for name, values in windows.inputs.items()}
    there = inputs["attention_mask"].bool()
    length = int(there.sum(1).max())
    return Batch(
        {name: values[:, :length] for name, values in inputs.items()},
        windows.targets[first:last],
        None if there[:, :length].all() else there[:, :length],
    )


def _forward(model: nn.Module, batch: Batch) -> Tensor:
    """Return the logits of the first and of the last token of the answer, [batch, seq, 2]."""
    output = model(**batch.inputs)
    return torch.stack([output.start_logits, output.end_logits], -1)


def _sum_losses(logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return (cross-entropy of first and last tokens in nats, 0, their number). Its mean is the loss of training, but
    that padding has no probability, so that it does not depend on the batch."""
    if batch.there is not None:
        logits = logits.masked_fill(~batch.there[..., None], -torch.inf)
    loss = nn.functional.cross_entropy(logits.float(), batch.targets, reduction="sum")
    return loss, torch.zeros_like(batch.targets[0, 0]), torch.tensor(batch.targets.numel(), device=loss.device)


def _score(subject: Subject, windows: Windows) -> Mapping[str, float]:
    """Return the scores of the model in its present state on all questions."""
    parts = []
    with torch.no_grad():
        for first in range(0, len(windows), BATCH):
            batch = subject.load_batch(first, min(len(windows), first + BATCH))
            begins, ends = subject.forward(batch).unbind(-1)
            is_text = windows.characters[first : first + BATCH, : begins.shape[1], 0] >= 0
            there = torch.ones_like(is_text) if batch.there is None else batch.there
            parts.append(find_spans(begins, ends, is_text.to(begins.device), there.to(begins.device)))
    spans = Spans(*(torch.cat(values).cpu() for values in zip(*parts, strict=True)))
    return score_answers(windows.questions, choose_answers(windows, spans))
