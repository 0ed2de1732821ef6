"""Parameter groups: the role of each trainable parameter, and the settings that a role may have of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ablate.config.base import Config
from ablate.config.lazy import postpone_imports, torch
from ablate.distributed import ranks

if TYPE_CHECKING:
    from torch import nn

    from ablate.optim.parametrizations import Factors

with postpone_imports():
    from ablate.models import base as models


class Group(Config):
    """The settings of the parameters of one role."""

    lr_factor: float = Field(1.0, gt=0)
    """Learning rate as a multiple of `optimizer.lr`, or of `optimizer.aux_lr` for parameters that Muon leaves out."""
    weight_decay: float | None = Field(None, ge=0)
    """Weight decay of all parameters of the role, including vectors. None: `optimizer.weight_decay`, on matrices only.
    """


class Groups(Config):
    """Settings by role. Every trainable parameter has one role; a head tied to the embedding has the role embedding."""

    embedding: Group | None = None
    """The embedding of tokens or patches, the class token and the position embedding; of a ConvPool-CNN-C its first
    convolution."""
    head: Group | None = None
    """The output layer."""
    matrices: Group | None = None
    """The other parameters with two or more dimensions: attention, MLP, recurrence, convolutions, adapters."""
    gates: Group | None = None
    """Matrices of gates with one output for each head (model.attention.gate=headwise). Muon leaves them out, as they
    map the width to few numbers."""
    biases: Group | None = None
    """The biases of linear layers and convolutions."""
    norms: Group | None = None
    """All others: weights and biases of norm layers, and learned factors of a placement or of the attention; the matrix
    from few numbers to the width of norm.layer=gatednorm."""
    readouts: Group | None = None
    """Matrices from the width to few numbers: to the weights of several streams, as placements with such have them, and
    of norm.layer=gatednorm. Muon leaves them out."""


ROLES = tuple(Groups.model_fields)
EPS_FACTOR = "eps_factor"
"""Key of a parameter group: the factor of a parametrisation on Adam's eps."""


def assign_roles(module: nn.Module) -> dict[str, str]:
    """Return the role of each parameter of `module` by its name. In a model of transformers, everything outside its
    base model is the head."""
    model = module if isinstance(module, models.Model) else None
    embeddings, heads = (model.embeddings(), model.parts().get("head", ())) if model else ((), ())
    base = getattr(module, "base_model_prefix", "")
    roles, wired = {}, list_wired(module)
    for name, parameter in module.named_parameters():
        plain, (path, _, last) = models.strip_wrapper(name), name.rpartition(".")
        owner = module.get_submodule(path)
        weight = getattr(owner, "weight", None)
        if parameter in wired:
            roles[name] = WIRED[wired[parameter]]
        elif models.is_inside(plain, embeddings) or (model is None and isinstance(owner, torch.nn.Embedding)):
            roles[name] = "embedding"
        elif models.is_inside(plain, heads) or (base and not models.is_inside(plain, (base,))):
            roles[name] = "head"
        elif parameter.ndim >= 2:  # a module of ours may name another role of its matrix
            roles[name] = getattr(owner, "optimizer_role", "matrices")
        else:
            of_matrix = getattr(weight, "ndim", 0) >= 2 or isinstance(owner, models.Bias)
            roles[name] = "biases" if last == "bias" and of_matrix else "norms"
    return roles


WIRED = {"mixing": "norms", "readouts": "readouts", "expansions": "norms"}
"""An attribute of a module that names some of its parameters (`ablate.norms.residuals`) -> their role."""


def list_wired(module: nn.Module) -> dict[nn.Parameter, str]:
    """Return the parameters that an attribute of their module names, with that attribute."""
    return {
        parameter: attribute
        for own in module.modules()
        for attribute in WIRED
        for name in getattr(own, attribute, ())
        if isinstance(parameter := getattr(own, name, None), torch.nn.Parameter)
    }


def list_exempt(module: nn.Module) -> set[str]:
    """Return the names of parameters of `module` that never decay although they have two or more dimensions."""
    own = module.no_weight_decay() if isinstance(module, models.Model) else set()
    wired = list_wired(module)
    return own | {name for name, p in module.named_parameters() if wired.get(p) == "mixing"}


def list_factors(module: nn.Module) -> dict[str, Factors]:
    """Return the factors by which the parametrisation of `module` multiplies the optimizer's settings, for each of its
    parameters by name; empty if it has no parametrisation."""
    multipliers = module.multipliers if isinstance(module, models.Model) else None
    if multipliers is None:
        return {}
    inside = {*module.blocks().parameters()}  # type: ignore[operator]
    # what the residual stream itself passes through, as the wiring of the layers names it (`ablate.norms.residuals`)
    parts = [getattr(own, name) for own in module.modules() for name in getattr(own, "on_stream", ())]
    stream = {p for part in parts for p in (part.parameters() if isinstance(part, torch.nn.Module) else [part])}
    roles = assign_roles(module)
    return {
        name: multipliers.find_factors(roles[name], p in inside, p in stream) for name, p in module.named_parameters()
    }


def set_eps(groups: list[dict[str, Any]], eps: float) -> list[dict[str, Any]]:
    """Return `groups` with Adam's eps, `eps` times the factor of each, where a parametrisation gives one."""
    return [
        {**{key: value for key, value in group.items() if key != EPS_FACTOR}, "eps": eps * group[EPS_FACTOR]}
        if EPS_FACTOR in group
        else group
        for group in groups
    ]


def split_parameters(
    parameters: Mapping[str, nn.Parameter],
    roles: Mapping[str, str],
    exempt: Collection[str],
    settings: Groups | None,
    lr: float,
    weight_decay: float,
    factors: Mapping[str, Factors] = {},
) -> list[dict[str, Any]]:
    """Return `parameters`, by name, in groups for an optimizer with the rate `lr`: first those whose role has no
    settings, with and without weight decay; then each role with settings. A group is several where the ranks have
    shards of some of its parameters in other ways than of others. No group is empty, unless all are: torch cannot
    restore empty groups on shards. With the `factors` of a parametrisation a group is several by these, and those of
    which the rate is not changed come first; the factor of Adam's eps stands as `eps_factor`."""
    own = {role: group for role in ROLES if (group := getattr(settings, role, None))}

    def iterate_buckets() -> Iterator[tuple[list[nn.Parameter], dict[str, Any]]]:
        plain = {name: p for name, p in parameters.items() if roles[name] not in own}
        for decaying in (True, False):
            bucket = [p for name, p in plain.items() if _decays(name, p, exempt) == decaying]
            yield bucket, {"weight_decay": weight_decay if decaying else 0.0}
        for role, group in own.items():
            rate = {} if group.lr_factor == 1 else {"lr": lr * group.lr_factor}
            named = {name: p for name, p in parameters.items() if roles[name] == role}
            for decaying in (True, False):
                bucket = [p for name, p in named.items() if _decays(name, p, exempt) == decaying]
                decay = group.weight_decay if group.weight_decay is not None else weight_decay if decaying else 0.0
                yield bucket, {"weight_decay": decay, **rate}

    buckets = _multiply(iterate_buckets(), parameters, factors, lr) if factors else iterate_buckets()
    groups: list[dict[str, Any]] = [
        {"params": alike, **fields} for bucket, fields in buckets if bucket for alike in ranks.group_by_mesh(bucket)
    ]
    return groups or [{"params": [], "weight_decay": weight_decay}]


Bucket = tuple[list["nn.Parameter"], dict[str, Any]]


def _multiply(
    buckets: Iterable[Bucket], parameters: Mapping[str, nn.Parameter], factors: Mapping[str, Factors], lr: float
) -> list[Bucket]:
    """Return `buckets`, each split by the factors of its parameters, with these applied to its settings."""
    by_parameter = {parameter: factors[name] for name, parameter in parameters.items()}
    scaled = []
    for bucket, fields in buckets:
        for own in dict.fromkeys(by_parameter[parameter] for parameter in bucket):
            rate, decay = fields.get("lr", lr) * own.lr, fields["weight_decay"] * own.weight_decay
            changed = {**fields, "weight_decay": decay, "lr": rate, EPS_FACTOR: own.eps}
            scaled.append((own.lr != 1, [p for p in bucket if by_parameter[p] == own], changed))
    return [(bucket, fields) for _, bucket, fields in sorted(scaled, key=lambda one: one[0])]


def drop_eps(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return `groups` without the factors of Adam's eps, for an optimizer that has none."""
    return [{key: value for key, value in group.items() if key != EPS_FACTOR} for group in groups]


def multiply_orthogonal(factors: Mapping[str, Factors], keeps_rms: bool) -> dict[str, Factors]:
    """Return the factors of matrices whose updates are orthogonal. The decay of an update stays as it is.

    Args:
        factors: those of Adam.
        keeps_rms: whether the update is scaled to a root mean square that depends on no shape.
    """
    changed = {}
    for name, own in factors.items():
        rate = own.orthogonal_rms_lr if keeps_rms else own.orthogonal_lr
        changed[name] = replace(own, lr=rate, weight_decay=own.lr * own.weight_decay / rate)
    return changed


def _decays(name: str, parameter: nn.Parameter, exempt: Collection[str]) -> bool:
    return parameter.ndim >= 2 and name not in exempt
