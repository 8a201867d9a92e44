"""Attention over a token stream: inside each pair alone, exactly as if every pair were run by itself.

A stream holds the pairs of a micro-batch end to end, so there is no padding to mask. Two exact paths:

- `varlen`: one call of `torch.nn.attention.varlen.varlen_attn` (FlashAttention's variable-length kernel; CUDA, fp16
  or bf16, no dropout).
- `runs`: `scaled_dot_product_attention` over slices of the stream. Pairs of equal length that stand next to each other
  (a *run*) are one batched call. Everywhere else: CPU, fp32, attention dropout.

transformers calls the function through its `AttentionInterface` under the name `ATTENTION_NAME`; no mask function is
registered under that name, so transformers builds no mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

ATTENTION_NAME = "zerobert_stream"
LONGEST_PLAIN = 256
"""Tokens of the longest pair for which the scores are held in memory on a CPU."""


@dataclass(frozen=True)
class Run:
    """Pairs of one length that stand next to each other in the stream."""

    start: int
    """First token of the run in the stream."""
    num_pairs: int
    length: int
    """Tokens of each pair, at least 1."""


@dataclass(frozen=True)
class StreamLayout:
    """Where the pairs of a stream lie, worked out once a micro-batch and used by every layer."""

    cu_seqlens: Tensor
    """int32 (P + 1,), on the stream's device: offsets of the pairs, from 0 to T."""
    longest: int
    """Tokens of the longest pair."""
    runs: tuple[Run, ...]

    @classmethod
    def from_lengths(cls, lengths: Sequence[int], cu_seqlens: Tensor) -> StreamLayout:
        """Find the runs of a stream.

        Args:
            lengths: tokens of each of the P pairs, in stream order, on the host (so that nothing waits for a device).
            cu_seqlens: int32 (P + 1,), their running sum on the stream's device.
        """
        runs: list[Run] = []
        start = 0
        for length in lengths:
            if runs and runs[-1].length == length:
                last = runs[-1]
                runs[-1] = Run(last.start, last.num_pairs + 1, length)
            else:
                runs.append(Run(start, 1, length))
            start += length
        return cls(cu_seqlens, max(lengths), tuple(runs))


def _attend_by_varlen(query: Tensor, key: Tensor, value: Tensor, layout: StreamLayout) -> Tensor:
    # (1, N, T, D) -> (T, N, D), the kernel's order; a view of the projections' own memory.
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    cu, longest = layout.cu_seqlens, layout.longest
    out = varlen_attn(q, k, v, cu, cu, longest, longest)
    assert isinstance(out, Tensor)
    return out.unsqueeze(0)


def _attend_by_runs(
    query: Tensor, key: Tensor, value: Tensor, layout: StreamLayout, scaling: float, dropout: float
) -> Tensor:
    num_heads, head_size = query.shape[1], query.shape[3]
    # split, not slices: the backward of a slice fills a whole stream with zeros for each run.
    sizes = [run.num_pairs * run.length for run in layout.runs]
    pieces = zip(*(torch.split(x[0], sizes, dim=1) for x in (query, key, value)), strict=True)
    outputs = []
    for run, size, piece in zip(layout.runs, sizes, pieces, strict=True):
        # (N, G·L, D) -> (G, N, L, D): a batch of G pairs.
        q, k, v = (x.reshape(num_heads, run.num_pairs, run.length, head_size).transpose(0, 1) for x in piece)
        if _is_plain_faster(q):
            weights = torch.softmax((q @ k.transpose(-1, -2)) * scaling, dim=-1)
            out = torch.dropout(weights, dropout, train=dropout > 0.0) @ v
        else:
            out = scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scaling)
        outputs.append(out.transpose(1, 2).reshape(size, num_heads, head_size))
    return torch.cat(outputs).unsqueeze(0)


def _is_plain_faster(query: Tensor) -> bool:
    """Say whether two matrix products beat the fused kernel: for short pairs in bf16 on a CPU."""
    return query.device.type == "cpu" and query.dtype == torch.bfloat16 and query.shape[2] <= LONGEST_PLAIN


def attend_stream(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: StreamLayout,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend inside each pair of a token stream.

    Args:
        module: the layer's self-attention; not used, part of the interface.
        query: floating (1, N, T, D).
        key: like query.
        value: like query.
        attention_mask: must be None; a stream has nothing to mask.
        layout: where the pairs lie.
        scaling: factor of the scores; None means D ** -0.5.
        dropout: chance in [0, 1) that an attention weight is dropped.

    Returns:
        The context, (1, T, N, D), and None in place of the attention weights.
    """
    assert attention_mask is None, "a token stream takes no attention mask"
    # The kernel's own scale is D ** -0.5, and so is BERT's.
    kernel_scaling = query.shape[-1] ** -0.5
    scaling = kernel_scaling if scaling is None else scaling
    is_half = query.dtype in (torch.float16, torch.bfloat16)
    if query.is_cuda and is_half and dropout == 0.0 and scaling == kernel_scaling:
        return _attend_by_varlen(query, key, value, layout), None
    return _attend_by_runs(query, key, value, layout, scaling, dropout), None


AttentionInterface.register(ATTENTION_NAME, attend_stream)
