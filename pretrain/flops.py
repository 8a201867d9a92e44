"""The work of a training step in floating-point operations, and the most that a device can do a second.

Only useful work counts: forward and backward of real tokens, the MLM head at masked positions alone. Padding, logits
that no loss reads and layers computed a second time (activation checkpointing) count nothing, so that no setting looks
faster for doing more than it must. The NSP head, embeddings, LayerNorm and the optimizer are left out: next to the
products of matrices they are small.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pretrain.data.stream import BatchCounts
    from pretrain.model.bert import StreamBert


@dataclass(frozen=True)
class ModelShape:
    """What of a model the formula needs."""

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    """Tokens of the tokenizer; rows that pad the table count nothing."""

    @classmethod
    def of(cls, model: StreamBert) -> ModelShape:
        """Take it from a model."""
        config = model.config
        return cls(
            num_hidden_layers=int(config.num_hidden_layers),
            hidden_size=int(config.hidden_size),
            intermediate_size=int(config.intermediate_size),
            vocab_size=int(model.real_vocab_size),
        )


@dataclass(frozen=True)
class WorkCounts:
    """What was trained on; counts of several batches add up."""

    tokens: int = 0
    """Real tokens, specials counted, padding not."""
    squared_tokens: int = 0
    """Sum of the squares of the pairs' tokens."""
    masked_tokens: int = 0
    """Predictions."""
    pairs: int = 0

    @classmethod
    def of(cls, counts: BatchCounts) -> WorkCounts:
        """Take them from a global batch."""
        return cls(counts.tokens, counts.squared_tokens, counts.masked_tokens, counts.pairs)

    def __add__(self, other: WorkCounts) -> WorkCounts:
        return WorkCounts(
            self.tokens + other.tokens,
            self.squared_tokens + other.squared_tokens,
            self.masked_tokens + other.masked_tokens,
            self.pairs + other.pairs,
        )


def model_flops(shape: ModelShape, counts: WorkCounts) -> float:
    """Return the floating-point operations of forward and backward.

    A product of matrices takes 2 operations a weight and token forward and 4 backward; attention's two products take
    12·L·H for each two tokens of a pair, forward and backward together:

        6·L·(4H² + 2·H·I)·tokens + 12·L·H·Σ(tokens of a pair)² + 6·(H² + H·V)·masked tokens

    For 12 x 768 that is 69.9 GFLOP a pair of 128 tokens with 20 masked, for 24 x 1024 it is 240.6.
    """
    layers, hidden = shape.num_hidden_layers, shape.hidden_size
    encoder = layers * (4 * hidden**2 + 2 * hidden * shape.intermediate_size)
    head = hidden**2 + hidden * shape.vocab_size
    return float(
        6 * encoder * counts.tokens + 12 * layers * hidden * counts.squared_tokens + 6 * head * counts.masked_tokens
    )


def _peaks(*, fp32: float, fp16: float, bf16: float | None) -> dict[torch.dtype, float]:
    """Turn TFLOP/s into FLOP/s by dtype; None: the device has no such units."""
    given = {torch.float32: fp32, torch.float16: fp16, torch.bfloat16: bf16}
    return {dtype: value * 1e12 for dtype, value in given.items() if value is not None}


PEAK_FLOPS: Mapping[str, Mapping[torch.dtype, float]] = {
    # NVIDIA's product datasheets and architecture whitepapers, where a tensor-core figure marked "with sparsity" is
    # twice the dense one.
    "GB200": _peaks(fp32=80, fp16=2500, bf16=2500),
    "B200": _peaks(fp32=75, fp16=2250, bf16=2250),
    "GH200": _peaks(fp32=67, fp16=989.4, bf16=989.4),
    "H200 NVL": _peaks(fp32=60, fp16=835.5, bf16=835.5),
    "H200": _peaks(fp32=67, fp16=989.4, bf16=989.4),
    "H100 PCIe": _peaks(fp32=51.2, fp16=756.5, bf16=756.5),
    "H100 NVL": _peaks(fp32=60, fp16=835.5, bf16=835.5),
    "H100": _peaks(fp32=67, fp16=989.4, bf16=989.4),
    "H800 PCIe": _peaks(fp32=51.2, fp16=756.5, bf16=756.5),
    "H800": _peaks(fp32=67, fp16=989.4, bf16=989.4),
    "H20": _peaks(fp32=44, fp16=148, bf16=148),
    "A100": _peaks(fp32=19.5, fp16=312, bf16=312),
    "A800": _peaks(fp32=19.5, fp16=312, bf16=312),
    "A40": _peaks(fp32=37.4, fp16=149.7, bf16=149.7),
    "A30": _peaks(fp32=10.3, fp16=165, bf16=165),
    "A10G": _peaks(fp32=35, fp16=70, bf16=70),
    "A10": _peaks(fp32=31.2, fp16=125, bf16=125),
    "L40S": _peaks(fp32=91.6, fp16=362, bf16=362),
    "L40": _peaks(fp32=90.5, fp16=181, bf16=181),
    "L4": _peaks(fp32=30.3, fp16=121, bf16=121),
    "V100S": _peaks(fp32=16.4, fp16=130, bf16=None),
    "V100 PCIE": _peaks(fp32=14, fp16=112, bf16=None),
    "V100": _peaks(fp32=15.7, fp16=125, bf16=None),
    "T4": _peaks(fp32=8.1, fp16=65, bf16=None),
    # GeForce and RTX: with sums in fp32, as torch has them; the higher figures of the sheets add up in fp16.
    "RTX 5090": _peaks(fp32=104.8, fp16=209.5, bf16=209.5),
    "RTX 4090": _peaks(fp32=82.6, fp16=165.2, bf16=165.2),
    "RTX 3090": _peaks(fp32=35.6, fp16=71, bf16=71),
    "RTX 6000 Ada": _peaks(fp32=91.1, fp16=364.2, bf16=364.2),
    "RTX A6000": _peaks(fp32=38.7, fp16=154.8, bf16=154.8),
    # AMD's product datasheets, matrix units. An MI250 is two devices to torch: half of the sheet's figures.
    "MI325X": _peaks(fp32=163.4, fp16=1307.4, bf16=1307.4),
    "MI300X": _peaks(fp32=163.4, fp16=1307.4, bf16=1307.4),
    "MI250X": _peaks(fp32=47.9, fp16=191.5, bf16=191.5),
    "MI250": _peaks(fp32=45.3, fp16=181, bf16=181),
    "MI210": _peaks(fp32=45.3, fp16=181, bf16=181),
}
"""Dense peak in FLOP/s by device and dtype of the products. float32 is without TF32, which torch leaves off."""

_OTHER_DEVICE = re.compile(r"\b(MIG|Laptop|Max-Q|Ti|SUPER|D)\b")
"""Words that turn a name of the table into another device, or into a part of one."""


def peak_flops(device_name: str, dtype: torch.dtype) -> float | None:
    """Return the dense peak of a device, FLOP/s.

    Args:
        device_name: as `torch.cuda.get_device_name` gives it, such as "NVIDIA A100-SXM4-80GB"; the longest name of the
            table that stands in it as whole words counts.
        dtype: of the products.

    Returns:
        None where the table does not know the device, or the device has no units for the type.
    """
    words = re.sub(r"[-_\s]+", " ", device_name)
    found = [name for name in PEAK_FLOPS if re.search(rf"\b{re.escape(name)}\b", words, re.IGNORECASE)]
    if not found or _OTHER_DEVICE.search(device_name):
        return None
    return PEAK_FLOPS[max(found, key=len)].get(dtype)
