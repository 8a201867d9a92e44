"""The comparisons that stand before a ratio of training steps, at a tiny size."""

from __future__ import annotations

import pytest
import torch

from benchmarks import fetch, step
from benchmarks.codertimo_peer import CodertimoStep
from benchmarks.harness import UnequalError
from benchmarks.samples import make_micro_batch, padded
from benchmarks.step import STOCK, Case

TINY = Case("tiny", 2, 64, 32, 3, torch.float32, STOCK, 1.0)
LENGTHS = [32, 20, 9]


@pytest.fixture(autouse=True)
def small_vocabulary(monkeypatch):
    monkeypatch.setattr(step, "VOCAB_SIZE", 128)


def test_stock_bert_has_the_same_loss_and_gradients():
    batch = make_micro_batch(LENGTHS, 128)
    assert "without dropout" in step.check_equal(TINY, batch, padded(batch, 32))


def test_half_precision_is_compared_too():
    batch = make_micro_batch(LENGTHS, 128)
    case = Case("tiny", 2, 64, 32, 3, torch.bfloat16, STOCK, 1.0)
    assert "without dropout" in step.check_equal(case, batch, padded(batch, 32))


@pytest.mark.parametrize("name", ["input_ids", "token_type_ids", "attention_mask", "next_sentence_label"])
def test_another_sample_is_found(name):
    batch = make_micro_batch(LENGTHS, 128)
    rows = padded(batch, 32)
    rows[name].view(-1)[1] ^= 1
    with pytest.raises(UnequalError, match="gradients differ"):
        step.check_equal(TINY, batch, rows)


def test_bert_pytorch_runs_as_published():
    batch = make_micro_batch(LENGTHS, 128)
    try:
        fetch.peer("bert-pytorch")
    except fetch.UnreachableError as error:
        pytest.skip(str(error))
    peer = CodertimoStep(TINY.config(0.1), padded(batch, 32))
    assert "61 tokens, 9 of them predicted" in peer.equality(batch)
    assert 0 < peer.run().item() < 20
