"""The corpora of the papers by name, `data=c4`. Further settings override these."""

from __future__ import annotations

from typing import Any

from ablate.data.base import data_kinds

PAPER_TOKENS = 1_100_000_000
"""Training tokens of the papers' smallest model, 71M. Larger models need more: data.train_tokens=8_900_000_000."""

VALIDATED = 10_000_000
"""The minimum number of tokens that the papers evaluate on."""

PRESETS: dict[str, dict[str, Any]] = {
    # Mix-LN and LNS: C4, English, T5's tokenizer, a document in each row of 256
    "c4": {
        "dataset": "allenai/c4",
        "subset": "en",
        "val_split": "validation",
        "tokenizer": "t5-base",
        "layout": "documents",
        "seq_len": 256,
        "train_tokens": PAPER_TOKENS,
    },
    # two-stage pre-training: FineWeb-Edu, which has no validation split, GPT-2's tokenizer, windows of 1024
    "fineweb-edu": {
        "dataset": "HuggingFaceFW/fineweb-edu",
        "subset": "sample-100BT",
        "tokenizer": "gpt2",
        "seq_len": 1024,
        "train_tokens": PAPER_TOKENS,
    },
    # a row is a line of an article; the whole of it has 0.1 billion tokens
    "wikitext": {
        "dataset": "Salesforce/wikitext",
        "subset": "wikitext-103-raw-v1",
        "val_split": "validation",
        "tokenizer": "gpt2",
        "seq_len": 256,
    },
    # a sample of six billion tokens of SlimPajama-627B, which is dataset=cerebras/SlimPajama-627B
    "slimpajama": {
        "dataset": "DKYoon/SlimPajama-6B",
        "val_split": "validation",
        "tokenizer": "gpt2",
        "seq_len": 256,
        "train_tokens": PAPER_TOKENS,
    },
}

for _name, _fields in PRESETS.items():
    data_kinds.preset(_name, "text", **_fields, val_tokens=VALIDATED)
