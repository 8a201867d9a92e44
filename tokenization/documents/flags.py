"""The flags by which every command names its text."""

from __future__ import annotations

import argparse

from runtime.command import ConfigError
from tokenization.documents.model import FORMATS, LAYOUTS, POLICIES, ReadSettings
from tokenization.documents.transcode import check_encoding


def add_input_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say which text is read, and how."""
    group = parser.add_argument_group("input")
    group.add_argument(
        "--input",
        nargs="+",
        required=True,
        metavar="PATH",
        help="files, folders, 'globs', URLs (s3://, gs://, hf://, https://), or dataset:NAME[/CONFIG][:SPLIT]; kinds: "
        ".txt .jsonl .json .csv .tsv .parquet .arrow, WikiExtractor's files, MediaWiki's .xml, datasets saved on "
        "disk; text also .gz .bz2 .xz .zst",
    )
    group.add_argument("--text-field", default="text", metavar="NAME", help="field that holds the text (default: text)")
    group.add_argument("--language-field", metavar="NAME", help="field that holds the language of each document")
    group.add_argument(
        "--txt-layout",
        choices=LAYOUTS,
        default="auto",
        help="a .txt file holds one document a line, documents parted by blank lines, or one document; auto: blank "
        "where a blank line stands between two lines of text in the file's first 4 MiB, else line (default)",
    )
    group.add_argument("--format", choices=FORMATS, default="auto", help="what the files are (default: by their names)")
    group.add_argument("--encoding", default="utf-8", metavar="NAME", help="encoding of text files (default: utf-8)")
    group.add_argument(
        "--errors",
        choices=POLICIES,
        default="fail",
        help="what to do about bytes that are not in the encoding, broken records and damaged files: fail (default), "
        "replace (bad bytes become U+FFFD, what cannot be mended is left out) or skip (leave the document out); all "
        "are counted",
    )


def read_settings(arguments: argparse.Namespace) -> ReadSettings:
    """Return how text is read, from the arguments of `add_input_arguments`.

    Raises:
        ConfigError: an argument is wrong.
    """
    for flag, name in (("--text-field", arguments.text_field), ("--language-field", arguments.language_field)):
        if name == "":
            raise ConfigError(f"{flag} '': a field has a name")
    if arguments.language_field == arguments.text_field:
        raise ConfigError(f"--language-field {arguments.language_field}: is the same field as --text-field")
    check_encoding(arguments.encoding)
    return ReadSettings(
        text_field=arguments.text_field,
        layout=arguments.txt_layout,
        format=arguments.format,
        encoding=arguments.encoding,
        errors=arguments.errors,
        language_field=arguments.language_field,
    )
