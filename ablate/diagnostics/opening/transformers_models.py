"""Opening language models of transformers, from a folder or the hub."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ablate import tracking
from ablate.config.errors import AblateError, DataError
from ablate.config.hub import find_model
from ablate.data import Corpus
from ablate.data.text.tokenizers import load_data_tokenizer
from ablate.diagnostics.kinds import heads
from ablate.diagnostics.measures import Batch, Layers, Subject
from ablate.diagnostics.measures.subject import build_loader
from ablate.diagnostics.opening.base import Opened, Opening
from ablate.diagnostics.opening.data import load_data, mask_tokens
from ablate.diagnostics.opening.loading import find_tokenizer, identify_model, import_transformers, translate_errors

MASKS = ("[MASK]", "<mask>")
FIRST, LAST = ("[CLS]", "<s>"), ("[SEP]", "</s>")


def open_transformers(name: str, opening: Opening) -> Opened:
    """Return the causal or masked language model, or the model with a head of `kinds.heads`, of the folder, or of the
    hub's repository, `name`."""
    transformers = import_transformers()
    name = find_model(name)
    with translate_errors(name):
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=opening.trust_remote_code)
    own = [head() for head in heads.values()]
    if head := next((head for head in own if head.accepts(config)), None):
        return head.open(name, config, opening)
    if opening.tasks and all(task in heads for task in opening.tasks):
        head = heads[opening.tasks[0]]()
        raise AblateError(
            f"hf:{name} has no {head.noun}, which the task {head.name} needs: {head.advice}. Its architectures: "
            f"{', '.join(config.architectures or ['unknown'])}."
        )
    masked = _is_masked(config)
    auto = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    config.use_cache = False
    with translate_errors(name):
        model = auto.from_pretrained(
            name, config=config, dtype=opening.dtype, trust_remote_code=opening.trust_remote_code
        )
    model = model.to(opening.device).eval()
    if not opening.data:
        raise DataError(
            f"hf:{name} needs text for the measurement: --data FILE.txt, or settings of data such as "
            "--data dataset=Salesforce/wikitext subset=wikitext-2-raw-v1 val_split=test"
        )
    tokenizer = find_tokenizer(name)
    base = {"data": {"kind": "text", **({"tokenizer": tokenizer} if tokenizer else {})}}
    experiment, corpus = load_data(base, opening.data, "--data")
    _check_data(name, config, corpus, getattr(experiment.data, "tokenizer", None), tokenizer, opening.data)
    datasets = [corpus.val, corpus.train]  # it has seen neither
    load = build_loader(datasets, padded=True)
    if masked:
        load = mask_tokens(load, *_special_tokens(name, experiment.data.tokenizer))  # type: ignore[attr-defined]

    def forward(batch: Batch) -> torch.Tensor:
        padding = {} if batch.there is None else {"attention_mask": batch.there.long()}
        logits: torch.Tensor = model(input_ids=batch.inputs, **padding).logits
        return logits

    subject = Subject(
        label=Path(name).name,
        layers=Layers(model),
        forward=forward,
        items=sum(map(len, datasets)),
        load=load,
        per_item=corpus.shape[0],
        unit="tokens",
        device=opening.device,
        identity=f"{identify_model(name, model)} {corpus.identity} {experiment.data!r} {opening.dtype}",
    )
    encoder = partial(load_data_tokenizer, experiment.data, tracking.cache_folder())
    return Opened(subject, corpus.description, tokenizer=None if masked else encoder)


def _is_masked(config: Any) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    if architectures := config.architectures:
        return any("MaskedLM" in name or "PreTraining" in name for name in architectures)
    return config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES


def _check_data(
    name: str, config: Any, corpus: Corpus, used: str | None, own: str | None, words: Sequence[str]
) -> None:
    """Raise DataError if the data does not fit the model."""
    named = any("tokenizer=" in word for word in words)
    if used is None or (own is None and not named):
        lacks = "the data is bytes" if used is None else f"hf:{name} has no tokenizer"
        raise DataError(f"{lacks}: give text and --data tokenizer=FILE of the model's tokenizer (or tokenizer=bytes).")
    config = config.get_text_config()
    if corpus.classes > config.vocab_size:
        text = f"The tokenizer {used} has {corpus.classes} tokens and hf:{name} has {config.vocab_size}."
        raise DataError(f"{text} Give the model's own with --data tokenizer=FILE.")
    longest = getattr(config, "max_position_embeddings", None)
    if longest and corpus.shape[0] > longest:
        raise DataError(
            f"data.seq_len is {corpus.shape[0]}, and hf:{name} has {longest} positions. Set a smaller data.seq_len."
        )


def _special_tokens(name: str, tokenizer: str) -> tuple[int, tuple[int | None, int | None]]:
    """Return the tokenizer's ids: (of the mask, (of the first token of a sequence, of the last))."""
    from tokenizers import Tokenizer

    path = Path(tokenizer)
    with translate_errors(name):
        try:
            vocabulary = (
                Tokenizer.from_file(str(path)) if os.path.isfile(path) else Tokenizer.from_pretrained(tokenizer)
            )
        except Exception as error:  # tokenizers raises plain exceptions
            raise ValueError(f"its tokenizer {tokenizer} cannot be read: {error}") from None

    def find_id(words: tuple[str, ...]) -> int | None:
        return next((number for word in words if (number := vocabulary.token_to_id(word)) is not None), None)

    if (mask := find_id(MASKS)) is None:
        raise DataError(f"The tokenizer {tokenizer} has none of {', '.join(MASKS)}, so hf:{name} cannot be measured.")
    return mask, (find_id(FIRST), find_id(LAST))
