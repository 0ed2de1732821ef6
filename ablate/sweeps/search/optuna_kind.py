"""Classes of Optuna as kinds of the configuration."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import field_validator

from ablate.config.base import Kind
from ablate.config.errors import did_you_mean

if TYPE_CHECKING:
    pass


class OptunaKind(Kind):
    """A class of Optuna with its arguments: some are fields here, others are given in `options`."""

    package: ClassVar[str]
    """The module of optuna that has the class: samplers or pruners."""
    optuna_class: ClassVar[str]
    """Its name."""
    set_by_sweep: ClassVar[tuple[str, ...]] = ()
    """Arguments that are not accepted as options, because the sweep sets them."""
    not_arguments: ClassVar[tuple[str, ...]] = ("kind", "options")
    """The fields that are not arguments of Optuna's class under their own names; all other fields are."""

    kind: str
    options: dict[str, Any] = {}
    """Further arguments of Optuna's class, under its names."""

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        if not options:
            return options  # without importing Optuna
        known = [name for name in inspect.signature(cls._find_class()).parameters if name not in cls.set_by_sweep]
        fields = [name for name in known if name in cls.model_fields]
        for name in options:
            if name in fields:
                raise ValueError(f"{name} is a field next to options: set it there, not in options")
            if name not in known:
                rest = [other for other in known if other not in fields]
                hint = did_you_mean(name, rest)
                raise ValueError(
                    f"{cls.optuna_class} has no argument {name}. Accepted: {', '.join(rest) or 'nothing'}.{hint}"
                )
        return options

    @classmethod
    def _find_class(cls) -> Any:
        from importlib import import_module

        return getattr(import_module(f"optuna.{cls.package}"), cls.optuna_class)

    def instantiate(self, **arguments: Any) -> Any:
        """Return an instance of Optuna's class, from the fields, the options and `arguments`."""
        fields = {name: getattr(self, name) for name in type(self).model_fields if name not in self.not_arguments}
        return self._find_class()(**fields, **self.options, **arguments)
