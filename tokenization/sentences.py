"""Cuts a document into sentences. No text is lost: only white space between sentences is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator

import sentencex

from runtime.command import ConfigError

SENTENCE_MODES = ("auto", "line")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*")
_QUOTES = '"\u201c\u201d\u201e\u201f\u00ab\u00bb\u300c\u300d\u300e\u300f'
_ANY_QUOTE = re.compile(f"[{_QUOTES}]")
_CLOSING_QUOTES = re.compile(f"[{_QUOTES}]*")


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
    pieces = text.split("\n") if mode == "line" else _segment(text, language)
    return [sentence for piece in pieces if (sentence := piece.strip())]


def _segment(text: str, language: str) -> Iterator[str]:
    """Cut a text by the rules of a language, also inside quotations, which sentencex leaves whole."""
    for piece in sentencex.segment(language, text):
        if _ANY_QUOTE.search(piece):
            yield from _cut_quotation(piece, language)
        else:
            yield piece


def _cut_quotation(text: str, language: str) -> Iterator[str]:
    """Cut what the text would be cut into without its quote marks; closing marks stay with what they close."""
    kept = [place for place, character in enumerate(text) if character not in _QUOTES]
    start = end = 0
    for piece in sentencex.segment(language, _ANY_QUOTE.sub("", text)):
        end += len(piece)
        if end == len(kept):
            break
        last = kept[end - len(piece) + len(piece.rstrip()) - 1]
        closed = _CLOSING_QUOTES.match(text, last + 1)
        stop = closed.end() if closed else last + 1
        if piece.strip() and stop > start:
            yield text[start:stop]
            start = stop
    yield text[start:]
