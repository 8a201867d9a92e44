"""Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", arXiv:2302.06675), without a C++ build.

    w = w · (1 − lr · weight_decay) − lr · sign(beta1 · m + (1 − beta1) · g);   m = beta2 · m + (1 − beta2) · g

Each element stands alone, so the flat partitions that ZeRO hands an optimizer give the same as whole parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


class Lion(torch.optim.Optimizer):
    """Lion with decoupled weight decay.

    Args:
        params: parameters or groups of them.
        lr: learning rate; a third to a tenth of AdamW's.
        betas: of the update and of the momentum.
        weight_decay: times lr; three to ten times AdamW's.

    Raises:
        ValueError: a value out of its range.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-4,
        betas: Sequence[float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        """Make the optimizer; the momentum is made at the first step."""
        for name, value in (("lr", lr), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise ValueError(f"{name} = {value}: must be at least 0")
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas = {betas}: must be two numbers from 0 to below 1")
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every tensor that has a gradient."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for tensor in group["params"]:
                if tensor.grad is None:
                    continue
                state = self.state[tensor]
                if not state:
                    state["exp_avg"] = torch.zeros_like(tensor)
                momentum = state["exp_avg"]
                tensor.mul_(1 - lr * group["weight_decay"])
                tensor.add_(momentum.lerp(tensor.grad, 1 - beta1).sign_(), alpha=-lr)
                momentum.lerp_(tensor.grad, 1 - beta2)
        return loss
