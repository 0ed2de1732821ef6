"""reference/norms.md: every placement, norm layer and initialisation, from the registries."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch

from ablate.config.formatting import join_words
from ablate.config.merging import iterate_leaves
from ablate.models.attention_config import AttentionConfig
from ablate.models.llama import Block, Llama
from ablate.norms import Placement, initializations, norm_layers, placements

_HEAD = """\
# Norms

Every placement, norm layer and initialisation. Written from the registries by `make docs`.

In formulas `N` is the norm layer (`norm.layer`), `f` a sublayer (attention, then MLP), `L` the number of layers,
`l` a layer's number from 1, `d` the width of the hidden state,
`m` the width of the MLP, `k` the width of one attention head.
Every formula is tested against a second implementation written from it, in `tests/norms/reference.py`: outputs and
gradients of whole models of both families (nGPT: of LLaMA), with every norm layer, in float64 to 1e-10.

Placements wire residual connections. A GRU and a ConvPool-CNN-C have none: `model=gru` and `model=convpool` take the
norm layers alone, on the summed inputs of each layer
([Models](models.md#norm-layers-in-a-gru-and-in-a-convolutional-network)).

With every placement but nGPT, `norm.final_norm` (on by default, as in the papers' experiments) adds one norm before the
head. Post-LN and DeepNorm then end with two norms in a row; DeepNet's reference code has none.

Beside every placement but HybridNorm, SiameseNorm's hybrid_pre and nGPT, `norm.qk` (such as `norm.qk=rmsnorm`) norms
queries and keys before any rotary embedding: over the features of each head, with gains that all heads share
(`norm.qk_over=head`, as in Qwen3), or over all queries and all keys of a token (`norm.qk_over=width`, as in OLMo 2).
What else may be inside of the attention is [below](#attention).
"""
_ATTENTION = """\
## Attention

Options inside of the attention of LLaMA and ViT, beside every placement (temperature and QK-clip where nothing else
norms the queries; nGPT takes sinks and value residuals alone); `ablate list attention` lists them. All are off by
default, and a sweep may compare them (`factor: model.attention`):

```bash
ablate train model.attention.gate=headwise model.attention.sink=learned trainer.max_steps=20
```

QK-clip acts after each update of training: it adds nothing to the model, and needs the logits of a head at a time once
more. `ablate plan` counts both, a third more FLOPs of a causal attention and the memory of that one head. Padding
counts as any token does, validation does not. What TRL trains (`ablate align`) is not clipped.

Vectors (sinks, temperatures, factors of values) are in the group `norms` and never decay. The matrix of an elementwise
gate is one of `matrices`, that of a headwise gate has a group of its own, `gates`, which Muon leaves to AdamW. All
other weights start with the values that they have without an option. Tensor parallelism refuses the options, and
`ablate export --to hf` writes all but QK-clip as a class with code of its own.
"""


def build_page() -> str:
    """Return the whole page, Markdown."""
    parts = [
        _HEAD,
        "## Placements\n",
        *(_describe_placement(placements[kind]) for kind in placements),
        _describe_presets(),
    ]
    parts += [_ATTENTION, *(_describe_option(name, field) for name, field in AttentionConfig.model_fields.items())]
    parts += ["## Norm layers\n", *(_describe_norm_layer(norm_layers[kind]) for kind in norm_layers)]
    parts += ["## Initialisations\n", *(_describe_initialisation(initializations[kind]) for kind in initializations)]
    return "\n".join(parts)


def _describe_placement(cls: Any) -> str:
    kind, own = cls.model_fields["kind"].default, cls()
    also_normed = [
        text
        for is_normed, text in (
            (own.embedding_norm, "the embedding"),
            (own.inner_norm, "the inputs of both output projections"),
            (own.qkv_norm, "each head's queries, keys and values"),
        )
        if is_normed
    ]
    facts = {
        "Formula": f"`{cls.rule}`",
        "Also normed": join_words(also_normed) if also_normed else "",
        "Initialisation": cls.initialisation,
        "Parameters": f"{_count_parameters(cls())} in the norms and factors of a layer, with RMSNorm",
        "Settings": _describe_settings(cls, Placement),
        "Source": cls.source,
        "Caveats": cls.caveats,
    }
    return f"### {kind}\n\n{_read_docstring(cls)}\n\n```text\n{cls.diagram}\n```\n\n{_join_facts(facts)}"


def _describe_option(name: str, field: Any) -> str:
    facts = {"Accepted": join_words(f"`{value}`" for value in AttentionConfig.list_accepted(name))}
    return f"### model.attention.{name}\n\n{' '.join((field.description or '').split())}\n\n{_join_facts(facts)}"


def _describe_norm_layer(cls: Any) -> str:
    kind = cls.model_fields["kind"].default
    facts = {
        "Formula": f"`{cls.formula}`",
        "Settings": _describe_settings(cls),
        "Source": cls.source,
        "Caveats": cls.caveats,
    }
    return f"### {kind}\n\n{_read_docstring(cls)}\n\n{_join_facts(facts)}"


def _describe_initialisation(cls: Any) -> str:
    kind = cls.model_fields["kind"].default
    facts = {"Standard deviation": f"`{cls.formula}`", "Settings": _describe_settings(cls), "Source": cls.source}
    return f"### {kind}\n\n{_read_docstring(cls)}\n\n{_join_facts(facts)}"


def _describe_presets() -> str:
    named = []
    for name, fields in placements.presets.items():
        settings = " ".join(f"norm.{path}={value}" for path, value in iterate_leaves(fields))
        note = f" {placements.notes[name]}" if placements.notes[name] else ""
        named.append(f"### {name}\n\nA name for `{settings}`.{note}\n")
    return "\n".join(named)


def _read_docstring(item: object) -> str:
    return " ".join((inspect.getdoc(item) or "").split())


def _join_facts(facts: dict[str, str]) -> str:
    return "".join(f"- {name}: {text}\n" for name, text in facts.items() if text)


def _describe_settings(cls: Any, without: Any = None) -> str:
    hidden = {"kind", *(without.model_fields if without else ())}
    fields = [(name, field) for name, field in cls.model_fields.items() if name not in hidden]
    return " ".join(f"`{name}`: {' '.join((field.description or '').split())}" for name, field in fields)


def _count_parameters(placement: Placement) -> str:
    """Return the number of parameters of a LLaMA layer's norms and factors, as a sum over d, m, k and 1: the counts of
    five layers determine the four coefficients and check them."""
    sizes = [(16, 48, 2), (32, 48, 4), (16, 96, 2), (16, 48, 1), (48, 160, 3)]
    features, counts = [], []
    for hidden, mlp, heads in sizes:
        with torch.device("meta"):
            block = Block(Llama(hidden=hidden, mlp=mlp, layers=8, heads=heads), placement, 7)
        own = [p for name, p in block.named_parameters() if not re.search(r"proj(\.|$)", name)]  # but projections
        counts.append(float(sum(p.numel() for p in own)))
        features.append([float(hidden), float(mlp), hidden / heads, 1.0])
    a, b = torch.tensor(features, dtype=torch.float64), torch.tensor(counts, dtype=torch.float64)
    coefficients = torch.linalg.lstsq(a, b).solution.round()
    assert torch.equal(a @ coefficients, b), placement.kind
    terms = [(int(n), unit) for n, unit in zip(coefficients.tolist(), ("d", "m", "k", ""), strict=True) if n]
    return " + ".join(f"{n if n > 1 or not unit else ''}{unit}" for n, unit in terms) or "none"
