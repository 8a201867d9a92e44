"""Drawn lengths, and what an imbalance is."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import balance
from benchmarks.harness import UnequalError
from runtime.files import read_json


def test_lengths_are_those_of_wikipedia():
    lengths = balance.draw_lengths(50_000, seed=1)
    histogram = read_json(balance.HISTOGRAM)
    assert lengths.min() >= 1
    assert lengths.max() == 512
    assert lengths.mean() == pytest.approx(histogram["mean_tokens"], rel=0.01)
    total = sum(histogram["bins_of_16"]) + histogram["exactly_512"]
    assert (lengths == 512).mean() == pytest.approx(histogram["exactly_512"] / total, rel=0.05)


def test_imbalance_by_hand():
    lengths = np.array([5, 9, 7, 3])
    assert balance.imbalance(lengths, np.array([[0, 1], [2, 3]])) == 14 / 12
    assert balance.imbalance(lengths, np.array([[0, 2], [1, 3]])) == 1.0
    for rows in ([[0, 1], [2, 2]], [[0, 1]]):
        with pytest.raises(UnequalError, match="lost or dealt twice"):
            balance.imbalance(lengths, np.array(rows))


def test_our_deal_is_more_even_than_chance():
    by_length, at_random = balance.compare_deals(64, 32, 3)
    assert len(by_length) == len(at_random) == 3
    assert max(by_length) < 1.02
    assert min(at_random) > 1.1


def test_the_limit_is_kept(capsys: pytest.CaptureFixture[str]):
    assert balance.main([]) == 0
    assert "NOT MET" not in capsys.readouterr().out
