"""Classes of Optuna as kinds of the configuration: each under a short name, and all by Optuna's names."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import field_validator

from ablate.config import calls
from ablate.config.base import Kind
from ablate.config.errors import Problem, did_you_mean
from ablate.sweeps.search import optuna_classes


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
        optuna_class = optuna_classes.PACKAGES[cls.package].find(cls.optuna_class)
        known = [one.name for one in optuna_classes.list_parameters(optuna_class, cls.set_by_sweep)]
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

    def list_arguments(self) -> dict[str, Any]:
        """Return the arguments of Optuna's class that are given: the fields and the options."""
        fields = {name: getattr(self, name) for name in type(self).model_fields if name not in self.not_arguments}
        return {**fields, **self.options}


class NamedKind(Kind):
    """A class of Optuna by its name. Further keys are its own arguments; what is not given takes Optuna's default.
    Names, types and values are checked."""

    package: ClassVar[str]
    """The module of optuna that has the class: samplers or pruners."""
    set_by_sweep: ClassVar[tuple[str, ...]] = ()
    """Arguments that are not accepted, because the sweep sets them."""

    kind: str
    name: str
    """Optuna's name of the class."""

    def list_arguments(self) -> dict[str, Any]:
        """Return the arguments of Optuna's class that are given."""
        return dict(self.model_extra or {})

    def validate_arguments(self) -> list[Problem]:
        """Return what is wrong with the name and the arguments; imports Optuna."""
        package = optuna_classes.PACKAGES[self.package]
        if problems := package.validate_name(self.name):
            return problems
        model = optuna_classes.model_arguments(package.find(self.name), self.set_by_sweep)
        owner, arguments = f"{self.name} of Optuna", self.list_arguments()
        if problems := calls.validate_arguments(owner, model, arguments):
            return problems
        try:
            self.build_example()
        except Exception as error:  # whatever Optuna raises: it is about what was given
            return [Problem("", f"{owner} refuses its arguments: {error}", arguments)]
        return []

    def build_example(self) -> Any:
        """Return an instance, to see whether Optuna takes the arguments."""
        raise NotImplementedError
