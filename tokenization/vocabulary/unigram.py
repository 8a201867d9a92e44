"""Learns a Unigram vocabulary from counted words: same counts, same pieces, same scores.

The method is that of T. Kudo, "Subword Regularization" (2018), section 3.2, as SentencePiece applies it: begin with
all frequent substrings, estimate their probabilities by expectation maximization, take away the quarter whose loss
costs the likelihood least, and so on until few enough are left.

Hugging Face's trainer follows the order of a hash map that is seeded anew in every process, so its floating-point sums,
and with them scores and order, differ from run to run, with one thread too. Here all sums run over the words in sorted
order in one thread, and ties fall by the pieces' text.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenization.vocabulary.unigram_passes import LONGEST_PIECE_CHARS, expect, losses_of, segment

logger = logging.getLogger(__name__)

_SEEDS = 1_000_000
_KEPT_SHARE = 0.75
# Pieces above the wanted number until the last step, which takes the most probable ones.
_HEADROOM = 1.1
_ROUNDS_OF_ESTIMATION = 2
_LEAST_EXPECTED = 0.5
_DECIMALS = 6
_OUTSIDE = -1


class _Lattice(NamedTuple):
    """All ways to cut all words into pieces: an edge for every piece at every place where it stands.

    Words are laid end to end; a character that has no piece cuts a word in two.

    Args:
        starts: first character of each word and the end of the last; int64 (W + 1,).
        counts: how often each word stands in the text; int64 (W,).
        edge_starts: first edge of each character and the end of the last; int64 (C + 1,).
        pieces: piece of each edge; int32 (E,).
        lengths: characters of each edge; int32 (E,); ascending at each character.
    """

    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    edge_starts: NDArray[np.int64]
    pieces: NDArray[np.int32]
    lengths: NDArray[np.int32]


class _Pieces(NamedTuple):
    """Pieces, each by a place where it stands; the first ones are the single characters.

    Args:
        places: first character; int64 (P,).
        lengths: characters; int32 (P,).
    """

    places: NDArray[np.int64]
    lengths: NDArray[np.int32]


def learn_unigram(
    words: Mapping[str, int],
    num_pieces: int,
    characters: Sequence[str],
    groups: Sequence[int],
    min_frequency: int = 2,
) -> list[tuple[str, float]]:
    """Learn pieces and their log probabilities.

    Args:
        words: count of each word.
        num_pieces: pieces wanted, single characters included; the words may give fewer.
        characters: those that are always pieces, sorted; others are in none.
        groups: for each of them a number; characters of two groups never stand in one piece. A negative number stands
            for a mark that begins words and goes with every group, as "▁" does.
        min_frequency: least count of a piece of several characters.

    Returns:
        Pieces and natural logarithms of their probabilities, most probable first, among equals by text.
    """
    codes, lattice_words = _lay_out(words, characters)
    pieces, lattice = _find_seeds(codes, lattice_words, np.asarray(groups, np.int64), len(characters), min_frequency)
    scores = np.full(len(pieces.lengths), -np.log(len(pieces.lengths)))
    while True:
        for _ in range(_ROUNDS_OF_ESTIMATION):
            pieces, lattice, scores = _estimate(pieces, lattice, scores, len(characters))
        wanted = max(int(num_pieces * _HEADROOM), len(characters))
        if len(scores) <= wanted:
            break
        kept = _choose(pieces, lattice, scores, max(wanted, int(len(scores) * _KEPT_SHARE)), len(characters))
        pieces, lattice, scores = _keep(pieces, lattice, scores, kept)
        logger.info("unigram: %d pieces left", len(scores))
    return _finish(codes, pieces, scores, characters, num_pieces)


def _lay_out(words: Mapping[str, int], characters: Sequence[str]) -> tuple[NDArray[np.int32], _Lattice]:
    """Return the index of every character (C,), int32, and the words, whose lattice has no edges yet."""
    index = {character: position for position, character in enumerate(characters)}
    codes: list[int] = []
    starts, counts = [0], []
    for word in sorted(words):
        for character in word:
            code = index.get(character, _OUTSIDE)
            if code != _OUTSIDE:
                codes.append(code)
            elif starts[-1] < len(codes):
                starts.append(len(codes))
                counts.append(words[word])
        if starts[-1] < len(codes):
            starts.append(len(codes))
            counts.append(words[word])
    none = np.empty(0, np.int32)
    lattice = _Lattice(np.array(starts, np.int64), np.array(counts, np.int64), np.empty(0, np.int64), none, none)
    return np.array(codes, np.int32), lattice


def _find_seeds(
    codes: NDArray[np.int32], words: _Lattice, groups: NDArray[np.int64], num_characters: int, min_frequency: int
) -> tuple[_Pieces, _Lattice]:
    """Find the substrings that stand often, longer ones from shorter ones, and all their places."""
    lengths_of_words = np.diff(words.starts)
    ends = np.repeat(words.starts[1:], lengths_of_words)
    weights = np.repeat(words.counts, lengths_of_words)
    place = np.arange(len(codes), dtype=np.int64)
    node = codes.astype(np.int64)
    levels: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []  # places and nodes of each length from 2 on
    frequencies: list[NDArray[np.int64]] = []
    for length in range(2, LONGEST_PIECE_CHARS + 1):
        last = place + length - 1
        fits = last < ends[place]
        place, node, last = place[fits], node[fits], last[fits]
        left, right = groups[codes[last - 1]], groups[codes[last]]
        joins = (left == right) | ((left < 0) & (length == 2))  # a mark is a first character alone
        place, node, last = place[joins], node[joins], last[joins]
        keys, nodes = np.unique(node * num_characters + codes[last], return_inverse=True)
        frequency = _sum_by(nodes, weights[place], len(keys))
        is_frequent = frequency >= min_frequency
        parents = keys // num_characters
        if frequencies:  # a substring that always goes on with the same character gives nothing
            previous = frequencies[-1]
            same = is_frequent & (frequency == np.abs(previous[parents]))
            previous[parents[same]] = -np.abs(previous[parents[same]])
        renumbered = np.cumsum(is_frequent) - 1
        stays = is_frequent[nodes]
        place, node = place[stays], renumbered[nodes[stays]]
        if not len(place):
            break
        levels.append((place, node))
        frequencies.append(frequency[is_frequent])
    return _take_best(codes, words, levels, frequencies, num_characters)


def _sum_by(indices: NDArray[np.int64], weights: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Sum weights by index, exactly; every index from 0 to size - 1 occurs."""
    if not size:
        return np.empty(0, np.int64)
    order = np.argsort(indices, kind="stable")
    starts = np.searchsorted(indices[order], np.arange(size))
    return np.add.reduceat(weights[order], starts)


def _take_best(
    codes: NDArray[np.int32],
    words: _Lattice,
    levels: list[tuple[NDArray[np.int64], NDArray[np.int64]]],
    frequencies: list[NDArray[np.int64]],
    num_characters: int,
) -> tuple[_Pieces, _Lattice]:
    """Keep the substrings that cover most text, and make the lattice."""
    lengths = np.repeat(np.arange(2, 2 + len(levels)), [len(frequency) for frequency in frequencies])
    covered = np.concatenate([np.empty(0, np.int64), *frequencies]) * lengths
    best = np.argsort(-covered, kind="stable")[:_SEEDS]  # among equals by length and text: so they are numbered
    best = np.sort(best[covered[best] > 0])
    piece_of = np.full(len(covered), _OUTSIDE, np.int32)
    piece_of[best] = num_characters + np.arange(len(best), dtype=np.int32)
    all_places = [np.arange(len(codes), dtype=np.int64)]
    all_pieces = [codes]
    first = 0
    for (place, node), frequency in zip(levels, frequencies, strict=True):
        pieces = piece_of[first + node]
        all_places.append(place[pieces != _OUTSIDE])
        all_pieces.append(pieces[pieces != _OUTSIDE])
        first += len(frequency)
    edge_starts = np.zeros(len(codes) + 1, np.int64)
    for place in all_places:
        edge_starts[place + 1] += 1
    np.cumsum(edge_starts, out=edge_starts)
    edge_pieces = np.empty(edge_starts[-1], np.int32)
    edge_lengths = np.empty(edge_starts[-1], np.int32)
    places_of_pieces = np.zeros(num_characters + len(best), np.int64)  # a character that is nowhere keeps 0
    filled = edge_starts[:-1].copy()
    for length, (place, pieces) in enumerate(zip(all_places, all_pieces, strict=True), 1):
        edge_pieces[filled[place]] = pieces
        edge_lengths[filled[place]] = length
        filled[place] += 1
        places_of_pieces[pieces] = place
    piece_lengths = np.concatenate([np.ones(num_characters, np.int32), lengths[best].astype(np.int32)])
    lattice = _Lattice(words.starts, words.counts, edge_starts, edge_pieces, edge_lengths)
    return _Pieces(places_of_pieces, piece_lengths), lattice


def _estimate(
    pieces: _Pieces, lattice: _Lattice, scores: NDArray[np.float64], num_characters: int
) -> tuple[_Pieces, _Lattice, NDArray[np.float64]]:
    """Do one round of expectation maximization; pieces that are hardly expected are dropped."""
    expected = expect(*lattice, scores)
    kept = expected >= _LEAST_EXPECTED
    kept[:num_characters] = True
    pieces, lattice, expected = _keep(pieces, lattice, expected, kept)
    expected = np.maximum(expected, _LEAST_EXPECTED)
    return pieces, lattice, _digamma(expected) - _digamma(np.array([expected.sum()]))


def _digamma(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the derivative of log gamma (Abramowitz and Stegun 6.3.5, 6.3.18), for values above 0."""
    values = values.copy()
    shift = np.zeros_like(values)
    while (small := values < 8).any():  # from there on the series is exact to 1e-11
        shift[small] -= 1 / values[small]
        values[small] += 1
    inverse = 1 / values**2
    series = inverse * (1 / 12 - inverse * (1 / 120 - inverse * (1 / 252 - inverse * (1 / 240 - inverse / 132))))
    return shift + np.log(values) - 0.5 / values - series


def _choose(
    pieces: _Pieces, lattice: _Lattice, scores: NDArray[np.float64], count: int, num_characters: int
) -> NDArray[np.bool_]:
    """Return which pieces stay, (P,): characters, and the others whose loss would cost the likelihood most."""
    used = segment(*lattice, scores)
    losses = losses_of(pieces.places, pieces.lengths, *lattice[2:], scores, used)
    losses[used == 0] = -np.inf
    losses[:num_characters] = np.inf
    kept: NDArray[np.bool_] = np.zeros(len(scores), np.bool_)
    kept[np.argsort(-losses, kind="stable")[:count]] = True
    kept[losses == -np.inf] = False
    return kept


def _keep(
    pieces: _Pieces, lattice: _Lattice, values: NDArray[np.float64], kept: NDArray[np.bool_]
) -> tuple[_Pieces, _Lattice, NDArray[np.float64]]:
    """Take pieces out of all arrays."""
    if kept.all():
        return pieces, lattice, values
    renumbered = (np.cumsum(kept) - 1).astype(np.int32)
    stays = kept[lattice.pieces]
    before = np.concatenate([[0], np.cumsum(stays)])
    lattice = lattice._replace(
        edge_starts=before[lattice.edge_starts],
        pieces=renumbered[lattice.pieces[stays]],
        lengths=lattice.lengths[stays],
    )
    return _Pieces(pieces.places[kept], pieces.lengths[kept]), lattice, values[kept]


def _finish(
    codes: NDArray[np.int32],
    pieces: _Pieces,
    scores: NDArray[np.float64],
    characters: Sequence[str],
    num_pieces: int,
) -> list[tuple[str, float]]:
    def rounded(first: int, end: int) -> list[float]:
        return [round(score, _DECIMALS) for score in scores[first:end].tolist()]

    single = list(zip(characters, rounded(0, len(characters)), strict=True))
    spans = zip(pieces.places[len(characters) :].tolist(), pieces.lengths[len(characters) :].tolist(), strict=True)
    texts = ["".join(characters[code] for code in codes[place : place + length]) for place, length in spans]
    longer = list(zip(texts, rounded(len(characters), len(scores)), strict=True))
    longer.sort(key=lambda piece: (-piece[1], piece[0]))
    chosen = single + longer[: num_pieces - len(single)]
    return sorted(chosen, key=lambda piece: (-piece[1], piece[0]))
