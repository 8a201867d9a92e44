"""Pairs to token streams: `[CLS] A [SEP] B [SEP] [CLS] C [SEP] D [SEP] ...`, masked, padded at the end if at all.

The compiled part of the reader: one pass over the pairs of a micro-batch, each copied from the mapped shards, laid
out and masked while it is near the processor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pretrain.data import masking, store
from pretrain.data.masking import mask_pair, predictions_of
from pretrain.data.pairing import NUM_SPECIALS_PAIR
from pretrain.data.store import borrowed, copy_span
from runtime.seeding import compiled

Int64Array = npt.NDArray[np.int64]

IGNORE_INDEX = -100
"""The label that the losses leave out."""

NO_TOKEN = np.int64(2**63 - 1)

_SOURCES = b"".join(Path(str(module.__file__)).read_bytes() for module in (masking, store))
_SOURCES_KEY = hashlib.sha256(_SOURCES).hexdigest()[:12]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _compiled_with_sources(function: _Function) -> _Function:
    """Compile a function that calls compiled ones of `masking` and `store`: anew when these have changed."""
    # numba keeps it under its name while its own file is unchanged; see `runtime.seeding.compiled`
    function.__qualname__ = f"{function.__qualname__}-{_SOURCES_KEY}"
    return compiled(function)


class TokenStream(NamedTuple):
    """Pairs laid end to end, padding behind them.

    Attributes:
        input_ids: int64 (T,): tokens, masked.
        token_type_ids: int64 (T,): 0 for [CLS], A and its [SEP]; 1 for B and its [SEP]; 0 in the padding.
        position_ids: int64 (T,): from 0 in each pair, and in the padding.
        cu_seqlens: int32 (P + 1,): offset of each pair's [CLS], and the end of the last; (P + 2,), with T at
            the end, where padding was asked for.
        masked_positions: int64 (M,): places to predict, ascending, then 0 in the padding.
        labels: int64 (M,): the tokens that stood there, then IGNORE_INDEX.
        next_sentence_label: int64 (P,): 0 = B follows A, 1 = random; IGNORE_INDEX without NSP.
    """

    input_ids: Int64Array
    token_type_ids: Int64Array
    position_ids: Int64Array
    cu_seqlens: npt.NDArray[np.int32]
    masked_positions: Int64Array
    labels: Int64Array
    next_sentence_label: Int64Array


@dataclass(frozen=True)
class BatchCounts:
    """Counts over all ranks and micro-batches, known to every rank from the lengths in the plan.

    Attributes:
        masked_tokens: Predictions.
        pairs: Pairs.
        tokens: Tokens, specials counted.
        squared_tokens: Sum over the pairs of their tokens squared: attention's work goes by it.
    """

    masked_tokens: int
    pairs: int
    tokens: int
    squared_tokens: int


def empty_stream(counts: BatchCounts, pad_to_multiple: int, mask_multiple: int, pad_id: int) -> TokenStream:
    """Return a stream in which nothing is written but the padding."""
    padding = -counts.tokens % pad_to_multiple
    input_ids, token_type_ids, position_ids = np.empty((3, counts.tokens + padding), dtype=np.int64)
    positions, labels = np.empty((2, counts.masked_tokens + -counts.masked_tokens % mask_multiple), dtype=np.int64)
    cu_seqlens = np.empty(counts.pairs + 1 + (pad_to_multiple > 1), dtype=np.int32)
    if pad_to_multiple > 1:
        input_ids[counts.tokens :], token_type_ids[counts.tokens :] = pad_id, 0
        position_ids[counts.tokens :] = np.arange(padding)
        cu_seqlens[-1] = counts.tokens + padding
    if mask_multiple > 1:
        positions[counts.masked_tokens :], labels[counts.masked_tokens :] = 0, IGNORE_INDEX
    next_sentence_label = np.empty(counts.pairs, dtype=np.int64)
    return TokenStream(input_ids, token_type_ids, position_ids, cu_seqlens, positions, labels, next_sentence_label)


@compiled
def add_lengths(a_length: Any, b_length: Any, places: Any, num_specials: int, out: Any) -> None:
    """Write the tokens of the pairs at some places of the columns, specials counted."""
    for pair in range(len(places)):
        out[pair] = np.int64(a_length[places[pair]]) + np.int64(b_length[places[pair]]) + num_specials


@_compiled_with_sources
def sum_lengths(lengths: Any, mlm_probability: float, num_specials: int) -> Any:
    """Return the sums of predictions, of tokens and of tokens squared."""
    masked = tokens = squared = np.int64(0)
    for length in lengths:
        masked += predictions_of(length, mlm_probability, num_specials)
        tokens += length
        squared += length * length
    return masked, tokens, squared


@_compiled_with_sources
def _lay_out(shards: Any, a_start: Any, a_length: Any, b_start: Any, specials: Any, out: Any) -> Any:
    """Write one pair, `[CLS] A [SEP] B [SEP]` or `[CLS] A [SEP]`: ids, types and positions.

    Returns its largest token, uint64: negative ones are huge.
    """
    cls_id, sep_id, num_specials = specials
    ids, types, positions = out
    second = a_length + 2  # where segment B begins
    ids[0], ids[second - 1] = cls_id, sep_id
    largest = copy_span(shards, a_start, ids[1 : second - 1])
    if num_specials == NUM_SPECIALS_PAIR:
        largest = max(largest, copy_span(shards, b_start, ids[second : len(ids) - 1]))
        ids[len(ids) - 1] = sep_id
    for place in range(len(ids)):
        types[place] = np.int64(place >= second)
        positions[place] = place
    return largest


@_compiled_with_sources
def read_pairs(mapped: Any, columns: Any, order: Any, settings: Any, rules: Any, scratch: Any, out: Any) -> Any:
    """Lay pairs end to end and mask them, one after the other, while a pair is near the processor.

    Args:
        mapped: See `TokenStore.mapped`.
        columns: The fields of `Columns`.
        order: Places of the pairs in them, their epochs and numbers, each (P,).
        settings: (id of [CLS], id of [SEP], specials of a pair), `mlm_probability`.
        rules: The fields of `MaskRules`.
        scratch: What `new_scratch` returned for pairs of this length.
        out: The fields of a `TokenStream`, whose padding is left alone.

    Returns:
        A token that the vocabulary does not have, or `NO_TOKEN`.

    Raises:
        IndexError: A pair is longer than `scratch` is made for, or its tokens lie in no shard.
    """
    a_starts, a_lengths, b_starts, b_lengths, next_labels = columns
    places, epochs, numbers = order
    specials, mlm_probability = settings
    _, _, num_specials = specials
    _, _, _, cu_seqlens, _, _, next_sentence_label = out
    # what is sliced or passed on for every pair: counting references would take a quarter of the time
    input_ids, token_type_ids, position_ids = borrowed(out[0]), borrowed(out[1]), borrowed(out[2])
    positions, labels = borrowed(out[4]), borrowed(out[5])
    shards = (borrowed(mapped[0]), borrowed(mapped[1]), borrowed(mapped[2]))
    rules = (rules[0], rules[1], rules[2], rules[3], borrowed(rules[4]), borrowed(rules[5]))
    scratch = (borrowed(scratch[0]), borrowed(scratch[1]), borrowed(scratch[2]))
    first = masked = np.int64(0)
    for pair in range(len(places)):
        place = places[pair]
        a_length = np.int64(a_lengths[place])
        length = a_length + np.int64(b_lengths[place]) + num_specials
        if length > len(scratch[0]):
            raise IndexError("a pair that is longer than seq_len")
        last = first + length
        ids = input_ids[first:last]
        own = (ids, token_type_ids[first:last], position_ids[first:last])
        # compiled code does not check its indices: no unknown id may come to the masks
        largest = _lay_out(shards, a_starts[place], a_length, b_starts[place], specials, own)
        if largest >= rules[1]:
            return np.int64(largest)
        predictions = predictions_of(length, mlm_probability, num_specials)
        chosen, hidden = positions[masked : masked + predictions], labels[masked : masked + predictions]
        count = mask_pair(ids, a_length, (epochs[pair], numbers[pair]), rules, scratch, chosen, hidden)
        assert count == predictions, "a pair has fewer tokens than predictions"
        for number in range(count):
            chosen[number] += first
        cu_seqlens[pair] = first
        next_sentence_label[pair] = next_labels[place] if num_specials == NUM_SPECIALS_PAIR else IGNORE_INDEX
        masked += predictions
        first = last
    cu_seqlens[len(places)] = first
    return NO_TOKEN
