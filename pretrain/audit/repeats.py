"""What stands twice: documents and sentences of a split, and those that two splits share.

The number of different sentences is estimated from the sample where there is one: each is in it with
probability 2**-bits, by its hash, so that 2**bits x (different ones of the sample) is unbiased, however often
a sentence is repeated. With bits = 0 everything is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pretrain.audit.measure import ShardMeasure, UInt64Array

Int64Array = npt.NDArray[np.int64]

MOST_DOCUMENTS = 1 << 24
MOST_SAMPLED = 1 << 21


@dataclass(frozen=True)
class Repeats:
    """How much of something stands twice.

    Attributes:
        total: How many there are.
        distinct: How many different ones.
        share: Share that repeats another one: 1 - distinct / total.
        is_estimate: Whether `distinct` was estimated from a sample.
    """

    total: int
    distinct: int
    share: float
    is_estimate: bool


@dataclass(frozen=True)
class Place:
    """Where a repeated sentence stands first.

    Attributes:
        shard: Number of the shard in its split.
        start: Number of the sentence's first token in the shard.
        length: Its tokens.
        count: How often the split holds it.
        is_least: True: at least so often.
    """

    shard: int
    start: int
    length: int
    count: int
    is_least: bool


class SentenceTable:
    """The different sentences of a split's sample: uint64 hashes, ascending, and int64 counts."""

    def __init__(self, measures: Iterable[ShardMeasure]) -> None:
        """Join the tables of the shards."""
        self.hashes, self.counts = _join([(m.sampled_hashes, m.sampled_counts) for m in measures])

    def find(self, hashes: UInt64Array) -> Int64Array:
        """Return how often sentences (n,) stand in the split, 0 for those not in the sample: int64 (n,)."""
        if len(self.hashes) == 0:
            return np.zeros(len(hashes), dtype=np.int64)
        places = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[places] == hashes, self.counts[places], 0)


def sample_bits_for(total: int, most: int) -> int:
    """Return the bits b at which one in 2**b of `total` things are at most `most`."""
    return max(0, (max(1, -(-total // most)) - 1).bit_length())


def sentence_repeats(table: SentenceTable, total: int, bits: int) -> Repeats:
    """Return the repeated sentences of a split that has `total` of them."""
    return _repeats(total, len(table.hashes) << bits, bits)


def document_repeats(measures: Sequence[ShardMeasure], most: int = MOST_DOCUMENTS) -> Repeats:
    """Return the repeated documents of a split; 8 bytes of memory for each, and for `most` at most."""
    total = sum(len(measure.document_hashes) for measure in measures)
    bits = sample_bits_for(total, most)
    return _repeats(total, len(_document_sample(measures, bits)) << bits, bits)


def shared_documents(
    train: Sequence[ShardMeasure], validation: Sequence[ShardMeasure], most: int = MOST_DOCUMENTS
) -> int:
    """Return how many different documents of the validation split stand in the train split too.

    A validation split of more than `most` documents is sampled, and the number an estimate.
    """
    bits = sample_bits_for(sum(len(measure.document_hashes) for measure in validation), most)
    wanted = _document_sample(validation, bits)
    is_found = np.zeros(len(wanted), dtype=np.bool_)
    for measure in train:
        is_found |= np.isin(wanted, measure.document_hashes)
    return int(is_found.sum()) << bits


def shared_sentence_share(train: SentenceTable, validation: SentenceTable) -> float:
    """Return the share of the different sentences of the validation split that stand in the train split too."""
    if len(validation.hashes) == 0:
        return 0.0
    return float((train.find(validation.hashes) > 0).mean())


def most_repeated_places(measures: Sequence[ShardMeasure], table: SentenceTable, most: int) -> list[Place]:
    """Return where the `most` most repeated sentences of a split stand, the most frequent first."""
    hashes, counts = _join([(m.candidate_hashes, m.candidate_counts) for m in measures])
    exact = table.find(hashes)
    top = np.argsort(-table.counts, kind="stable")[:most]
    hashes, chosen = np.unique(np.concatenate([hashes, table.hashes[top]]), return_index=True)
    counts = np.concatenate([np.maximum(counts, exact), table.counts[top]])[chosen]
    is_least = np.concatenate([exact == 0, np.zeros(len(top), dtype=np.bool_)])[chosen]
    places = []
    for number in np.argsort(-counts, kind="stable")[:most]:
        if counts[number] > 1:
            shard, start, length = _locate(measures, hashes[number])
            places.append(Place(shard, start, length, int(counts[number]), bool(is_least[number])))
    return places


def _repeats(total: int, distinct: int, bits: int) -> Repeats:
    # an estimate may miss by a little
    distinct = min(distinct, total)
    return Repeats(total, distinct, 1 - distinct / total if total else 0.0, bits > 0)


def _document_sample(measures: Sequence[ShardMeasure], bits: int) -> UInt64Array:
    """Return the hashes of the different documents in the sample, ascending."""
    mask = np.uint64((1 << bits) - 1)
    parts = [measure.document_hashes[measure.document_hashes & mask == 0] for measure in measures]
    return np.unique(np.concatenate([*parts, np.zeros(0, dtype=np.uint64)]))


def _join(tables: Sequence[tuple[UInt64Array, Int64Array]]) -> tuple[UInt64Array, Int64Array]:
    """Return each hash of some tables once, ascending, and the sum of its counts."""
    hashes = np.concatenate([*(table[0] for table in tables), np.zeros(0, dtype=np.uint64)])
    counts = np.concatenate([*(table[1] for table in tables), np.zeros(0, dtype=np.int64)])
    if len(hashes) == 0:
        return hashes, counts
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    firsts = np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1]]))
    return hashes[firsts], np.add.reduceat(counts[order], firsts)


def _locate(measures: Sequence[ShardMeasure], wanted: np.uint64) -> tuple[int, int, int]:
    """Return (shard, start, length) of the first copy that the shards' tables know."""
    for shard, measure in enumerate(measures):
        tables = (
            (measure.sampled_hashes, measure.sampled_starts, measure.sampled_lengths),
            (measure.candidate_hashes, measure.candidate_starts, measure.candidate_lengths),
        )
        for hashes, starts, lengths in tables:
            place = int(np.searchsorted(hashes, wanted))
            if place < len(hashes) and hashes[place] == wanted:
                return shard, int(starts[place]), int(lengths[place])
    raise AssertionError("a hash that no shard knows")
