"""Mask rates of the real reader, and faults planted into a stream."""

from __future__ import annotations

import numpy as np
import pytest

from pretrain.audit.masks import count_masks
from pretrain.data.masking import Vocabulary
from pretrain.data.reader import TokenStream
from tests.pretrain.audit.workshop import FIRST_WORD, VOCAB_SIZE, random_documents

VOCABULARY = Vocabulary(size=50, pad_id=0, cls_id=2, sep_id=3, mask_id=4, special_ids=(0, 1, 2, 3, 4))


def stream_of(ids, positions, labels):
    """Return one pair: [CLS] three tokens [SEP] two tokens [SEP]."""
    assert len(ids) == 8
    return TokenStream(
        input_ids=np.array(ids),
        token_type_ids=np.array([0] * 5 + [1] * 3),
        position_ids=np.arange(8),
        cu_seqlens=np.array([0, 8], dtype=np.int32),
        masked_positions=np.array(positions),
        labels=np.array(labels),
        next_sentence_label=np.array([0]),
    )


@pytest.mark.parametrize(
    ("ids", "positions", "labels", "counts"),
    [  # predictions, tokens, masked, kept, hits, bad replacements
        ([2, 4, 11, 12, 3, 13, 14, 3], [1], [10], [1, 8, 1, 0, 0, 0]),
        ([2, 10, 11, 12, 3, 13, 14, 3], [2], [11], [1, 8, 0, 1, 0, 0]),
        ([2, 10, 40, 12, 3, 4, 14, 3], [2, 5], [11, 13], [2, 8, 1, 0, 0, 0]),
        ([2, 10, 3, 12, 3, 13, 14, 3], [2], [11], [1, 8, 0, 0, 0, 1]),  # replaced by [SEP]
        ([2, 10, 50, 12, 3, 13, 14, 3], [2], [11], [1, 8, 0, 0, 0, 1]),  # by what is no token
        ([2, 10, -1, 12, 3, 13, 14, 3], [2], [11], [1, 8, 0, 0, 0, 1]),
        ([4, 10, 11, 12, 4, 13, 14, 4], [0, 4, 7], [2, 3, 3], [3, 8, 3, 0, 3, 0]),  # the pair's own specials
        ([2, 4, 11, 12, 3, 13, 14, 3], [1], [1], [1, 8, 1, 0, 0, 0]),  # an [UNK] of the text may be chosen
    ],
)
def test_each_kind_is_counted(ids, positions, labels, counts):
    assert count_masks(stream_of(ids, positions, labels), VOCABULARY).tolist() == counts


def test_rates_of_two_hundred_thousand_draws(workshop):
    shards = workshop.shards([random_documents(3, 100, (10, 30), (5, 30))])
    masks = workshop.audit(shards, num_draws=200_000).masks
    assert masks.predictions >= 200_000
    assert masks.masked_share == pytest.approx(0.8, abs=0.01)
    assert masks.kept_share == pytest.approx(0.1 + 0.1 / (VOCAB_SIZE - FIRST_WORD), abs=0.01)
    assert masks.random_share == pytest.approx(0.1, abs=0.01)
    assert masks.prediction_share == pytest.approx(0.15, abs=0.01)
    assert (masks.special_hits, masks.bad_replacements) == (0, 0)


def test_a_corpus_of_two_documents_draws_from_many_epochs(workshop):
    shards = workshop.shards([random_documents(3, 2, (10, 12), (10, 20))])
    masks = workshop.audit(shards, num_draws=3000).masks
    assert 3000 <= masks.predictions < 3600
