"""Repeated documents and sentences, exact and estimated; what two splits share."""

from __future__ import annotations

import numpy as np
import pytest

from pretrain.audit import repeats
from pretrain.audit.measure import Rules, measure_shard
from pretrain.audit.repeats import SentenceTable
from tests.pretrain.audit.workshop import VOCAB_SIZE
from tokenization.indexed import IndexedWriter

RULES = Rules(VOCAB_SIZE, 1, 125, np.zeros(VOCAB_SIZE, dtype=np.bool_))


def measured(path, documents, bits=0):
    with IndexedWriter(path, np.int16) as writer:
        for document in documents:
            writer.add_document(document)
    return measure_shard(path, RULES, bits, lambda _: None)


def numbered(numbers):
    """Return a sentence for each number, all different."""
    return [[20 + number % 100, 20 + number // 100 % 100, 20 + number // 10_000] for number in numbers]


@pytest.mark.parametrize(
    ("total", "most", "bits"), [(0, 8, 0), (8, 8, 0), (9, 8, 1), (16, 8, 1), (17, 8, 2), (10**9, 1 << 22, 8)]
)
def test_the_sample_is_as_large_as_it_may_be(total, most, bits):
    assert repeats.sample_bits_for(total, most) == bits


def test_repeated_sentences_are_counted_over_shards(tmp_path):
    boilerplate = [90, 91, 92]
    parts = [
        measured(tmp_path / f"s{shard}", [[boilerplate, *numbered(range(shard * 10, shard * 10 + 9))]])
        for shard in range(3)
    ]
    table = SentenceTable(parts)
    found = repeats.sentence_repeats(table, 30, 0)
    assert (found.total, found.distinct, found.is_estimate) == (30, 28, False)
    assert found.share == pytest.approx(2 / 30)
    # no shard holds it twice, and yet it is found
    assert [
        (p.shard, p.start, p.length, p.count, p.is_least) for p in repeats.most_repeated_places(parts, table, 5)
    ] == [(0, 0, 3, 3, False)]


def test_the_estimate_from_a_sample_is_near_the_truth(tmp_path):
    # 20,000 different sentences, half of them twice, and one 10,000 times: 40,000 in all
    documents = [numbered(range(20_000)), numbered(range(10_000)), [[190]] * 10_000]
    part = measured(tmp_path / "s", documents, bits=3)
    table = SentenceTable([part])
    assert 2200 < len(table.hashes) < 2800
    found = repeats.sentence_repeats(table, 40_000, 3)
    assert found.is_estimate
    assert found.share == pytest.approx(1 - 20_001 / 40_000, abs=0.03)
    # the frequent one is found even if the sample lacks it
    top = repeats.most_repeated_places([part], table, 3)[0]
    assert (top.start, top.length, top.count) == (90_000, 1, 10_000)


def test_duplicate_documents(tmp_path):
    first = measured(tmp_path / "a", [numbered([1, 2]), numbered([3]), numbered([1, 2])])
    second = measured(tmp_path / "b", [numbered([1, 2]), numbered([2, 1])])
    found = repeats.document_repeats([first, second])
    assert (found.total, found.distinct, found.share, found.is_estimate) == (5, 3, pytest.approx(0.4), False)


def test_many_documents_are_sampled(tmp_path):
    part = measured(tmp_path / "a", [numbered([number // 2]) for number in range(20_000)])
    found = repeats.document_repeats([part], most=5000)
    assert found.is_estimate
    assert found.share == pytest.approx(0.5, abs=0.04)


def test_what_two_splits_share(tmp_path):
    train = [measured(tmp_path / "t0", [numbered([1, 2, 3])]), measured(tmp_path / "t1", [numbered([4])])]
    validation = [measured(tmp_path / "v", [numbered([4]), numbered([4]), numbered([3, 5, 6]), numbered([2])])]
    assert repeats.shared_documents(train, validation) == 1
    # of the sentences 2, 3, 4, 5, 6 three
    assert repeats.shared_sentence_share(SentenceTable(train), SentenceTable(validation)) == pytest.approx(0.6)
    assert repeats.shared_documents(train, []) == 0
    assert repeats.shared_sentence_share(SentenceTable(train), SentenceTable([])) == 0
