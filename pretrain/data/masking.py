"""BERT's masks, drawn when a pair is read: from (seed, epoch, pair) alone.

How many tokens of a pair are predicted follows from its length, so that the counts of a global batch, by
which the loss is divided, are known without reading a token. Of the tokens chosen 80 % become [MASK], 10 %
stay, 10 % become a random token.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.command import ConfigError
from runtime.seeding import MASKING, below, compiled, count_bits, mix, uniform

Int64Array = npt.NDArray[np.int64]

_ONE = np.uint64(1)
_WORD_BITS = 64
_MASKED = 0.8
_MASKED_OR_KEPT = 0.9


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What the data path must know of a tokenizer.

    Attributes:
        size: Number of its tokens. Rows that a model adds behind them are no tokens.
        pad_id: Id of [PAD].
        cls_id: Id of [CLS].
        sep_id: Id of [SEP].
        mask_id: Id of [MASK].
        special_ids: Ids of all special tokens, [UNK] among them.
        is_special: bool (size,): computed.
        replacement_ids: int64: ids of all tokens that are not special, ascending: computed.
    """

    size: int
    pad_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    special_ids: tuple[int, ...]
    is_special: npt.NDArray[np.bool_] = field(init=False, repr=False, compare=False)
    replacement_ids: Int64Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the ids and compute the tables.

        Raises:
            ConfigError: An id is outside the vocabulary, one of the four is not special or stands for two
                tokens, or every token is special.
        """
        outside = [token for token in self.special_ids if not 0 <= token < self.size]
        if outside:
            raise ConfigError(f"vocabulary: special ids {outside}: must be 0 to {self.size - 1}")
        named = {"pad_id": self.pad_id, "cls_id": self.cls_id, "sep_id": self.sep_id, "mask_id": self.mask_id}
        for name, token in named.items():
            if token not in self.special_ids:
                raise ConfigError(f"vocabulary: {name} = {token}: must be one of special_ids {self.special_ids}")
        if len(set(named.values())) < len(named):
            raise ConfigError(f"vocabulary: {named}: must be different ids")
        is_special = np.zeros(self.size, dtype=np.bool_)
        is_special[list(self.special_ids)] = True
        if is_special.all():
            raise ConfigError(f"vocabulary: all {self.size} tokens are special, none is left to replace one")
        object.__setattr__(self, "is_special", is_special)
        object.__setattr__(self, "replacement_ids", np.flatnonzero(~is_special).astype(np.int64))


class StreamLayout(NamedTuple):
    """Where the pairs of a token stream stand, and which pairs they are.

    Attributes:
        cu_seqlens: int32 (P + 1,): offset of each pair's [CLS], and the length of the stream.
        a_lengths: int64 (P,): tokens of segment A; [SEP] stands behind them.
        num_predictions: int64 (P,): tokens to predict in each pair.
        epochs: int64 (P,): epoch of each pair.
        pairs: int64 (P,): number of each pair in the plan of its epoch.
    """

    cu_seqlens: npt.NDArray[np.int32]
    a_lengths: Int64Array
    num_predictions: Int64Array
    epochs: Int64Array
    pairs: Int64Array


class _Rules(NamedTuple):
    """The vocabulary and the seed as the compiled code takes them."""

    seed: int
    mask_id: int
    is_special: npt.NDArray[np.bool_]
    replacement_ids: Int64Array


def num_predictions(pair_tokens: npt.ArrayLike, mlm_probability: float, num_specials: int = 3) -> Int64Array:
    """Return how many tokens of pairs are predicted.

    max(1, round(mlm_probability x tokens)), halves to even, as in BERT's program; at most the tokens that are
    no specials, at least 1.

    Args:
        pair_tokens: Integers (P,): tokens of each pair, specials counted.
        mlm_probability: Share of the tokens, above 0 and below 1.
        num_specials: Specials of each pair.

    Returns:
        int64 (P,).

    Raises:
        ConfigError: `mlm_probability` is not between 0 and 1.
    """
    if not 0.0 < mlm_probability < 1.0:
        raise ConfigError(f"mlm_probability = {mlm_probability}: must be above 0 and below 1")
    tokens = np.asarray(pair_tokens, dtype=np.int64)
    wanted = np.rint(mlm_probability * tokens).astype(np.int64)
    counts: Int64Array = np.maximum(1, np.minimum(wanted, tokens - num_specials))
    return counts


def mask_stream(
    input_ids: Int64Array, layout: StreamLayout, seed: int, vocabulary: Vocabulary
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Choose the tokens to predict and hide them.

    They are drawn without replacement among the tokens of a pair that are not special. Where a pair has too
    few of these (text of [UNK] alone), the rest is drawn among the special ids within its segments: the
    number of predictions then still follows from the length. A pair's own [CLS] and [SEP] are never chosen.

    Args:
        input_ids: int64 (T,): the stream, with specials, without masks.
        layout: Where its pairs stand. `num_predictions` is at most the tokens of the segments.
        seed: The run's seed.
        vocabulary: Special and replacement ids.

    Returns:
        The masked stream int64 (T,); the places chosen int64 (M,), ascending; the tokens that stood there
        int64 (M,).
    """
    masked = input_ids.copy()
    positions, labels = np.empty((2, int(layout.num_predictions.sum())), dtype=np.int64)
    rules = _Rules(seed, vocabulary.mask_id, vocabulary.is_special, vocabulary.replacement_ids)
    count = _mask_pairs(masked, layout, rules, (positions, labels))
    assert count == len(positions), "a pair has fewer tokens than predictions"
    return masked, positions, labels


@compiled
def _choose(state: Any, candidates: Any, size: Any, wanted: Any, chosen: Any) -> Any:
    """Set the bits of `wanted` of the first `size` candidates, all subsets alike; return the next state."""
    # the first steps of a Fisher-Yates shuffle: as many draws as predictions, not as tokens
    for number in range(wanted):
        state, skipped = below(state, size - number)
        place = candidates[number + skipped]
        candidates[number + skipped] = candidates[number]
        chosen[place // _WORD_BITS] |= _ONE << np.uint64(place % _WORD_BITS)
    return state


@compiled
def _hide(state: Any, token: int, mask_id: int, replacement_ids: Any) -> Any:
    """Return (next state, what stands in the place of a chosen token)."""
    state, chance = uniform(state)
    if chance < _MASKED:
        return state, mask_id
    if chance < _MASKED_OR_KEPT:
        return state, token
    state, draw = below(state, len(replacement_ids))
    return state, replacement_ids[draw]


@compiled
def _mask_pairs(ids: Any, layout: Any, rules: Any, out: Any) -> int:
    """Mask the stream `ids` in place, write the places chosen and their tokens; return how many there are."""
    # taken out of the tuples once: in a loop each access would count references
    cu_seqlens, a_lengths, num_predictions, epochs, pairs = layout
    seed, mask_id, is_special, replacement_ids = rules
    positions, labels = out
    longest = np.int64(0)
    for pair in range(len(pairs)):
        longest = max(longest, np.int64(cu_seqlens[pair + 1]) - cu_seqlens[pair])
    # places count from the first token of segment A here
    ordinary = np.empty(longest, dtype=np.int64)
    special = np.empty(longest, dtype=np.int64)
    chosen = np.zeros(longest // _WORD_BITS + 1, dtype=np.uint64)
    count = 0
    for pair in range(len(pairs)):
        # the segments, with the [SEP] between them
        first, last = cu_seqlens[pair] + 1, cu_seqlens[pair + 1] - 1
        num_ordinary = num_special = np.int64(0)
        for place in range(last - first):
            # written where it may not belong, and then overwritten: quicker than a branch
            ordinary[num_ordinary] = place
            special[num_special] = place
            is_other = np.int64(is_special[ids[first + place]])
            num_ordinary += 1 - is_other
            num_special += is_other * np.int64(place != a_lengths[pair])
        state = mix(seed, epochs[pair], pairs[pair], MASKING)
        wanted = min(num_predictions[pair], num_ordinary)
        state = _choose(state, ordinary, num_ordinary, wanted, chosen)
        missing = min(num_predictions[pair] - wanted, num_special)
        state = _choose(state, special, num_special, missing, chosen)
        for number in range(len(chosen)):
            while chosen[number]:
                place = first + number * _WORD_BITS + count_bits(~chosen[number] & (chosen[number] - _ONE))
                chosen[number] &= chosen[number] - _ONE  # the lowest bit is done
                positions[count], labels[count] = place, ids[place]
                state, ids[place] = _hide(state, ids[place], mask_id, replacement_ids)
                count += 1
    return count
