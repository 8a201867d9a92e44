"""The kernels as differentiable functions of tensors, on one thread or on as many as torch may use."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pretrain.model.cpu import kernels

FUSED_DTYPES = (torch.float32, torch.bfloat16)
"""What the functions take."""
_Run = tuple[int, int, int]
_SMALLEST_SHARE = 1 << 15
"""Elements below which another thread costs more than it saves."""


def call(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Apply one of the functions below to tensors and settings, and keep what its backward needs."""
    return function.apply(*arguments)


class DropAddNorm(torch.autograd.Function):
    """LayerNorm(residual + dropout(x)): what ends both halves of a BERT layer.

    Kept for backward are the sum and two numbers a row; torch's own functions keep the mask and x̂ beside it.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, dropout: float
    ) -> Tensor:
        """Take x and residual (T, H), float32 or bfloat16; weight and bias (H,)."""
        x = x.contiguous()
        residual = residual.contiguous()
        draws = _Draws(dropout)
        total, out = torch.empty_like(x), torch.empty_like(x)
        mean, rstd = torch.empty((2, len(x)), dtype=torch.float32)
        _over_rows(
            kernels.drop_add_norm,
            x,
            residual,
            weight.float(),
            bias.float(),
            np.float32(eps),
            *draws,
            total,
            out,
            mean,
            rstd,
        )
        ctx.save_for_backward(total, weight, mean, rstd)
        ctx.draws = draws
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, residual, weight and bias."""
        total, weight, mean, rstd = ctx.saved_tensors
        grad_residual, grad_x = torch.empty_like(total), torch.empty_like(total)
        sums = _over_rows(
            kernels.drop_add_norm_backward,
            grad.contiguous(),
            total,
            weight.float(),
            mean,
            rstd,
            *ctx.draws,
            grad_residual,
            grad_x,
            num_sums=2,
        )
        grad_weight, grad_bias = sums.to(weight.dtype)
        return grad_x, grad_residual, grad_weight, grad_bias, None, None


class Drop(torch.autograd.Function):
    """Dropout that keeps no mask: backward draws it again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropout: float) -> Tensor:
        """Take x (T, H), float32 or bfloat16."""
        ctx.draws = _Draws(dropout)
        return _drop(x, ctx.draws)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Drop the gradient's same elements."""
        return _drop(grad, ctx.draws), None


class TwoUses(torch.autograd.Function):
    """The word table for the embeddings and for the MLM head: the gradient of the first is added to the second's.

    torch would make a table of zeros of the first, and add up two tables.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor) -> tuple[Tensor, Tensor]:
        """Return the table (V, H) twice."""
        ctx.set_materialize_grads(False)
        return table.view_as(table), table.view_as(table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, rows: Tensor | None, table: Tensor | None) -> Tensor | None:
        """Return the sum; the gradient of the head is nobody else's, and takes it."""
        if rows is None or table is None:
            return table if rows is None else rows.to_dense()
        return table.index_add_(0, rows.indices()[0], rows.values())


class WordEmbedding(torch.autograd.Function):
    """Rows of the word table, with a sparse gradient: see `TwoUses`."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, table: Tensor) -> Tensor:
        """Take ids int64 (T,) and the table (V, H)."""
        ctx.save_for_backward(ids)
        ctx.shape = table.shape
        return table.index_select(0, ids)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        """Return the table's gradient, sparse: each row once, summed in float32."""
        (ids,) = ctx.saved_tensors
        rows, places = torch.unique(ids, return_inverse=True)
        sums = grad.new_zeros((len(rows), ctx.shape[1]), dtype=torch.float32).index_add_(0, places, grad.float())
        return None, torch.sparse_coo_tensor(
            rows[None], sums.to(grad.dtype), ctx.shape, is_coalesced=True, check_invariants=False
        )


class Projections(torch.autograd.Function):
    """Query, key and value of all tokens in one array, (3, T, H)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        """Take x (T, H), and the weights (H, H) and biases (H,) of query, key and value."""
        ctx.save_for_backward(x, *parameters[:3])
        out = x.new_empty((3, *x.shape))
        for part, weight, bias in zip(out, parameters[:3], parameters[3:], strict=True):
            torch.addmm(bias, x, weight.t(), out=part)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of x, weights and biases."""
        x, *weights = ctx.saved_tensors
        grad_x = grad[0] @ weights[0]
        for part, weight in zip(grad[1:], weights[1:], strict=True):
            grad_x.addmm_(part, weight)
        return grad_x, *(part.t() @ x for part in grad), *grad.sum(1)


class GeluLinear(torch.autograd.Function):
    """linear(gelu(x)): backward computes GELU once more with its slope, so that the wide result is not kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Take x (T, I), weight (H, I), bias (H,)."""
        x = x.contiguous()
        active = torch.empty_like(x)
        _over_rows(kernels.gelu, x, active)
        ctx.save_for_backward(x, weight)
        return torch.addmm(bias, active, weight.t())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of x, weight and bias."""
        x, weight = ctx.saved_tensors
        grad_x, active = grad @ weight, torch.empty_like(x)
        _over_rows(kernels.gelu_backward, x, grad_x, active)
        return grad_x, grad.t() @ active, grad.sum(0)


class Attend(torch.autograd.Function):
    """Attention inside runs of pairs, with dropout of the weights; see `pretrain.model.attention`.

    The weights of short pairs are kept once, a minus standing for a weight that was dropped. Those of pairs longer than
    twice the head size would take more memory than query and key, and are computed again in backward (as FlashAttention
    does, Dao et al. 2022).
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, runs: tuple[_Run, ...], dropout: float) -> Tensor:
        """Take qkv (3, T, N, D), the runs' (first token, pairs, tokens of each), and return (T, N, D)."""
        out = torch.empty_like(qkv[0])
        longest = 2 * qkv.shape[-1]
        kept, draws = [], []
        for run in runs:
            draws.append(_Draws(dropout))
            signed, weights = _weights(qkv, run, draws[-1])
            _put_run(out, run, weights @ _of_run(qkv[2], run))
            kept.append(signed if run[2] <= longest else None)
        ctx.save_for_backward(qkv, *kept)
        ctx.runs, ctx.draws = runs, draws
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of qkv."""
        qkv, *kept = ctx.saved_tensors
        grad_qkv = torch.empty_like(qkv)
        for run, signed, draws in zip(ctx.runs, kept, ctx.draws, strict=True):
            query, key, value = (_of_run(part, run) for part in qkv)
            slope = _of_run(grad, run)
            if signed is None:
                signed, weights = _weights(qkv, run, draws)  # noqa: PLW2901 - what was not kept
            else:
                weights = torch.empty_like(signed)
            grad_scores = slope @ value.transpose(1, 2)
            _over_rows(kernels.softmax_drop_backward, signed, _scaling(qkv), draws.scale, grad_scores, weights)
            _put_run(grad_qkv[0], run, grad_scores @ key)
            _put_run(grad_qkv[1], run, grad_scores.transpose(1, 2) @ query)
            _put_run(grad_qkv[2], run, weights.transpose(1, 2) @ slope)
        return grad_qkv, None, None


class CrossEntropy(torch.autograd.Function):
    """Sum of the cross-entropies of logits, and how many rows are right; the gradient takes the logits' own place."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, num_classes: int, ignored: int) -> tuple[Tensor, Tensor]:
        """Take logits (M, C), which are overwritten, and labels int64 (M,); see `kernels.cross_entropy`."""
        losses, hits = torch.empty((2, len(logits)), dtype=torch.float32)
        _over_rows(kernels.cross_entropy, logits, labels, num_classes, ignored, losses, hits)
        ctx.save_for_backward(logits)
        correct = hits.sum()
        ctx.mark_non_differentiable(correct)
        return losses.sum(), correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient of the logits."""
        (slopes,) = ctx.saved_tensors
        return slopes.mul_(grad), None, None, None


class _Draws(tuple[Any, ...]):
    """A seed from torch's generator, dropout's threshold and its scale, as the kernels take them."""

    __slots__ = ()

    def __new__(cls, dropout: float) -> _Draws:
        seed = int(torch.randint(2**62, ())) if dropout else 0
        return super().__new__(cls, (np.uint64(seed), np.uint32(round(dropout * 2**32)), np.float32(1 / (1 - dropout))))

    @property
    def scale(self) -> Any:
        return self[2]


def _drop(x: Tensor, draws: _Draws) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    _over_rows(kernels.drop, x, out, *draws)
    return out


def _weights(qkv: Tensor, run: _Run, draws: _Draws) -> tuple[Tensor, Tensor]:
    """Return the attention weights of a run, (G·N, L, L): signed, and dropped and scaled."""
    query, key = (_of_run(part, run) for part in qkv[:2])
    signed = query @ key.transpose(1, 2)
    weights = torch.empty_like(signed)
    _over_rows(kernels.softmax_drop, signed, _scaling(qkv), *draws, weights)
    return signed, weights


def _scaling(qkv: Tensor) -> Any:
    return np.float32(qkv.shape[-1] ** -0.5)


def _of_run(tokens: Tensor, run: _Run) -> Tensor:
    """Return the tokens of a run, (T, N, D), as (G·N, L, D): a view where the run is one pair."""
    first, pairs, length = run
    heads, size = tokens.shape[1:]
    piece = tokens[first : first + pairs * length].view(pairs, length, heads, size)
    return piece.transpose(1, 2).reshape(pairs * heads, length, size)


def _put_run(tokens: Tensor, run: _Run, values: Tensor) -> None:
    """Write (G·N, L, D) to the place of a run in (T, N, D)."""
    first, pairs, length = run
    heads, size = tokens.shape[1:]
    piece = tokens[first : first + pairs * length].view(pairs, length, heads, size)
    piece.copy_(values.view(pairs, heads, length, size).transpose(1, 2))


def _over_rows(kernel: Callable[..., None], *arguments: Any, num_sums: int = 0) -> Tensor:
    """Call a kernel for all rows of its first matrix, shared among threads.

    Args:
        kernel: takes the first row, the row behind the last, and the arguments.
        arguments: tensors, as matrices of their last dimension, and numbers.
        num_sums: float32 (C,) arrays of sums that each thread gets for its own behind the arguments.

    Returns:
        float32 (num_sums, C): those arrays, added up.
    """
    arrays = [_as_array(argument) if isinstance(argument, Tensor) else argument for argument in arguments]
    rows, columns = arrays[0].shape
    threads = max(1, min(torch.get_num_threads(), rows * columns // _SMALLEST_SHARE))
    sums = np.zeros((threads, num_sums, columns), dtype=np.float32)
    edges = [rows * thread // threads for thread in range(threads + 1)]

    def work(thread: int) -> None:
        kernel(edges[thread], edges[thread + 1], *arrays, *sums[thread])

    if threads == 1:
        work(0)
    else:
        # As many as torch has, whatever this call needs: one pool serves all calls.
        list(_pool(torch.get_num_threads()).map(work, range(threads)))
    return torch.from_numpy(sums.sum(axis=0))


def _as_array(tensor: Tensor) -> npt.NDArray[Any]:
    """Return a tensor's memory: (..., C) as (R, C), bfloat16 as uint16."""
    tensor = tensor.detach()
    if tensor.dim() > 2:
        tensor = tensor.view(-1, tensor.shape[-1])
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    array: npt.NDArray[Any] = tensor.numpy()
    return array


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="kernels")
