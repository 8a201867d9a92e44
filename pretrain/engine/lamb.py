"""LAMB whose trust ratios are those of whole parameters, however ZeRO has cut them.

You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", arXiv:1904.00962, algorithm 2:

    u = m_hat / (sqrt(v_hat) + eps) + weight_decay * w
    w = w - lr * clamp(|w| / |u|) * u          with both norms over one parameter

ZeRO gives an optimizer flat partitions: parameters end to end, cut at any element. A plain LAMB takes the norms of
those and computes ratios that belong to no parameter. This one knows which elements of a partition belong to
which parameter (`Piece`) and adds up the squares of each parameter's pieces over the ranks, in one all-reduce a call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.engine import lamb_cpu

_NO_CORRECTION = math.inf
"""The step for which 1 - beta^step is 1."""


@dataclass(frozen=True)
class Piece:
    """What a tensor holds of one parameter.

    Args:
        parameter: number of the parameter, the same on every rank, below `Layout.num_parameters`.
        start: its first element in the tensor.
        length: its elements there, at least 1.
    """

    parameter: int
    start: int
    length: int


@dataclass(frozen=True)
class Layout:
    """How the parameters of a group lie in the tensor that a rank updates.

    Args:
        names: of the parameters, by number; the same on every rank.
        pieces: what of them this rank has; what is in none of them is padding, and stays as it is.
        process_group: ranks that have the other pieces; None: this one has them all.
    """

    names: Sequence[str]
    pieces: Sequence[Piece]
    process_group: Any = None


def whole(name: str, tensor: Tensor) -> Layout:
    """Return the layout of a tensor that is one parameter."""
    return Layout([name], [Piece(0, 0, tensor.numel())])


class Lamb(torch.optim.Optimizer):
    """LAMB for whole parameters, or for flat partitions once `describe` has said what they hold.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        betas: of the moments.
        eps: added to the root of the second moment.
        weight_decay: added to the update, before its norm is taken.
        bias_correction: divide the moments by 1 - beta^step.
        max_coeff: largest trust ratio.
        min_coeff: smallest trust ratio.

    Raises:
        ValueError: a value out of its range.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: Sequence[float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
        max_coeff: float = 10.0,
        min_coeff: float = 0.01,
    ) -> None:
        """Make the optimizer; moments are made at the first step."""
        _check(lr, betas, eps, weight_decay, max_coeff, min_coeff)
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "max_coeff": max_coeff,
            "min_coeff": min_coeff,
        }
        super().__init__(params, defaults)
        self._layouts: dict[int, tuple[Tensor, Layout]] = {}
        self._ratios: dict[str, Tensor] = {}

    def describe(self, tensor: Tensor, layout: Layout) -> None:
        """Say what a flat tensor holds that will stand in a group; known by its identity."""
        self._layouts[id(tensor)] = tensor, layout

    def trust_ratios(self) -> dict[str, float]:
        """Return the ratios of the last step by parameter; on a GPU this waits for it. Without layouts: empty."""
        return {name: float(ratio) for name, ratio in self._ratios.items()}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every tensor that has a gradient, using it up; every rank of its layout's group must call."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for tensor in group["params"]:
                if tensor.grad is not None:
                    self._update(tensor, group)
        return loss

    def _update(self, tensor: Tensor, group: Mapping[str, Any]) -> None:
        _, layout = self._layouts.get(id(tensor), (tensor, whole("", tensor)))
        update = self._update_on_cpu if lamb_cpu.can_take(tensor) else self._update_by_torch
        ratios = update(tensor, group, layout)
        self._ratios |= {name: ratio for name, ratio in zip(layout.names, ratios.unbind(), strict=True) if name}

    def _update_on_cpu(self, tensor: Tensor, group: Mapping[str, Any], layout: Layout) -> Tensor:
        """Update in two compiled passes, which use the gradient up; return the ratios."""
        state, squares = self._state_of(tensor), torch.zeros(2, len(layout.names), dtype=torch.float64)
        step = float(state["step"])
        first, second = (1 - beta**step if group["bias_correction"] else 1.0 for beta in group["betas"])
        assert tensor.grad is not None
        flat = [of.view(-1) for of in (tensor.grad, state["exp_avg"], state["exp_avg_sq"], tensor)]
        pieces = [[of.narrow(0, piece.start, piece.length) for of in flat] for piece in layout.pieces]
        for piece, (gradient, mean, square, weight) in zip(layout.pieces, pieces, strict=True):
            squares[:, piece.parameter] += lamb_cpu.move(
                gradient,
                mean,
                square,
                weight,
                betas=group["betas"],
                corrections=(first, second),
                eps=group["eps"],
                weight_decay=group["weight_decay"],
            )
        ratios = _ratios_of(squares, layout, group)
        for piece, (update, _, _, weight) in zip(layout.pieces, pieces, strict=True):
            lamb_cpu.apply(weight, update, group["lr"] * float(ratios[piece.parameter]))
        return ratios

    def _update_by_torch(self, tensor: Tensor, group: Mapping[str, Any], layout: Layout) -> Tensor:
        update = self._adam(tensor, group)
        if group["weight_decay"]:
            update.add_(tensor, alpha=-group["weight_decay"])
        updates, weights = (
            [of.view(-1).narrow(0, piece.start, piece.length) for piece in layout.pieces] for of in (update, tensor)
        )
        squares = torch.zeros(2, len(layout.names), dtype=torch.float64, device=tensor.device)
        if weights:
            numbers = torch.tensor([piece.parameter for piece in layout.pieces], device=tensor.device)
            for row, tensors in zip(squares, (weights, updates), strict=True):
                row.index_add_(0, numbers, torch.stack(torch._foreach_norm(tensors)).double().square())
        ratios = _ratios_of(squares, layout, group)
        if updates:
            torch._foreach_mul_(updates, [ratios[piece.parameter] for piece in layout.pieces])
            torch._foreach_add_(weights, updates, alpha=group["lr"])
        return ratios

    def _state_of(self, tensor: Tensor) -> dict[str, Any]:
        """Return a tensor's moments and count, made at its first step, after counting one step more."""
        state: dict[str, Any] = self.state[tensor]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=tensor.device)
            state["exp_avg"] = torch.zeros_like(tensor)
            state["exp_avg_sq"] = torch.zeros_like(tensor)
        state["step"] += 1
        return state

    def _adam(self, tensor: Tensor, group: Mapping[str, Any]) -> Tensor:
        """Move the moments and return -m_hat / (sqrt(v_hat) + eps): Adam's step on zeros with a rate of 1."""
        state = self._state_of(tensor)
        step = state["step"] if group["bias_correction"] else torch.full_like(state["step"], _NO_CORRECTION)
        update = torch.zeros_like(tensor, requires_grad=False)
        torch._fused_adamw_(
            [update],
            [tensor.grad],  # type: ignore[list-item]
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [step],
            lr=1.0,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )
        return update


def trust_ratio_values(lamb: Lamb) -> dict[str, float]:
    """Return the last step's trust ratios as metrics: lamb/trust_ratio_min, _mean, _max, and each by its name."""
    ratios = lamb.trust_ratios()
    if not ratios:
        return {}
    together = {"min": min(ratios.values()), "mean": sum(ratios.values()) / len(ratios), "max": max(ratios.values())}
    return {f"lamb/trust_ratio_{name}": value for name, value in together.items()} | {
        f"lamb/trust_ratio/{name}": ratio for name, ratio in ratios.items()
    }


def _ratios_of(squares: Tensor, layout: Layout, group: Mapping[str, Any]) -> Tensor:
    """Return |w| / |u| of every parameter of a layout within its bounds, float32; 1 where either is 0.

    Args:
        squares: float64 (2, parameters): of this rank's weights and updates; becomes that of all ranks.
        layout: every rank of its group must call.
        group: has the bounds.
    """
    if layout.process_group is not None:
        dist.all_reduce(squares, group=layout.process_group)
    of_weights, of_updates = squares.sqrt()
    is_zero = (of_weights == 0) | (of_updates == 0)  # NaN is neither
    ratios = torch.where(is_zero, 1.0, of_weights / of_updates)
    return ratios.clamp(group["min_coeff"], group["max_coeff"]).float()


def _check(
    lr: float, betas: Sequence[float], eps: float, weight_decay: float, max_coeff: float, min_coeff: float
) -> None:
    for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
        if not value >= 0:
            raise ValueError(f"{name} = {value}: must be at least 0")
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas = {betas}: must be two numbers from 0 to below 1")
    if not 0 <= min_coeff <= max_coeff:
        raise ValueError(
            f"min_coeff = {min_coeff}, max_coeff = {max_coeff}: must be at least 0, and the first no larger"
        )
