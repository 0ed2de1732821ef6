"""The fields of `warm_start`: weights to start from, and weights that are not trained."""

from __future__ import annotations

from pydantic import Field, model_validator

from ablate.config.base import Config, Names


class WarmStart(Config):
    """Weights to start from, and weights that are not trained."""

    donor: str | None = Field(None, alias="from")
    """The source run, whose weights are copied: a run's id, the path of a checkpoint, a folder that `ablate export --to
    safetensors` has written, or sweep:NAME/ARM for the trial that represents an arm. None: nothing is copied."""
    copied: Names = Field((), alias="copy")
    """Parts that are copied from the source run: embedding, final_norm, head, layers.0.attn, layers.0.mlp, ...,
    layers.0, layers or all for several. A sublayer includes the norms and learned factors of its residual
    connection."""
    freeze: Names = ()
    """Parts that are not trained: no gradient, no moments, no weight decay."""
    sha256: str | None = None
    """SHA-256 of the source run's weights. A run records it; if it is given, other weights are refused."""
    flops: float | None = Field(None, ge=0)
    """Floating-point operations of the source run, including its own source runs. A run records them."""

    @model_validator(mode="after")
    def _something(self) -> WarmStart:
        if self.copied and self.donor is None:
            raise ValueError("copy needs from: the run or the checkpoint to copy from")
        if self.donor is not None and not self.copied:
            raise ValueError("from without copy would copy nothing: set the parts, such as copy: [embedding, head]")
        if not self.copied and not self.freeze:
            raise ValueError("neither copies nor freezes anything: remove it, or set parts")
        return self
