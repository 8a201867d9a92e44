"""The counter-based generator: published values, exact formulas, independence of its coordinates."""

from __future__ import annotations

import itertools
import runpy
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime import seeding

WORDS = st.integers(0, 2**64 - 1)


def draw_words(state: int, count: int) -> list[int]:
    """The next outputs of a stream."""
    words = []
    for _ in range(count):
        state, word = seeding.next_u64(np.uint64(state))
        words.append(int(word))
    return words


def test_next_u64_gives_the_published_outputs_of_splitmix64() -> None:
    assert draw_words(1234567, 5) == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_mix_gives_another_state_for_every_coordinate() -> None:
    coordinates = list(itertools.product(range(6), range(6), range(6), range(1, 7)))
    states = {int(seeding.mix(*coordinate)) for coordinate in coordinates}
    assert len(states) == len(coordinates)


def test_mix_is_fixed_for_all_time() -> None:
    # plans on disk and runs to be resumed depend on it
    assert int(seeding.mix(42, 3, 1_000_000_007, seeding.PAIRING)) == 8986960516871609177


def test_purposes_differ() -> None:
    names = ["PAIRING", "MASKING", "ORDER", "DROPOUT", "VALIDATION"]
    assert len({getattr(seeding, name) for name in names}) == len(names)


@pytest.mark.parametrize("n", [1, 2, 10, 10**6, 3 * 2**30, 2**32 - 1, 2**32])
def test_below_is_the_upper_half_of_the_product(n: int) -> None:
    for state in range(500):
        following, value = seeding.below(np.uint64(state), n)
        expected_state, word = seeding.next_u64(np.uint64(state))
        assert int(following) == int(expected_state)
        assert int(value) == (int(word) * n) >> 64


@pytest.mark.parametrize("n", [1, 2, 3, 7, 10])
def test_below_is_uniform(n: int) -> None:
    state = seeding.mix(1, 2, 3, 4)
    counts = np.zeros(n)
    for _ in range(20_000):
        state, value = seeding.below(np.uint64(state), n)
        counts[value] += 1
    np.testing.assert_allclose(counts / 20_000, 1 / n, atol=0.015)


@given(WORDS)
def test_uniform_is_the_upper_53_bits(state: int) -> None:
    _, value = seeding.uniform(np.uint64(state))
    _, word = seeding.next_u64(np.uint64(state))
    assert value == (int(word) >> 11) / 2**53
    assert 0.0 <= value < 1.0


def test_a_change_of_this_file_is_seen_in_the_cache_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "caller.py"
    path.write_text("from runtime.seeding import compiled\n\n@compiled\ndef twice(x):\n    return 2 * x\n")

    def misses() -> int:
        caller = runpy.run_path(str(path))
        assert caller["twice"](21) == 42
        assert caller["twice"].py_func.__qualname__ == "twice"
        return sum(caller["twice"].stats.cache_misses.values())

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    assert [misses(), misses()] == [1, 0]
    monkeypatch.setattr(seeding, "_SOURCE_KEY", "of another version")
    assert [misses(), misses()] == [1, 0]


@given(WORDS)
def test_count_bits(word: int) -> None:
    assert seeding.count_bits(np.uint64(word)) == bin(word).count("1")


def test_derive_seed_is_fixed_for_all_time() -> None:
    assert seeding.derive_seed(42, seeding.DROPOUT, 100, 2, 7) == 8301679140156147830


def test_derive_seed_depends_on_every_part_and_their_order() -> None:
    parts = [(), (1,), (2,), (1, 2), (2, 1), (12,), (1, 2, 0)]
    seeds = {seeding.derive_seed(seed, *part) for seed in (0, 1) for part in parts}
    assert len(seeds) == 2 * len(parts)
    assert all(0 <= seed < 2**63 for seed in seeds)
