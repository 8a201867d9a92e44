"""The compiled passes of Unigram training over all words (see `unigram`); arrays as in its lattice."""

from __future__ import annotations

from typing import Any

import numpy as np

from runtime.seeding import compiled

LONGEST_PIECE_CHARS = 16


@compiled
def expect(starts: Any, counts: Any, edge_starts: Any, pieces: Any, lengths: Any, scores: Any) -> Any:
    """Return how often each piece is expected, (P,) float64, over all ways to cut the words (forward, backward)."""
    expected = np.zeros(len(scores))
    longest = 0
    for word in range(len(counts)):
        longest = max(longest, starts[word + 1] - starts[word])
    forward = np.empty(longest + 1)
    backward = np.empty(longest + 1)
    for word in range(len(counts)):
        start, size = starts[word], starts[word + 1] - starts[word]
        forward[: size + 1] = -np.inf
        forward[0] = 0.0
        for at in range(size):
            for edge in range(edge_starts[start + at], edge_starts[start + at + 1]):
                to = at + lengths[edge]
                term = forward[at] + scores[pieces[edge]]
                low, high = min(term, forward[to]), max(term, forward[to])
                forward[to] = high + np.log1p(np.exp(low - high))
        backward[size] = 0.0
        for at in range(size - 1, -1, -1):
            total = -np.inf
            for edge in range(edge_starts[start + at], edge_starts[start + at + 1]):
                piece = pieces[edge]
                term = scores[piece] + backward[at + lengths[edge]]
                low, high = min(term, total), max(term, total)
                total = high + np.log1p(np.exp(low - high))
                expected[piece] += counts[word] * np.exp(forward[at] + term - forward[size])
            backward[at] = total
    return expected


@compiled
def segment(starts: Any, counts: Any, edge_starts: Any, pieces: Any, lengths: Any, scores: Any) -> Any:
    """Return how often each piece is used, (P,) int64, where every word is cut in its most probable way."""
    used = np.zeros(len(scores), np.int64)
    longest = 0
    for word in range(len(counts)):
        longest = max(longest, starts[word + 1] - starts[word])
    best = np.empty(longest + 1)
    last = np.empty(longest + 1, np.int64)
    for word in range(len(counts)):
        start, size = starts[word], starts[word + 1] - starts[word]
        best[: size + 1] = -np.inf
        best[0] = 0.0
        for at in range(size):
            for edge in range(edge_starts[start + at], edge_starts[start + at + 1]):
                to = at + lengths[edge]
                if best[at] + scores[pieces[edge]] > best[to]:
                    best[to] = best[at] + scores[pieces[edge]]
                    last[to] = edge
        at = size
        while at > 0:
            used[pieces[last[at]]] += counts[word]
            at -= lengths[last[at]]
    return used


@compiled
def losses_of(
    places: Any, piece_lengths: Any, edge_starts: Any, pieces: Any, lengths: Any, scores: Any, used: Any
) -> Any:
    """Return what each piece is worth, (P,) float64: log likelihood a token that its best replacement costs.

    Only pieces that are used and have more than one character have a meaningful value.
    """
    losses = np.zeros(len(places))
    total = float(used.sum())
    best = np.empty(LONGEST_PIECE_CHARS + 1)
    last = np.empty(LONGEST_PIECE_CHARS + 1, np.int64)
    for piece in range(len(places)):
        start, size = places[piece], piece_lengths[piece]
        if used[piece] == 0 or size == 1:
            continue
        best[: size + 1] = -np.inf
        best[0] = 0.0
        for at in range(size):
            for edge in range(edge_starts[start + at], edge_starts[start + at + 1]):
                to = at + lengths[edge]
                if to > size or lengths[edge] == size:
                    break
                if best[at] + scores[pieces[edge]] > best[to]:
                    best[to] = best[at] + scores[pieces[edge]]
                    last[to] = edge
        count = float(used[piece])
        parts = 0
        replaced = 0.0
        at = size
        while at > 0:
            replaced += np.log(used[pieces[last[at]]] + count)
            parts += 1
            at -= lengths[last[at]]
        kept = np.log(count) - np.log(total)
        replaced -= parts * np.log(total + count * (parts - 1))
        losses[piece] = count / total * (kept - replaced)
    return losses
