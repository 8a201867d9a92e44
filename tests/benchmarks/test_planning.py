"""The checks that stand before a planning rate."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import planning
from benchmarks.harness import UnequalError
from pretrain.data.pairing import Columns
from pretrain.data.store import SentenceIndex


@pytest.fixture(scope="module")
def index() -> SentenceIndex:
    return planning.make_index(300)


def changed(columns: Columns, **values: np.ndarray) -> Columns:
    return columns._replace(**values)


def test_made_up_documents_look_like_text(index: SentenceIndex):
    assert index.num_documents == 300
    assert 15 < index.num_sentences / index.num_documents < 35
    assert 20 < index.sentence_lengths.mean() < 30
    assert index.sentence_lengths.min() >= 1


def test_a_plan_passes(index: SentenceIndex):
    columns = planning.plan(index, 0)
    assert planning.check_plan(index, columns).startswith(f"{len(columns.a_start):,} pairs")


def test_broken_plans_are_refused(index: SentenceIndex):
    columns = planning.plan(index, 0)
    ends = index.sentence_offsets[index.document_starts]
    label = columns.next_sentence_label
    long = columns.b_length.copy()
    long[5] += 200
    crossing = columns.a_length.copy()
    crossing[0] = ends[1] - columns.a_start[0] + 1
    for broken, said in (
        (changed(columns, b_length=long), "longer than seq_len|crosses"),
        (changed(columns, a_length=crossing), "crosses"),
        (changed(columns, a_length=np.zeros_like(columns.a_length)), "empty"),
        (
            changed(columns, b_start=columns.a_start, b_length=np.ones_like(columns.b_length)),
            "random pair is from A's document.*does not follow",
        ),
        (changed(columns, next_sentence_label=1 - label), "random pair is from A's document"),
        (Columns._make(column[::-1] for column in columns), "out of order"),
        (Columns._make(column[columns.a_start >= ends[1]] for column in columns), "has no pair"),
        (Columns._make(column[label == 1] for column in columns), "1.000 of the pairs are random"),
    ):
        with pytest.raises(UnequalError, match=said):
            planning.check_plan(index, broken)


def test_a_rate_for_each_round(index: SentenceIndex):
    rates = planning.measure(index, 3)
    assert len(rates) == 3
    assert min(rates) > 0
