"""BERT's pairs: equal to a slow plain version of its procedure, and its known properties."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.data.pairing import IS_NEXT, IS_RANDOM, PairingSettings, check_documents
from pretrain.data.plan import EpochPlan, build_epoch_plan
from runtime.command import ConfigError
from runtime.seeding import PAIRING

MASK_64 = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15

Lengths = Sequence[Sequence[int]]
Pair = tuple[list[int], list[int], int]  # offsets of A's and B's tokens, label


def scramble(word: int) -> int:
    """Splitmix64's finalizer in plain integers."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK_64
    return word ^ (word >> 31)


class Draws:
    """The counter-based stream in plain integers."""

    def __init__(self, state: int) -> None:
        self.state = state

    @classmethod
    def of_document(cls, seed: int, epoch: int, document: int) -> Draws:
        state = scramble((PAIRING + GOLDEN) & MASK_64)
        for coordinate in (seed, epoch, document):
            state = scramble(((state ^ coordinate) + GOLDEN) & MASK_64)
        return cls(state)

    def word(self) -> int:
        self.state = (self.state + GOLDEN) & MASK_64
        return scramble(self.state)

    def below(self, n: int) -> int:
        return (self.word() * n) >> 64

    def chance(self) -> float:
        return (self.word() >> 11) / 2**53

    def coins(self) -> Iterator[bool]:
        while True:
            word = self.word()
            for bit in range(64):
                yield bool(word >> bit & 1)


def cut(a: list[int], b: list[int], most: int, draws: Draws) -> None:
    """Remove a token of the longer segment, from its front or its end, until both fit."""
    if len(a) + len(b) <= most:
        return
    a_coins, b_coins = Draws(draws.word()).coins(), Draws(draws.word()).coins()
    while len(a) + len(b) > most:
        segment, coins = (a, a_coins) if len(a) > len(b) else (b, b_coins)
        if next(coins):
            del segment[0]
        else:
            segment.pop()


def joined(sentences: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(sentences))


def pairs_of_document(texts: list[list[list[int]]], number: int, rules: PairingSettings, epoch: int) -> list[Pair]:
    """BERT's procedure for one document, as its authors describe it, token by token."""
    draws = Draws.of_document(rules.seed, epoch, number)
    most = rules.seq_len - (3 if rules.nsp else 2)
    target = most
    if draws.chance() < rules.short_seq_prob:
        target = 2 + draws.below(most - 1)
    pairs: list[Pair] = []
    waiting = list(texts[number])
    taken: list[list[int]] = []
    while waiting:
        taken.append(waiting.pop(0))
        if waiting and sum(map(len, taken)) < target:
            continue
        if not rules.nsp:
            a, b = joined(taken), []
            cut(a, b, most, draws)
            pairs.append((a, b, IS_NEXT))
            taken = []
            continue
        a_sentences = 1 if len(taken) == 1 else 1 + draws.below(len(taken) - 1)
        a, b = joined(taken[:a_sentences]), []
        label = IS_NEXT
        if len(taken) == 1 or draws.chance() < 0.5:
            label = IS_RANDOM
            other = draws.below(len(texts) - 1)
            other += other >= number
            start = draws.below(len(texts[other]))
            wanted = target - len(a)
            for sentence in texts[other][start:]:
                b.extend(sentence)
                if len(b) >= wanted:
                    break
            waiting = taken[a_sentences:] + waiting  # put back
        else:
            b = joined(taken[a_sentences:])
        cut(a, b, most, draws)
        pairs.append((a, b, label))
        taken = []
    return pairs


def texts_of(lengths: Lengths) -> list[list[list[int]]]:
    """Documents whose tokens are their own offsets."""
    offset, texts = 0, []
    for document in lengths:
        text = []
        for length in document:
            text.append(list(range(offset, offset + length)))
            offset += length
        texts.append(text)
    return texts


def pairs_of_plan(plan: EpochPlan) -> list[Pair]:
    a_start, a_length, b_start, b_length, label = (column.tolist() for column in plan.columns)
    return [
        (list(range(a, a + m)), list(range(b, b + n)), kind)
        for a, m, b, n, kind in zip(a_start, a_length, b_start, b_length, label, strict=True)
    ]


LENGTHS = st.lists(
    st.lists(st.one_of(st.integers(1, 12), st.integers(1, 300)), min_size=1, max_size=12),
    min_size=2,
    max_size=6,
)


RULES = st.builds(
    PairingSettings,
    seed=st.integers(0, 2**63 - 1),
    seq_len=st.integers(8, 150),
    short_seq_prob=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    nsp=st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(lengths=LENGTHS, rules=RULES, epoch=st.integers(0, 100))
def test_pairs_equal_the_plain_procedure(corpora: Any, lengths: Lengths, rules: PairingSettings, epoch: int) -> None:
    plan = build_epoch_plan(corpora.index(lengths), rules, epoch)
    texts = texts_of(lengths)
    expected = [pair for number in range(len(texts)) for pair in pairs_of_document(texts, number, rules, epoch)]
    found = pairs_of_plan(plan)
    if not rules.nsp:
        assert (plan.columns.b_start == 0).all()
    assert found == expected


@pytest.fixture(scope="module")
def rules_of() -> Callable[..., PairingSettings]:
    def make(**changes: Any) -> PairingSettings:
        return PairingSettings(**{"seed": 1, "seq_len": 128, "short_seq_prob": 0.1, "nsp": True, **changes})

    return make


def test_n4_sentences_of_8_tokens_fill_the_pair(corpora: Any, rules_of: Callable[..., PairingSettings]) -> None:
    documents = 2_000
    index = corpora.index([[8] * 40] * documents)
    plan = build_epoch_plan(index, rules_of(), epoch=0)
    lengths = plan.pair_tokens()
    assert lengths.max() == 128
    of_document = plan.columns.a_start // (40 * 8)
    longest = np.zeros(documents, dtype=np.int64)
    np.maximum.at(longest, of_document, lengths)
    # a short target is drawn once a document; one of 121 to 125 tokens still takes 16 sentences
    assert np.mean(longest < 128) == pytest.approx(0.1 * (1 - 5 / 124), abs=0.02)
    full = build_epoch_plan(index, rules_of(short_seq_prob=0.0), epoch=0)
    first_pairs = np.flatnonzero(np.diff(full.columns.a_start // (40 * 8), prepend=-1))
    follows = full.columns.next_sentence_label == IS_NEXT
    assert (full.pair_tokens()[first_pairs][follows[first_pairs]] == 128).all()


def test_n1_random_b_is_never_from_a_s_document(corpora: Any, rules_of: Callable[..., PairingSettings]) -> None:
    generator = np.random.default_rng(0)
    lengths = [generator.integers(3, 40, generator.integers(10, 40)).tolist() for _ in range(1_000)]
    index = corpora.index(lengths)
    ends = np.cumsum([sum(document) for document in lengths])
    checked = 0
    for epoch in range(3):
        columns = build_epoch_plan(index, rules_of(), epoch).columns
        same = np.searchsorted(ends, columns.a_start, "right") == np.searchsorted(ends, columns.b_start, "right")
        is_random = columns.next_sentence_label == IS_RANDOM
        assert not same[is_random].any()
        assert same[~is_random].all()
        checked += is_random.sum()
    assert checked >= 10_000


@pytest.mark.parametrize("seq_len", [64, 128, 512])
def test_share_of_random_pairs(corpora: Any, rules_of: Callable[..., PairingSettings], seq_len: int) -> None:
    generator = np.random.default_rng(seq_len)
    lengths = [generator.integers(5, 40, generator.integers(10, 60)).tolist() for _ in range(1_000)]
    plan = build_epoch_plan(corpora.index(lengths), rules_of(seq_len=seq_len), epoch=0)
    assert 0.45 <= plan.columns.next_sentence_label.mean() <= 0.60
    assert plan.pair_tokens().max() <= seq_len
    assert plan.columns.a_length.min() >= 1
    assert plan.columns.b_length.min() >= 1


def test_the_other_document_is_uniform(corpora: Any, rules_of: Callable[..., PairingSettings]) -> None:
    index = corpora.index([[20] * 10] * 5)
    counts = np.zeros((5, 5))
    for epoch in range(400):
        columns = build_epoch_plan(index, rules_of(seq_len=64), epoch).columns
        is_random = columns.next_sentence_label == IS_RANDOM
        np.add.at(counts, (columns.a_start[is_random] // 200, columns.b_start[is_random] // 200), 1)
    shares = counts / counts.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shares, (1 - np.eye(5)) / 4, atol=0.05)


def test_a_document_s_pairs_depend_on_seed_epoch_and_its_number_alone(
    corpora: Any, rules_of: Callable[..., PairingSettings]
) -> None:
    lengths = [[7, 9, 11, 5] * 5] * 4
    longer = [*lengths, [3] * 50]
    plans = [
        build_epoch_plan(corpora.index(documents), rules_of(nsp=False, seed=seed, seq_len=40), epoch)
        for documents, seed, epoch in [(lengths, 1, 0), (longer, 1, 0), (lengths, 2, 0), (lengths, 1, 1)]
    ]
    first, with_more, other_seed, other_epoch = (pairs_of_plan(plan) for plan in plans)
    assert with_more[: len(first)] == first
    assert other_seed != first
    assert other_epoch != first
    assert pairs_of_plan(build_epoch_plan(corpora.index(lengths), rules_of(nsp=False, seq_len=40), 0)) == first


def test_without_nsp_every_sentence_is_used_once(corpora: Any, rules_of: Callable[..., PairingSettings]) -> None:
    plan = build_epoch_plan(corpora.index([[10] * 30]), rules_of(nsp=False, seq_len=52, short_seq_prob=0.0), 0)
    assert sorted(token for a, _, _ in pairs_of_plan(plan) for token in a) == list(range(300))
    assert (plan.pair_tokens() == 52).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": -1}, r"seed = -1: must be 0 to 2\*\*63 - 1"),
        ({"seed": 2**63}, "seed = 9223372036854775808"),
        ({"seq_len": 7}, "seq_len = 7: must be 8 to 65535"),
        ({"seq_len": 65_536}, "seq_len = 65536"),
        ({"short_seq_prob": -0.1}, "short_seq_prob = -0.1: must be 0 to 1"),
        ({"short_seq_prob": 1.1}, "short_seq_prob = 1.1"),
    ],
)
def test_settings_out_of_range_are_refused(
    rules_of: Callable[..., PairingSettings], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        rules_of(**changes)


def test_n1_nsp_with_one_document_is_refused(corpora: Any, rules_of: Callable[..., PairingSettings]) -> None:
    with pytest.raises(ConfigError, match=r"needs 2 documents or more.* there is 1. Set nsp = false"):
        build_epoch_plan(corpora.index([[5, 6]]), rules_of(), 0)
    check_documents(1, False, "shards")
