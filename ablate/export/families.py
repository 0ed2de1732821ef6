"""Formats that exist only for one family of models."""

from __future__ import annotations

from ablate.config.errors import AblateError

FAMILIES = {"hf": ("llama", "language models"), "timm": ("vit", "ViTs")}
"""Form -> (its kind of model, the name of such models in messages)."""
FOR_ALL = ("consolidated", "safetensors")


def check_family(form: str, kind: str) -> None:
    """Raise AblateError if `form` is for another kind of model."""
    family, members = FAMILIES[form]
    if kind != family:
        accepted = [*(name for name, (other, _) in FAMILIES.items() if other == kind), *FOR_ALL]
        raise AblateError(
            f"{form} is for {members}, and this model is a {kind}. Accepted for it: {', '.join(accepted)}."
        )
