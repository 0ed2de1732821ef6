"""The model families, with one norm registry. Names that need torch are imported on first use."""

from typing import TYPE_CHECKING, Any

from ablate.models import llama_config, vit_config  # noqa: F401 - registers the families

# isort: split
from ablate.models import by_name, published  # noqa: F401
from ablate.models.config import ModelConfig, TensorPlan, list_families, models, validate_asks, validate_wiring

if TYPE_CHECKING:
    from ablate.models.base import Model

__all__ = ["Model", "ModelConfig", "TensorPlan", "list_families", "models", "validate_asks", "validate_wiring"]


def __getattr__(name: str) -> Any:
    """Return the name `Model`, which is imported on first use."""
    if name == "Model":
        from ablate.models.base import Model

        return Model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
