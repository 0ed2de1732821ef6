"""Formats that exist only for one family of models."""

from __future__ import annotations

from ablate.config.errors import AblateError
from ablate.models import ModelConfig, models

FAMILIES = {"hf": ("llama", "LLaMA models"), "timm": ("vit", "ViTs")}
"""Form -> (the kind of model, the name of such models in messages)."""
FOR_ALL = ("consolidated", "safetensors")


def check_family(form: str, model: ModelConfig) -> None:
    """Raise AblateError if `form` is for another family of models."""
    family, members = FAMILIES[form]
    if not isinstance(model, models[family]):
        accepted = [*(name for name, (other, _) in FAMILIES.items() if isinstance(model, models[other])), *FOR_ALL]
        raise AblateError(
            f"{form} is for {members}, and this model is a {model.title}. Accepted for it: {', '.join(accepted)}."
        )
