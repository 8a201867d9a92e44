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


def cut(lengths: Sequence[int], start: int, size: int) -> list[Piece]:
    """Return what a slice of parameters that lie end to end holds of each.

    Args:
        lengths: elements of the parameters.
        start: of the slice.
        size: of the slice; may reach past the last parameter.
    """
    pieces, first = [], 0
    for number, length in enumerate(lengths):
        begin, end = max(first, start), min(first + length, start + size)
        if begin < end:
            pieces.append(Piece(number, begin - start, end - begin))
        first += length
    return pieces


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
        """Update every tensor that has a gradient; every rank of its layout's group must call."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for tensor in group["params"]:
                if tensor.grad is not None:
                    self._update(tensor, group)
        return loss

    def _update(self, tensor: Tensor, group: Mapping[str, Any]) -> None:
        update = self._adam(tensor, group)
        if group["weight_decay"]:
            update.add_(tensor, alpha=-group["weight_decay"])
        _, layout = self._layouts.get(id(tensor), (tensor, whole("", tensor)))
        flat_update, flat = update.view(-1), tensor.view(-1)
        updates, weights = (
            [of.narrow(0, piece.start, piece.length) for piece in layout.pieces] for of in (flat_update, flat)
        )
        ratios = self._ratios_of(layout, weights, updates).clamp(group["min_coeff"], group["max_coeff"])
        self._ratios |= {name: ratio for name, ratio in zip(layout.names, ratios.unbind(), strict=True) if name}
        by_piece = [ratios[piece.parameter] for piece in layout.pieces]
        if updates:
            torch._foreach_mul_(updates, by_piece)
            torch._foreach_add_(weights, updates, alpha=group["lr"])

    def _adam(self, tensor: Tensor, group: Mapping[str, Any]) -> Tensor:
        """Move the moments and return -m_hat / (sqrt(v_hat) + eps): Adam's step on zeros with a rate of 1."""
        state = self.state[tensor]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=tensor.device)
            state["exp_avg"] = torch.zeros_like(tensor)
            state["exp_avg_sq"] = torch.zeros_like(tensor)
        state["step"] += 1
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

    @staticmethod
    def _ratios_of(layout: Layout, weights: list[Tensor], updates: list[Tensor]) -> Tensor:
        """Return |w| / |u| of every parameter of a layout, float32; 1 where either is 0."""
        device = weights[0].device if weights else "cpu"
        squares = torch.zeros(2, len(layout.names), dtype=torch.float64, device=device)
        if weights:
            numbers = torch.tensor([piece.parameter for piece in layout.pieces], device=device)
            for row, tensors in zip(squares, (weights, updates), strict=True):
                norms = torch.stack(torch._foreach_norm(tensors))
                row.index_add_(0, numbers, norms.double().square())
        if layout.process_group is not None:
            dist.all_reduce(squares, group=layout.process_group)
        of_weights, of_updates = squares.sqrt()
        is_defined = (of_weights > 0) & (of_updates > 0)
        return torch.where(is_defined, of_weights / of_updates, 1.0).float()


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
