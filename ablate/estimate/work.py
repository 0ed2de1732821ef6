"""What an experiment costs, by formula: nothing is trained and no data is read."""

from __future__ import annotations

from dataclasses import dataclass

from ablate.data.text.tokenizers import KNOWN_SIZES
from ablate.estimate.formulas import items_per_update
from ablate.estimate.gpus import GPUS
from ablate.estimate.skeleton import skeleton
from ablate.estimate.utilisation import utilisation
from ablate.experiment.tree import Experiment

H100_FLOPS = GPUS["h100-80gb"].bf16
_PAPERS_VOCABULARY = KNOWN_SIZES["t5-base"]  # and LLaMA's


@dataclass(frozen=True)
class Work:
    """What one trial takes."""

    items: int
    """Tokens or images."""
    flops: float
    """Floating-point operations, forwards and backwards."""
    utilisation: float
    """The share of its peak that an H100 is taken to reach."""

    @property
    def gpu_hours(self) -> float:
        """Hours of one H100."""
        return self.flops / (H100_FLOPS * self.utilisation) / 3600


def items_of(experiment: Experiment) -> int:
    """Tokens or images of one trial; of an alignment pairs or answers."""
    return experiment.trainer.max_steps * items_per_update(experiment)


def vocabulary_of(experiment: Experiment) -> int:
    """The vocabulary, as far as it is known without loading the tokenizer; else 32,000, that of the papers."""
    tokenizer = str(getattr(experiment.data, "tokenizer", "bytes"))
    return getattr(experiment.model, "vocab_size", None) or KNOWN_SIZES.get(tokenizer, _PAPERS_VOCABULARY)


def work(experiment: Experiment) -> Work | None:
    """Of one trial; None of an alignment: how long that takes is bound by memory while answers are generated, and by
    how long they come out, and no FLOPs tell that.

    6 operations for each weight of the layers and of the head and each token (a look-up in the embedding is free; a
    frozen head, and a matrix that is adapted instead, has no gradient of its own, and hands one on: 4), and 12 L d T
    for the attention of a token to T others, half of it where that is causal. All as `ablate plan` counts them, and at
    the utilisation that it assumes. Validation is left out.

    An image is the tokens of its patches and one more; its patch embedding and head are left out.
    """
    if experiment.procedure != "training":
        return None
    model, data = experiment.model, experiment.data
    weights, tokens = float(model.layer_parameters()), getattr(data, "seq_len", None)
    if experiment.lora is not None:
        weights = 4 / 6 * weights + _learned(experiment)
    if tokens is None:
        side = getattr(data, "image_size", 8) // getattr(model, "patch_size", 1)
        tokens = per_item = 1 + side * side
        attention = 12
    else:
        start = experiment.warm_start
        frozen = experiment.lora is not None or (start is not None and "head" in start.freeze)
        head = (4 if frozen else 6) / 6 * vocabulary_of(experiment) * model.hidden
        weights, per_item = weights + head, 1
        attention = 6
    items = items_of(experiment)
    flops = float(items * per_item * (6 * weights + attention * model.layers * model.hidden * tokens))
    return Work(items, flops, utilisation(model.layer_parameters()))


def _learned(experiment: Experiment) -> int:
    """The parameters of adapters. Raises ConfigError for unknown targets, AblateError without peft."""
    side = getattr(experiment.data, "image_size", 8)
    shape = (experiment.data.seq_len,) if hasattr(experiment.data, "seq_len") else (3, side, side)
    return skeleton(experiment, vocabulary_of(experiment), shape).parameter_count()
