"""Attention over a token stream: inside each pair alone, exactly as if every pair were run by itself.

A stream holds the pairs of a micro-batch end to end, so there is no padding to mask. Three exact paths:

- what `pretrain.model.cuda_attention` chose by its self-test; CUDA.
- `fused`: `pretrain.model.cpu`'s function over slices of the stream; CPU, float32 or bfloat16.
- `runs`: `scaled_dot_product_attention` over slices of the stream; everywhere else.

Pairs of equal length that stand next to each other (a *run*) are one batched call.

transformers calls the function through its `AttentionInterface` under the name `ATTENTION_NAME`; no mask function is
registered under that name, so transformers builds no mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from pretrain.model import cuda_attention
from pretrain.model.cpu.functions import FUSED_DTYPES, Attend, call

ATTENTION_NAME = "zerobert_stream"


@dataclass(frozen=True)
class Run:
    """Pairs of one length that stand next to each other in the stream."""

    start: int
    """First token of the run in the stream."""
    num_pairs: int
    length: int
    """Tokens of each pair, at least 1."""


@dataclass(eq=False)  # not frozen: torch.compile would then look at every field, and compile anew for each stream
class StreamLayout:
    """Where the pairs of a stream lie, worked out once a micro-batch and used by every layer."""

    cu_seqlens: Tensor
    """int32 (P + 1,), on the stream's device: offsets of the pairs, from 0 to T."""
    longest: int
    """No pair has more tokens."""
    runs: tuple[Run, ...]
    way: str | None = None
    """On CUDA: of `pretrain.model.cuda_attention.CANDIDATES`, what the self-test chose."""

    @property
    def fused_runs(self) -> tuple[tuple[int, int, int], ...]:
        """Return the runs as `pretrain.model.cpu.functions.Attend` takes them."""
        return tuple((run.start, run.num_pairs, run.length) for run in self.runs)

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
        # A power of two: few values, so that what is compiled for one stream serves the next.
        return cls(cu_seqlens, 1 << (max(lengths) - 1).bit_length(), tuple(runs))


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
        out = scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scaling)
        outputs.append(out.transpose(1, 2).reshape(size, num_heads, head_size))
    return torch.cat(outputs).unsqueeze(0)


def _attend_fused(query: Tensor, key: Tensor, value: Tensor, layout: StreamLayout, dropout: float) -> Tensor:
    # three times (1, N, T, D) -> (3, T, N, D)
    qkv = torch.stack([x[0].transpose(0, 1) for x in (query, key, value)])
    out: Tensor = call(Attend, qkv, layout.fused_runs, dropout)
    return out.unsqueeze(0)


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
    if layout.way is not None and scaling == kernel_scaling:
        return cuda_attention.attend(layout.way, query, key, value, layout, dropout), None
    if query.device.type == "cpu" and query.dtype in FUSED_DTYPES and scaling == kernel_scaling:
        return _attend_fused(query, key, value, layout, dropout), None
    return _attend_by_runs(query, key, value, layout, scaling, dropout), None


AttentionInterface.register(ATTENTION_NAME, attend_stream)
