"""A class of a library, given by its name, with its arguments as further keys: checks of both."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from ablate.config.errors import Problem, did_you_mean
from ablate.config.messages import describe_errors

_LONG = 20  # names that a message lists


def describe_class(cls: type[Any]) -> str:
    """Return the first line of a class's documentation without its closing mark and addresses."""
    lines = [line for line in (inspect.getdoc(cls) or "").splitlines() if line]
    return re.sub(r"`([^`<]+?) <[^>]*>`__", r"\1", lines[0]).rstrip(".") if lines else ""


def validate_name(name: str, refused: Mapping[str, str | None], library: str, noun: str, listing: str) -> list[Problem]:
    """Return the problems of the name of a class.

    Args:
        name: as it was given.
        refused: each name of the library -> why it cannot be used; None: it can.
        library: the library, for the message.
        noun: what its classes are, for the message.
        listing: the command that lists them.
    """
    if name in refused:
        return [Problem("name", f"cannot be used here: {reason}", name)] if (reason := refused[name]) else []
    near = {known.lower(): known for known, reason in refused.items() if reason is None}
    hint = did_you_mean(name.lower(), near)
    listed = ", ".join(near.values()) if len(near) <= _LONG else f"what `{listing}` lists"
    meant = f" Did you mean {near[hint.split()[-1][:-1]]}?" if hint else ""
    return [Problem("name", f"{library} has no such {noun}. Accepted: {listed}.{meant}", name)]


class Arguments(BaseModel):
    """The arguments of a class, read from JSON, whose lists are tuples where it wants these."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def model_arguments(name: str, fields: Mapping[str, tuple[Any, Any]]) -> type[Arguments]:
    """Return the model of a class's arguments: `fields` are its arguments, each with type and default."""
    more: dict[str, Any] = dict(fields)
    return create_model(name, __base__=Arguments, **more)


def validate_arguments(owner: str, model: type[Arguments], arguments: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of the names and types of `arguments`; `owner` names their class in messages."""
    known = list(model.model_fields)
    accepted = ", ".join(known) or "nothing"
    problems = [
        Problem(key, f"{owner} has no such argument. Accepted: {accepted}.{did_you_mean(key, known)}", value)
        for key, value in arguments.items()
        if key not in known
    ]
    try:
        convert_arguments(model, {key: value for key, value in arguments.items() if key in known})
    except ValidationError as error:
        problems += _join_members(describe_errors(model, dict(arguments), error))
    return problems


def convert_arguments(model: type[Arguments], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as the class takes them. Raises ValidationError."""
    given = json.dumps(dict(arguments), default=str)
    values = model.model_validate_json(given)
    return {key: getattr(values, key) for key in arguments}


def _join_members(problems: list[Problem]) -> list[Problem]:
    """Return `problems` with one for each argument that none of the members of its type, such as list[float], fits."""
    named = {
        problem.path.partition("[")[0].rpartition(".")[0] if "[" in problem.path else problem.path: problem
        for problem in reversed(problems)
    }
    return [replace(problem, path=path) for path, problem in reversed(named.items())]
