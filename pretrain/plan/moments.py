"""How much state an optimizer keeps of a parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

OF_DEEPSPEED = {
    "adam": 2.0,
    "adamw": 2.0,
    "onebitadam": 3.0,  # and the error of what it sends
    "zerooneadam": 4.0,
    "lamb": 2.0,
    "onebitlamb": 4.0,
    "lion": 1.0,
    "adagrad": 1.0,
    "muon": 1.0,
    "muadam": 2.0,
    "muadamw": 2.0,
}
"""Elements of state a parameter. Muon keeps one for matrices, and Adam's two for the few others."""

_ELEMENTS = 1000


def moments_of(optimizer: Mapping[str, Any]) -> float:
    """Return the elements of fp32 state that an optimizer keeps for each element that it updates.

    Args:
        optimizer: the block of the JSON. Of torch's optimizers, one is made and takes a step on a small matrix.
    """
    kind, params = str(optimizer["type"]), dict(optimizer.get("params", {}))
    if kind.lower() in OF_DEEPSPEED:
        return OF_DEEPSPEED[kind.lower()]
    of_torch: Any = getattr(torch.optim, {"sgd": "SGD", "musgd": "SGD"}.get(kind.lower(), kind), None)
    if of_torch is None:
        return 2.0
    parameter = torch.zeros(1, _ELEMENTS, requires_grad=True)
    parameter.grad = torch.ones_like(parameter)
    try:
        made = of_torch([parameter], **params)
        made.step()
    except Exception:  # noqa: BLE001 - the JSON's check says what is wrong with it
        return 2.0
    held = made.state[parameter].values()
    return sum(value.numel() for value in held if isinstance(value, torch.Tensor) and value.numel() > 1) / _ELEMENTS
