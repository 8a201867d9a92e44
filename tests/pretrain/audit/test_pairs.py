"""Pairs against their text: planted faults are found, the program's own plans have none."""

from __future__ import annotations

import numpy as np
import pytest

from pretrain.audit.pairs import measure_pairs
from pretrain.data.pairing import IS_NEXT, IS_RANDOM, Columns, PairingSettings
from pretrain.data.plan import EpochPlan, build_epoch_plan
from pretrain.data.store import SentenceIndex


def index_of(sentence_lengths):
    """Return the index of documents given by their sentences' lengths."""
    lengths = [length for document in sentence_lengths for length in document]
    return SentenceIndex(
        *(
            np.concatenate([[0], np.cumsum(values)]).astype(np.int64)
            for values in (lengths, [len(document) for document in sentence_lengths], [sum(lengths)])
        )
    )


def settings_of(**changes):
    return PairingSettings(**{"seed": 7, "seq_len": 16, "short_seq_prob": 0.1, "nsp": True, **changes})


def plan_of(*pairs):
    """Return a plan of (a_start, a_length, b_start, b_length, label)."""
    dtypes = (np.int64, np.uint16, np.int64, np.uint16, np.int8)
    return EpochPlan(Columns(*(np.array(c, dtype=d) for c, d in zip(zip(*pairs, strict=True), dtypes, strict=True))), 3)


# two documents: sentences 0-4 4-7 7-12 | 12-16 16-26
INDEX = index_of([[4, 3, 5], [4, 10]])


@pytest.mark.parametrize(
    ("pair", "wrong_random", "wrong_next"),
    [
        ((0, 4, 4, 3, IS_NEXT), 0, 0),
        ((0, 7, 7, 5, IS_NEXT), 0, 0),
        ((0, 4, 12, 4, IS_RANDOM), 0, 0),
        ((12, 4, 4, 3, IS_RANDOM), 0, 0),
        ((0, 4, 4, 3, IS_RANDOM), 1, 0),  # B is from A's document
        ((7, 5, 0, 4, IS_RANDOM), 1, 0),
        ((0, 4, 12, 4, IS_NEXT), 0, 1),  # another document
        ((7, 5, 12, 4, IS_NEXT), 0, 1),  # right behind it, but another document
        ((0, 4, 7, 5, IS_NEXT), 0, 1),  # a sentence is missing
        ((4, 3, 0, 4, IS_NEXT), 0, 1),  # B stands before A
        ((0, 2, 2, 2, IS_NEXT), 0, 1),  # within one sentence
        ((0, 3, 4, 3, IS_NEXT), 0, 1),  # a gap, though nothing had to be cut
        ((12, 3, 16, 10, IS_NEXT), 0, 0),  # cut to 13 tokens at the end of A
        ((0, 8, 12, 5, IS_NEXT), 0, 1),  # full, but across two documents
    ],
)
def test_labels_are_held_against_the_text(pair, wrong_random, wrong_next):
    figures = measure_pairs(INDEX, plan_of(pair), settings_of())
    assert (figures.wrong_random, figures.wrong_next) == (wrong_random, wrong_next)
    assert figures.random_pairs == pair[4]


def test_the_gap_of_a_cut_pair_is_shorter_than_its_last_sentence():
    index = index_of([[6, 4, 8, 4], [5, 5]])
    # 13 tokens: A 0-6, B 10-17 of the sentence 10-18; the sentence 6-10 is missing, which no cut explains ...
    assert measure_pairs(index, plan_of((0, 6, 18, 4, IS_NEXT)), settings_of()).wrong_next == 1
    assert measure_pairs(index, plan_of((0, 9, 18, 4, IS_NEXT)), settings_of()).wrong_next == 1
    # ... and this one a cut does
    assert measure_pairs(index, plan_of((1, 5, 7, 8, IS_NEXT)), settings_of()).wrong_next == 0


def test_lengths_of_pairs():
    figures = measure_pairs(INDEX, plan_of((0, 4, 4, 3, 0), (12, 3, 16, 10, 0), (0, 7, 12, 14, 1)), settings_of())
    assert (figures.pairs, figures.over_seq_len, figures.random_share) == (3, 1, pytest.approx(1 / 3))
    assert figures.full_share == pytest.approx(1 / 3)
    assert figures.lengths.bars[0].first == 10


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("longest", "seq_len"), [(5, 128), (30, 32), (200, 32), (40, 8)])
def test_plans_of_the_program_tell_the_truth(seed, longest, seq_len):
    generator = np.random.default_rng(seed)
    lengths = [generator.integers(1, longest + 1, generator.integers(1, 30)).tolist() for _ in range(60)]
    index = index_of(lengths)
    settings = settings_of(seed=seed, seq_len=seq_len)
    figures = measure_pairs(index, build_epoch_plan(index, settings, seed), settings)
    assert figures.pairs > 60
    assert (figures.wrong_random, figures.wrong_next, figures.over_seq_len) == (0, 0, 0)
    assert figures.mean_tokens == pytest.approx(figures.lengths.mean)
    assert figures.padding_share == pytest.approx(1 - figures.fill)


def test_documents_of_forty_short_sentences_fill_their_pairs():
    """40 sentences of 8 tokens, seq_len 128: 16 sentences make a pair; about 10 % of the documents aim lower."""
    settings = settings_of(seq_len=128)
    index = index_of([[8] * 40] * 3000)
    figures = measure_pairs(index, build_epoch_plan(index, settings, 0), settings)
    assert figures.over_seq_len == 0
    assert figures.lengths.longest == 128
    whole = settings_of(seq_len=128, short_seq_prob=0.0)
    without_short = measure_pairs(index, build_epoch_plan(index, whole, 0), whole)
    # ends of documents are short as well; of the full ones a tenth is lost, but for targets of 121 to 125 tokens, which
    # still take 16 sentences: 5 of the 124 short targets
    full, without = figures.full_share * figures.pairs, without_short.full_share * without_short.pairs
    assert full / without == pytest.approx(0.9 + 0.1 * 5 / 124, abs=0.02)
    assert 0.45 < figures.random_share < 0.60


def test_without_nsp_nothing_is_random():
    settings = settings_of(nsp=False)
    figures = measure_pairs(INDEX, build_epoch_plan(INDEX, settings, 0), settings)
    assert (figures.random_pairs, figures.wrong_random, figures.wrong_next) == (0, 0, 0)
