"""Text to counted words, as the pre-tokenizer of each kind of tokenizer sees them.

A vocabulary is learned from words and their counts. First stretches between white space are counted, then the different
ones among them are normalized and cut into words: most stretches come again and again, so that is done for few.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from tokenization.encode import split_words

MODELS = ("wordpiece", "bpe", "unigram")
WORD_MARK = "▁"
"""Stands for the space before a word in Unigram's pieces."""
SPACE_BYTE = "Ġ"
"""Stands for the space before a word in the pieces of byte-level BPE."""
LONGEST_WORD_CHARS = 100
"""WordPiece makes [UNK] of a longer word, whatever the vocabulary; none is learned from, by any model."""

_CHUNK_CHARS = 1 << 20
_ASCII_WORDS = re.compile(r"[0-9A-Za-z]+|[^0-9A-Za-z]")
_ASCII_PIECES = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^ A-Za-z0-9]+")


@dataclass(frozen=True)
class Casing:
    """What happens to letters before they are looked up.

    Args:
        lowercase: whether text is lowercased.
        strip_accents: whether accents are taken off; None: where text is lowercased, as BERT does.
    """

    lowercase: bool = True
    strip_accents: bool | None = None

    def normalizer(self) -> normalizers.Normalizer:
        """Return BERT's normalizer with these settings."""
        return normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=True,
            strip_accents=self.strip_accents,
            lowercase=self.lowercase,
        )

    @property
    def strips_accents(self) -> bool:
        """Whether accents are taken off, the default resolved."""
        return self.lowercase if self.strip_accents is None else self.strip_accents


@dataclass(frozen=True)
class WordSplitter:
    """How a kind of tokenizer cuts text into words.

    Args:
        model: one of `MODELS`.
        casing: see `Casing`.
    """

    model: str
    casing: Casing

    def normalizer(self) -> normalizers.Normalizer | None:
        """Return the normalizer; None: text stays as it is.

        WordPiece has BERT's. Byte-level BPE changes nothing but case and accents. Unigram does as SentencePiece: NFKC,
        no control characters, no more than one space at once.
        """
        casing = self.casing
        if self.model == "wordpiece":
            return casing.normalizer()
        if self.model == "bpe":
            accents = [normalizers.NFD(), normalizers.StripAccents(), normalizers.NFC()]
            steps = [*(accents if casing.strips_accents else []), *([normalizers.Lowercase()] * casing.lowercase)]
            return normalizers.Sequence(steps) if steps else None
        bert = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=False,
            strip_accents=casing.strips_accents,
            lowercase=casing.lowercase,
        )
        spaces = [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
        return normalizers.Sequence([normalizers.NFKC(), bert, normalizers.NFC(), *spaces])

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """Return what cuts normalized text into words."""
        if self.model == "wordpiece":
            return pre_tokenizers.BertPreTokenizer()
        if self.model == "bpe":
            return pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
        return pre_tokenizers.Metaspace(replacement=WORD_MARK, prepend_scheme="always", split=True)

    def stretches(self, text: str) -> list[str]:
        """Split text at white space."""
        return text.split() if self.model == "bpe" else split_words(text)

    def count_words(self, stretches: Mapping[str, int]) -> Counter[str]:
        """Return the count of each word of at most 100 characters.

        Args:
            stretches: counts of stretches between white space.
        """
        normalizer, pre_tokenizer = self.normalizer(), self.pre_tokenizer()
        words: Counter[str] = Counter()
        for stretch, count in stretches.items():
            if stretch.isascii() and stretch.isprintable():
                found: Iterable[str] = self._cut_ascii(stretch)
            else:
                text = normalizer.normalize_str(stretch) if normalizer else stretch
                found = [word for word, _ in pre_tokenizer.pre_tokenize_str(text)]
            for word in found:
                if len(word) <= LONGEST_WORD_CHARS:
                    words[word] += count
        return words

    def _cut_ascii(self, stretch: str) -> list[str]:
        """Do the same as normalizer and pre-tokenizer for printable ASCII, several times faster."""
        text = stretch.lower() if self.casing.lowercase else stretch
        if self.model == "wordpiece":
            return _ASCII_WORDS.findall(text)
        if self.model == "unigram":
            return [WORD_MARK + text]
        return [piece.replace(" ", SPACE_BYTE) for piece in _ASCII_PIECES.findall(f" {text}")]


def chunks(text: str) -> Iterator[str]:
    """Cut a long text at spaces, so that the words of a part fit into memory, however long the text is."""
    start = 0
    while len(text) - start > _CHUNK_CHARS:
        space = text.find(" ", start + _CHUNK_CHARS, start + 2 * _CHUNK_CHARS)
        end = space if space >= 0 else min(len(text), start + 2 * _CHUNK_CHARS)
        yield text[start:end]
        start = end
    yield text[start:]


def count_words(texts: Iterable[str], casing: Casing, model: str = "wordpiece") -> Counter[str]:
    """Count the words of a text that fits into memory.

    Args:
        texts: documents.
        casing: see `Casing`.
        model: one of `MODELS`.

    Returns:
        Count of every normalized word of at most 100 characters.
    """
    splitter = WordSplitter(model, casing)
    stretches: Counter[str] = Counter()
    for text in texts:
        stretches.update(splitter.stretches(text))
    return splitter.count_words(stretches)
