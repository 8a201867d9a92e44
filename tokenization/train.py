"""The command `zerobert tokenizer`: text to a tokenizer folder, and a report on what is in it.

    python -m tokenization.train --input corpus/*.jsonl.xz --output tokenizer --vocab-size 8192 --workers 2

A sample of the text is drawn and its words are counted in tasks; a vocabulary is learned from the counts. Any number
of workers gives the same bytes. Until all is done the counts stand in OUTPUT.partial; the same command, called again,
counts only what is missing there.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from runtime.command import ConfigError, run_command
from runtime.files import write_json
from runtime.seeding import MAX_SEED
from tokenization.documents import add_input_arguments, open_sources, read_settings
from tokenization.folder import check_output, publish, work_folder
from tokenization.vocabulary.alphabet import ALPHABET_LIMIT, Alphabet
from tokenization.vocabulary.counting import CountedSample, count_sample
from tokenization.vocabulary.report import REPORT_NAME, format_report, make_report
from tokenization.vocabulary.subword import learn, save
from tokenization.vocabulary.wordpiece import SPECIAL_TOKENS, Vocabulary, load_tokenizer
from tokenization.vocabulary.words import MODELS, Casing, WordSplitter

logger = logging.getLogger(__name__)

_LARGEST_VOCABULARY = 10_000_000
_LARGEST_COUNT = 2**31 - 1
_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", REPORT_NAME)
_NOTEWORTHY_SHARE = 0.001
_SHOWN_SCRIPTS = 5


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(prog="zerobert tokenizer", description="Learn a BERT tokenizer from text.")
    add_input_arguments(parser)
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="tokenizer folder to be made")
    parser.add_argument(
        "--model",
        choices=MODELS,
        default="wordpiece",
        help="kind of tokenizer: wordpiece as BERT has it (default), bpe on bytes, or unigram",
    )
    parser.add_argument("--vocab-size", type=int, default=30522, metavar="N", help="tokens wanted (default: 30522)")
    parser.add_argument("--cased", action="store_true", help="keep upper case, and accents too")
    parser.add_argument(
        "--strip-accents",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="take accents off (default: only where text is lowercased)",
    )
    parser.add_argument(
        "--min-frequency",
        type=int,
        default=2,
        metavar="N",
        help="least count of a merged pair; unigram: of a piece of several characters (default: 2)",
    )
    parser.add_argument(
        "--limit-alphabet",
        type=int,
        metavar="N",
        help="most different characters kept, not for bpe; raise it for Chinese or Japanese "
        f"(default: {ALPHABET_LIMIT})",
    )
    parser.add_argument(
        "--sample-bytes",
        type=int,
        default=1_000_000_000,
        metavar="N",
        help="learn from so many bytes of text at most, drawn from all files (default: 1,000,000,000)",
    )
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes that count (default: 1)")
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
        ConfigError: the input or an argument is wrong. Finished tasks are kept in OUTPUT.partial.
    """
    arguments = build_parser().parse_args(argv)
    _check(arguments)
    sources = open_sources(arguments.input, read_settings(arguments))
    splitter = WordSplitter(arguments.model, Casing(not arguments.cased, arguments.strip_accents))
    with work_folder(arguments.output) as partial:
        started = time.perf_counter()
        sample = count_sample(sources, splitter, arguments.sample_bytes, arguments.seed, arguments.workers, partial)
        counted = time.perf_counter()
        logger.info("learning %d tokens from %d different words", arguments.vocab_size, len(sample.counted.words))
        vocabulary = learn(
            splitter,
            sample.counted.words,
            sample.counted.characters,
            arguments.vocab_size,
            arguments.min_frequency,
            arguments.limit_alphabet or ALPHABET_LIMIT,
        )
        learned = time.perf_counter()
        save(vocabulary, splitter, partial)
        report = make_report(load_tokenizer(partial), splitter, sample.counted.words, sample.lines)
        write_json(partial / REPORT_NAME, report)
        publish(arguments.output, kept=_FILES)
    _warn_about_dropped(vocabulary.alphabet)
    _print_sample(sample, counted - started)
    _print_vocabulary(arguments, vocabulary, learned - counted)
    sys.stdout.write(f"{format_report(report)}tokenizer   {os.fspath(arguments.output)}\n")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse wrong arguments, before anything is read."""
    for name in ("vocab_size", "min_frequency", "limit_alphabet", "sample_bytes", "workers"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: must be 1 or more")
    if arguments.model == "bpe" and arguments.limit_alphabet is not None:
        raise ConfigError("--limit-alphabet: the alphabet of --model bpe is the 256 bytes; leave the flag out")
    for name, most in (("vocab_size", _LARGEST_VOCABULARY), ("min_frequency", _LARGEST_COUNT), ("seed", MAX_SEED)):
        if getattr(arguments, name) > most:
            raise ConfigError(f"--{name.replace('_', '-')} {getattr(arguments, name)}: must be {most:,} or less")
    if arguments.vocab_size <= len(SPECIAL_TOKENS):
        raise ConfigError(
            f"--vocab-size {arguments.vocab_size}: too small: {len(SPECIAL_TOKENS)} special tokens alone take as many"
        )
    if arguments.seed < 0:
        raise ConfigError(f"--seed {arguments.seed}: must be 0 or more")
    check_output(arguments.output, arguments.force, "tokenizer.json", arguments.input, is_ours=_FILES.__contains__)


def _warn_about_dropped(alphabet: Alphabet) -> None:
    if alphabet.num_dropped:
        logger.log(
            logging.WARNING if alphabet.dropped_share > _NOTEWORTHY_SHARE else logging.INFO,
            "%d rare characters (%.4f %% of the text) are not in the alphabet; what has one of them becomes [UNK] "
            "(--limit-alphabet): %s such as %s",
            alphabet.num_dropped,
            100 * alphabet.dropped_share,
            ", ".join(f"{count} {script}" for script, count in list(alphabet.dropped_scripts.items())[:_SHOWN_SCRIPTS]),
            " ".join(alphabet.dropped_first),
        )


def _print_sample(sample: CountedSample, seconds: float) -> None:
    about = "" if sample.is_whole else "about "
    counted = sample.counted
    left_out = counted.num_words - len(counted.words)
    rare = (
        f"; the {left_out:,} rarest ({counted.dropped_occurrences / counted.num_occurrences:.4%} of the text) left out"
        if left_out
        else ""
    )
    sys.stdout.write(
        f"text        {sample.used_bytes:,} bytes in {sample.used_documents:,} documents used, of {about}"
        f"{sample.total_bytes:,} bytes in {about}{sample.total_documents:,}\n"
        f"{_format_faults('repaired', sample.repaired)}{_format_faults('left out', sample.dropped)}"
        f"words       {counted.num_occurrences:,} counted, {counted.num_words:,} different{rare}\n"
        f"speed       {sample.used_bytes / 1e6 / max(seconds, 1e-9):.1f} MB/s counted ({seconds:.1f} s)\n"
    )


def _format_faults(what: str, faults: Mapping[str, int]) -> str:
    found = ", ".join(f"{count:,} {reason}" for reason, count in sorted(faults.items()))
    return f"{what:<12}{found}\n" if found else ""


def _print_vocabulary(arguments: argparse.Namespace, vocabulary: Vocabulary, seconds: float) -> None:
    size = len(vocabulary.tokens)
    what = "pieces" if arguments.model == "unigram" else "pairs"
    why = "" if size == arguments.vocab_size else f": no more {what} of count {arguments.min_frequency}"
    sys.stdout.write(
        f"vocabulary  {size:,} tokens of {arguments.vocab_size:,} requested{why} ({seconds:.1f} s)\n"
        f"alphabet    {vocabulary.alphabet_size:,}\n"
    )


if __name__ == "__main__":
    run_command(main, "tokenizer")
