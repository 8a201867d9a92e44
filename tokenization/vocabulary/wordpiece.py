"""Learns a WordPiece vocabulary and writes a Hugging Face BERT tokenizer: same text, same bytes.

Hugging Face's trainer alone does not give that: pairs of equal count are merged in the order of their ids,
and the ids of the pieces "##a" follow the order of a hash map that is seeded anew in every process. So the
vocabulary is learned from counted words, all pieces of one character are given to the trainer in sorted order
(as special tokens: these get the first ids), and ids are dealt anew at the end. Ties then fall the same way
every time. Counting words first is also about twice as fast as feeding the trainer with text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from runtime.command import ConfigError
from runtime.files import write_text
from tokenization.vocabulary.alphabet import ALPHABET_LIMIT, Alphabet, choose_alphabet, count_characters
from tokenization.vocabulary.trainer_input import fit_counts, trainer_lines
from tokenization.vocabulary.words import Casing

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PREFIX = "##"
MODEL_MAX_LENGTH = 512


@dataclass(frozen=True)
class Vocabulary:
    """A learned vocabulary.

    Args:
        tokens: position = id; the special tokens first. WordPiece: then single characters, "##" characters, and the
            others by length and text.
        alphabet: which characters the text has and which of them are kept; byte-level BPE keeps all.
        alphabet_size: how many tokens are single characters, with and without "##"; or bytes.
        merges: of byte-level BPE, in order.
        scores: of Unigram: natural logarithm of each token's probability.
    """

    tokens: tuple[str, ...]
    alphabet: Alphabet
    alphabet_size: int
    merges: tuple[tuple[str, str], ...] = ()
    scores: tuple[float, ...] = ()


def learn_vocabulary(
    words: Mapping[str, int],
    vocab_size: int,
    min_frequency: int,
    alphabet_limit: int = ALPHABET_LIMIT,
    characters: Mapping[str, int] | None = None,
) -> Vocabulary:
    """Learn a WordPiece vocabulary by merging the most frequent pairs of pieces.

    Args:
        words: count of each word (see `words.count_words`).
        vocab_size: tokens wanted, special ones included; the text may give fewer.
        min_frequency: least count of a pair that is merged.
        alphabet_limit: most characters kept: the most frequent, among equals those of the lower code point.
        characters: count of each character of the text; None: of the words.

    Raises:
        ConfigError: there is no word, or vocab_size cannot hold the special tokens and the alphabet.
    """
    check_words(words)
    alphabet = choose_alphabet(count_characters(words) if characters is None else characters, alphabet_limit)
    known = set(alphabet.kept)
    continuing = sorted({PREFIX + character for word in words for character in word[1:] if character in known})
    single = [*alphabet.kept, *continuing]
    check_size(vocab_size, len(single))
    learned = _merge(words, list(alphabet.kept), single, vocab_size, min_frequency)
    rest = sorted(learned.difference(single, SPECIAL_TOKENS), key=lambda token: (len(token), token))
    return Vocabulary((*SPECIAL_TOKENS, *single, *rest), alphabet, len(single))


def check_words(words: Mapping[str, int]) -> None:
    """Refuse to learn from nothing.

    Raises:
        ConfigError: there is no word.
    """
    if not words:
        raise ConfigError("--input: the text holds no word to learn from")


def check_size(vocab_size: int, alphabet_size: int) -> None:
    """Refuse a size that cannot hold the special tokens and the alphabet.

    Raises:
        ConfigError: it cannot; names the least size.
    """
    least = len(SPECIAL_TOKENS) + alphabet_size
    if vocab_size < least:
        raise ConfigError(
            f"--vocab-size {vocab_size}: too small: {len(SPECIAL_TOKENS)} special tokens and an alphabet of "
            f"{alphabet_size} take {least}"
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
    words: Mapping[str, int], characters: list[str], alphabet: list[str], vocab_size: int, min_frequency: int
) -> set[str]:
    """Run Hugging Face's trainer on counted words; return the learned set."""
    fitted, least_count = fit_counts(words, min_frequency)
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=least_count,
        show_progress=False,
        special_tokens=[*SPECIAL_TOKENS, *alphabet],
        initial_alphabet=characters,
        limit_alphabet=len(characters),
    )
    tokenizer.train_from_iterator(trainer_lines(fitted), trainer)
    return set(tokenizer.get_vocab())
