"""A table of words and their token ids that reads UTF-8 text itself: compiled, of bounded size.

1. `WordTable.find` cuts text into words and looks each up; new words are written into the table at once, without
   ids.
2. Who owns the table asks for the new words, has their ids made, and adds them.
3. `WordTable.gather` lays the ids of the words end to end.

A word is a stretch of characters of kind WORD, or one character of kind ALONE. The owner says which character is of
which kind.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.seeding import compiled

WORD, SPACE, ALONE = 0, 1, 2
SENTENCE_END = 0xFF
"""A byte that UTF-8 never has; it stands behind every sentence."""
WORD_END = 0x0A
"""Stands behind every word in the table; it must be of kind SPACE, so no word has it."""

_NO_WORD = -1
_BYTES_A_WORD = 16
_LEAST_STORE_BYTES = 1 << 16
_FOUND_AT_ONCE = 1 << 18
# FNV-1a (Fowler, Noll, Vo) with splitmix64's first two steps at the end, since the table uses the low bits.
_HASH_BEGIN, _HASH_FACTOR = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_MIX_FACTOR, _MIX_SHIFT = np.uint64(0xBF58476D1CE4E5B9), np.uint64(32)


class _Words(NamedTuple):
    """The words of a table; word w is store[starts[w] : starts[w + 1] - 1]."""

    slots: NDArray[np.int32]  # (a power of two,): a word's number, or -1
    hashes: NDArray[np.uint64]  # (most words,)
    starts: NDArray[np.int64]  # (most words + 1,)
    store: NDArray[np.uint8]  # (most bytes,)


class _Alphabet(NamedTuple):
    """How characters are read."""

    kinds: NDArray[np.uint8]  # (code points,): WORD, SPACE or ALONE; what lies beyond is WORD
    folded: NDArray[np.uint8]  # (256,): the byte that stands for a byte in the table


@compiled
def _decode(text: Any, position: Any) -> Any:
    """Return code point and width in bytes of the character of several bytes at a position of UTF-8 text."""
    byte = np.int64(text[position])
    if byte < 0xE0:
        return (byte & 0x1F) << 6 | np.int64(text[position + 1] & 0x3F), 2
    low = np.int64(text[position + 1] & 0x3F) << 6 | np.int64(text[position + 2] & 0x3F)
    if byte < 0xF0:
        return (byte & 0x0F) << 12 | low, 3
    return (byte & 0x07) << 18 | low << 6 | np.int64(text[position + 3] & 0x3F), 4


@compiled
def _kind(text: Any, position: Any, kinds: Any) -> Any:
    """Return kind and width of the character at a position."""
    byte = text[position]
    if byte < 0x80:
        return kinds[byte], 1
    code, width = _decode(text, position)
    if code < kinds.size:
        return kinds[code], width
    return np.uint8(WORD), width


@compiled
def _word_at(text: Any, start: Any, width: Any, kind: Any, alphabet: Any) -> Any:
    """Return end and hash of the word that starts at a position."""
    kinds, folded = alphabet
    end, value = start, _HASH_BEGIN
    while True:
        for offset in range(width):
            value = (value ^ np.uint64(folded[text[end + offset]])) * _HASH_FACTOR
        end += width
        if kind == ALONE or text[end] == SENTENCE_END:
            break
        kind, width = _kind(text, end, kinds)
        if kind != WORD:
            break
    value = (value ^ (value >> _MIX_SHIFT)) * _MIX_FACTOR
    return end, value ^ (value >> _MIX_SHIFT)


@compiled
def _is_word(words: Any, word: Any, text: Any, start: Any, end: Any, folded: Any) -> Any:
    begin = words.starts[word]
    if words.starts[word + 1] - 1 - begin != end - start:
        return False
    for offset in range(end - start):
        if words.store[begin + offset] != folded[text[start + offset]]:
            return False
    return True


@compiled
def _find(text: Any, position: Any, alphabet: Any, words: Any, num_words: Any, longest: Any, found: Any) -> Any:
    """Look up the words of text from a position on, until the text, the table's room or `found` ends.

    Returns:
        Position reached, words in the table, length of what was written into `found`.
    """
    num_found = 0
    mask = np.uint64(words.slots.size - 1)
    while position < text.size and num_found < found.size:
        if text[position] == SENTENCE_END:
            found[num_found] = _NO_WORD
            num_found += 1
            position += 1
            continue
        kind, width = _kind(text, position, alphabet.kinds)
        if kind == SPACE:
            position += width
            continue
        end, value = _word_at(text, position, width, kind, alphabet)
        slot = value & mask
        word = np.int32(_NO_WORD)
        is_kept = end - position <= longest
        while is_kept and words.slots[slot] != _NO_WORD:
            seen = words.slots[slot]
            if words.hashes[seen] == value and _is_word(words, seen, text, position, end, alphabet.folded):
                word = seen
                break
            slot = (slot + np.uint64(1)) & mask
        if word == _NO_WORD:
            used = words.starts[num_words]
            if num_words == words.hashes.size or used + end - position + 1 > words.store.size:
                break
            word = np.int32(num_words)
            for offset in range(end - position):
                words.store[used + offset] = alphabet.folded[text[position + offset]]
            words.store[used + end - position] = WORD_END
            words.starts[num_words + 1] = used + end - position + 1
            words.hashes[num_words] = value
            if is_kept:
                words.slots[slot] = word
            num_words += 1
        found[num_found] = word
        num_found += 1
        position = end
    return position, num_words, num_found


@compiled
def _count(found: Any, id_starts: Any) -> Any:
    total = 0
    for word in found:
        if word != _NO_WORD:
            total += id_starts[word + 1] - id_starts[word]
    return total


@compiled
def _gather(found: Any, id_starts: Any, ids: Any, out: Any, lengths: Any, sentence: Any) -> Any:
    """Write the ids of found words into `out`, add their number to `lengths`; return the sentence reached."""
    written = 0
    for word in found:
        if word == _NO_WORD:
            sentence += 1
            continue
        begin, end = id_starts[word], id_starts[word + 1]
        for index in range(begin, end):
            out[written] = ids[index]
            written += 1
        lengths[sentence] += end - begin
    return sentence


class WordTable:
    """Words and their ids.

    Args:
        kinds: uint8 (code points,): WORD, SPACE or ALONE of every character; those beyond are WORD.
        folded: uint8 (256,): the byte under which a byte is looked up.
        dtype: of token ids.
        most_words: room for so many words; 50 bytes each.
        longest_bytes: a longer word is not found again.
    """

    def __init__(
        self,
        kinds: NDArray[np.uint8],
        folded: NDArray[np.uint8],
        dtype: type[np.int16] | type[np.int32],
        most_words: int,
        longest_bytes: int,
    ) -> None:
        """Make an empty table."""
        self._alphabet = _Alphabet(kinds, folded)
        self._dtype = dtype
        self._longest_bytes = longest_bytes
        self._store_bytes = max(most_words * _BYTES_A_WORD, _LEAST_STORE_BYTES)
        self._words = _Words(
            slots=np.full(1 << (2 * most_words).bit_length(), _NO_WORD, dtype=np.int32),
            hashes=np.empty(most_words, dtype=np.uint64),
            starts=np.zeros(most_words + 1, dtype=np.int64),
            store=np.empty(self._store_bytes, dtype=np.uint8),
        )
        self._id_starts = np.zeros(most_words + 1, dtype=np.int64)
        self._ids = np.empty(most_words, dtype=dtype)
        self._found = np.empty(_FOUND_AT_ONCE, dtype=np.int32)
        self._num_words = 0
        self._num_with_ids = 0

    def __len__(self) -> int:
        return self._num_words

    @property
    def num_bytes(self) -> int:
        """Memory that the table holds."""
        return sum(array.nbytes for array in (*self._words, self._id_starts, self._ids, self._found))

    @property
    def is_overgrown(self) -> bool:
        """Whether a huge word, or words of very many ids, made it larger than it is to be for long."""
        return self._words.store.size > self._store_bytes or self._ids.size > self._store_bytes

    def find(self, text: NDArray[np.uint8], position: int) -> tuple[int, NDArray[np.int32]]:
        """Look up the words of UTF-8 text from a position on, as many as there is room for.

        Args:
            text: uint8 (bytes,); each sentence ends with SENTENCE_END.
            position: first byte; the beginning of a character.

        Returns:
            Position reached, and int32 (found,): the words' numbers, -1 for the end of a sentence.
        """
        reached, self._num_words, num_found = _find(
            text, position, self._alphabet, self._words, self._num_words, self._longest_bytes, self._found
        )
        if reached == position and not self._num_words:
            # A word larger than the whole store: room for all of the text is room enough.
            self._words = self._words._replace(store=np.empty(text.size + 1, dtype=np.uint8))
            return self.find(text, position)
        return reached, self._found[:num_found]

    def new_words(self) -> tuple[bytes, int]:
        """Return the words that have no ids yet, each with WORD_END behind it, and their number."""
        starts = self._words.starts
        text = self._words.store[starts[self._num_with_ids] : starts[self._num_words]].tobytes()
        return text, self._num_words - self._num_with_ids

    def add_ids(self, ids: NDArray[Any], counts: NDArray[np.int64]) -> None:
        """Give the next words their ids.

        Args:
            ids: (ids of these words end to end,).
            counts: (words,): how many ids each has.
        """
        first = self._num_with_ids
        begin = int(self._id_starts[first])
        end = begin + ids.size
        if end > self._ids.size:
            grown = np.empty(max(end, 2 * self._ids.size), dtype=self._dtype)
            grown[:begin] = self._ids[:begin]
            self._ids = grown
        self._ids[begin:end] = ids
        self._num_with_ids = first + counts.size
        self._id_starts[first + 1 : self._num_with_ids + 1] = begin + np.cumsum(counts)

    def gather(self, found: NDArray[np.int32], lengths: NDArray[np.int32], sentence: int) -> tuple[NDArray[Any], int]:
        """Return the ids of found words, end to end, and the sentence reached.

        Args:
            found: what `find` returned; all words have their ids by now.
            lengths: (sentences,); the words' ids are added to their sentences' lengths.
            sentence: the one that the first word belongs to.
        """
        out = np.empty(_count(found, self._id_starts), dtype=self._dtype)
        return out, _gather(found, self._id_starts, self._ids, out, lengths, sentence)

    def clear(self) -> None:
        """Forget all words, and give back what memory they took beyond the usual."""
        self._words.slots.fill(_NO_WORD)
        if self._words.store.size > self._store_bytes:
            self._words = self._words._replace(store=np.empty(self._store_bytes, dtype=np.uint8))
        self._ids = np.empty(self._words.hashes.size, dtype=self._dtype)
        self._num_words = self._num_with_ids = 0
