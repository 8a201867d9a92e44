"""LAMB's two passes over float32 on a CPU, compiled: an update reads and writes memory ten times, and that is its time.

The moments, the update and both norms in one pass, block by block; the weights in the other. Each block's squares are
added up in float32, the blocks' in float64 and in order, so the sum does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

BLOCK = 4096
"""Elements; what is read of five arrays stays in a core's cache."""

# Sums may be taken in any order, products contracted; NaN and infinities keep their meaning.
_FLAGS = {"reassoc", "contract", "nsz", "arcp"}


def _compiled(function: Any) -> Any:
    return numba.njit(cache=True, nogil=True, fastmath=_FLAGS, error_model="numpy")(function)


@_compiled
def _move_block(gradient: Any, mean: Any, square: Any, weight: Any, numbers: Any) -> Any:
    """Move the moments of a block, write its update in the gradient's place; return both squares."""
    beta1, beta2, rest1, rest2, first, second, eps, decay = numbers
    of_weights, of_updates = np.float32(0.0), np.float32(0.0)
    for place in range(gradient.size):  # from 0, as an index that may be negative is no vector instruction
        value = gradient[place]
        moved = beta1 * mean[place] + rest1 * value
        moved_square = beta2 * square[place] + rest2 * value * value
        mean[place] = moved
        square[place] = moved_square
        before = weight[place]
        update = moved * first / (np.sqrt(moved_square) * second + eps) + decay * before
        gradient[place] = update
        of_weights += before * before
        of_updates += update * update
    return of_weights, of_updates


@_compiled
def _move(begin: int, end: int, gradient: Any, mean: Any, square: Any, weight: Any, numbers: Any, squares: Any) -> None:
    for block in range(begin, end):
        start, stop = block * BLOCK, min((block + 1) * BLOCK, gradient.size)
        squares[block, 0], squares[block, 1] = _move_block(
            gradient[start:stop], mean[start:stop], square[start:stop], weight[start:stop], numbers
        )


@_compiled
def _apply(begin: int, end: int, weight: Any, update: Any, rate: Any) -> None:
    start, stop = begin * BLOCK, min(end * BLOCK, weight.size)
    of_weight, of_update = weight[start:stop], update[start:stop]
    for place in range(of_weight.size):
        of_weight[place] -= rate * of_update[place]


def can_take(tensor: Tensor) -> bool:
    """Say whether these passes can update a tensor by its gradient."""
    return tensor.grad is not None and all(
        of.device.type == "cpu" and of.dtype == torch.float32 and of.is_contiguous() for of in (tensor, tensor.grad)
    )


def move(
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    weight: Tensor,
    *,
    betas: tuple[float, float],
    corrections: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> Tensor:
    """Move the moments of a parameter's piece; its update takes the gradient's place.

    Args:
        gradient: (n,) float32, as the three others; becomes the update, that is to be subtracted.
        mean: first moment.
        square: second moment.
        weight: stays.
        betas: of the moments.
        corrections: 1 - beta^step of both; 1: none.
        eps: added to the root of the second moment.
        weight_decay: of the update.

    Returns:
        float64 (2,): sums of the squares of the weights and of the update.
    """
    arrays = [tensor.detach().numpy() for tensor in (gradient, mean, square, weight)]
    squares = np.zeros((-(-gradient.numel() // BLOCK), 2), dtype=np.float64)
    # 1 - beta before it is rounded: in float32, 1 - 0.999 is off by 1.3e-5 of itself.
    numbers = (*betas, *(1 - beta for beta in betas), 1 / corrections[0], corrections[1] ** -0.5, eps, weight_decay)
    _share(len(squares), _move, *arrays, tuple(np.float32(number) for number in numbers), squares)
    return torch.from_numpy(squares.sum(axis=0))


def apply(weight: Tensor, update: Tensor, rate: float) -> None:
    """Subtract rate · update from a weight, both (n,) float32."""
    blocks = -(-weight.numel() // BLOCK)
    _share(blocks, _apply, weight.detach().numpy(), update.detach().numpy(), np.float32(rate))


def _share(blocks: int, kernel: Callable[..., None], *arguments: Any) -> None:
    """Run a kernel over blocks, on as many threads as torch would take."""
    threads = min(torch.get_num_threads(), blocks)
    if threads <= 1:
        kernel(0, blocks, *arguments)
        return
    edges = [blocks * part // threads for part in range(threads + 1)]
    work = [_pool(threads).submit(kernel, begin, end, *arguments) for begin, end in pairwise(edges)]
    for part in work:
        part.result()


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="lamb")
