"""Finding the Transformer layers of any model, recording their states, and skipping them in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ablate.config.errors import AblateError
from ablate.config.lazy import postpone_imports, torch
from ablate.norms.placement import STREAM, Placement

if TYPE_CHECKING:
    from torch import Tensor, nn

with postpone_imports():
    from ablate.models import attention_config
    from ablate.models import base as models

ATTENTION = ("attn", "self_attn", "attention", "self_attention")
MLP = ("mlp", "feed_forward", "ffn", "output")
"""Usual names of the modules of a layer. BERT's `attention` and `output` include residual and norm, the others are the
branch that is added to the residual stream."""


class Layers:
    """The layers of `model`, in their order."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        if isinstance(model, models.Model):
            self.blocks = list(model.blocks())
        else:
            self.blocks = list(model.get_submodule(models.find_stack(model)).children())
        if not self.blocks:
            raise AblateError(
                "The model has no layers (model.layers=0), so there is nothing to measure. Remove it from the models."
            )

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def placement(self) -> Placement | None:
        """The placement of the first layer of a model of ours."""
        return self.model.placement if isinstance(self.model, models.Model) else None

    @property
    def carrier(self) -> str:
        """What travels between the layers, in words."""
        return self.placement.carrier if self.placement else STREAM

    def show(self, state: Any) -> Tensor:
        """Return the hidden state [batch, tokens, d] of what travels between the layers."""
        return take_first(state) if not self.placement or self.carrier == STREAM else self.placement.show(state)

    def strip(self, block: nn.Module, output: Any) -> Any:
        """Return the state in what a layer returns: the first one of a model whose layers share values returns these
        beside it."""
        config = self.model.config if isinstance(self.model, models.Model) else None
        shares = isinstance(config, attention_config.WithAttention) and config.attention.shares_values
        return output[0] if shares and block is self.blocks[0] else output

    @property
    def keeps_shape(self) -> bool:
        """Whether the model says that each layer returns a hidden state of the shape of its input."""
        return self.model.config.keeps_shape if isinstance(self.model, models.Model) else True

    def require_same_shape(self, states: Iterable[Tensor]) -> None:
        """Raise AblateError unless all hidden states have one shape."""
        if len(shapes := {tuple(state.shape[1:]) for state in states}) > 1:
            raise AblateError(
                f"The layers of {type(self.model).__name__} change the shape of the hidden state "
                f"({' and '.join(map(str, sorted(shapes)))}), which angular and pruning compare. Leave these out."
            )

    def find_sublayers(self) -> list[dict[str, nn.Module]]:
        """Return the modules "attention" and "mlp" of each layer, if they have one of the usual names."""
        return [_find_sublayers(block) for block in self.blocks]

    @contextmanager
    def skip(self, index: int) -> Iterator[None]:
        """Let layer `index` (from 0) return its input in this context; in a placement that does not spare layers, let
        its attention and MLP return 0. All others keep their index, and with it their placement and scale."""

        def unchanged(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if self.carrier != STREAM:
                return args[0] if self.strip(module, output) is output else (args[0], *output[1:])
            x = find_hidden_state(args, kwargs)
            self.require_same_shape((x, take_first(output)))
            return (x, *output[1:]) if isinstance(output, tuple) else x

        with ExitStack() as stack:
            if self.placement and not self.placement.spares_layers:
                for sublayer in _find_sublayers(self.blocks[index]).values():
                    hook = sublayer.register_forward_hook(lambda module, args, output: torch.zeros_like(output))
                    stack.callback(hook.remove)
            else:
                hook = self.blocks[index].register_forward_hook(unchanged, with_kwargs=True)
                stack.callback(hook.remove)
            yield

    @contextmanager
    def record_states(
        self, change: Callable[[Tensor], Tensor] | None = None, show: Callable[[Any], Tensor] | None = None
    ) -> Iterator[list[Tensor]]:
        """Yield a list that contains, after one pass, the input of each layer and the output of the last: L + 1 hidden
        states. `change` is applied to the input of the first layer; `show` returns what is kept of a state of a
        placement with another carrier than one stream, by default its hidden state."""
        states: list[Tensor] = []
        show = show or self.show

        if change and self.carrier != STREAM:
            raise AblateError(
                f"The layers hand on {self.carrier}, and this measures the change of one stream. Leave it out."
            )

        def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
            x = find_hidden_state(args, kwargs) if self.carrier == STREAM else show(args[0])
            if change and module is self.blocks[0]:
                x = change(x)
                args, kwargs = _replace_hidden_state(x, args, kwargs)
            states.append(x)
            return args, kwargs

        with ExitStack() as stack:
            for block in self.blocks:
                stack.callback(block.register_forward_pre_hook(before, with_kwargs=True).remove)
            last = self.blocks[-1].register_forward_hook(
                lambda module, args, output: states.append(show(self.strip(module, output)))
            )
            stack.callback(last.remove)
            yield states
        if len(states) not in (0, len(self) + 1):
            raise AblateError(
                f"{type(self.model).__name__} does not run each of its {len(self)} layers exactly once: a model that "
                "uses a layer twice, or skips one, cannot be measured."
            )

    @contextmanager
    def record_mixing(self) -> Iterator[list[list[Tensor]]]:
        """Yield a list that contains, after a pass, the matrices by which the wiring of each layer mixes the streams
        (its `mixing_map`), in their order; empty for a wiring without one."""
        maps: list[list[Tensor]] = [[] for _ in self.blocks]
        with ExitStack() as stack:
            for block, own in zip(self.blocks, maps, strict=True):
                for module in block.modules():
                    if hasattr(module, "mixing_map"):

                        def before(module: Any, args: Any, own: list[Tensor] = own) -> None:
                            own.append(module.mixing_map(args[0]))

                        stack.callback(module.register_forward_pre_hook(before).remove)
            yield maps

    @contextmanager
    def record_outputs(self) -> Iterator[list[dict[str, Tensor]]]:
        """Yield a list that contains, after a pass, the outputs of the sublayers of each layer."""
        outputs: list[dict[str, Tensor]] = [{} for _ in self.blocks]
        with ExitStack() as stack:
            for layer, modules in enumerate(self.find_sublayers()):
                for name, module in modules.items():

                    def after(module: nn.Module, args: Any, output: Any, layer: int = layer, name: str = name) -> None:
                        outputs[layer][name] = take_first(output)

                    stack.callback(module.register_forward_hook(after).remove)
            yield outputs


def find_hidden_state(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return the hidden state that a layer was called with: its first tensor."""
    state = next((x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)), None)
    if state is None:
        raise AblateError("A layer was called without a tensor, so its input cannot be measured.")
    return state


def _replace_hidden_state(
    x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with the first tensor replaced by `x`."""
    if args and isinstance(args[0], torch.Tensor):
        return (x, *args[1:]), kwargs
    name = next(name for name, value in kwargs.items() if isinstance(value, torch.Tensor))
    return args, {**kwargs, name: x}


def take_first(output: Any) -> Tensor:
    """Return the hidden state from a module's output: the output itself or its first value."""
    state: Tensor = output[0] if isinstance(output, (tuple, list)) else output
    return state


def _find_sublayers(block: nn.Module) -> dict[str, nn.Module]:
    children = dict(getattr(block, "_checkpoint_wrapped_module", block).named_children())
    sublayers = {}
    for name, known in (("attention", ATTENTION), ("mlp", MLP)):
        if module := next((children[one] for one in known if one in children), None):
            sublayers[name] = module
    return sublayers
