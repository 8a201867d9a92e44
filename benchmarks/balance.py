"""How evenly the tokens of a global batch lie on 1,024 ranks of 32 pairs.

    python -m benchmarks.balance

A step takes as long as its slowest rank, so the figure is the tokens of the fullest micro-batch over the mean of all.
Lengths are drawn from the published histogram of BERT's pairs over English Wikipedia at seq_len 512. The same batches
are dealt at random as well, as a shuffled sampler does. Of several batches the worst counts for ours, the mean is shown
for the random deal.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from benchmarks import harness
from benchmarks.samples import HISTOGRAM
from pretrain.data.order import deal
from runtime.files import read_json

MOST_IMBALANCE = 1.01
RANKS = 1024
PAIRS_OF_A_RANK = 32
_BATCHES = 20
_BIN = 16
_LONGEST = 512

Int64Array = npt.NDArray[np.int64]


def draw_lengths(num_pairs: int, seed: int) -> Int64Array:
    """Return lengths drawn from Wikipedia's histogram, those of a bin all alike: int64 (num_pairs,)."""
    histogram = read_json(HISTOGRAM)
    counts = np.array([*histogram["bins_of_16"], histogram["exactly_512"]], dtype=np.float64)
    draw = np.random.default_rng(seed)
    bins = draw.choice(len(counts), size=num_pairs, p=counts / counts.sum())
    within = _BIN * bins + draw.integers(1, _BIN + 1, num_pairs)
    return np.where(bins == len(counts) - 1, _LONGEST, within)


def imbalance(lengths: Int64Array, rows: Int64Array) -> float:
    """Return the tokens of the fullest micro-batch over the mean.

    Args:
        lengths: int64 (B,): tokens of each pair.
        rows: int64 (micro-batches, pairs of each): places of the pairs, each once.

    Raises:
        UnequalError: a pair was lost or dealt twice.
    """
    if not np.array_equal(np.sort(rows, axis=None), np.arange(len(lengths))):
        raise harness.UnequalError("a pair was lost or dealt twice")
    tokens = lengths[rows].sum(axis=1)
    return float(tokens.max() / tokens.mean())


def compare_deals(ranks: int, pairs_of_a_rank: int, batches: int) -> tuple[list[float], list[float]]:
    """Deal the same batches by length, and at random; return the imbalance of each batch."""
    by_length, at_random = [], []
    for seed in range(batches):
        lengths = draw_lengths(ranks * pairs_of_a_rank, seed)
        by_length.append(imbalance(lengths, deal(lengths, ranks)))
        shuffled = np.random.default_rng(seed).permutation(len(lengths)).reshape(ranks, pairs_of_a_rank)
        at_random.append(imbalance(lengths, shuffled))
    return by_length, at_random


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 where the limit is kept."""
    options = harness.parser("balance", __doc__).parse_args(arguments)
    report = harness.Report("balance", options)
    by_length, at_random = compare_deals(RANKS, PAIRS_OF_A_RANK, _BATCHES)
    what = f"tokens of the fullest of {RANKS:,} ranks x {PAIRS_OF_A_RANK} pairs over the mean"
    report.figure(f"{what}, the worst of {_BATCHES} batches", max(by_length), "times", most=MOST_IMBALANCE)
    report.figure("the same batches dealt at random, mean", statistics.mean(at_random), "times")
    return report.finish()


if __name__ == "__main__":
    harness.start(main)
