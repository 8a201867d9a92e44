"""Kernels over the rows of matrices: each takes rows first to last, so that threads can share them.

Matrices are C-contiguous, float32 or bfloat16 as uint16 (see `arithmetic`); what is accumulated is float32. A kernel
draws its dropout from (seed, row, column), so that backward draws the same again and no mask is kept in memory.
`threshold` is dropout's chance times 2^32 (0: nothing is dropped), `scale` 1 / (1 - chance). No array may be given
twice: where two overlap, no vector instructions are used.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numba
import numpy as np

from pretrain.model.cpu import arithmetic
from pretrain.model.cpu.arithmetic import FLAGS, exp32, is_kept, normal_cdf, row_key, store, widen

# Numba keeps compiled code for as long as this file is unchanged, but what it calls is compiled into it.
_SOURCE_KEY = hashlib.sha256(Path(arithmetic.__file__).read_bytes()).hexdigest()[:12]


def _kernel(function: Any) -> Any:
    function.__qualname__ = f"{function.__qualname__}-{_SOURCE_KEY}"
    return numba.njit(cache=True, nogil=True, fastmath=FLAGS, error_model="numpy")(function)


_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)


def _with_fast_maximum(function: Any) -> Any:
    return numba.njit(cache=True, nogil=True, fastmath=True)(function)


@_with_fast_maximum
def _largest(row: Any) -> Any:
    """Return the largest of a row (n,); apart, as a maximum is a vector instruction only where NaN is left out."""
    largest = row[0]
    for value in row:
        largest = max(largest, value)
    return largest


@_kernel
def _is_first(row: Any, column: int, largest: Any) -> Any:
    """Whether a column of a row (n,) is the first that has the row's largest value, as argmax counts."""
    if row[column] != largest:
        return False
    for before in range(column):
        if row[before] == largest:
            return False
    return True


@_kernel
def drop(first: int, last: int, x: Any, out: Any, seed: Any, threshold: Any, scale: Any) -> None:
    """Write dropout of x (R, C) to out; its own backward."""
    for row in range(first, last):
        key = row_key(seed, row)
        for column in range(x.shape[1]):
            value = widen(x[row, column]) * scale
            store(out, row, column, value if is_kept(key, column, threshold) else _ZERO)


@_kernel
def drop_add_norm(
    first: int,
    last: int,
    x: Any,
    residual: Any,
    weight: Any,
    bias: Any,
    eps: Any,
    seed: Any,
    threshold: Any,
    scale: Any,
    total: Any,
    out: Any,
    mean: Any,
    rstd: Any,
) -> None:
    """Write total = residual + dropout(x) and out = LayerNorm(total), both (R, C), and the rows' mean and 1 / std."""
    columns = x.shape[1]
    line = np.empty(columns, dtype=np.float32)
    share = _ONE / np.float32(columns)
    for row in range(first, last):
        key = row_key(seed, row)
        for column in range(columns):
            value = widen(x[row, column]) * scale
            value = value if is_kept(key, column, threshold) else _ZERO
            store(total, row, column, widen(residual[row, column]) + value)
        summed = _ZERO
        for column in range(columns):
            line[column] = widen(total[row, column])
            summed += line[column]
        centre = summed * share
        squared = _ZERO
        for column in range(columns):
            squared += (line[column] - centre) * (line[column] - centre)
        factor = _ONE / np.sqrt(squared * share + eps)
        for column in range(columns):
            value = (line[column] - centre) * factor
            store(out, row, column, value * weight[column] + bias[column])
        mean[row], rstd[row] = centre, factor


@_kernel
def drop_add_norm_backward(
    first: int,
    last: int,
    grad: Any,
    total: Any,
    weight: Any,
    mean: Any,
    rstd: Any,
    seed: Any,
    threshold: Any,
    scale: Any,
    grad_residual: Any,
    grad_x: Any,
    grad_weight: Any,
    grad_bias: Any,
) -> None:
    """Write the gradients of both summands (R, C), and add those of weight and bias to float32 (C,)."""
    columns = grad.shape[1]
    normed = np.empty(columns, dtype=np.float32)
    pulled = np.empty(columns, dtype=np.float32)
    share = _ONE / np.float32(columns)
    for row in range(first, last):
        centre, factor = mean[row], rstd[row]
        summed = along = _ZERO
        for column in range(columns):
            slope = widen(grad[row, column])
            normed[column] = (widen(total[row, column]) - centre) * factor
            pulled[column] = slope * weight[column]
            grad_weight[column] += slope * normed[column]
            grad_bias[column] += slope
            summed += pulled[column]
            along += pulled[column] * normed[column]
        summed, along = summed * share, along * share
        key = row_key(seed, row)
        for column in range(columns):
            value = (pulled[column] - summed - normed[column] * along) * factor
            store(grad_residual, row, column, value)
            store(grad_x, row, column, value * scale if is_kept(key, column, threshold) else _ZERO)


@_kernel
def gelu(first: int, last: int, x: Any, out: Any) -> None:
    """Write x Phi(x) (Hendrycks and Gimpel 2016), exact as torch's, for x (R, C)."""
    for row in range(first, last):
        for column in range(x.shape[1]):
            value = widen(x[row, column])
            store(out, row, column, value * normal_cdf(value)[0])


@_kernel
def gelu_backward(first: int, last: int, x: Any, grad: Any, out: Any) -> None:
    """Write GELU of x (R, C) to out once more, and multiply grad by its slope, Phi(x) + x phi(x)."""
    for row in range(first, last):
        for column in range(x.shape[1]):
            value = widen(x[row, column])
            below, density = normal_cdf(value)
            store(out, row, column, value * below)
            store(grad, row, column, widen(grad[row, column]) * (below + value * density))


@_kernel
def softmax_drop(
    first: int, last: int, scores: Any, scaling: Any, seed: Any, threshold: Any, scale: Any, out: Any
) -> None:
    """Turn scores into softmax(scaling scores) over the columns, and write dropout of it to out; both (R, C).

    What is dropped stands in scores with a minus.
    """
    columns = scores.shape[1]
    line = np.empty(columns, dtype=np.float32)
    for row in range(first, last):
        for column in range(columns):
            line[column] = widen(scores[row, column]) * scaling
        largest = _largest(line)
        summed = _ZERO
        for column in range(columns):
            line[column] = exp32(line[column] - largest)
            summed += line[column]
        factor = _ONE / summed
        key = row_key(seed, row)
        for column in range(columns):
            value = line[column] * factor
            keeps = is_kept(key, column, threshold)
            store(scores, row, column, value if keeps else -value)
            store(out, row, column, value * scale if keeps else _ZERO)


@_kernel
def softmax_drop_backward(
    first: int, last: int, signed: Any, scaling: Any, scale: Any, grad: Any, dropped: Any
) -> None:
    """Turn the gradient of the dropped weights into that of the scores, in place, and write the weights again.

    Args:
        first: row.
        last: row behind.
        signed: of `softmax_drop`, (R, C).
        scaling: of `softmax_drop`.
        scale: of `softmax_drop`.
        grad: (R, C), of its out; overwritten.
        dropped: (R, C): its out is written here once more.
    """
    columns = grad.shape[1]
    for row in range(first, last):
        along = _ZERO
        for column in range(columns):
            weight = widen(signed[row, column])
            weight = weight * scale if weight > _ZERO else _ZERO
            store(dropped, row, column, weight)
            along += weight * widen(grad[row, column])
        for column in range(columns):
            weight = widen(signed[row, column])
            slope = widen(grad[row, column]) * scale if weight > _ZERO else _ZERO
            store(grad, row, column, np.abs(weight) * (slope - along) * scaling)


@_kernel
def cross_entropy(
    first: int, last: int, logits: Any, labels: Any, num_classes: int, ignored: int, losses: Any, hits: Any
) -> None:
    """Write each row's loss and whether its largest logit is the label's; turn logits (R, C) into the loss's gradient.

    Args:
        first: row.
        last: row behind.
        logits: (R, C), overwritten with softmax minus the label's unit vector.
        labels: int64 (R,).
        num_classes: columns beyond are no classes: their gradient is 0.
        ignored: label of rows without loss.
        losses: float32 (R,), nats.
        hits: float32 (R,), 1 or 0.
    """
    line = np.empty(num_classes, dtype=np.float32)
    for row in range(first, last):
        label = labels[row]
        losses[row] = hits[row] = _ZERO
        for column in range(num_classes, logits.shape[1]):
            store(logits, row, column, _ZERO)
        if label == ignored:
            for column in range(num_classes):
                store(logits, row, column, _ZERO)
            continue
        for column in range(num_classes):
            line[column] = widen(logits[row, column])
        largest, wanted = _largest(line), line[label]
        hits[row] = _ONE if _is_first(line, label, largest) else _ZERO
        summed = _ZERO
        for column in range(num_classes):
            line[column] = exp32(line[column] - largest)
            summed += line[column]
        losses[row] = np.log(summed) + largest - wanted
        factor = _ONE / summed
        for column in range(num_classes):
            store(logits, row, column, line[column] * factor)
        store(logits, row, label, line[label] * factor - _ONE)
