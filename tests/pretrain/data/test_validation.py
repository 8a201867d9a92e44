"""Evaluation batches: every pair once over all ranks, equal numbers of rounds, exact counts."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest

from pretrain.data.order import permute
from pretrain.data.reader import PairReader
from pretrain.data.stream import IGNORE_INDEX, MicroBatch, validation_batches
from runtime.command import ConfigError
from tokenization.manifest import Manifest


@pytest.fixture(scope="module")
def reader(corpora: Any, manifest: Manifest) -> PairReader:
    return corpora.reader(manifest, "validation")


def texts(batch: MicroBatch) -> list[tuple[int, ...]]:
    ids = batch.input_ids[0].copy()
    if batch.weight:
        ids[batch.masked_positions] = batch.labels
    return [tuple(pair.tolist()) for pair in np.split(ids, batch.cu_seqlens[1:-1])]


def evaluation(reader: PairReader, micro_batch: int, world_size: int, **options: Any) -> list[list[MicroBatch]]:
    return [
        list(validation_batches(reader, micro_batch=micro_batch, rank=rank, world_size=world_size, **options))
        for rank in range(world_size)
    ]


def text_of(reader: PairReader, pair: int) -> tuple[int, ...]:
    stream = reader.read(np.array([0]), np.array([pair]))
    ids = stream.input_ids.copy()
    ids[stream.masked_positions] = stream.labels
    return tuple(ids.tolist())


@pytest.mark.parametrize(("micro_batch", "world_size"), [(8, 1), (8, 2), (3, 5), (1, 7), (1000, 2), (4, 300)])
def test_every_pair_once_in_equal_rounds(reader: PairReader, micro_batch: int, world_size: int) -> None:
    ranks = evaluation(reader, micro_batch, world_size)
    total = reader.num_pairs(0)
    rounds = -(-total // (micro_batch * world_size))
    assert [len(batches) for batches in ranks] == [rounds] * world_size
    batches = [batch for rank in ranks for batch in rank]
    assert max(len(batch.cu_seqlens) - 1 for batch in batches) <= micro_batch
    seen = Counter(text for batch in batches if batch.weight for text in texts(batch))
    assert seen == Counter(text_of(reader, pair) for pair in range(total))
    for batch in batches:
        assert batch.global_pairs == sum(other.num_pairs for other in batches) == total
        assert batch.global_tokens == sum(other.num_tokens for other in batches)
        assert batch.global_masked_tokens == sum((other.labels != IGNORE_INDEX).sum() for other in batches)


def test_a_rank_with_nothing_left_gets_a_stand_in(reader: PairReader) -> None:
    ranks = evaluation(reader, 2, 3, max_pairs=8)  # 6 pairs, then 2
    assert [[batch.weight for batch in batches] for batches in ranks] == [[1, 1], [1, 1], [1, 0]]
    stand_in = ranks[2][1]
    assert (stand_in.num_pairs, stand_in.num_tokens) == (0, 0)
    assert stand_in.input_ids.size > 0
    assert len(stand_in.labels) > 0
    assert (stand_in.labels == IGNORE_INDEX).all()
    assert stand_in.next_sentence_label.tolist() == [IGNORE_INDEX]


def test_max_pairs_takes_the_first_of_the_order(reader: PairReader) -> None:
    batches = [batch for rank in evaluation(reader, 4, 2, max_pairs=13) for batch in rank]
    total = reader.num_pairs(0)
    expected = [text_of(reader, int(pair)) for pair in permute(np.arange(13), total, reader.seed, 0)]
    assert Counter(text for batch in batches if batch.weight for text in texts(batch)) == Counter(expected)
    assert batches[0].global_pairs == 13
    everything = evaluation(reader, 4, 2, max_pairs=10**6)
    assert everything[0][0].global_pairs == total


def test_two_evaluations_are_the_same(reader: PairReader) -> None:
    first, second = evaluation(reader, 4, 2), evaluation(reader, 4, 2)
    for one, two in zip(chain(*first), chain(*second), strict=True):
        assert np.array_equal(one.input_ids, two.input_ids)
        assert np.array_equal(one.labels, two.labels)


def test_validation_has_random_numbers_of_its_own(corpora: Any, manifest: Manifest, reader: PairReader) -> None:
    assert reader.seed != corpora.reader(manifest).seed == 1234
    assert corpora.reader(manifest, "validation").seed == reader.seed
    assert corpora.reader(manifest, "validation", seed=5).seed != reader.seed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"micro_batch": 0}, "micro_batch = 0: must be 1 or more"),
        ({"world_size": 0}, "world_size = 0: must be 1 or more"),
        ({"max_pairs": 0}, "max_pairs = 0: must be 1 or more"),
        ({"rank": 2}, "rank = 2: must be 0 to 1"),
    ],
)
def test_impossible_sizes_are_refused(reader: PairReader, changes: dict[str, int], message: str) -> None:
    options: dict[str, Any] = {"micro_batch": 2, "rank": 0, "world_size": 2, **changes}
    with pytest.raises(ConfigError, match=message):
        next(validation_batches(reader, **options))
