"""Counts of hand-made shards, known beforehand."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest

from pretrain.audit.lengths import NUM_BINS, bin_of, bin_starts, summarize, summarize_values
from pretrain.audit.measure import TOTALS, Rules, ShardMeasure, measure_shard
from tests.pretrain.audit.workshop import UNK, VOCAB_SIZE, random_documents
from tokenization.indexed import IndexedWriter

IS_SPECIAL = np.zeros(VOCAB_SIZE, dtype=np.bool_)
IS_SPECIAL[[0, 2, 3, 4]] = True
RULES = Rules(VOCAB_SIZE, UNK, 10, IS_SPECIAL)
DOCUMENTS = [
    [[20, 21, 22], [20, 21, 22], [UNK, 30]],
    [[50] * 15],
    [[3, UNK, UNK], [40]],
]


def write(path, documents, dtype=np.int16):
    with IndexedWriter(path, dtype) as writer:
        for document in documents:
            writer.add_document(document)
    return path


def measure(path, bits=0, **changes) -> ShardMeasure:
    return measure_shard(path, RULES, bits, lambda _: None, **changes)


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.uint16])
def test_totals_are_those_counted_by_hand(tmp_path, dtype):
    found = measure(write(tmp_path / "s", DOCUMENTS, dtype))
    assert dict(zip(TOTALS, found.totals.tolist(), strict=True)) == {
        "documents": 3,
        "sentences": 6,
        "tokens": 27,
        "single_sentence_documents": 1,
        "unk_tokens": 3,
        "unk_sentences": 2,
        "special_tokens": 1,
        "unknown_ids": 0,
        "empty_sentences": 0,
        "empty_documents": 0,
        "long_sentences": 1,
        "tokens_beyond": 5,
        "longest_sentence": 15,
        "longest_document_sentences": 3,
        "longest_document_tokens": 15,
    }
    assert found.token_counts[[20, 50, UNK, 40, 60]].tolist() == [2, 15, 3, 1, 0]
    assert found.sentence_tokens[[1, 2, 3, 15]].tolist() == [1, 1, 3, 1]
    assert found.document_sentences[[1, 2, 3]].tolist() == [1, 1, 1]
    assert found.document_tokens[[4, 8, 15]].tolist() == [1, 1, 1]


def test_sampled_sentences_are_counted_and_placed_at_their_first_copy(tmp_path):
    found = measure(write(tmp_path / "s", DOCUMENTS))
    assert len(found.sampled_hashes) == 5
    twice = int(np.flatnonzero(found.sampled_counts == 2)[0])
    assert (found.sampled_starts[twice], found.sampled_lengths[twice]) == (0, 3)
    assert found.candidate_hashes.tolist() == [found.sampled_hashes[twice]]
    assert found.candidate_counts.tolist() == [2]


def test_ids_that_are_no_tokens_are_counted_and_not_followed(tmp_path):
    found = measure(write(tmp_path / "s", [[[-1, 20, VOCAB_SIZE, 30_000]]]))
    assert found.totals[TOTALS.index("unknown_ids")] == 3
    assert found.token_counts.sum() == 1


def test_documents_and_sentences_without_content_are_counted(tmp_path):
    path = tmp_path / "s"
    with IndexedWriter(path, np.int16) as writer:
        writer.add_document([[20, 21], [22]])
        # as Megatron's own preprocessing may leave them
        writer._sentence_lengths.append(0)
        writer._document_starts.extend([3, 3])
        writer.add_document([[23]])
    found = measure(path)
    counted = dict(zip(TOTALS, found.totals.tolist(), strict=True))
    assert (counted["documents"], counted["empty_documents"], counted["empty_sentences"]) == (4, 1, 1)
    assert found.document_tokens[[0, 1, 3]].tolist() == [2, 1, 1]


@pytest.mark.parametrize("piece_sentences", [1, 2, 7, 1000])
def test_figures_do_not_depend_on_the_pieces(tmp_path, piece_sentences):
    path = write(tmp_path / "s", random_documents(1, 20, (1, 9), (1, 12)))
    whole, pieces = measure(path), measure(path, piece_sentences=piece_sentences)
    for field in fields(ShardMeasure):
        if not field.name.startswith("candidate"):  # each piece keeps its own
            np.testing.assert_array_equal(getattr(whole, field.name), getattr(pieces, field.name), field.name)


def test_equal_documents_have_equal_hashes_and_no_others(tmp_path):
    documents = [
        [[20, 21], [22]],
        [[20, 21], [22]],
        [[20], [21, 22]],  # cut elsewhere
        [[22], [20, 21]],  # another order
        [[20, 21, 22]],
        [[20, 21], [22], [22]],
    ]
    hashes = measure(write(tmp_path / "s", documents)).document_hashes
    assert hashes[0] == hashes[1]
    assert len(set(hashes.tolist())) == 5
    again = measure(write(tmp_path / "t", documents, np.int32)).document_hashes
    np.testing.assert_array_equal(hashes, again)


def test_progress_counts_every_byte(tmp_path):
    path = write(tmp_path / "s", random_documents(2, 9, (1, 9), (1, 12)))
    advanced: list[int] = []
    measure_shard(path, RULES, 0, advanced.append, piece_sentences=5)
    assert sum(advanced) == path.with_suffix(".bin").stat().st_size
    assert len(advanced) > 2


def test_bins_cover_all_lengths_without_gaps():
    starts = bin_starts()
    assert starts[:128].tolist() == list(range(128))
    assert all(bin_of(int(start)) == number for number, start in enumerate(starts))
    assert all(bin_of(int(start) - 1) == number for number, start in enumerate(starts[1:]))
    assert bin_of(2**60) == NUM_BINS - 1


def test_a_distribution_by_hand():
    values = np.array([1, 2, 3, 100, 1000])
    found = summarize_values(values, np.array([10, 60, 20, 9, 1]))
    assert (found.median, found.p90, found.p99, found.longest) == (2, 3, 100, 1000)
    assert found.mean == pytest.approx((10 + 120 + 60 + 900 + 1000) / 100)
    assert sum(bar.count for bar in found.bars) == 100
    assert found.bars[0].first <= 1
    assert found.bars[-1].last == 1000


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spread", [5, 100, 10_000])
def test_bars_are_neighbours_that_hold_everything(seed, spread):
    generator = np.random.default_rng(seed)
    values = np.unique(np.ceil(generator.lognormal(2, 1, 300) * spread / 5).astype(np.int64))
    bars = summarize_values(values, np.ones(len(values), dtype=np.int64)).bars
    assert len(bars) <= 40
    assert sum(bar.count for bar in bars) == len(values)
    assert all(left.last + 1 == right.first for left, right in pairwise(bars))
    assert all(bar.first <= bar.last for bar in bars)


def test_nothing_has_no_bars():
    assert summarize(np.zeros(NUM_BINS, dtype=np.int64), 0, 0).bars == ()
