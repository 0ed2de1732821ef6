"""LoRA (Hu et al. 2021, arXiv 2106.09685): a trained model stays as it is, and a product of two narrow matrices is
learned beside each of some of its matrices.

    W x + alpha / rank * B A x        A: [rank, in], drawn; B: [out, rank], zero before the first update

peft makes the layers. Where our models have several matrices in one (query, key and value; gate and up), the product is
beside the one, and its parts share A.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor, nn

from ablate.config.errors import Problem, did_you_mean
from ablate.config.lazy import import_library
from ablate.experiment.extensions import Extension
from ablate.experiment.parts import Lora
from ablate.experiment.tree import Experiment
from ablate.models.base import Model, freeze, is_inside

_LEARNED = ".lora_"  # in the names of what peft adds
_KEPT = ".base_layer."  # in the names of what it adds to


class LoraExtension(Extension):
    """Adapters for the matrices of a model; only the adapters are trained."""

    def validate(self, model: Model, experiment: Experiment) -> list[Problem]:
        assert experiment.lora is not None
        return validate_targets(model, experiment.lora)

    def restrict(self, model: Model, experiment: Experiment) -> None:
        assert experiment.lora is not None
        adapt(model, experiment.lora)

    def merge(
        self, build: Callable[[], Model], experiment: Experiment, state: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the weights without adapters: W + alpha / rank * B A. The sum is computed in float64: in float32 its
        last bits, and the hash of the weights, would depend on the machine."""
        assert experiment.lora is not None
        model = build()
        if experiment.warm_start:  # frozen matrices have no adapter
            freeze(model, experiment.warm_start.freeze)
        adapt(model, experiment.lora)
        model.load_state_dict(dict(state), assign=True)
        layer_class = import_library("peft.tuners.lora", "hf").LoraLayer
        for layer in [module for module in model.modules() if isinstance(module, layer_class)]:
            dtype = layer.weight.dtype
            layer.double().merge()
            layer.to(dtype)
        plain = {name: tensor for name, tensor in model.state_dict().items() if _LEARNED not in name}
        return {name.replace(_KEPT, "."): tensor for name, tensor in plain.items()}

    def gather_facts(self) -> dict[str, str]:
        return {"version.peft": import_library("peft", "hf").__version__}


EXTENSION = LoraExtension()


def adapt(model: Model, config: Lora) -> None:
    """Add the adapters of `config` to `model`, so that only they are trained; they do not change its outputs yet.
    Frozen matrices get no adapter. Raises AblateError without peft."""
    peft = import_library("peft", "hf")
    known = _list_targets(model)
    chosen = {name for target in config.targets for name in known.get(target, ())}
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=[f"model.{name}" for name in chosen],
    )
    # in a holder: peft would take `model.config` for one of transformers, and leave its own in the model
    peft.inject_adapter_in_model(settings, nn.ModuleDict({"model": model}))


def validate_targets(model: Model, config: Lora) -> list[Problem]:
    """Return the problems with the targets of `config` for `model`, some of which may be frozen. Raises AblateError
    without peft, which would otherwise fail later."""
    import_library("peft", "hf")
    problems, known = [], _list_targets(model, frozen=True)
    for target in config.targets:
        if target not in known:
            names = [name for name in known if "." not in name and name != "layers"]
            names.sort(key=lambda name: name not in ("attn", "mlp"))
            parts = [part for part in ("layers.0", "layers.0.attn") if part in known]
            accepted = f"Accepted: {', '.join(names)}, or parts such as {' or '.join(parts)}"
            if not known:
                accepted = "It has none in its layers, and only these are adapted"
            text = f"the model has no such linear layers. {accepted}.{did_you_mean(target, known)}"
            problems.append(Problem("lora.targets", text, target))
    open_ones = _list_targets(model)
    if not problems and not any(target in open_ones for target in config.targets):
        text = "nothing is left to train" + (": all of them are in warm_start.freeze" if config.targets else "")
        problems.append(Problem("lora.targets", text, list(config.targets)))
    return problems


def _list_targets(model: Model, frozen: bool = False) -> dict[str, list[str]]:
    """Return target -> the linear layers that it selects, by their names in `model`; `frozen`: also those with a frozen
    matrix."""
    layers: dict[str, list[str]] = {}
    for path, name, layer in _linear_layers(model):
        if not frozen and not layer.weight.requires_grad:
            continue
        words = path.split(".")  # layers.0.attn.qkv_proj is selected by qkv_proj, attn, attn.qkv_proj, layers, layers.0
        for start in (3, 2, 0):
            for end in range(start + 1, len(words) + 1):
                layers.setdefault(".".join(words[start:end]), []).append(name)
    return layers


def _linear_layers(model: Model) -> Iterator[tuple[str, str, nn.Linear]]:
    """Yield the linear layers inside the layers: (layers.INDEX.SUBLAYER.NAME, the name in `model`, the layer). The
    head is not included: its loss uses the matrix directly."""
    modules = list(model.named_modules())
    for part, (prefix, *_) in model.parts().items():
        for name, module in modules if part.startswith("layers.") else ():
            if isinstance(module, nn.Linear) and is_inside(name, [prefix]):
                yield part + name.removeprefix(prefix), name, module
