"""Text to token ids: exactly those of Hugging Face's tokenizer, many times faster.

BERT's normalizer and pre-tokenizer treat every word by itself: what stands between white space, and each
punctuation mark and each CJK ideograph alone. So a word's ids are made once, by Hugging Face's tokenizer, and then
looked up in a table of words (`WordTable`). Where words end is asked of the tokenizer itself, character by
character, when an encoder is made; characters that are not asked about stay inside words, which is slower but
never wrong: the tokenizer cuts them there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer

from tokenization.word_table import ALONE, SENTENCE_END, SPACE, WORD, WORD_END, WordTable

_DELETED_CONTROLS = ("\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x1f", "\x85")
_CACHED_WORDS = 500_000
_LONGEST_CACHED_BYTES = 96
_LARGEST_INT16_VOCABULARY = 32_768
_TEXT_BYTES = 1 << 15
# White space, and punctuation in blocks that hold little else.
_ASKED_RANGES = (
    (0x00, 0xC0), (0x1680, 0x1681), (0x2000, 0x2070), (0x3000, 0x3040), (0xFF01, 0xFF10), (0xFF1A, 0xFF21)
)  # fmt: skip
# BertNormalizer puts spaces around these; the first and the last of each are asked about.
_IDEOGRAPH_RANGES = (
    (0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00), (0x20000, 0x2A6E0), (0x2A700, 0x2B740), (0x2B740, 0x2B820),
    (0x2B920, 0x2CEB0), (0x2F800, 0x2FA20),
)  # fmt: skip


def token_dtype(vocab_size: int) -> type[np.int16] | type[np.int32]:
    """Return the type in which ids of a vocabulary are stored.

    Both are types whose code in the .idx header means the same to Megatron and to DeepSpeed; uint16 has not.
    """
    return np.int16 if vocab_size <= _LARGEST_INT16_VOCABULARY else np.int32


def split_words(text: str) -> list[str]:
    """Split text at what BERT's normalizer takes for white space."""
    for control in _DELETED_CONTROLS:
        if control in text:
            text = text.replace(control, "")
    return text.split()


class WordPieceEncoder:
    """Encodes sentences without special tokens; "[SEP]" in a text is ordinary text.

    Args:
        tokenizer: a tokenizer of the `tokenizers` library; its `encode_special_tokens` is set. One that is
            not BERT's (another normalizer, pre-tokenizer or model, or added tokens that are not special) is
            used without a cache.
        cached_words: after so many words the cache is emptied; 50 bytes a word.
    """

    def __init__(self, tokenizer: Tokenizer, cached_words: int = _CACHED_WORDS) -> None:
        """Look at the tokenizer and start with an empty cache."""
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.vocab_size = tokenizer.get_vocab_size()
        self.dtype = token_dtype(self.vocab_size)
        self._tokenizer = tokenizer
        self._table: WordTable | None = None
        if _treats_words_alone(tokenizer):
            self._words_tokenizer = _without_added_tokens(tokenizer)
            # WordPiece makes [UNK] of a word of more letters than that: the rest, which may be megabytes, says no more
            most = json.loads(tokenizer.to_str())["model"]["max_input_chars_per_word"]
            self._endless_word = re.compile(rb"([0-9A-Za-z]{%d})[0-9A-Za-z]+" % (most + 1))
            self._word_end_id = self._words_tokenizer.token_to_id(chr(WORD_END))
            kinds, folded = _character_kinds(tokenizer), _folded_bytes(tokenizer)
            if kinds[WORD_END] == SPACE:
                self._table = WordTable(kinds, folded, self.dtype, cached_words, _LONGEST_CACHED_BYTES)

    @property
    def num_cached_words(self) -> int:
        """Words whose ids are known by now."""
        return 0 if self._table is None else len(self._table)

    @property
    def cache_bytes(self) -> int:
        """Memory of the cache."""
        return 0 if self._table is None else self._table.num_bytes

    def encode(self, sentences: Sequence[str]) -> list[NDArray[Any]]:
        """Encode sentences; call it with many at once.

        Returns:
            One array (tokens of the sentence,) of `dtype` each; empty where the normalizer leaves no text.
        """
        ids, lengths = self.encode_flat(sentences)
        ends = np.cumsum(lengths, dtype=np.int64).tolist()
        return [ids[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    def encode_flat(self, sentences: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Encode sentences; call it with many at once.

        Returns:
            (tokens of all sentences end to end,) of `dtype`, and int32 (sentences,): how many each has.
        """
        if self._table is None:
            return self._encode_plain(sentences)
        table = self._table
        end = bytes((SENTENCE_END,))
        text = np.frombuffer(b"".join([sentence.encode() + end for sentence in sentences]), dtype=np.uint8)
        lengths = np.zeros(len(sentences), dtype=np.int32)
        parts: list[NDArray[Any]] = []
        position = sentence = 0
        while position < text.size:
            begin = position
            position, found = table.find(text, begin)
            self._encode_new(table)
            part, sentence = table.gather(found, lengths, sentence)
            parts.append(part)
            if position < text.size and not found.size:
                table.clear()
        if table.is_overgrown:
            table.clear()
        return (parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, self.dtype), *parts])), lengths

    def _encode_new(self, table: WordTable) -> None:
        """Have the ids of new words made: many in one text, parted by an added token of our own."""
        text, num_words = table.new_words()
        if not num_words:
            return
        text = self._endless_word.sub(rb"\1", text)
        texts = []
        begin = 0
        while begin < len(text):
            end = text.find(WORD_END, begin + _TEXT_BYTES) + 1 or len(text)
            texts.append(text[begin:end].decode())
            begin = end
        encodings = self._words_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = np.concatenate([np.array(encoding.ids, dtype=np.int32) for encoding in encodings])
        is_end = ids == self._word_end_id
        counts = np.diff(np.flatnonzero(is_end), prepend=-1) - 1
        assert counts.size == num_words
        table.add_ids(ids[~is_end], counts)

    def _encode_plain(self, sentences: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int32]]:
        encodings = self._tokenizer.encode_batch_fast(list(sentences), add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        flat = np.fromiter(chain.from_iterable(ids), dtype=self.dtype)
        return flat, np.fromiter(map(len, ids), dtype=np.int32, count=len(ids))


def _treats_words_alone(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer is BERT's, so that a word has the same ids in any text."""
    settings = json.loads(tokenizer.to_str())
    return (
        settings["model"]["type"] == "WordPiece"
        and (settings["normalizer"] or {}).get("type") == "BertNormalizer"
        and (settings["pre_tokenizer"] or {}).get("type") == "BertPreTokenizer"
        and all(token["special"] for token in settings["added_tokens"])
    )


def _without_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer of the same model, whose one added token parts words."""
    bare = Tokenizer(tokenizer.model)
    bare.normalizer = tokenizer.normalizer
    bare.pre_tokenizer = tokenizer.pre_tokenizer
    bare.add_tokens([AddedToken(chr(WORD_END), normalized=False)])
    return bare


def _character_kinds(tokenizer: Tokenizer) -> NDArray[np.uint8]:
    """Return WORD, SPACE or ALONE for every character up to the last ideograph."""
    kinds = np.full(_IDEOGRAPH_RANGES[-1][1], WORD, dtype=np.uint8)
    for begin, end in _ASKED_RANGES:
        kinds[begin:end] = [_kind_of(code, tokenizer) for code in range(begin, end)]
    for begin, end in _IDEOGRAPH_RANGES:
        if _kind_of(begin, tokenizer) == _kind_of(end - 1, tokenizer) == ALONE:
            kinds[begin:end] = ALONE
    return kinds


def _kind_of(code: int, tokenizer: Tokenizer) -> int:
    """Ask what becomes of a character between two letters."""
    text = tokenizer.normalizer.normalize_str(f"a{chr(code)}b")
    pieces = [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    if pieces == ["a", "b"]:
        return SPACE
    return ALONE if len(pieces) == 3 and pieces[0] == "a" and pieces[2] == "b" else WORD


def _folded_bytes(tokenizer: Tokenizer) -> NDArray[np.uint8]:
    """Return the byte under which each byte is looked up: that of the small letter, where text is lowercased."""
    folded = np.arange(256, dtype=np.uint8)
    if tokenizer.normalizer.lowercase:
        folded[ord("A") : ord("Z") + 1] += ord("a") - ord("A")
    return folded
