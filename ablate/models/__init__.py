"""The model families: LLaMA and ViT, with one norm registry."""

from ablate.models import llama, sizes, vit
from ablate.models.base import Model, ModelConfig, TensorPlan, models

__all__ = ["Model", "ModelConfig", "TensorPlan", "llama", "models", "sizes", "vit"]
