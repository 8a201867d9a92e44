"""Lengths of any size in a few thousand counters, and what a reader wants to know of them.

A length below 128 has a bin of its own; above, each octave has 64 bins, so that a quantile is at most 1.6 %
too low. Mean and maximum are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.seeding import compiled

Int64Array = npt.NDArray[np.int64]

_EXACT_BITS = 7
_EXACT = 1 << _EXACT_BITS
_PER_OCTAVE = _EXACT >> 1
_OCTAVES = 40  # up to 2**47
NUM_BINS = _EXACT + _OCTAVES * _PER_OCTAVE
_MOST_BARS = 40
_LINEAR_RANGE = 12.0
"""Bars are of one width where the 99th percentile is at most so many times the median."""


@compiled
def bin_of(length: int) -> int:
    """Return the number of the bin that counts a length, 0 or more."""
    shift = 0
    while (length >> shift) >= _EXACT:
        shift += 1
    return min(shift * _PER_OCTAVE + (length >> shift), NUM_BINS - 1)


def bin_starts() -> Int64Array:
    """Return the smallest length of each bin: int64 (NUM_BINS,)."""
    numbers = np.arange(NUM_BINS, dtype=np.int64)
    shifts = np.maximum(numbers - _PER_OCTAVE, 0) // _PER_OCTAVE
    starts: Int64Array = (numbers - shifts * _PER_OCTAVE) << shifts
    return starts


@dataclass(frozen=True)
class Bar:
    """One bar of a histogram.

    Attributes:
        first: Smallest length counted.
        last: Largest length counted.
        count: How many have such a length.
    """

    first: int
    last: int
    count: int


@dataclass(frozen=True)
class Lengths:
    """How a length is distributed. All are 0 where there is nothing to measure.

    Attributes:
        mean: Their mean.
        median: Half are as long or shorter.
        p90: 90 % are as long or shorter.
        p99: 99 % are as long or shorter.
        longest: The largest.
        bars: A histogram of neighbouring bars from the smallest length to the largest.
    """

    mean: float
    median: int
    p90: int
    p99: int
    longest: int
    bars: tuple[Bar, ...]


def summarize(bins: Int64Array, total: int, longest: int) -> Lengths:
    """Return the distribution that is counted in bins.

    Args:
        bins: int64 (NUM_BINS,): how many lengths fell into each bin.
        total: Sum of all lengths.
        longest: The largest length.
    """
    count = int(bins.sum())
    if count == 0:
        return Lengths(0.0, 0, 0, 0, 0, ())
    starts = bin_starts()
    upto = np.cumsum(bins)
    median, p90, p99 = (int(starts[np.searchsorted(upto, share * count)]) for share in (0.5, 0.9, 0.99))
    edges = _edges(int(starts[np.flatnonzero(bins)[0]]), median, p99, longest)
    ends = [*edges[1:], longest + 1]
    counts = np.histogram(starts, bins=[*edges, longest + 1], weights=bins)[0]
    bars = tuple(Bar(first, end - 1, int(number)) for first, end, number in zip(edges, ends, counts, strict=True))
    return Lengths(total / count, median, p90, p99, longest, bars)


def summarize_values(values: Int64Array, counts: Int64Array) -> Lengths:
    """Return the distribution of lengths (n,), each with its count (n,)."""
    bins = np.zeros(NUM_BINS, dtype=np.int64)
    _count(values, counts, bins)
    return summarize(bins, int((values * counts).sum()), int(values[counts > 0].max(initial=0)))


@compiled
def _count(values: Any, counts: Any, bins: Any) -> None:
    for number in range(len(values)):
        bins[bin_of(values[number])] += counts[number]


def _edges(shortest: int, median: int, p99: int, longest: int) -> list[int]:
    """Return where the bars start: of one width, or growing where the lengths differ by orders of magnitude."""
    if longest - shortest < _MOST_BARS:
        return list(range(shortest, longest + 1))
    if p99 <= _LINEAR_RANGE * max(median, 1):
        step = _round_step(-(-(p99 - shortest + 1) // (_MOST_BARS - 2)))
        first = shortest // step * step
        last = first + step * min(_MOST_BARS - 1, (longest - first) // step)
        return list(range(first, last + 1, step))
    points = np.geomspace(max(shortest, 1), longest + 1, _MOST_BARS)[:-1]
    return sorted({int(point) for point in np.floor(points)} | {shortest})


def _round_step(least: int) -> int:
    """Return the first of 1, 2, 4, 5, 10, 20, 25, 40, 50, 100, 200 ... that is not below `least`."""
    power = 1
    while True:
        for factor in (1.0, 2.0, 2.5, 4.0, 5.0):
            step = factor * power
            if step >= least and step.is_integer():
                return int(step)
        power *= 10
