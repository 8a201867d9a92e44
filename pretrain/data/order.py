"""Which pairs make up a global batch, and which of them are whose micro-batch.

1. `permute`: the epoch's order is a permutation computed, not stored: any position in O(1), no memory.
2. `take_batch`: a global batch is the next train_batch_size positions; past the end it goes on into the next
   epoch.
3. `deal`: its pairs are dealt so that all micro-batches hold as many pairs and nearly as many tokens.

Nothing here knows a rank: every rank computes the whole global batch and takes its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.seeding import ORDER, compiled, mix, next_u64

Int64Array = npt.NDArray[np.int64]

_ROUNDS = 8


@dataclass(frozen=True)
class Cursor:
    """How far training has come: with the seed, all the state that resuming needs.

    Attributes:
        epoch: Epoch, 0 or more.
        consumed: Pairs of that epoch already taken.
    """

    epoch: int = 0
    consumed: int = 0

    def __post_init__(self) -> None:
        """Check both numbers.

        Raises:
            ValueError: One is negative.
        """
        if self.epoch < 0 or self.consumed < 0:
            raise ValueError(f"cursor: epoch = {self.epoch}, consumed = {self.consumed}: must be 0 or more")


def permute(positions: npt.ArrayLike, n: int, seed: int, epoch: int) -> Int64Array:
    """Return the pairs that stand at some positions of an epoch's order.

    A Feistel network of 8 rounds over the smallest power of two that holds n; a value that falls outside [0,
    n) goes through again until it falls inside (less than once on average). So it is a bijection on [0, n)
    for every n.

    Args:
        positions: Integers (k,) in [0, n).
        n: Pairs of the epoch, 1 to 2**62.
        seed: The run's seed.
        epoch: Epoch, 0 or more.

    Returns:
        int64 (k,): numbers of the pairs, all different for different positions.

    Raises:
        ValueError: A position is outside [0, n).
    """
    positions = np.ascontiguousarray(positions, dtype=np.int64)
    pairs = np.empty(len(positions), dtype=np.int64)
    if not _permute(positions, n, seed, epoch, pairs):
        raise ValueError(f"positions {positions.min()} to {positions.max()}: must be in [0, {n})")
    return pairs


def take_batch(
    cursor: Cursor, size: int, plan_sizes: Callable[[int], int], seed: int
) -> tuple[Int64Array, Int64Array, Cursor]:
    """Return the pairs of the global batch that begins at a cursor.

    Args:
        cursor: Where the batch begins.
        size: Pairs of the batch, 1 or more.
        plan_sizes: Gives the number of pairs of an epoch. It is asked for the epochs that the batch touches
            alone.
        seed: The run's seed.

    Returns:
        Epochs int64 (size,), ascending; pairs int64 (size,); the cursor behind the batch.

    Raises:
        ValueError: The size is below 1, an epoch has no pairs, or the cursor lies behind the end of its
            epoch.
    """
    if size < 1:
        raise ValueError(f"batch size = {size}: must be 1 or more")
    epoch, consumed = cursor.epoch, cursor.consumed
    epochs, pairs = np.empty((2, size), dtype=np.int64)
    filled = 0
    while filled < size:
        n = plan_sizes(epoch)
        if n < 1 or consumed > n:
            raise ValueError(f"epoch {epoch} has {n} pairs, of which {consumed} are said to be consumed")
        taken = min(size - filled, n - consumed)
        epochs[filled : filled + taken] = epoch
        pairs[filled : filled + taken] = permute(np.arange(consumed, consumed + taken), n, seed, epoch)
        filled += taken
        consumed += taken
        if consumed == n:
            epoch, consumed = epoch + 1, 0
    return epochs, pairs, Cursor(epoch, consumed)


def deal(lengths: Int64Array, num_micro_batches: int) -> Int64Array:
    """Deal the pairs of a batch over micro-batches, so that tokens are nearly equal and pairs are equal.

    Sorted by length and dealt back and forth, as cards: 0 1 2 3 3 2 1 0 0 1 ...

    Args:
        lengths: int64 (B,): tokens of each pair.
        num_micro_batches: world_size x gradient accumulation steps; divides B. Micro-batch m belongs to rank
            m % world_size at micro_step m // world_size.

    Returns:
        int64 (num_micro_batches, B / num_micro_batches): places in the batch, longest pair first in each row,
        equal lengths in the order of the batch.

    Raises:
        ValueError: `num_micro_batches` does not divide the batch.
    """
    if num_micro_batches < 1 or len(lengths) % num_micro_batches:
        raise ValueError(f"{len(lengths)} pairs cannot be dealt evenly over {num_micro_batches} micro-batches")
    return deal_places(by_length(lengths), num_micro_batches)


def by_length(lengths: Int64Array) -> Int64Array:
    """Return the places of a batch, the longest pair first, equal lengths in their order: int64 (B,)."""
    places = np.empty(len(lengths), dtype=np.int64)
    _sort_by_length(lengths, places)
    return places


def deal_places(places: Int64Array, hands: int) -> Int64Array:
    """Deal places (hands x k,) back and forth: int64 (hands, k)."""
    rows = places.reshape(-1, hands).copy()
    rows[1::2] = rows[1::2, ::-1].copy()
    return np.ascontiguousarray(rows.T)


@compiled
def _sort_by_length(lengths: Any, places: Any) -> None:
    """Write the places of the lengths, the longest first (counting sort)."""
    longest = np.int64(0)
    for length in lengths:
        longest = max(longest, length)
    # where those of each length begin; the lengths count down
    starts = np.zeros(longest + 2, dtype=np.int64)
    for length in lengths:
        starts[longest - length + 1] += 1
    for number in range(longest + 1):
        starts[number + 1] += starts[number]
    for place in range(len(lengths)):
        places[starts[longest - lengths[place]]] = place
        starts[longest - lengths[place]] += 1


@compiled
def _permute(positions: Any, n: int, seed: int, epoch: int, out: Any) -> bool:
    """Write the pairs that stand at `positions` into `out`; return False if one is outside [0, n)."""
    bits = 1
    while (np.int64(1) << bits) < n:
        bits += 1
    # the halves may differ by one bit: left and right are changed in turn, so that they need not be swapped
    right_bits = np.uint64((bits + 1) // 2)
    one = np.uint64(1)
    left_mask = (one << np.uint64(bits // 2)) - one
    right_mask = (one << right_bits) - one
    keys = np.empty(_ROUNDS, dtype=np.uint64)
    for number in range(_ROUNDS):
        keys[number] = mix(seed, epoch, number, ORDER)
    limit = np.uint64(n)
    for place in range(len(positions)):
        if positions[place] < 0 or positions[place] >= n:
            return False
        value = np.uint64(positions[place])
        while True:
            left, right = value >> right_bits, value & right_mask
            for number in range(0, _ROUNDS, 2):
                _, word = next_u64(right ^ keys[number])
                left ^= word & left_mask
                _, word = next_u64(left ^ keys[number + 1])
                right ^= word & right_mask
            value = (left << right_bits) | right
            if value < limit:
                break
        out[place] = value
    return True
