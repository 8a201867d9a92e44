"""What a rank sends in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pretrain.engine.ds_config import precision, zero_stage
from pretrain.parameters import Parameter
from pretrain.plan.memory import BYTES

_LAMB_BYTES = 2 * 8
"""Two squared norms in float64 of each tensor."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that a rank sends in a step."""

    algorithm: int
    """By ZeRO's algorithm: gradients are reduced to slices."""
    deepspeed: int
    """As DeepSpeed 0.19.8 does it: stages 1 and 2 all-reduce, unless use_multi_rank_bucket_allreduce is false."""


def traffic_of_step(parameters: Sequence[Parameter], config: Mapping[str, Any], world_size: int) -> Traffic:
    """Return what a rank sends in a step, by the ring algorithms of collectives.

    To reduce n elements to slices, or to gather slices of them, each rank sends n·(W - 1)/W; an all-reduce is both.
    Stage 0 all-reduces gradients; stages 1 and 2 reduce them and gather the new parameters: 2·P·(W - 1)/W elements
    each. Stage 3 gathers parameters for forward and for backward, and reduces gradients: 1.5 times as many. Stages 2
    and 3 do so at every micro-step.

    Args:
        parameters: of the model, P elements.
        config: a resolved DeepSpeed JSON.
        world_size: W.
    """
    stage, kind = zero_stage(config), precision(config)
    count = sum(p.numel for p in parameters)
    gradient = BYTES[config.get("communication_data_type") or kind]
    accumulation = int(config.get("gradient_accumulation_steps", 1))
    reduced = gradient * (accumulation if stage >= 2 else 1)
    gathered = {0: gradient, 3: 2 * BYTES[kind] * accumulation}.get(stage, BYTES[kind])
    block = config.get("zero_optimization", {})
    # BF16_Optimizer (stage 1 with sums of its own) always all-reduces.
    sums = (config.get("data_types") or {}).get("grad_accum_dtype") or kind
    is_bf16_optimizer = stage == 1 and kind == "bf16" and sums != kind
    doubles = stage in (1, 2) and (is_bf16_optimizer or block.get("use_multi_rank_bucket_allreduce", True))
    lamb = 0
    if str(config["optimizer"]["type"]).lower() == "lamb" and stage:
        lamb = len(parameters) * _LAMB_BYTES * 2

    def sent(bytes_of_parameter: int) -> int:
        return (count * bytes_of_parameter + lamb) * (world_size - 1) // world_size

    return Traffic(sent(reduced + gathered), sent(reduced * (2 if doubles else 1) + gathered))
