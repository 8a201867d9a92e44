"""Cuts a document into sentences. No text is lost: only white space between sentences is left out."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, chain, pairwise

import sentencex

from runtime.command import ConfigError

SENTENCE_MODES = ("auto", "paragraph", "line")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*")
_QUOTES = '"\u201c\u201d\u201e\u201f\u00ab\u00bb\u300c\u300d\u300e\u300f'
_PANICS = re.compile(r"[^\W\d_][^\S\x00-\x7f]+\.")
_PLAIN_SPACES = {code: " " for code in range(0x80, 0x3001) if chr(code).isspace()}
_WINDOW_CHARS = 1 << 16
_ANY_QUOTE = re.compile(f"[{_QUOTES}]")
_GOES_ON = re.compile(r"\s+[a-z\u00df-\u00ff\u03b1-\u03c9\u0430-\u044f]")  # as in: "Is it?" she asked.
_QUOTES_OR_NONE = re.compile(f"[{_QUOTES}]*")


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
            "paragraph": by the rules of the language in each line. "line": each line is a sentence.
        language: code such as "en"; sentencex takes the nearest language it knows.

    Returns:
        The sentences, without white space at either end, none of them empty.
    """
    stretches = [text] if mode == "auto" else text.split("\n")
    pieces = stretches if mode == "line" else chain.from_iterable(_segment(line, language) for line in stretches)
    return [sentence for piece in pieces if (sentence := piece.strip())]


def _segment(text: str, language: str) -> Iterator[str]:
    """Cut a text by the rules of a language, also inside quotations, which sentencex leaves whole."""
    for piece in _cut_in_windows(text, language):
        if _ANY_QUOTE.search(piece):
            yield from _cut_quotation(piece, language)
        else:
            yield piece


def _cut_in_windows(text: str, language: str) -> Iterator[str]:
    """Cut a text with sentencex, whose time grows with the square of the text's length, a stretch at a time."""
    start, size = 0, _WINDOW_CHARS
    while start + size < len(text):
        pieces = _ask(language, text[start : start + size])
        if len(pieces) == 1:  # no end in it
            size *= 2
            continue
        yield from pieces[:-1]  # the last one may go on behind the window
        start += sum(map(len, pieces[:-1]))
        size = _WINDOW_CHARS
    yield from _ask(language, text[start:])


def _ask(language: str, text: str) -> list[str]:
    """Cut a text with sentencex, which panics on a letter, a white space of more than one byte, and a stop."""
    if not _PANICS.search(text):
        return list(sentencex.segment(language, text))
    ends = [0, *accumulate(map(len, sentencex.segment(language, text.translate(_PLAIN_SPACES))))]
    return [text[start:end] for start, end in pairwise(ends)]


def _cut_quotation(text: str, language: str) -> Iterator[str]:
    """Cut what the text would be cut into without its quote marks; closing marks stay with what they close."""
    # how many of the other characters stand before each mark
    before = [mark.start() - number for number, mark in enumerate(_ANY_QUOTE.finditer(text))]
    pieces = _ask(language, _ANY_QUOTE.sub("", text))
    start = end = 0
    for piece in pieces[:-1]:
        last = end + len(piece.rstrip()) - 1
        end += len(piece)
        # behind the last character of the piece, and behind the marks that follow it at once
        closed = _QUOTES_OR_NONE.match(text, last + bisect_right(before, last) + 1)
        stop = closed.end() if closed else len(text)
        if piece.strip() and stop > start and not _GOES_ON.match(text, stop):
            yield text[start:stop]
            start = stop
    yield text[start:]
