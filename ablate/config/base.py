"""The base classes of every configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
)


class Config(BaseModel):
    """A frozen part of the configuration. Unknown keys are errors; the docstring under a field describes it.

    Types are strict: neither true nor "100" is a number. A class checks that its fields fit each other, the model or
    the batch in `validate(...) -> list[Problem]`, with paths relative to the class (this overrides pydantic's own,
    deprecated `validate`).
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
        serialize_by_alias=True,
    )

    replaces: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Field -> the fields for which it is an alternative: a layer of settings that gives it drops them from the layers
    below, unless it gives them too (`merging.merge`)."""

    @field_validator("*", mode="wrap")
    @classmethod
    def _as_in_yaml(cls, value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        """Convert values as YAML and JSON write them: a tuple as a list, 1000 as 1e3."""
        try:
            return validate(value)
        except ValidationError as error:
            kinds = {details["type"] for details in error.errors() if not details["loc"]}
            if isinstance(value, list) and "tuple_type" in kinds:
                return validate(tuple(value))
            if isinstance(value, float) and value.is_integer() and "int_type" in kinds:
                return validate(int(value))
            raise


_AS_TUPLE = BeforeValidator(
    lambda value: value if isinstance(value, (list, tuple)) else (value,), json_schema_input_type=str | tuple[str, ...]
)
Names = Annotated[tuple[str, ...], _AS_TUPLE]
"""The type of a field that takes one name or several."""


class Kind(Config):
    """A configuration that a registry can hold: subclasses set `kind: Literal["name"] = "name"`."""

    kind: str

    listed: ClassVar[bool] = True
    """Whether the lists of its registry show it. A kind that only some models accept is not shown, but accepted by
    name."""
