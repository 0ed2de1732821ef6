"""`Experiment`: one training run as one validated, frozen tree, from YAML, `key=value` and Optuna alike."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import yaml
from pydantic import Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from ablate import plugins
from ablate.alignment.config import AlignConfig
from ablate.alignment.config import problems as problems_of_alignment
from ablate.data import DataConfig, data_kinds
from ablate.errors import ConfigError, Problem, did_you_mean
from ablate.evaluation.config import EvaluationConfig
from ablate.models import ModelConfig, models
from ablate.norms import Initialization, Placement, initializations, placements
from ablate.reading import read_yaml
from ablate.registry import Config, Kind, Names, Registry
from ablate.training.lora import Lora
from ablate.training.optim import OptimizerConfig, ScheduleConfig, optimizers, schedules
from ablate.training.trainer import TrainerConfig
from ablate.training.warm_start import WarmStart

Tree = dict[str, Any]


class Experiment(Config):
    """One training run. What is not given takes the default of its field, or of the model family."""

    model: Annotated[ModelConfig, models] = Field("llama", validate_default=True)
    """The model family and its size: a kind, or a named size such as llama-71m or vit-tiny."""
    norm: Annotated[Placement, placements] = Field("pre", validate_default=True)
    """The placement of the norms, with its own fields, and the norm layer."""
    init: Annotated[Initialization, initializations] = Field("normal", validate_default=True)
    """How the weights start."""
    data: Annotated[DataConfig, data_kinds] = Field("topics", validate_default=True)
    """What is trained on. Default: topics for LLaMA, digits for ViT."""
    optimizer: Annotated[OptimizerConfig, optimizers] = Field("adamw", validate_default=True)
    """The optimizer and its peak learning rate."""
    schedule: Annotated[ScheduleConfig, schedules] = Field("cosine", validate_default=True)
    """The course of the learning rate."""
    trainer: TrainerConfig = TrainerConfig()
    """How long, in what batches, in what precision."""
    warm_start: WarmStart | None = None
    """Weights of another run to start from, and weights that are not trained. None: all start by `init` and learn."""
    lora: Lora | None = None
    """Adapters beside the matrices of what `warm_start` copies, which alone are trained. None: the weights are."""
    align: AlignConfig | None = None
    """Preference pairs in the place of text: a reward model or a policy. None: trained on text or images."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Downstream tasks that are scored during training."""
    seed: int = Field(0, ge=0)
    """What the initial weights, the order of the data and any random depth depend on. Not the validation split."""
    plugins: Names = ()
    """Python files of one's own, relative to the current directory, whose kinds can be used like any other."""

    @model_validator(mode="before")
    @classmethod
    def _family_defaults(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        load_plugins(data)
        family = models.kind_of(merge(cls, {}, data).get("model", {}))
        return merge(cls, merge(cls, {}, family.defaults if family else {}), data)

    @model_validator(mode="after")
    def _fits_together(self) -> Experiment:
        found = [(("model", *path), text, given) for path, text, given in self.model.problems()]
        stack = self.model.stack()
        found += [(("norm", *path), text, given) for path, text, given in self.norm.problems(stack)]
        found += [(("init", *path), text, given) for path, text, given in self.init.problems(stack)]
        if self.data.task != self.model.task:
            data, model = (f"{part.kind} is for {part.task.replace('_', ' ')}" for part in (self.data, self.model))
            fitting = [kind for kind in data_kinds if data_kinds[kind].task == self.model.task]
            found.append((("data", "kind"), f"{data}, model {model}. Accepted: {', '.join(fitting)}", self.data.kind))
        trainer, warmup = self.trainer, self.schedule.warmup(self.trainer.max_steps)
        if warmup >= trainer.max_steps:
            field = "warmup_fraction" if self.schedule.warmup_steps is None else "warmup_steps"
            text = f"the warm-up ({warmup}) must be below trainer.max_steps ({trainer.max_steps})"
            found.append((("schedule", field), text, getattr(self.schedule, field)))
        found += [(("trainer", *path), text, given) for path, text, given in trainer.problems()]
        if self.lora is not None:
            copied = self.warm_start.copied if self.warm_start else ()
            found += self.lora.problems(copied, trainer.tensor_parallel)
        problems = self.evaluation.problems(self.model.task, trainer.strategy)
        found += [(("evaluation", *path), text, given) for path, text, given in problems]
        found += problems_of_alignment(self)
        batch = trainer.batch_size // trainer.accumulate
        found += [(("data", *path), text, given) for path, text, given in self.data.problems(batch)]
        if found:
            details: list[InitErrorDetails] = [
                {"type": PydanticCustomError("conflict", "{text}", {"text": text}), "loc": path, "input": given}
                for path, text, given in found
            ]
            raise ValidationError.from_exception_data("Experiment", details)
        return self

    @classmethod
    def from_mapping(cls, *mappings: Mapping[str, Any], source: str = "the configuration") -> Experiment:
        """The experiment of nested or dotted mappings, later ones over earlier. Raises ConfigError with all
        problems."""
        return build(cls, *mappings, source=source)

    @classmethod
    def load(cls, file: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> Experiment:
        """The experiment of a YAML file (none: all defaults) under `overrides`, a mapping of dotted paths."""
        base = {} if file is None else read_yaml(Path(file))
        return cls.from_mapping(base, overrides or {}, source=str(file) if file else "the configuration")

    def to_tree(self) -> Tree:
        """The resolved configuration as plain nested mappings; `from_mapping` gives the same experiment back."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """The resolved configuration as YAML."""
        return yaml.safe_dump(self.to_tree(), sort_keys=False)

    def flat(self) -> dict[str, Any]:
        """The resolved configuration as {dotted path: value}."""
        return dict(leaves(self.to_tree()))


def build(cls: type[Any], *mappings: Mapping[str, Any], source: str) -> Any:
    """An instance of the configuration class `cls` from `mappings`, later ones over earlier."""
    load_plugins(*mappings, source=source)
    tree: Tree = {}
    for mapping in mappings:
        tree = merge(cls, tree, mapping)
    try:
        return cls.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(problems_of(cls, tree, error), source) from None


def load_plugins(*mappings: Mapping[str, Any], source: str = "the configuration") -> None:
    """Loads the `plugins` of all `mappings`, before a kind of theirs is looked up. Raises ConfigError."""
    plugins.load(plugins.named(*(mapping.get("plugins") for mapping in mappings)), source=source)


# ---------------------------------------------------------------------------------------------------- merging


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of everything in nested mappings that is not a mapping with something in it.

    Of an instance of a configuration class it is the fields that were given, and its kind.
    """
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Config):
            kind = {"kind": value.kind} if isinstance(value, Kind) else {}
            value = {**kind, **value.model_dump(mode="json", exclude_unset=True)}
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


def merge(cls: type[Any], tree: Mapping[str, Any], update: Mapping[str, Any]) -> Tree:
    """`tree` with the nested or dotted `update` over it, for the configuration class `cls`.

    Kinds are set before the fields of their part, wherever they stand. A new kind drops the fields of the old kind and
    keeps those which all kinds of that registry share: `norm=post` over `norm: {kind: mix, alpha: 0.25, layer:
    rmsnorm}` leaves `{kind: post, layer: rmsnorm}`. Plugins add up.
    """
    result = _copy(tree)
    paths = [
        (path[:-1] if path[-1] == "kind" and len(path) > 1 else path, value)
        for path, value in ((key.split("."), value) for key, value in leaves(update))
    ]
    for path, value in sorted(paths, key=lambda item: (len(item[0]), _registry(cls, result, item[0]) is None)):
        _assign(cls, result, path, value)
    if tree.get("plugins") and update.get("plugins"):
        result["plugins"] = plugins.named(tree["plugins"], update["plugins"])
    return result


def _copy(tree: Mapping[str, Any]) -> Tree:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in tree.items()}


def _assign(cls: type[Any] | None, tree: Tree, path: list[str], value: Any) -> None:
    key, rest = path[0], path[1:]
    registry, child = _part(cls, tree, key)
    if isinstance(tree.get(key), str) and registry is not None:
        tree[key] = registry.expand(tree[key])
    if rest:
        if not isinstance(tree.get(key), dict):
            tree[key] = {}
        _assign(child, tree[key], rest, value)
    elif registry is not None and isinstance(value, str):
        given = tree.get(key)
        part: Tree = given if isinstance(given, dict) else {}
        fields = registry.expand(value)
        new = registry.kind_of(fields)
        if new is not registry.kind_of(part):
            part = {k: v for k, v in part.items() if registry.keeps and k in registry.base.model_fields}
        tree[key] = {**part, **fields}
    elif value != {} or (child is None and registry is None):  # nothing given for a part changes nothing
        tree[key] = value
    elif _may_be_none(cls, key) and tree.get(key) is None:  # but that it is there, with its defaults
        tree[key] = {}


@dataclass(frozen=True)
class _Each:
    """In the place of a class: a mapping from names to instances of `item`."""

    item: type[Any]


def _part(cls: Any, tree: Mapping[str, Any], key: str) -> tuple[Registry[Any] | None, Any]:
    """The registry of field `key` of `cls`, if it has one, and the class that its value in `tree` asks for."""
    if isinstance(cls, _Each):
        return None, cls.item
    field = cls.model_fields.get(key) if cls is not None else None
    if field is None:
        return None, None
    registry = next((m for m in field.metadata if isinstance(m, Registry)), None)
    if registry is not None:
        return registry, registry.kind_of(tree.get(key) or {})
    inner = field.annotation
    if get_origin(inner) is dict:
        return None, _Each(item) if _is_config(item := get_args(inner)[1]) else None
    inner = next((member for member in get_args(inner) if _is_config(member)), inner)  # of a part that may be None
    return None, inner if _is_config(inner) else None


def _may_be_none(cls: Any, key: str) -> bool:
    field = None if cls is None or isinstance(cls, _Each) else cls.model_fields.get(key)
    return field is not None and field.default is None


def _is_config(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Config)


def _registry(cls: type[Any] | None, tree: Mapping[str, Any], path: list[str]) -> Registry[Any] | None:
    for key in path[:-1]:
        _, cls = _part(cls, tree, key)
        tree = tree[key] if isinstance(tree.get(key), Mapping) else {}
    return _part(cls, tree, path[-1])[0]


# ---------------------------------------------------------------------------------------------------- errors


def known_paths(cls: type[Any], tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted paths that `cls` has, with the kinds that `tree` chooses."""
    for key in tree if isinstance(cls, _Each) else (f.alias or name for name, f in cls.model_fields.items()):
        yield prefix + key
        _, child = _part(cls, tree, key)
        if child is not None:
            value = tree.get(key)
            yield from known_paths(child, value if isinstance(value, Mapping) else {}, f"{prefix}{key}.")


def problems_of(cls: type[Any], tree: Tree, error: ValidationError) -> list[Problem]:
    """The problems that validating `tree` as a `cls` found."""
    return [_problem(cls, tree, details) for details in _joined(error.errors())]


_WORDS = {
    "missing": "is required",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    "string_type": "must be text, in quotes where it would be a number, true or false",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list, such as [a, b]"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type"), "must be a mapping, such as {{key: value}}"),
    "invalid_key": "a key must be text, in quotes where it would be a number, true or false",
    "tuple_length": "must be a list of {length} values",
    "union": "must be {accepted}",
}
"""What a person reads, by pydantic's type of error, where pydantic's own text is not plain enough."""
_NAME = "must consist of letters from A to Z, digits, dots, hyphens and underscores, beginning with a letter or digit"
_PATTERNS = {"^[A-Za-z0-9][A-Za-z0-9._-]*$": _NAME, "://": "must be an address, such as s3://bucket/runs"}
_MEMBER = re.compile(
    r"bool|(constrained-)?(int|float|str)|(literal|list|tuple|dict)\[.*\]"
)  # what pydantic adds to a union's path


def _joined(errors: Iterable[Any]) -> list[Any]:
    """`errors` where the user sees them: one for a union of which no member fits, one for a list that is too short."""
    found: dict[Any, Any] = {}
    for number, details in enumerate(errors):
        *above, last = details["loc"] or ("",)
        key: Any = number
        if details["type"] == "missing" and isinstance(last, int):
            key = tuple(above)  # the last one missing tells the length
            details = {**details, "type": "tuple_length", "loc": key, "ctx": {"length": last + 1}}
        elif above and _MEMBER.fullmatch(str(last)):
            key = tuple(above)
            before = f"{found[key]['ctx']['accepted']} or " if key in found else ""
            accepted = before + _text(details).removeprefix("must be ")
            accepted = accepted.replace("a whole number or a number", "a number")
            details = {**details, "type": "union", "loc": key, "ctx": {"accepted": accepted}}
        elif last == "[key]":
            details = {**details, "type": "invalid_key", "loc": above[:-1]}
        found[key] = details
    return list(found.values())


def _text(details: Any) -> str:
    """The message of a pydantic error in the words of a person."""
    context = details.get("ctx", {})
    if details["type"] in _WORDS:
        return _PATTERNS.get(context.get("pattern"), _WORDS[details["type"]].format(**context))
    message = details["msg"].removeprefix("Value error, ").replace(" after validation", "")
    return re.sub("^(Input|Value|String|List|Tuple|Dictionary) should ", "must ", message)


def _problem(cls: type[Any], tree: Tree, details: Any) -> Problem:
    """A pydantic error as a problem: unknown keys get a suggestion, values say what is accepted."""
    path = ".".join(str(part) for part in details["loc"])
    kind, given, message = details["type"], details["input"], _text(details)
    if kind == "extra_forbidden":
        return Problem(path, f"unknown key.{_suggest(cls, tree, path)}", given)
    if kind == "unknown_kind":
        return Problem(f"{path}.kind" if isinstance(given, Mapping) else path, message)
    if given is None and kind in _WORDS:
        message += ", not null"
    if isinstance(given, (Mapping, Config)):
        given = None
    return Problem(path, message, list(given) if isinstance(given, tuple) else given)


def _suggest(cls: type[Any], tree: Tree, path: str) -> str:
    """Where a misspelt or misplaced key may have been meant: the same part first, then the same name elsewhere; of a
    key that is in no part, the same name first."""
    known = list(known_paths(cls, tree))
    parent, _, name = path.rpartition(".")
    beside = {p.rpartition(".")[2]: p for p in known if p.rpartition(".")[0] == parent}
    elsewhere = [p for p in known if p.rpartition(".")[2] == name]
    elsewhere += [f"{p}.{name} (of {p}.kind {kinds[0]})" for p in known if (kinds := _kinds_with(cls, tree, p, name))]
    longer = [near for near in beside if name and near.startswith(name)]
    if owners := _kinds_with(cls, tree, parent, name):
        hint = f" Did you mean {beside[longer[0]]}?" if longer else ""
        return f" It belongs to {parent}.kind {' or '.join(owners)}.{hint}"
    if not parent and elsewhere:  # lr is optimizer.lr, and not lora
        return f" Did you mean {elsewhere[0]}?"
    if close := difflib.get_close_matches(name, beside, n=1) or longer:
        return f" Did you mean {beside[close[0]]}?"
    if elsewhere:
        return f" Did you mean {elsewhere[0]}?"
    return did_you_mean(path, known) or f" Accepted: {', '.join(beside.values()) or 'nothing'}."


def _kinds_with(cls: type[Any], tree: Tree, parent: str, name: str) -> list[str]:
    registry = _registry(cls, tree, parent.split(".")) if parent else None
    return [kind for kind in registry if name in registry[kind].model_fields] if registry else []


def json_schema(cls: type[Config] = Experiment) -> dict[str, Any]:
    """The JSON schema of a configuration file, for editors."""
    plugins.load()
    schema = cls.model_json_schema()
    definitions = schema.setdefault("$defs", {})
    for registry in Registry.all.values():
        definitions[registry.slug] = part = registry.json_schema()
        for kind in part["anyOf"]:  # a kind's own definitions are looked up at the top
            definitions.update(kind.pop("$defs", {}))
    return _refer(schema)


def _refer(schema: Any) -> Any:
    """`schema` with the marks that registries leave turned into references."""
    if isinstance(schema, dict):
        marked = {"$ref": f"#/$defs/{schema['registry']}"} if isinstance(schema.get("registry"), str) else {}
        return {**{key: _refer(value) for key, value in schema.items() if not (marked and key == "registry")}, **marked}
    return [_refer(item) for item in schema] if isinstance(schema, list) else schema
