from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from tokenization.vocabulary import unigram
from tokenization.vocabulary.unigram import learn_unigram


def ways(word: str, pieces: dict[str, float]) -> Iterator[list[str]]:
    """All ways to cut a word into pieces."""
    if not word:
        yield []
    for end in range(1, len(word) + 1):
        if word[:end] in pieces:
            for rest in ways(word[end:], pieces):
                yield [word[:end], *rest]


def lattice_of(words: dict[str, int], characters: str) -> tuple[list[str], unigram._Pieces, unigram._Lattice]:
    codes, laid = unigram._lay_out(words, characters)
    groups = np.zeros(len(characters), np.int64)
    pieces, lattice = unigram._find_seeds(codes, laid, groups, len(characters), 2)
    texts = list(characters)
    for place, length in zip(pieces.places[len(texts) :], pieces.lengths[len(texts) :], strict=True):
        texts.append("".join(characters[code] for code in codes[place : place + length]))
    return texts, pieces, lattice


def test_digamma() -> None:
    # -gamma; -gamma + 1; -gamma - 2 ln 2; ln 100 - 1/200 - 1/120000
    values = unigram._digamma(np.array([1.0, 2.0, 0.5, 100.0]))
    assert values == pytest.approx([-0.5772156649, 0.4227843351, -1.9635100260, 4.6001618527], abs=1e-9)


def test_seeds_are_the_frequent_substrings() -> None:
    texts, _, lattice = lattice_of({"abc": 2, "abd": 1, "xab": 1}, "abcdx")
    # ab: 4, abc: 2, bc: 2. abd, xab, bd and xa: 1 each.
    assert texts == ["a", "b", "c", "d", "x", "ab", "bc", "abc"]
    assert lattice.counts.tolist() == [2, 1, 1]
    spans = zip(lattice.edge_starts[:-1], lattice.edge_starts[1:], strict=True)
    edges = [[(int(lattice.pieces[e]), int(lattice.lengths[e])) for e in range(*span)] for span in spans]
    assert edges[:3] == [[(0, 1), (5, 2), (7, 3)], [(1, 1), (6, 2)], [(2, 1)]]
    assert edges[6:] == [[(4, 1)], [(0, 1), (5, 2)], [(1, 1)]]


def test_a_substring_that_always_goes_on_alike_is_no_seed() -> None:
    texts, _, _ = lattice_of({"abc": 2, "ac": 1}, "abc")
    assert texts == ["a", "b", "c", "bc", "abc"]  # ab always goes on with c


def test_expected_counts_and_best_cuts_are_those_of_all_ways_tried() -> None:
    draw = random.Random(0)
    words = {"".join(draw.choices("abc", k=draw.randint(1, 7))): draw.randint(1, 5) for _ in range(30)}
    texts, _, lattice = lattice_of(words, "abc")
    assert len(texts) > 10
    scores = np.log(np.array([draw.uniform(0.01, 1) for _ in texts]))
    pieces = dict(zip(texts, scores.tolist(), strict=True))
    expected: Counter[str] = Counter()
    used: Counter[str] = Counter()
    for word, count in words.items():
        found = [(way, math.exp(sum(pieces[piece] for piece in way))) for way in ways(word, pieces)]
        total = sum(weight for _, weight in found)
        for way, weight in found:
            for piece in way:
                expected[piece] += count * weight / total
        for piece in max(found, key=lambda item: item[1])[0]:
            used[piece] += count
    assert unigram.expect(*lattice, scores).tolist() == pytest.approx([expected[text] for text in texts])
    assert unigram.segment(*lattice, scores).tolist() == [used[text] for text in texts]


def test_the_loss_of_a_piece() -> None:
    # Pieces a, b, ab with used 2, 1, 3: without ab, a 5 and b 4 of 9 tokens.
    texts, pieces, lattice = lattice_of({"ab": 3}, "ab")
    assert texts == ["a", "b", "ab"]
    scores = np.log(np.array([0.2, 0.2, 0.6]))
    losses = unigram.losses_of(pieces.places, pieces.lengths, *lattice[2:], scores, np.array([2, 1, 3]))
    expected = 3 / 6 * (math.log(3 / 6) - math.log(5 / 9) - math.log(4 / 9))
    assert losses.tolist() == pytest.approx([0, 0, expected])


def test_scores_are_the_logarithms_of_probabilities() -> None:
    words = {"▁the": 50, "▁then": 10, "▁hen": 30, "▁net": 5}
    pieces = learn_unigram(words, 12, sorted(set("".join(words))), [0, 0, 0, 0, -1])
    assert [score for _, score in pieces] == sorted((score for _, score in pieces), reverse=True)
    assert sum(math.exp(score) for _, score in pieces) == pytest.approx(1, abs=0.1)
    assert pieces[0][0] == "▁the"
    assert {"e", "h", "n", "t", "▁"} <= {text for text, _ in pieces}


def test_pieces_do_not_mix_groups_and_the_mark_stands_first() -> None:
    words = {"▁a1a1": 50, "▁1a1a": 40}
    pieces = learn_unigram(words, 20, ["1", "a", "▁"], [0, 1, -1])
    assert sorted(text for text, _ in pieces) == ["1", "a", "▁", "▁1", "▁a"]


def test_unknown_characters_cut_words() -> None:
    pieces = learn_unigram({"ab?ab": 10, "?": 3}, 5, ["a", "b", "z"], [0, 0, 0])
    assert [text for text, _ in pieces] == ["ab", "a", "b", "z"]


def test_the_wanted_number_comes_out() -> None:
    draw = random.Random(1)
    words = Counter("".join(draw.choices("abcdefgh", k=draw.randint(2, 9))) for _ in range(3000))
    characters = sorted("abcdefgh")
    learned = [learn_unigram(order, 100, characters, [0] * 8) for order in (words, dict(reversed(words.items())))]
    assert len(learned[0]) == 100
    assert learned[0] == learned[1]


def test_counts_above_32_bits_do_not_overflow() -> None:
    small = learn_unigram({"abab": 5, "ab": 9, "ba": 2}, 4, ["a", "b"], [0, 0])
    large = learn_unigram({"abab": 5 << 33, "ab": 9 << 33, "ba": 2 << 33}, 4, ["a", "b"], [0, 0])
    assert [text for text, _ in small] == [text for text, _ in large]
    assert large[0][1] == pytest.approx(small[0][1], abs=0.1)
