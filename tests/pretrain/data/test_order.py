"""The order of an epoch, global batches over the ends of epochs, and the deal over micro-batches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.data.order import Cursor, by_length, deal, permute, take_batch

WIKIPEDIA = Path(__file__).parents[3] / "benchmarks" / "wikipedia_pair_lengths_512.json"


@pytest.mark.parametrize("n", [*range(1, 130), 255, 256, 257, 4095, 4096, 4097, 100_003])
def test_permute_is_a_bijection(n: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(n), n, seed=n, epoch=3)), np.arange(n))


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 2**45), seed=st.integers(0, 2**63 - 1), data=st.data())
def test_any_position_is_found_alone(n: int, seed: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20, unique=True))
    together = permute(positions, n, seed, 1)
    assert len(set(together.tolist())) == len(positions)
    assert together.min() >= 0
    assert together.max() < n
    assert [int(permute([position], n, seed, 1)[0]) for position in positions] == together.tolist()


def test_orders_of_epochs_and_seeds_differ() -> None:
    orders = {tuple(permute(np.arange(50), 50, seed, epoch).tolist()) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_every_pair_comes_to_every_position_alike() -> None:
    n = 10
    counts = np.zeros((n, n))
    for seed in range(4_000):
        counts[np.arange(n), permute(np.arange(n), n, seed, 0)] += 1
    np.testing.assert_allclose(counts / 4_000, 1 / n, atol=0.025)


def test_neighbours_are_not_neighbours_in_the_text() -> None:
    order = permute(np.arange(100_000), 100_000, 1, 0)
    # a random permutation: |step| averages n / 3, and positions and pairs are uncorrelated
    assert np.abs(np.diff(order)).mean() == pytest.approx(100_000 / 3, rel=0.02)
    assert abs(np.corrcoef(np.arange(100_000), order)[0, 1]) < 0.02


@pytest.mark.parametrize("position", [-1, 5])
def test_positions_outside_are_refused(position: int) -> None:
    with pytest.raises(ValueError, match=r"must be in \[0, 5\)"):
        permute([position], 5, 1, 0)


def test_batches_go_on_into_the_next_epoch() -> None:
    sizes = {0: 10, 1: 7, 2: 9}
    cursor, seen = Cursor(), []
    for _ in range(4):
        epochs, pairs, cursor = take_batch(cursor, 6, sizes.__getitem__, seed=1)
        assert len(epochs) == len(pairs) == 6
        seen += list(zip(epochs.tolist(), pairs.tolist(), strict=True))
    expected = [
        (epoch, int(pair)) for epoch in sizes for pair in permute(np.arange(sizes[epoch]), sizes[epoch], 1, epoch)
    ]
    assert seen == expected[:24]
    assert cursor == Cursor(2, 7)


def test_a_batch_may_hold_several_epochs() -> None:
    epochs, pairs, cursor = take_batch(Cursor(0, 2), 20, lambda epoch: 3 + epoch, seed=1)
    assert np.bincount(epochs).tolist() == [1, 4, 5, 6, 4]
    assert sorted(pairs[epochs == 2].tolist()) == list(range(5))
    assert cursor == Cursor(4, 4)


def test_a_batch_that_ends_an_epoch_needs_no_plan_of_the_next() -> None:
    sizes = {0: 8}
    _, _, cursor = take_batch(Cursor(), 8, sizes.__getitem__, seed=1)
    assert cursor == Cursor(1, 0)


def test_cursors_at_the_end_and_at_the_next_start_are_one() -> None:
    first = take_batch(Cursor(0, 8), 4, lambda _: 8, 1)
    second = take_batch(Cursor(1, 0), 4, lambda _: 8, 1)
    assert first[1].tolist() == second[1].tolist()
    assert first[2] == second[2] == Cursor(1, 4)


def test_finding_a_batch_costs_the_batch_alone() -> None:
    asked = []

    def plan_sizes(epoch: int) -> int:
        asked.append(epoch)
        return 10**12

    _, _, cursor = take_batch(Cursor(7, 9 * 10**11), 4, plan_sizes, seed=1)
    assert asked == [7]
    assert cursor == Cursor(7, 9 * 10**11 + 4)


def test_impossible_cursors_and_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="epoch = -1"):
        Cursor(-1, 0)
    with pytest.raises(ValueError, match="consumed = -2"):
        Cursor(0, -2)
    with pytest.raises(ValueError, match="epoch 0 has 8 pairs, of which 9 are said to be consumed"):
        take_batch(Cursor(0, 9), 4, lambda _: 8, 1)
    with pytest.raises(ValueError, match="epoch 0 has 0 pairs"):
        take_batch(Cursor(), 4, lambda _: 0, 1)
    with pytest.raises(ValueError, match="batch size = 0: must be 1 or more"):
        take_batch(Cursor(), 0, lambda _: 8, 1)


def test_deal_by_hand() -> None:
    lengths = np.array([5, 9, 7, 7, 1, 3, 8, 2])
    assert by_length(lengths).tolist() == [1, 6, 2, 3, 0, 5, 7, 4]
    assert deal(lengths, 2).tolist() == [[1, 3, 0, 4], [6, 2, 5, 7]]
    assert deal(lengths, 4).tolist() == [[1, 4], [6, 7], [2, 5], [3, 0]]


def test_equal_lengths_keep_their_order() -> None:
    lengths = np.tile([7, 9, 5], 500)
    longest_first = np.argsort(-lengths, kind="stable")
    assert np.array_equal(by_length(lengths), longest_first)
    assert np.array_equal(longest_first[:3], [1, 4, 7])


@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_deal_gives_every_pair_once_longest_first(hands: int, each: int, seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(5, 512, hands * each)
    rows = deal(lengths, hands)
    assert rows.shape == (hands, each)
    assert sorted(rows.reshape(-1).tolist()) == list(range(hands * each))
    assert (np.diff(lengths[rows], axis=1) <= 0).all()


def test_deal_must_come_out_even() -> None:
    with pytest.raises(ValueError, match="7 pairs cannot be dealt evenly over 2 micro-batches"):
        deal(np.arange(7), 2)
    with pytest.raises(ValueError, match="over 0 micro-batches"):
        deal(np.arange(7), 0)


@pytest.mark.parametrize("seed", range(3))
def test_tokens_are_balanced_at_1024_ranks(seed: int) -> None:
    facts = json.loads(WIKIPEDIA.read_text())
    counts = np.array([*facts["bins_of_16"], facts["exactly_512"]], dtype=np.float64)
    generator = np.random.default_rng(seed)
    bins = generator.choice(len(counts), size=1024 * 32, p=counts / counts.sum())
    lengths = np.where(bins == 32, 512, 16 * bins + generator.integers(1, 17, len(bins)))
    assert lengths.mean() == pytest.approx(facts["mean_tokens"], rel=0.01)
    tokens = lengths[deal(lengths, 1024)].sum(axis=1)
    assert tokens.max() <= 1.01 * tokens.mean()
    assert tokens.min() >= 0.99 * tokens.mean()
