"""The parameter groups of BERT, and the optimizers that this project makes itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from pretrain.engine.lamb import Lamb
from pretrain.engine.lion import Lion

MUON_PARAMS = ("lr", "momentum", "weight_decay", "ns_method")
NS_METHODS = ("gram", "standard")
ADAM_PARAMS = ("lr", "betas", "eps", "weight_decay")


class HasParameters(Protocol):
    """A model, or what is known of one from a file."""

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        """Yield each parameter once, under its first name."""


def named_groups(model: HasParameters) -> list[list[tuple[str, nn.Parameter]]]:
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


def make_optimizer(model: nn.Module, kind: str, params: Mapping[str, Any]) -> torch.optim.Optimizer | None:
    """Make the optimizers that DeepSpeed's own would be wrong or need a build for.

    Args:
        model: before DeepSpeed has it.
        kind: optimizer.type of the JSON.
        params: optimizer.params.

    Returns:
        None where DeepSpeed makes it from the JSON.
    """
    match kind.lower():
        case "lamb":
            return Lamb(parameter_groups(model), **params)
        case "lion":
            return Lion(parameter_groups(model), **params)
        case "muon":
            return make_muon(model, params)
    return None


def named_muon_groups(model: HasParameters) -> list[list[tuple[str, nn.Parameter]]]:
    """Split a model's parameters: [Muon, decayed by AdamW, not decayed by AdamW].

    Muon is for the matrices inside a network: those of the encoder's layers. Embeddings with the tied decoder, pooler
    and heads go to AdamW, and so does every 1-D parameter.
    """
    decayed, not_decayed = named_groups(model)
    inner = [(name, parameter) for name, parameter in decayed if name.startswith("bert.encoder.")]
    return [inner, [item for item in decayed if not item[0].startswith("bert.encoder.")], not_decayed]


def make_muon(model: nn.Module, params: Mapping[str, Any]) -> torch.optim.Optimizer:
    """Make DeepSpeed's Muon, with torch's AdamW for the rest; the parameters are marked `use_muon` for ZeRO.

    Args:
        model: before DeepSpeed has it.
        params: optimizer.params: lr, muon_lr and adam_lr in its place, momentum, ns_method, betas, eps, weight_decay.

    Raises:
        TypeError: an unknown one.
        ValueError: an ns_method that is none.
    """
    # Late: its import compiles kernels.
    from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam  # noqa: PLC0415

    unknown = set(params) - {*MUON_PARAMS, *ADAM_PARAMS, "muon_lr", "adam_lr"}
    if unknown:
        raise TypeError(f"Muon has no parameter {', '.join(sorted(unknown))}")
    if params.get("ns_method", "gram") not in NS_METHODS:
        raise ValueError(f"ns_method = {params['ns_method']!r}: must be one of {', '.join(NS_METHODS)}")
    groups: list[dict[str, Any]] = []
    for number, named in enumerate(named_muon_groups(model)):
        is_muon = number == 0
        settings = {key: params[key] for key in (MUON_PARAMS if is_muon else ADAM_PARAMS) if key in params}
        settings["lr"] = params.get("muon_lr" if is_muon else "adam_lr", params["lr"])
        if number == 2:
            settings["weight_decay"] = 0.0
        for _, parameter in named:
            parameter.use_muon = is_muon  # type: ignore[attr-defined]
        if named:
            groups.append({"params": [parameter for _, parameter in named], "use_muon": is_muon, **settings})
    muon: torch.optim.Optimizer = MuonWithAuxAdam(
        groups, adam_optimizer=torch.optim.AdamW, adam_optimizer_kwargs={"fused": True}
    )
    return muon
