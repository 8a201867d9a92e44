"""The command `zerobert tokenizer`: text to a WordPiece tokenizer folder.

python -m tokenization.train --input corpus/*.jsonl.xz --output tokenizer --vocab-size 8192
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from runtime.command import ConfigError, run_command
from tokenization.documents import add_input_arguments, open_sources, read_documents
from tokenization.folder import check_output, output_folder
from tokenization.survey import Survey, survey
from tokenization.wordpiece import (
    ALPHABET_LIMIT,
    Casing,
    Vocabulary,
    count_words,
    learn_vocabulary,
    save_tokenizer,
)

logger = logging.getLogger(__name__)

_LARGEST_HASH = 1 << 64
_LARGEST_LAG = 0.1
_NOTEWORTHY_SHARE = 0.001


class Sample:
    """Documents drawn by chance from the whole input, up to a budget of bytes.

    A document is taken where a hash of its index is small enough, or where chance has left the sample a tenth
    of the budget behind its due. So the sample is the same every time, spread over all files, and fills nine
    tenths of the budget or more. Of a document that does not fit the beginning is taken.

    Args:
        found: the survey of the input.
        budget_bytes: most UTF-8 bytes of text.
        seed: another seed draws other documents.
    """

    def __init__(self, found: Survey, budget_bytes: int, seed: int) -> None:
        """Keep the budget; nothing is read yet."""
        self._found = found
        self._budget_bytes = budget_bytes
        self._seed = seed
        self.used_bytes = 0
        self.used_documents = 0

    def __iter__(self) -> Iterator[str]:
        """Yield the text of the documents drawn."""
        share = min(1.0, self._budget_bytes / self._found.text_bytes)
        index = seen_bytes = 0
        for source in self._found.sources:
            for document in read_documents(source):
                seen_bytes += len(document.text.encode("utf-8"))
                is_behind = self.used_bytes < share * seen_bytes - _LARGEST_LAG * self._budget_bytes
                if is_behind or self._hash(index) < share * _LARGEST_HASH:
                    yield self._fit(document.text)
                index += 1

    def _hash(self, index: int) -> int:
        digest = hashlib.blake2b(f"{self._seed}/{index}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big")

    def _fit(self, text: str) -> str:
        left = self._budget_bytes - self.used_bytes
        fitting = text.encode("utf-8")[:left].decode("utf-8", errors="ignore")  # no part of a character at the end
        self.used_bytes += len(fitting.encode("utf-8"))
        self.used_documents += bool(fitting)
        return fitting


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(prog="zerobert tokenizer", description="Learn a BERT WordPiece tokenizer.")
    add_input_arguments(parser)
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="tokenizer folder to be made")
    parser.add_argument("--vocab-size", type=int, default=30522, metavar="N", help="tokens wanted (default: 30522)")
    parser.add_argument("--cased", action="store_true", help="keep upper case, and accents too")
    parser.add_argument(
        "--strip-accents",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="take accents off (default: only where text is lowercased)",
    )
    parser.add_argument(
        "--min-frequency", type=int, default=2, metavar="N", help="least count of a merged pair (default: 2)"
    )
    parser.add_argument(
        "--limit-alphabet",
        type=int,
        default=ALPHABET_LIMIT,
        metavar="N",
        help=f"most different characters kept; raise it for Chinese or Japanese (default: {ALPHABET_LIMIT})",
    )
    parser.add_argument(
        "--sample-bytes",
        type=int,
        default=1_000_000_000,
        metavar="N",
        help="learn from so many bytes of text at most, drawn from all files (default: 1,000,000,000)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of that draw (default: 0)")
    parser.add_argument("--force", action="store_true", help="replace an older tokenizer in the output folder")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: arguments after the command's name; None: those of the process.

    Returns:
        Exit code 0.

    Raises:
        ConfigError: the input or an argument is wrong; nothing was written.
    """
    arguments = build_parser().parse_args(argv)
    for name in ("vocab_size", "min_frequency", "limit_alphabet", "sample_bytes"):
        if getattr(arguments, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {getattr(arguments, name)}: must be 1 or more")
    check_output(arguments.output, arguments.force, "tokenizer.json", arguments.input)
    found = survey(open_sources(arguments.input, arguments.text_field, arguments.txt_layout))
    started = time.perf_counter()
    casing = Casing(lowercase=not arguments.cased, strip_accents=arguments.strip_accents)
    sample = Sample(found, arguments.sample_bytes, arguments.seed)
    words = count_words(sample, casing)
    vocabulary = learn_vocabulary(words, arguments.vocab_size, arguments.min_frequency, arguments.limit_alphabet)
    seconds = time.perf_counter() - started
    with output_folder(arguments.output) as partial:
        save_tokenizer(vocabulary.tokens, casing, partial)
    _warn_about_dropped(vocabulary)
    _print_result(arguments, found, sample, vocabulary, seconds)
    return 0


def _warn_about_dropped(vocabulary: Vocabulary) -> None:
    if vocabulary.dropped_characters:
        level = logging.WARNING if vocabulary.dropped_share > _NOTEWORTHY_SHARE else logging.INFO
        logger.log(
            level,
            "%d rare characters (%.4f %% of the text) are not in the alphabet; words with one of them "
            "become [UNK] "
            "(--limit-alphabet)",
            vocabulary.dropped_characters,
            100 * vocabulary.dropped_share,
        )


def _print_result(
    arguments: argparse.Namespace, found: Survey, sample: Sample, vocabulary: Vocabulary, seconds: float
) -> None:
    size = len(vocabulary.tokens)
    why = "" if size == arguments.vocab_size else f": no more pairs of count {arguments.min_frequency}"
    sys.stdout.write(
        f"vocabulary  {size:,} tokens of {arguments.vocab_size:,} requested{why}\n"
        f"alphabet    {vocabulary.alphabet_size:,}\n"
        f"text        {sample.used_bytes:,} bytes in {sample.used_documents:,} documents used, of "
        f"{found.text_bytes:,} bytes in {found.num_documents:,}\n"
        f"speed       {sample.used_bytes / 1e6 / max(seconds, 1e-9):.1f} MB/s ({seconds:.1f} s)\n"
        f"tokenizer   {os.fspath(arguments.output)}\n"
    )


if __name__ == "__main__":
    run_command(main, "tokenizer")
