from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.samples import CLS_ID, MASK_ID, SEP_ID, make_micro_batch, padded, wikipedia_lengths


def test_lengths_are_wikipedias():
    """The histogram's mean is 255.8, with 23.4 % of the pairs at 512; a pair weighs by its square 386 tokens."""
    lengths = np.array(wikipedia_lengths(10_000))
    assert lengths.mean() == pytest.approx(255.8, abs=0.5)
    assert (lengths == 512).mean() == pytest.approx(3_815_044 / 16_279_552, abs=0.006)
    assert (lengths.astype(float) ** 2).sum() / lengths.sum() == pytest.approx(386, abs=2)
    assert (np.diff(lengths) <= 0).all()
    assert wikipedia_lengths(2) == [484, 84]  # 23.9 % have at most 80 tokens, 5.1 % 81 to 96


def test_the_rows_are_the_stream():
    batch = make_micro_batch([12, 9], vocab_size=100)
    rows = padded(batch, 16)
    assert rows["attention_mask"].sum(1).tolist() == [12, 9]
    for pair, (first, last) in enumerate([(0, 12), (12, 21)]):
        length = last - first
        assert rows["input_ids"][pair, :length].tolist() == batch.input_ids[0, first:last].tolist()
        assert rows["token_type_ids"][pair, :length].tolist() == batch.token_type_ids[0, first:last].tolist()
        assert not rows["input_ids"][pair, length:].any()
    assert batch.position_ids[0].tolist() == [*range(12), *range(9)]
    assert batch.token_type_ids[0].tolist() == [0] * 7 + [1] * 5 + [0] * 5 + [1] * 4
    assert (batch.input_ids[0, [0, 12]] == CLS_ID).all()
    assert (batch.input_ids[0, [6, 11, 16, 20]] == SEP_ID).all()
    # round(0.15 x 12) = 2, round(0.15 x 9) = 1
    assert len(batch.labels) == 3
    assert (batch.input_ids[0, batch.masked_positions] == MASK_ID).all()
    assert rows["labels"][rows["labels"] >= 0].tolist() == batch.labels.tolist()
    assert torch.equal(rows["next_sentence_label"], torch.from_numpy(batch.next_sentence_label))
