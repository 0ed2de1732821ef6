"""The output layer of a language model fused with its loss, so that the logits of a whole batch are never in memory."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LOGITS = 1 << 26
"""The largest number of logits in memory at a time: 256 MiB in float32."""


def cross_entropy(x: Tensor, weight: Tensor, targets: Tensor, z_loss: float = 0.0) -> Tensor:
    """Return the cross-entropy of `x weight^T` in nats, float32: the sum over all targets except padding (-100, torch's
    `ignore_index`), divided by the number of positions. If there are more than `LOGITS` logits, they are computed in
    chunks, forward and backward together, and not kept; this takes no more operations than keeping them. Under autocast
    the matrix products use the autocast type, the loss stays in float32.

    Args:
        x: hidden state [..., d].
        weight: of the output layer [vocabulary, d].
        targets: int64 [...].
        z_loss: factor of (log Z)^2, where Z is the sum of the exponentiated logits, which is added for each target
            (Chowdhery et al. 2022, arXiv 2204.02311, section 5).
    """
    x, targets = x.flatten(0, -2), targets.flatten()
    if len(x) <= (rows := count_rows_at_once(len(weight))):
        logits = F.linear(x, weight).float()
        total = F.cross_entropy(logits, targets, reduction="sum")
        if z_loss:
            total = total + z_loss * (logits.logsumexp(-1).square() * (targets >= 0)).sum()
    else:
        dtype = F.linear(x[:1], weight[:1]).dtype  # autocast's, if there is one
        total = _InParts.apply(x.to(dtype), weight, targets, rows, z_loss)
    return total / targets.numel()


class CrossEntropy(nn.Module):
    """`cross_entropy`, as a part of a model that can be compiled on its own."""

    z_loss = 0.0
    """Of training; a validation has none."""

    def forward(self, x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(x, weight, targets, self.z_loss if self.training else 0.0)


def count_rows_at_once(vocabulary: int) -> int:
    """Return the number of positions whose logits may be in memory together."""
    return max(1, LOGITS // vocabulary)


class _InParts(torch.autograd.Function):
    """The summed cross-entropy, `rows` positions at a time. The gradient of each chunk is computed while its logits are
    in memory: softmax - one-hot with respect to the logits, and from it with respect to the hidden state and the
    weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, rows: int, z_loss: float) -> Tensor:
        wanted, learns = any(ctx.needs_input_grad), ctx.needs_input_grad[1]  # a frozen head hands its gradient on
        total = torch.zeros((), device=x.device)
        by_x = torch.empty_like(x) if wanted else x
        by_weight = torch.zeros(weight.shape if learns else 0, device=x.device)
        used = weight.to(x.dtype)
        for start in range(0, len(x), rows):
            part, target = x[start : start + rows], targets[start : start + rows]
            logits = F.linear(part, used).float()
            total = total + F.cross_entropy(logits, target, reduction="sum")
            counted = (target >= 0).unsqueeze(1)
            log_z = logits.logsumexp(-1, keepdim=True) if z_loss else None
            if log_z is not None:
                total = total + z_loss * (log_z.square() * counted).sum()
            if wanted:
                by_logits = logits.softmax(-1)
                if log_z is not None:
                    by_logits *= 1 + 2 * z_loss * log_z
                by_logits.scatter_add_(1, target.clamp(min=0).unsqueeze(1), -counted.float())
                by_logits = (by_logits * counted).to(x.dtype)
                by_x[start : start + rows] = by_logits @ used
                if learns:
                    by_weight += by_logits.T @ part
        if wanted:
            ctx.save_for_backward(by_x, by_weight.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, by_total: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        by_x, by_weight = ctx.saved_tensors
        return by_x * by_total, by_weight * by_total if ctx.needs_input_grad[1] else None, None, None, None
