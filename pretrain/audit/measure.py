"""One shard measured by compiled code over the mapped files: lengths, hashes, counts of tokens.

Memory is bounded by the piece (1,048,576 sentences), the vocabulary and 8 bytes a document. A hash of 64 bits
stands for a sentence, and one for a document (its sentences, in order). Sentences are sampled by their hash,
so that all copies of a sentence are in the sample or none is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pretrain.audit.lengths import NUM_BINS, bin_of
from runtime.seeding import compiled, next_u64
from tokenization.indexed import IndexedReader

Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]

PIECE_SENTENCES = 1 << 20
MOST_CANDIDATES = 1024
"""Repeated sentences of a shard that are kept whether they are sampled or not."""

_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_HASH_SHIFT = np.uint64(32)
_HASH_START = np.uint64(0x243F6A8885A308D3)


class Rules(NamedTuple):
    """What the counts depend on, as the compiled code takes it.

    Attributes:
        vocab_size: Ids from 0 to here, exclusive, are known.
        unk_id: Id of [UNK].
        max_tokens: Most tokens of a pair, specials not counted.
        is_special: bool (vocab_size,): ids that the text must not hold. [UNK] is none of them.
    """

    vocab_size: int
    unk_id: int
    max_tokens: int
    is_special: npt.NDArray[np.bool_]


TOTALS = (
    "documents",
    "sentences",
    "tokens",
    "single_sentence_documents",
    "unk_tokens",
    "unk_sentences",
    "special_tokens",
    "unknown_ids",
    "empty_sentences",
    "empty_documents",
    "long_sentences",
    "tokens_beyond",
    "longest_sentence",
    "longest_document_sentences",
    "longest_document_tokens",
)
"""What `ShardMeasure.totals` counts, in order; the longest are maxima."""
(
    _DOCUMENTS,
    _SENTENCES,
    _TOKENS,
    _SINGLE,
    _UNK_TOKENS,
    _UNK_SENTENCES,
    _SPECIAL,
    _UNKNOWN,
    _EMPTY_SENTENCES,
    _EMPTY_DOCUMENTS,
    _LONG,
    _BEYOND,
    _LONGEST_SENTENCE,
    _LONGEST_SENTENCES,
    _LONGEST_TOKENS,
) = range(len(TOTALS))


@dataclass(frozen=True)
class ShardMeasure:
    """What is known of one shard; flat arrays, so that it can be kept on disk and mapped.

    Attributes:
        totals: int64 (len(TOTALS),).
        sentence_tokens: int64 (NUM_BINS,): sentences by their tokens.
        document_sentences: int64 (NUM_BINS,): documents by their sentences.
        document_tokens: int64 (NUM_BINS,): documents by their tokens.
        token_counts: int64 (vocab_size,): how often each token stands in the text.
        document_hashes: uint64 (documents,).
        sampled_hashes: uint64 (n,), ascending: each sentence of the sample once.
        sampled_counts: int64 (n,): how often it stands in the shard.
        sampled_starts: int64 (n,): number of the shard's token that its first copy starts with.
        sampled_lengths: int64 (n,): its tokens.
        candidate_hashes: uint64 (m,), ascending: the most repeated sentences, sampled or not, m <= MOST_CANDIDATES.
        candidate_counts: int64 (m,): how often each is in the shard, or less.
        candidate_starts: int64 (m,): as `sampled_starts`.
        candidate_lengths: int64 (m,): as `sampled_lengths`.
    """

    totals: Int64Array
    sentence_tokens: Int64Array
    document_sentences: Int64Array
    document_tokens: Int64Array
    token_counts: Int64Array
    document_hashes: UInt64Array
    sampled_hashes: UInt64Array
    sampled_counts: Int64Array
    sampled_starts: Int64Array
    sampled_lengths: Int64Array
    candidate_hashes: UInt64Array
    candidate_counts: Int64Array
    candidate_starts: Int64Array
    candidate_lengths: Int64Array


ARRAY_DTYPES: dict[str, Any] = {
    field.name: np.uint64 if field.name.endswith("_hashes") else np.int64 for field in fields(ShardMeasure)
}


class Sentences(NamedTuple):
    """Different sentences: hash (ascending), how often, where the first copy starts, and its tokens; each (n,)."""

    hashes: UInt64Array
    counts: Int64Array
    starts: Int64Array
    lengths: Int64Array

    def take(self, chosen: npt.NDArray[Any]) -> Sentences:
        """Return some of them, by a mask or by numbers."""
        return Sentences(*(values[chosen] for values in self))


class _Counters(NamedTuple):
    """What the compiled code fills; see `ShardMeasure`."""

    totals: Int64Array
    sentence_tokens: Int64Array
    document_sentences: Int64Array
    document_tokens: Int64Array
    token_counts: Int64Array
    document_hashes: UInt64Array


class _Carry(NamedTuple):
    """What goes on from one piece to the next: (document, its tokens so far, token of the shard), and its hash."""

    places: Int64Array
    document_hash: UInt64Array


def measure_shard(
    prefix: Path,
    rules: Rules,
    sample_bits: int,
    advance: Callable[[int], None],
    piece_sentences: int = PIECE_SENTENCES,
) -> ShardMeasure:
    """Measure one shard.

    Args:
        prefix: The shard's path without suffix.
        rules: What to count.
        sample_bits: One sentence in 2**sample_bits is sampled.
        advance: Told the bytes of .bin that were read, after each piece.
        piece_sentences: Sentences handled at a time.

    Raises:
        ConfigError: The files are not a shard.
    """
    reader = IndexedReader(prefix)
    boundaries = np.array(reader.document_indices, dtype=np.int64)
    counters = _Counters(
        totals=np.zeros(len(TOTALS), dtype=np.int64),
        sentence_tokens=np.zeros(NUM_BINS, dtype=np.int64),
        document_sentences=np.zeros(NUM_BINS, dtype=np.int64),
        document_tokens=np.zeros(NUM_BINS, dtype=np.int64),
        token_counts=np.zeros(rules.vocab_size, dtype=np.int64),
        document_hashes=np.empty(len(boundaries) - 1, dtype=np.uint64),
    )
    carry = _Carry(np.zeros(3, dtype=np.int64), np.full(1, _HASH_START))
    tokens = np.asarray(reader.tokens)
    sampled: list[Sentences] = []
    candidates = merge([])
    sample_mask = np.uint64((1 << sample_bits) - 1)
    for first in range(0, len(reader), piece_sentences):
        # aligned, as compiled code wants it
        lengths = np.array(reader.sentence_lengths[first : first + piece_sentences], dtype=np.int64)
        start = int(carry.places[2])
        hashes = np.empty(len(lengths), dtype=np.uint64)
        _measure(tokens, lengths, boundaries, first, rules, carry, counters, hashes)
        starts = np.cumsum(lengths) - lengths + start
        found = merge([Sentences(hashes, np.ones(len(hashes), dtype=np.int64), starts, lengths)])
        sampled.append(found.take(found.hashes & sample_mask == 0))
        repeated = found.take(found.counts > 1)
        candidates = most_repeated(merge([candidates, repeated]), MOST_CANDIDATES)
        advance(int(lengths.sum()) * reader.dtype.itemsize)
    _close_documents(boundaries, len(reader), carry, counters)
    return ShardMeasure(*counters, *merge(sampled), *candidates)


def merge(parts: list[Sentences]) -> Sentences:
    """Return each sentence of the parts once: counts added up, the place of the first copy."""
    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return Sentences(empty.astype(np.uint64), empty, empty, empty)
    hashes, counts, starts, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
    # stable: the first copy stays first
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    firsts = np.flatnonzero(np.concatenate([[True], hashes[1:] != hashes[:-1]])[: len(hashes)])
    if len(firsts) == 0:
        return merge([])
    chosen = order[firsts]
    return Sentences(hashes[firsts], np.add.reduceat(counts[order], firsts), starts[chosen], lengths[chosen])


def most_repeated(sentences: Sentences, most: int) -> Sentences:
    """Return the sentences with the largest counts, still in the order of their hashes."""
    if len(sentences.hashes) <= most:
        return sentences
    return sentences.take(np.sort(np.argsort(-sentences.counts, kind="stable")[:most]))


@compiled
def _stir(state: Any, word: Any) -> Any:
    """Return the hash of a sequence one word longer."""
    state = (state ^ np.uint64(word)) * _HASH_FACTOR
    return state ^ (state >> _HASH_SHIFT)


@compiled
def _close_documents(boundaries: Any, sentence: int, carry: Any, counters: Any) -> None:
    """Count the documents that end at `sentence` or before it, and start the next."""
    places = carry.places
    totals = counters.totals
    while places[0] + 1 < len(boundaries) and boundaries[places[0] + 1] <= sentence:
        document = places[0]
        sentences = boundaries[document + 1] - boundaries[document]
        totals[_DOCUMENTS] += 1
        totals[_EMPTY_DOCUMENTS] += np.int64(sentences == 0)
        totals[_SINGLE] += np.int64(sentences == 1)
        totals[_LONGEST_SENTENCES] = max(totals[_LONGEST_SENTENCES], sentences)
        totals[_LONGEST_TOKENS] = max(totals[_LONGEST_TOKENS], places[1])
        counters.document_sentences[bin_of(sentences)] += 1
        counters.document_tokens[bin_of(places[1])] += 1
        counters.document_hashes[document] = next_u64(carry.document_hash[0])[1]
        carry.document_hash[0] = _HASH_START
        places[1] = 0
        places[0] += 1


@compiled
def _measure(
    tokens: Any, lengths: Any, boundaries: Any, first: int, rules: Any, carry: Any, counters: Any, hashes: Any
) -> None:
    """Count some neighbouring sentences, the first of which is number `first` of the shard; write their hashes."""
    vocab_size, unk_id, max_tokens, is_special = rules
    totals, token_counts = counters.totals, counters.token_counts
    for number in range(len(lengths)):
        _close_documents(boundaries, first + number, carry, counters)
        length = lengths[number]
        start = carry.places[2]
        state = _HASH_START
        unks = np.int64(0)
        for place in range(start, start + length):
            token = np.int64(tokens[place])
            state = _stir(state, token)
            if token < 0 or token >= vocab_size:
                totals[_UNKNOWN] += 1
            else:
                token_counts[token] += 1
                totals[_SPECIAL] += np.int64(is_special[token])
                unks += np.int64(token == unk_id)
        hashes[number] = next_u64(state ^ np.uint64(length))[1]
        carry.document_hash[0] = _stir(carry.document_hash[0], hashes[number])
        carry.places[1] += length
        carry.places[2] += length
        totals[_SENTENCES] += 1
        totals[_TOKENS] += length
        totals[_UNK_TOKENS] += unks
        totals[_UNK_SENTENCES] += np.int64(unks > 0)
        totals[_EMPTY_SENTENCES] += np.int64(length == 0)
        totals[_LONG] += np.int64(length > max_tokens)
        totals[_BEYOND] += max(np.int64(0), length - max_tokens)
        totals[_LONGEST_SENTENCE] = max(totals[_LONGEST_SENTENCE], length)
        counters.sentence_tokens[bin_of(length)] += 1
