"""Sizes of a micro-batch, with and without padding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pretrain.data.micro_batch import MicroBatch
from pretrain.data.reader import BatchCounts


def small_batch(first: int, second: int, padding: int | None) -> MicroBatch:
    """A micro-batch of two pairs of so many tokens."""
    ends = [0, first, first + second] + ([] if padding is None else [first + second + padding])
    tokens = np.zeros((1, ends[-1]), dtype=np.int64)
    predictions = np.array([1]), np.array([7])
    counts = BatchCounts(masked_tokens=1, pairs=2, tokens=first + second, squared_tokens=first**2 + second**2)
    return MicroBatch(tokens, tokens, tokens, np.array(ends, np.int32), *predictions, np.array([0, 1]), counts)


@pytest.mark.parametrize(("padding", "lengths"), [(None, [9, 4]), (0, [9, 4]), (3, [9, 4, 3])])
def test_sizes_of_a_micro_batch_by_hand(padding: int | None, lengths: list[int]) -> None:
    batch = small_batch(9, 4, padding)
    assert batch.pair_lengths == lengths
    assert (batch.num_tokens, batch.num_pairs, batch.padding_tokens) == (13, 2, padding or 0)
    assert batch.counts.squared_tokens == 97
    stand_in = replace(batch, weight=0)
    assert (stand_in.num_tokens, stand_in.num_pairs) == (0, 0)
