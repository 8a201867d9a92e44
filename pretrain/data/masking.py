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


class MaskRules(NamedTuple):
    """What masks depend on besides the pair, as the compiled code takes it.

    Attributes:
        seed: The run's seed.
        size: Tokens of the vocabulary.
        mask_id: Id of [MASK].
        largest_special: Largest special id.
        is_special: bool (size,).
        replacement_ids: int64: ids of all tokens that are not special.
    """

    seed: int
    size: int
    mask_id: int
    largest_special: int
    is_special: npt.NDArray[np.bool_]
    replacement_ids: Int64Array

    @classmethod
    def of(cls, seed: int, vocabulary: Vocabulary) -> MaskRules:
        """Return the rules of a run."""
        largest = max(vocabulary.special_ids)
        return cls(
            seed, vocabulary.size, vocabulary.mask_id, largest, vocabulary.is_special, vocabulary.replacement_ids
        )


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
    counts = np.empty(tokens.shape, dtype=np.int64)
    _count_predictions(tokens.reshape(-1), mlm_probability, num_specials, counts.reshape(-1))
    return counts


@compiled
def predictions_of(tokens: Any, mlm_probability: float, num_specials: int) -> Any:
    """Return how many tokens of a pair are predicted; see `num_predictions`."""
    wanted = np.int64(np.rint(mlm_probability * tokens))
    return max(np.int64(1), min(wanted, tokens - num_specials))


@compiled
def _count_predictions(tokens: Any, mlm_probability: float, num_specials: int, out: Any) -> None:
    for pair in range(len(tokens)):
        out[pair] = predictions_of(tokens[pair], mlm_probability, num_specials)


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
def _part(tokens: Any, separator: int, largest_special: int, is_special: Any, ordinary: Any, special: Any) -> Any:
    """Part the places of a pair's tokens by whether a special stands there; return how many there are of each.

    Args:
        tokens: int64: the segments, with the [SEP] between them, without those at the ends.
        separator: Place of that [SEP], which counts as neither; len(tokens) where there is one segment.
        largest_special: Largest special id.
        is_special: bool (vocabulary,).
        ordinary: Its first places are written.
        special: Its first places are written.
    """
    doubtful = np.int64(0)
    for place in range(len(tokens)):
        doubtful += tokens[place] <= largest_special
    num_separators = np.int64(separator < len(tokens))
    if doubtful == num_separators:
        # nearly always, and this runs many times as fast as the loop below
        for number in range(len(tokens) - num_separators):
            ordinary[number] = number + (number >= separator)
        return len(tokens) - num_separators, np.int64(0)
    num_ordinary = num_special = np.int64(0)
    for place in range(len(tokens)):
        # written where it may not belong, and then overwritten: quicker than a branch
        ordinary[num_ordinary] = place
        special[num_special] = place
        is_other = np.int64(is_special[tokens[place]])
        num_ordinary += 1 - is_other
        num_special += is_other * np.int64(place != separator)
    return num_ordinary, num_special


def new_scratch(longest: int) -> tuple[npt.NDArray[Any], ...]:
    """Return the memory in which `mask_pair` works, for pairs of at most so many tokens."""
    ordinary, special = np.empty((2, longest), dtype=np.int64)
    return ordinary, special, np.zeros(longest // _WORD_BITS + 1, dtype=np.uint64)


@compiled
def mask_pair(ids: Any, a_length: Any, identity: Any, rules: Any, scratch: Any, positions: Any, labels: Any) -> int:
    """Choose the tokens of a pair to predict, and hide them, in place.

    They are drawn without replacement among the tokens that are not special. Where a pair has too few of
    these (text of [UNK] alone), the rest is drawn among the special ids within its segments: the number of
    predictions then still follows from the length. A pair's own [CLS] and [SEP] are never chosen.

    Args:
        ids: int64: the pair, `[CLS] A [SEP] B [SEP]` or `[CLS] A [SEP]`, all ids known to the vocabulary.
        a_length: Tokens of segment A.
        identity: Epoch and number of the pair.
        rules: The fields of `MaskRules`, a plain tuple.
        scratch: What `new_scratch` returned.
        positions: int64 (M,): M, the number of tokens to predict, is at most the tokens of the segments.
            Set to their places in the pair, ascending.
        labels: int64 (M,): set to the tokens that stood there.

    Returns:
        M, or less if the segments have no more tokens.
    """
    seed, _, mask_id, largest_special, is_special, replacement_ids = rules
    ordinary, special, chosen = scratch
    segments = ids[1 : len(ids) - 1]
    num_ordinary, num_special = _part(segments, a_length, largest_special, is_special, ordinary, special)
    state = mix(seed, identity[0], identity[1], MASKING)
    wanted = min(len(positions), num_ordinary)
    state = _choose(state, ordinary, num_ordinary, wanted, chosen)
    missing = min(len(positions) - wanted, num_special)
    state = _choose(state, special, num_special, missing, chosen)
    count = 0
    for number in range(len(ids) // _WORD_BITS + 1):
        while chosen[number]:
            place = 1 + number * _WORD_BITS + count_bits(~chosen[number] & (chosen[number] - _ONE))
            chosen[number] &= chosen[number] - _ONE  # the lowest bit is done
            positions[count], labels[count] = place, ids[place]
            state, ids[place] = _hide(state, ids[place], mask_id, replacement_ids)
            count += 1
    return count
