"""The optimizers of torch and timm by name, with their own arguments beside the name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, Field

from ablate.config.errors import ConfigError, Problem
from ablate.config.lazy import postpone_imports
from ablate.optim.groups import ROLES, assign_roles, drop_eps, list_factors, multiply_orthogonal, set_eps
from ablate.optim.optimizers import AdamW, OptimizerConfig, build_adamw, optimizers

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

with postpone_imports():
    from ablate.optim import libraries, muon


class ByName(OptimizerConfig):
    """An optimizer of a library. Further keys are its arguments, such as momentum; the others have the library's
    defaults. Names, types and values are checked by the library itself."""

    model_config = ConfigDict(extra="allow")

    name: str
    """Its name in the library; `ablate list library-optimizers` shows the names."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay of matrices, as the optimizer defines it; the library's default is not used. Vectors (norm weights,
    biases), ViT's class token and position embedding never decay."""
    aux_lr: float | None = Field(None, gt=0)
    """For Muon: peak learning rate of AdamW on the parameters that Muon leaves out: embedding, head, gates of heads and
    vectors. None: `lr`."""

    def library(self) -> libraries.Library:
        """Import the library and return it."""
        raise NotImplementedError

    @property
    def scales(self) -> bool:
        entry = self.library().entries.get(self.name)
        return entry is not None and entry.is_muon

    @property
    def multiplies(self) -> bool:
        return True

    def validate(self, sharded: bool) -> list[Problem]:  # type: ignore[override]
        library = self.library()
        if problems := library.validate_name(self.name):
            return problems
        entry, arguments = library.entries[self.name], self.model_extra or {}
        problems = library.validate_arguments(self.name, arguments)
        if self.aux_lr is not None and not entry.is_muon:
            text = f"{self.name} updates all parameters itself; aux_lr applies only to Muon, which leaves some out"
            problems.append(Problem("aux_lr", text, self.aux_lr))
        if not entry.has_weight_decay:
            decays = {f"groups.{role}.weight_decay": getattr(self.groups, role, None) for role in ROLES}
            values = {path: group.weight_decay for path, group in decays.items() if group}
            for path, value in {"weight_decay": self.weight_decay, **values}.items():
                if value:
                    problems.append(Problem(path, f"{self.name} has no weight decay: remove this", value))
        if sharded and not (problems or entry.is_muon or library.can_shard(self.name, arguments)):
            text = (
                "needs whole parameters, and with fsdp each process has only shards of them: use trainer.strategy=ddp"
            )
            problems.append(Problem("name", text, self.name))
        return problems

    def build(self, model: nn.Module) -> Optimizer:
        library = self.library()
        arguments = library.convert(self.name, self.model_extra or {})
        if not library.entries[self.name].is_muon:
            return library.create(self.name, self.build_groups(model), self.lr, arguments)
        matrices, rest = self._build_both(model)
        if not any(group["params"] for group in matrices):
            text = "updates matrices, and no trained parameter but embedding and head is one: take adamw"
            raise ConfigError([Problem("optimizer.name", text, self.name)])
        plain = AdamW()
        return muon.MuonWithAdamW(
            library.create(self.name, matrices, self.lr, arguments),
            build_adamw(rest, self._rest_lr, plain.betas, plain.eps),
            muon.list_fused(model),
        )

    def build_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        if not self.library().entries[self.name].is_muon:
            return super().build_groups(model)
        matrices, rest = self._build_both(model)
        return matrices + rest

    @property
    def _rest_lr(self) -> float:
        return self.lr if self.aux_lr is None else self.aux_lr

    def _build_both(self, model: nn.Module) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the groups of the parameters that Muon updates, and of those that it leaves out."""
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        roles, factors = assign_roles(model), list_factors(model)
        matrices = {name: p for name, p in trained.items() if roles[name] == "matrices" and p.ndim == 2}
        rest = {name: p for name, p in trained.items() if name not in matrices}
        own = multiply_orthogonal(factors, self._keeps_rms) if factors else None
        groups = self._split(model, matrices, self.lr, own)
        return drop_eps(groups), set_eps(self._split(model, rest, self._rest_lr), AdamW().eps)

    @property
    def _keeps_rms(self) -> bool:
        """Whether Muon scales its updates to a root mean square that depends on no shape."""
        entry = self.library().entries[self.name]
        given = (self.model_extra or {}).get("adjust_lr_fn") or entry.arguments.model_fields["adjust_lr_fn"].default
        return bool(given == "match_rms_adamw")


@optimizers.register
class Torch(ByName):
    """An optimizer of `torch.optim` by its name, such as SGD or RMSprop; further keys are its arguments."""

    kind: Literal["torch"] = "torch"

    def library(self) -> libraries.Library:
        return libraries.TORCH


@optimizers.register
class Timm(ByName):
    """An optimizer of timm by its name, such as lion, muon or lamb; further keys are its arguments."""

    kind: Literal["timm"] = "timm"

    def library(self) -> libraries.Library:
        return libraries.TIMM


optimizers.preset(
    "muon", "timm", "Updates scaled to the size of AdamW's, so that one range of learning rates serves both",
    name="muon", momentum=0.95, nesterov=True, adjust_lr_fn="match_rms_adamw",
)  # fmt: skip
