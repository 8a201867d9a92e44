"""The two parameter groups of BERT: with weight decay and without."""

from __future__ import annotations

from typing import Any

from torch import nn


def named_groups(model: nn.Module) -> list[list[tuple[str, nn.Parameter]]]:
    """Split a model's parameters: [decayed, not decayed].

    No decay on biases and LayerNorm, that is on every 1-D parameter (Devlin et al. 2018's optimization.py). A tied
    parameter counts once, under its first name.

    Args:
        model: before DeepSpeed has it (ZeRO-3 flattens shapes).
    """
    decayed = [(name, parameter) for name, parameter in model.named_parameters() if parameter.ndim > 1]
    not_decayed = [(name, parameter) for name, parameter in model.named_parameters() if parameter.ndim <= 1]
    return [decayed, not_decayed]


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return the groups for `deepspeed.initialize`.

    The first takes the JSON's weight_decay, which has its home there; the second has 0.
    """
    decayed, not_decayed = ([parameter for _, parameter in group] for group in named_groups(model))
    return [{"params": decayed}, {"params": not_decayed, "weight_decay": 0.0}]
