"""Cuts a document into sentences. No text is lost: only white space between sentences is left out."""

from __future__ import annotations

import re

import sentencex

from runtime.command import ConfigError

SENTENCE_MODES = ("auto", "line")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*")


def check_language(language: str) -> None:
    """Refuse what is not a language code such as "en" or "pt-br".

    Raises:
        ConfigError: it is not.
    """
    if not _LANGUAGE.fullmatch(language):
        raise ConfigError(f"--language {language!r}: a language code is wanted, such as en, de or zh")


def split_sentences(text: str, mode: str, language: str) -> list[str]:
    """Cut a document into sentences.

    Args:
        text: the document; its lines are parted by line feeds.
        mode: "auto": by the rules of the language; an empty line ends a sentence, a single line end does not.
            "line": each line is a sentence.
        language: code such as "en"; sentencex takes the nearest language it knows.

    Returns:
        The sentences, without white space at either end, none of them empty.
    """
    pieces = text.split("\n") if mode == "line" else sentencex.segment(language, text)
    return [sentence for piece in pieces if (sentence := piece.strip())]
