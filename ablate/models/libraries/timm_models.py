"""Image models of timm, built anew by their names."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ablate.config.errors import AblateError, ConfigError, Problem, did_you_mean
from ablate.models.base import find_stack
from ablate.models.by_name import Timm
from ablate.models.libraries.base import Blueprint, LibraryModel, count_outputs, find_family
from ablate.models.libraries.wiring import is_matrix
from ablate.norms import Initialization, Placement, Stack, initializations, placements

_DATA = {
    "num_classes": "the number of classes is",
    "in_chans": "the number of channels is",
    "img_size": "the image size is",
}
"""Arguments that the data sets."""
_NORMS = {"norm_layer", "embed_norm_layer"}
_TAKEN = {
    "self",
    "args",
    "kwargs",
    "device",
    "dtype",
    "block_fn",
    "act_layer",
    "mlp_layer",
    "attn_layer",
    "embed_layer",
}
"""Arguments that are no plain values."""


def has_model(name: str) -> bool:
    """Return whether timm has a model of this name."""
    return bool(timm.is_model(name)) and ":" not in name and "/" not in name


def find_problems(config: Timm) -> list[Problem]:
    """Return the problems that keep timm from building the model."""
    name = config.name
    if not has_model(name):
        known = timm.list_models()
        hint = did_you_mean(name, known)
        text = f"timm has no such model.{hint or ' timm.list_models() has all names, such as vit_tiny_patch16_224'}"
        return [Problem("name", text, name)]
    try:
        known = [key for key in _list_all(name) if key not in {*_TAKEN, *_DATA, *_NORMS}]
        problems = [_explain(known, name, key, v) for key, v in config.options.items() if key not in known]
        if not problems:
            open_blueprint(config)
        return problems
    except ConfigError as error:
        return list(error.problems)
    except AblateError as error:
        return [Problem("name", str(error), name)]


@functools.lru_cache(maxsize=64)
def _list_all(name: str) -> tuple[str, ...]:
    """Return the arguments of timm's model `name`: of its class, and of the classes that it hands them on to."""
    with torch.device("meta"):
        net = _create(Timm.model_construct(name=name))
    names: dict[str, None] = {}
    for cls in type(net).__mro__:
        parameters = inspect.signature(cls).parameters
        names |= dict.fromkeys(parameters)
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            break
    return tuple(names)


def _explain(known: list[str], model: str, key: str, value: Any) -> Problem:
    if key in _DATA:
        return Problem(key, f"{_DATA[key]} that of the data", value)
    if key in _NORMS:
        return Problem(key, "the norm layer is set by norm.layer", value)
    text = f"{model} of timm has no such argument. Accepted: {', '.join(known)}.{did_you_mean(key, known)}"
    return Problem(key, text, value)


def _create(config: Timm, **data: Any) -> nn.Module:
    """Return timm's model with its initial weights. Raises ConfigError."""
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in config.options.items()}
    try:
        net: nn.Module = timm.create_model(config.name, pretrained=False, **options, **data)
    except MemoryError:
        raise
    except Exception as error:  # of timm, for values that do not go together
        text = f"timm cannot build {config.name} with these settings: {_shorten(error)}"
        raise ConfigError([Problem("", text)]) from None
    return net


def _shorten(error: BaseException) -> str:
    """Return the message of an error of timm or torch on one line."""
    text = str(error.problems[0]) if isinstance(error, ConfigError) else str(error)
    return " ".join(text.split())[:200].rstrip(".") or type(error).__name__


@functools.lru_cache(maxsize=64)
def _open(key: str) -> Blueprint:
    config = Timm.model_construct(**json.loads(key))
    with torch.device("meta"):
        net: Any = _create(config)
    family = find_family(net)
    path = family.blocks if family else find_stack(net)
    layers = net.get_submodule(path)
    hidden, first = int(getattr(net, "num_features", 0)), next(iter(layers.children()))
    heads = int(first.attn.num_heads) if family else 0
    mlp = first.get_submodule("mlp.fc1").weight.shape[0] if family else 0
    stack = Stack(
        len(layers),
        hidden,
        int(mlp),
        heads,
        heads,
        hidden // heads if heads else 0,
        causal=False,
        token_embedding=False,
    )
    return Blueprint(net, stack, path, f"net.{_list_heads(net)[0]}.weight", family, {})


def open_blueprint(config: Timm) -> Blueprint:
    """Return the model without weights, for the images of its default size. Raises ConfigError."""
    return _open(config.model_dump_json())


def _list_heads(net: Any) -> list[str]:
    """Return the layers that make the logits, as timm declares them."""
    declared = net.pretrained_cfg.get("classifier") or "head"
    return [declared] if isinstance(declared, str) else list(declared)


def build(config: Timm, norm: Placement, init: Initialization, classes: int, shape: tuple[int, ...]) -> TimmModel:
    """Return the initialised model for images of `shape`. Raises ConfigError."""
    return TimmModel(config, norm, init, classes, shape)


class TimmModel(LibraryModel):
    """Images [batch, channels, height, width] -> logits [batch, classes]."""

    def __init__(
        self, config: Timm, norm: Placement, init: Initialization, classes: int, shape: tuple[int, ...]
    ) -> None:
        net: Any = create_for(config, classes, shape)
        declared = net.pretrained_cfg.get("first_conv") or ()  # what makes tokens of pixels
        first = [declared] if isinstance(declared, str) else declared
        stem = [name.partition(".")[0] for name in first] + [name for name, _ in net.named_parameters(recurse=False)]
        heads = [name.partition(".")[0] for name in _list_heads(net)]
        super().__init__(config, net, norm, init, stem, heads)
        self._rebuild = functools.partial(TimmModel, config, norm, init, classes, shape)
        self._shape = shape
        self.register_buffer("shape", torch.tensor(shape))  # which the weights of most models do not say
        self._parts["rest.shape"] = ("shape",)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits

    def no_weight_decay(self) -> set[str]:
        listed: set[str] = getattr(self.net, "no_weight_decay", set)()
        return {f"net.{name}" for name in listed}

    def count_uses(self, part: str) -> int:
        uses = self._uses
        return max((uses.get(name, 0) for name in self._parts.get(part, ())), default=0)

    @functools.cached_property
    def _uses(self) -> dict[str, int]:
        with torch.device("meta"):
            blank = self._rebuild()
            return _count_uses(blank, torch.empty(1, *self._shape))


def create_for(config: Timm, classes: int, shape: tuple[int, ...]) -> nn.Module:
    """Return timm's model for images of `shape`. Raises ConfigError if it cannot take them."""
    channels, height, width = shape
    what = f"images of {height} x {width} (data)"
    size = {"img_size": (height, width)} if "img_size" in _list_all(config.name) else {}
    data: dict[str, Any] = {"num_classes": classes, "in_chans": channels, **size}
    try:
        with torch.device("meta"), torch.no_grad():
            net: Any = _create(config, **data)
            net.eval()(torch.empty(1, *shape))
    except Exception as error:  # of timm or torch
        text = f"{config.title} cannot take {what}: {_shorten(error)}. Set its arguments, such as patch_size"
        raise ConfigError([Problem("model", text)]) from None
    patch = getattr(getattr(net, "patch_embed", None), "patch_size", None)
    if patch and (height % patch[0] or width % patch[1]):  # timm would leave the last pixels out
        text = f"patches of {patch[0]} x {patch[1]} do not divide {what}. Set model.patch_size, or take other images"
        raise ConfigError([Problem("model.patch_size", text, patch[0])])
    return _create(config, **data)


def _count_uses(model: nn.Module, images: Tensor) -> dict[str, int]:
    """Return how often one image is multiplied with the weight of each module, by its name."""
    uses: dict[str, int] = {}
    names = {module: name for name, module in model.named_modules()}

    def note(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and (outputs := count_outputs(module)):
            name = names[module]
            uses[name] = uses.get(name, 0) + output.numel() // (len(images) * outputs)

    handles = [module.register_forward_hook(note) for module in names if not list(module.children())]
    try:
        with torch.no_grad():
            model.eval()(images)
    finally:
        for handle in handles:
            handle.remove()
    return uses


@dataclass(frozen=True)
class Measured:
    """The cost of one image."""

    tokens: int
    """The number of times that an image is multiplied with a weight of the layers, averaged over the weights."""
    attention: int
    """FLOPs of the products of activations."""


def measure(config: Timm, shape: tuple[int, ...]) -> Measured:
    """Return the cost of one image of `shape`. Raises ConfigError."""
    return _measure(config.model_dump_json(), shape)


@functools.lru_cache(maxsize=64)
def _measure(key: str, shape: tuple[int, ...]) -> Measured:
    config, classes = Timm.model_construct(**json.loads(key)), 2
    with torch.device("meta"):
        own = placements.parse({"kind": "library", "layer": {"kind": "library"}})
        model = TimmModel(config, own, initializations.parse("library"), classes, shape)
        image = torch.empty(1, *shape)
        uses = _count_uses(model, image)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model.eval()(image)
    matrices = {name: module for name, module in model.named_modules() if is_matrix(module)}
    inside = {n: m for n, m in matrices.items() if n.startswith(f"net.{model.path}.")}

    def add(part: Mapping[str, Any]) -> int:
        return sum(uses.get(name, 0) * module.weight.numel() for name, module in part.items())

    weights = sum(module.weight.numel() for module in inside.values())
    tokens = round(add(inside) / max(1, weights))
    return Measured(tokens, max(0, int(counter.get_total_flops()) - 2 * add(matrices)))
