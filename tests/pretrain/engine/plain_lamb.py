"""LAMB as in the paper, parameter by parameter: what ours is held against."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class PlainLamb:
    """Moments of named parameters, and one update; all in float64 but the weights."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    bias_correction: bool = True
    max_coeff: float = 10.0
    min_coeff: float = 0.01
    steps: int = 0
    moments: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)

    def step(self, weights: dict[str, Tensor], gradients: dict[str, Tensor], weight_decay: dict[str, float]) -> None:
        """Update the weights in place."""
        self.steps += 1
        first, second = self.betas
        for name, weight in weights.items():
            gradient = gradients[name].double()
            zeros = torch.zeros_like(gradient)
            mean, square = self.moments.get(name, (zeros, zeros))
            mean = first * mean + (1 - first) * gradient
            square = second * square + (1 - second) * gradient * gradient
            self.moments[name] = mean, square
            if self.bias_correction:
                mean = mean / (1 - first**self.steps)
                square = square / (1 - second**self.steps)
            update = mean / (square.sqrt() + self.eps) + weight_decay[name] * weight.double()
            of_weight, of_update = math.sqrt(float((weight.double() ** 2).sum())), math.sqrt(float((update**2).sum()))
            ratio = of_weight / of_update if of_weight > 0 and of_update > 0 else 1.0
            ratio = min(max(ratio, self.min_coeff), self.max_coeff)
            self.ratios[name] = ratio
            weight.sub_((self.lr * ratio * update).to(weight.dtype))
