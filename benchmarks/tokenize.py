"""Text to token ids: ours against `encode_batch_fast` of `tokenizers`, on English and on many languages.

Cold: a new encoder each round, its making counted, so every word is new to it. Warm: its table knows the words. The
peer's arm ends at its lists of ids, ours at the arrays that are stored. Ids are compared before anything is timed.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks import fetch, harness
from benchmarks.harness import Arm, Report, UnequalError
from tokenization.encode import WordPieceEncoder
from tokenization.vocabulary.wordpiece import SPECIAL_TOKENS, learn_vocabulary
from tokenization.vocabulary.words import Casing, count_words

_GOAL = 4.0
_BATCH_SENTENCES = 10_000
_VOCAB_SIZE = 30_000
_ALPHABET_LIMIT = 7_000

Encoded = tuple[NDArray[Any], NDArray[np.int32]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; see the module."""
    options = harness.parser("tokenize", __doc__).parse_args(arguments)
    report = Report("tokenize", options)
    english = bert_tokens(fetch.bert_vocabulary())
    compare(report, "English, Debian's anarchism", read_lines([fetch.anarchism()]), english)
    handbook = read_lines(sorted(fetch.handbook().iterdir()))
    compare(report, "26 languages, Debian's handbook", handbook, learn_tokens(handbook))
    return report.finish()


def compare(report: Report, name: str, lines: Sequence[str], tokens: Sequence[str]) -> None:
    """Compare a new encoder with the peer on a text, and time one that knows the text.

    Args:
        report: takes the comparisons.
        name: of the text.
        lines: the text, a sentence a line.
        tokens: the vocabulary.
    """
    tokenizer = make_tokenizer(tokens)
    peer = Arm(f"tokenizers {version('tokenizers')} encode_batch_fast", lambda _: encode_by_peer(tokenizer, lines))
    cold = Arm(
        "zerobert, new encoder",
        lambda fresh: encode(WordPieceEncoder(fresh), lines),
        prepare=lambda: make_tokenizer(tokens),
    )
    megabytes = sum(len(line.encode()) + 1 for line in lines) / 1e6
    report.compare(f"{name}, cold", cold, peer, same_ids, amount=megabytes, unit="MB", goal=_GOAL)
    encoder = WordPieceEncoder(make_tokenizer(tokens))
    encode(encoder, lines)
    (seconds,) = harness.measure([Arm("warm", lambda _: encode(encoder, lines))], report.rounds)
    report.figure(f"{name}, warm (the same encoder again)", megabytes / statistics.median(seconds), "MB/s")


def same_ids(ours: Encoded, peer: list[list[int]]) -> str:
    """Check that every sentence has the same ids.

    Raises:
        UnequalError: one has not.
    """
    lengths = np.array([len(sentence) for sentence in peer])
    if not np.array_equal(ours[1], lengths):
        raise UnequalError("the sentences have other numbers of ids")
    if not np.array_equal(ours[0], np.fromiter(itertools.chain.from_iterable(peer), dtype=np.int32)):
        raise UnequalError("the ids differ")
    return f"{ours[0].size:,} ids of {lengths.size:,} sentences"


def encode(encoder: WordPieceEncoder, lines: Sequence[str]) -> Encoded:
    """Encode lines in batches, as the shard writer does."""
    ids, lengths = zip(*(encoder.encode_flat(batch) for batch in _batches(lines)), strict=True)
    return np.concatenate(ids), np.concatenate(lengths)


def encode_by_peer(tokenizer: Tokenizer, lines: Sequence[str]) -> list[list[int]]:
    """Encode lines with `encode_batch_fast`, in the same batches."""
    return [
        encoding.ids
        for batch in _batches(lines)
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False)
    ]


def _batches(lines: Sequence[str]) -> Iterable[list[str]]:
    for begin in range(0, len(lines), _BATCH_SENTENCES):
        yield list(lines[begin : begin + _BATCH_SENTENCES])


def read_lines(paths: Iterable[Path]) -> list[str]:
    """Return the lines of text files that are not blank."""
    return [line for path in paths for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]


def bert_tokens(path: Path) -> list[str]:
    """Return the tokens of a vocab.txt."""
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def learn_tokens(lines: Iterable[str]) -> tuple[str, ...]:
    """Return a vocabulary of 30,000 learned from a text in many scripts."""
    return learn_vocabulary(count_words(lines, Casing()), _VOCAB_SIZE, 2, _ALPHABET_LIMIT).tokens


def make_tokenizer(tokens: Iterable[str]) -> Tokenizer:
    """Return bert-base-uncased's tokenizer with a vocabulary."""
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = Casing().normalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.encode_special_tokens = True
    return tokenizer


if __name__ == "__main__":
    harness.start(main)
