"""The fields of `warm_start`: weights to start from, and weights that are not trained."""

from __future__ import annotations

from pydantic import Field, model_validator

from ablate.config.base import Config, Names


class WarmStart(Config):
    """Weights to start from, and weights that are not trained."""

    donor: str | None = Field(None, alias="from")
    """Whose weights are copied: a run's id, the path of a checkpoint, a folder that `ablate export --to safetensors`
    has written, or sweep:NAME/ARM, the trial that stands for an arm. None: nothing is copied."""
    copied: Names = Field((), alias="copy")
    """Parts that start as the donor's: embedding, final_norm, head, layers.0.attn, layers.0.mlp, ..., layers.0, layers
    or all for several. A sublayer comes with the norms and learned factors of its residual connection."""
    freeze: Names = ()
    """Parts that are not trained: no gradient, no moments, no weight decay."""
    sha256: str | None = None
    """Of the donor's weights. A run writes down what it found, and with this given takes no others."""
    flops: float | None = Field(None, ge=0)
    """Floating-point operations that the donor has taken, with those of its own donors. A run writes them down."""

    @model_validator(mode="after")
    def _something(self) -> WarmStart:
        if self.copied and self.donor is None:
            raise ValueError("copy needs from: the run or the checkpoint to copy from")
        if self.donor is not None and not self.copied:
            raise ValueError("from without copy would copy nothing: name parts, such as copy: [embedding, head]")
        if not self.copied and not self.freeze:
            raise ValueError("neither copies nor freezes anything: leave it out, or name parts")
        return self
