"""Learns a WordPiece vocabulary and writes a Hugging Face BERT tokenizer: same text, same bytes.

Hugging Face's trainer alone does not give that: pairs of equal count are merged in the order of their ids,
and the ids of the pieces "##a" follow the order of a hash map that is seeded anew in every process. So the
vocabulary is learned from counted words, all pieces of one character are given to the trainer in sorted order
(as special tokens: these get the first ids), and ids are dealt anew at the end. Ties then fall the same way
every time. Counting words first is also about twice as fast as feeding the trainer with text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from runtime.command import ConfigError
from runtime.files import write_text
from tokenization.encode import split_words

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PREFIX = "##"
MODEL_MAX_LENGTH = 512
ALPHABET_LIMIT = 1000
# WordPiece makes [UNK] of a longer word, whatever the vocabulary.
_LONGEST_WORD_CHARS = 100
_REPEATS_A_LINE = 1000


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


@dataclass(frozen=True)
class Vocabulary:
    """A learned vocabulary.

    Args:
        tokens: position = id; special tokens, single characters, "##" characters, then by length and text.
        alphabet_size: how many of them are single characters, with and without "##".
        dropped_characters: characters beyond the alphabet's limit; words with one of them become [UNK].
        dropped_share: their share of all characters of the text, 0 to 1.
    """

    tokens: tuple[str, ...]
    alphabet_size: int
    dropped_characters: int
    dropped_share: float


def count_words(texts: Iterable[str], casing: Casing) -> Counter[str]:
    """Count the words of a text as BERT's pre-tokenizer sees them.

    Args:
        texts: documents.
        casing: see `Casing`.

    Returns:
        Count of every normalized word of at most 100 characters.
    """
    raw_words: Counter[str] = Counter()
    for text in texts:
        raw_words.update(split_words(text))
    normalizer = casing.normalizer()
    pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words: Counter[str] = Counter()
    for raw, count in raw_words.items():
        for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(raw)):
            if len(word) <= _LONGEST_WORD_CHARS:
                words[word] += count
    return words


def learn_vocabulary(
    words: Counter[str], vocab_size: int, min_frequency: int, alphabet_limit: int = ALPHABET_LIMIT
) -> Vocabulary:
    """Learn a WordPiece vocabulary by merging the most frequent pairs of pieces.

    Args:
        words: count of each word (see `count_words`).
        vocab_size: tokens wanted, special ones included; the text may give fewer.
        min_frequency: least count of a pair that is merged.
        alphabet_limit: most characters kept: the most frequent, among equals those of the lower code point.

    Raises:
        ConfigError: there is no word, or vocab_size cannot hold the special tokens and the alphabet.
    """
    if not words:
        raise ConfigError("--input: the text holds no word to learn from")
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    kept = sorted(sorted(characters, key=lambda character: (-characters[character], character))[:alphabet_limit])
    known = set(kept)
    alphabet = kept + sorted({PREFIX + character for word in words for character in word[1:] if character in known})
    least = len(SPECIAL_TOKENS) + len(alphabet)
    if vocab_size < least:
        raise ConfigError(
            f"--vocab-size {vocab_size}: too small: {len(SPECIAL_TOKENS)} special tokens and an alphabet of "
            f"{len(alphabet)} take {least}"
        )
    learned = _merge(words, kept, alphabet, vocab_size, min_frequency)
    rest = sorted(learned.difference(alphabet, SPECIAL_TOKENS), key=lambda token: (len(token), token))
    dropped = sum(count for character, count in characters.items() if character not in known)
    return Vocabulary(
        tokens=(*SPECIAL_TOKENS, *alphabet, *rest),
        alphabet_size=len(alphabet),
        dropped_characters=len(characters) - len(kept),
        dropped_share=dropped / characters.total(),
    )


def save_tokenizer(tokens: Sequence[str], casing: Casing, directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and vocab.txt.

    The files are those of transformers' BertTokenizer: [CLS] A [SEP] B [SEP] with type ids 0 and 1, casing
    and accents as trained, model_max_length 512.

    Args:
        tokens: the vocabulary, position = id.
        casing: see `Casing`.
        directory: a folder that is there.
    """
    from transformers import BertTokenizer  # noqa: PLC0415  takes seconds to import, wanted here alone

    tokenizer = BertTokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        do_lower_case=casing.lowercase,
        strip_accents=casing.strip_accents,
        model_max_length=MODEL_MAX_LENGTH,
    )
    tokenizer.save_pretrained(directory)
    write_text(directory / "vocab.txt", "".join(f"{token}\n" for token in tokens))


def load_tokenizer(directory: Path) -> Tokenizer:
    """Load the tokenizer.json of a tokenizer folder.

    Raises:
        ConfigError: it is missing, cannot be read, or lacks one of BERT's five special tokens.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; a tokenizer folder is wanted (zerobert tokenizer makes one)")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  the library raises bare Exception
        raise ConfigError(f"{path}: not a tokenizer: {error}") from None
    missing = [token for token in SPECIAL_TOKENS if tokenizer.token_to_id(token) is None]
    if missing:
        raise ConfigError(f"{path}: the vocabulary lacks {', '.join(missing)}; BERT needs all five specials")
    return tokenizer


def _merge(
    words: Counter[str], characters: list[str], alphabet: list[str], vocab_size: int, min_frequency: int
) -> set[str]:
    """Run Hugging Face's trainer on counted words; return the learned set."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        show_progress=False,
        special_tokens=[*SPECIAL_TOKENS, *alphabet],
        initial_alphabet=characters,
        limit_alphabet=len(characters),
    )
    tokenizer.train_from_iterator(_repeat(words), trainer)
    return set(tokenizer.get_vocab())


def _repeat(words: Counter[str]) -> Iterator[str]:
    """Yield lines in which each word stands as often as it was counted; the trainer takes no counts."""
    for word in sorted(words):
        full, rest = divmod(words[word], _REPEATS_A_LINE)
        line = f"{word} "
        for _ in range(full):
            yield line * _REPEATS_A_LINE
        if rest:
            yield line * rest
