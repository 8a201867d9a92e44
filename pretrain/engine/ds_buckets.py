"""ZeRO's buckets: how many elements fit a model, and what memory they take.

DeepSpeed's default of 5e8 elements suits models of many billion parameters. BERT-base has 1.1e8: four fifths of such a
bucket would never hold anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEFAULT_BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed's own."""
BUCKET_ELEMENTS = 50_000_000
"""What is filled in: half of BERT-base, so that sending begins while the backward pass still runs."""
CPU_BUCKET_ELEMENTS = 5_000_000
"""The same for ZeRO 1 and 2 on a CPU, which take a fresh bucket in each step and hand it back."""


def bucket_sizes(num_parameters: int | None, *, stage: int, on_cuda: bool) -> dict[str, int]:
    """Return the bucket sizes that fit a model, in elements, by their key in zero_optimization.

    Args:
        num_parameters: elements of the whole model; None: not known.
        stage: of ZeRO; 0 has no buckets.
        on_cuda: whether the engine will run on CUDA.

    Returns:
        Even numbers, as DeepSpeed wants them, none above the model's size.
    """
    if stage == 0:
        return {}
    most = BUCKET_ELEMENTS if on_cuda or stage == 3 else CPU_BUCKET_ELEMENTS
    size = most if num_parameters is None else min(most, num_parameters + num_parameters % 2)
    keys = ("reduce_bucket_size",) if stage == 3 else ("reduce_bucket_size", "allgather_bucket_size")
    return dict.fromkeys(keys, size)


def sends_in_one_piece(config: Mapping[str, Any]) -> bool:
    """Say whether gradients are sent after the backward pass all at once, without buckets.

    So it is on ZeRO 1 with bf16 parameters and sums in fp32, where DeepSpeed takes another optimizer than elsewhere.
    """
    zero = config.get("zero_optimization", {})
    return (
        zero.get("stage", 0) == 1
        and bool(config.get("bf16", {}).get("enabled"))
        and config.get("data_types", {}).get("grad_accum_dtype") == "fp32"
        and zero.get("offload_optimizer", {}).get("device", "none") == "none"
    )


def element_bytes(config: Mapping[str, Any]) -> int:
    """Return the bytes of an element of the reduce bucket: of the parameters' type, on ZeRO 1 of the sums'."""
    zero, sums = config.get("zero_optimization", {}), config.get("data_types", {}).get("grad_accum_dtype")
    is_low = any(config.get(name, {}).get("enabled") for name in ("fp16", "bf16"))
    return 2 if is_low and not (zero.get("stage", 0) == 1 and sums == "fp32") else 4
