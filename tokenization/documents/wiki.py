"""Reads Wikipedia: WikiExtractor's output of `<doc ...>` elements, and MediaWiki's XML dumps of `<page>` elements."""

from __future__ import annotations

import codecs
import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, NamedTuple

from tokenization.documents.faults import NO_END, OTHER_NAMESPACES, REDIRECTS, STRAY_TEXT
from tokenization.documents.lines import tidy
from tokenization.documents.model import Document
from tokenization.documents.reading import Reading
from tokenization.documents.streams import read_blocks
from tokenization.documents.wikitext import Namespaces, to_plain_text

_HEADER_BYTES = 1 << 16
_ELEMENT_BYTES = 1 << 29
_NAMESPACE_NAME = re.compile(r'<namespace key="(6|14)"[^<>]*>([^<]*)</namespace>')
_PAGE_NAMESPACE = re.compile(r"<ns>\s*(-?\d+)\s*</ns>")
_TEXT = re.compile(r"<text\b([^<>]*)>")
_MODEL = re.compile(r"<model>([^<]*)</model>")
_REDIRECT_TEXT = re.compile(r"\s*#[^\s\[\]#:*;]+\s*:?\s*\[\[")


@dataclass(frozen=True)
class Tags:
    """Bytes between which a document stands; `lead` of the opening ones belong to what comes before."""

    opening: bytes
    closing: bytes
    lead: int


class Element(NamedTuple):
    """What stands from one opening tag to its closing tag.

    Args:
        offset: byte of the opening tag.
        body: the bytes after the opening mark, without the closing mark.
        is_closed: whether the closing tag is there.
        stray: offset of the first byte before it, outside of elements, that is not white space; -1: there is none.
    """

    offset: int
    body: bytes
    is_closed: bool
    stray: int


DOC_TAGS = Tags(b"\n<doc ", b"\n</doc>", 1)
PAGE_TAGS = Tags(b"<page>", b"</page>", 0)


def read_wikiextractor_documents(reading: Reading) -> Iterator[Document]:
    """Read the `<doc ...>` elements of WikiExtractor's output; the title stays the first line of the text."""
    for element in _read_elements(reading, DOC_TAGS):
        if element.stray >= 0:
            reading.fault(STRAY_TEXT, element.offset, element.stray, "text that stands in no <doc>")
        head, _, body = element.body.partition(b"\n")
        if element.offset < 0 or not (not reading.source.is_stream or reading.owns(element.offset)):
            continue
        if not element.is_closed:
            reading.fault(NO_END, element.offset, element.offset, "a <doc> without </doc>")
            continue
        start = element.offset + len(DOC_TAGS.opening) - DOC_TAGS.lead + len(head) + 1
        text = reading.decode(body, start, element.offset)
        if text is not None:
            yield Document(tidy(html.unescape(text)), element.offset)


def read_mediawiki_documents(reading: Reading) -> Iterator[Document]:
    """Read the articles of an XML dump as plain text: pages of namespace 0 that are no redirects."""
    namespaces = _read_namespaces(reading)
    for element in _read_elements(reading, PAGE_TAGS):
        if element.offset < 0 or not (not reading.source.is_stream or reading.owns(element.offset)):
            continue
        if not element.is_closed:
            reading.fault(NO_END, element.offset, element.offset, "a <page> without </page>")
            continue
        page = reading.decode(element.body, element.offset + len(PAGE_TAGS.opening), element.offset)
        if page is not None:
            yield from _read_page(reading, page, element.offset, namespaces)


def _read_page(reading: Reading, page: str, offset: int, namespaces: Namespaces) -> Iterator[Document]:
    number = _PAGE_NAMESPACE.search(page)
    model = _MODEL.search(page)
    if (number and int(number[1]) != 0) or (model and model[1].strip() != "wikitext"):
        reading.faults.left_out(OTHER_NAMESPACES)
        return
    wikitext = _last_text(page)
    if "<redirect" in page.partition("<revision")[0] or _REDIRECT_TEXT.match(wikitext):
        reading.faults.left_out(REDIRECTS)
        return
    yield Document(to_plain_text(wikitext, namespaces), offset)


def _last_text(page: str) -> str:
    """Return the wikitext of a page's last revision."""
    text = ""
    for tag in _TEXT.finditer(page):
        end = page.find("</text>", tag.end())
        text = "" if tag[1].endswith("/") or end < 0 else page[tag.end() : end]
    return html.unescape(text)


def _read_namespaces(reading: Reading) -> Namespaces:
    """Return what the wiki calls its files and categories, from the dump's head."""
    with reading.open() as stream:
        head = b"".join(_first_bytes(stream, reading.source.path)).decode("utf-8", "replace")
    names = [(key, html.unescape(name)) for key, name in _NAMESPACE_NAME.findall(head)]
    return Namespaces(frozenset(name.strip().lower() for _, name in names if name))


def _first_bytes(stream: IO[bytes], path: str) -> Iterator[bytes]:
    left = _HEADER_BYTES
    for block in read_blocks(stream, path, _HEADER_BYTES):
        yield block
        left -= len(block)
        if left <= 0:
            return


def _read_elements(reading: Reading, tags: Tags) -> Iterator[Element]:
    """Yield the elements of a piece; text after the last one comes as an element of offset -1."""
    with reading.open() as stream:
        start, end = 0, None
        if not reading.source.is_stream and reading.count > 1:
            start, end = (_boundary(reading, stream, part, tags) for part in (0, 1))
            stream.seek(start)
        blocks = read_blocks(stream, reading.source.path)
        yield from _Scanner(blocks, tags, start, end).elements()


def _boundary(reading: Reading, stream: IO[bytes], part: int, tags: Tags) -> int:
    """Return the byte of the first opening tag at or after this piece's (part 0) or the next one's (part 1) share."""
    size = reading.source.num_bytes
    at = size * (reading.index + part) // reading.count
    if at == 0 or at >= size:
        return min(at, size)
    offset = at - tags.lead
    stream.seek(offset)
    rest = b""
    for block in read_blocks(stream, reading.source.path):
        data = rest + block
        found = data.find(tags.opening)
        if found >= 0:
            return offset + found + tags.lead
        rest = data[-len(tags.opening) + 1 :]
        offset += len(data) - len(rest)
    return size


class _Scanner:
    """Finds elements in blocks of bytes; keeps no more than one element and one block."""

    def __init__(self, blocks: Iterator[bytes], tags: Tags, start: int, end: int | None) -> None:
        self._blocks = blocks
        self._tags = tags
        self._left = None if end is None else end - start
        # As if a line ended before the first byte, so that a tag that starts a line is found there too.
        self._data = bytearray(b"\n" * tags.lead)
        self._offset = start - tags.lead
        self._is_first = start == 0
        self._stray = -1

    def elements(self) -> Iterator[Element]:
        """Yield the elements, each from the end of the one before."""
        opening, closing = self._tags.opening, self._tags.closing
        while self._find_opening():
            offset = self._offset + self._tags.lead
            end, is_closed = self._find_closing()
            body = bytes(self._data[len(opening) : end])
            stray, self._stray = self._stray, -1
            yield Element(offset, body, is_closed, stray)
            self._drop(end + len(closing) if is_closed else end)
        if self._stray >= 0:
            yield Element(-1, b"", True, self._stray)

    def _find_opening(self) -> bool:
        """Drop what stands before the next opening tag; return whether there is one."""
        opening = self._tags.opening
        while True:
            found = self._data.find(opening)
            passed = found if found >= 0 else len(self._data) - len(opening) + 1
            if passed > 0:
                self._pass_over(passed)
            if found >= 0:
                return True
            if not self._read_more():
                self._pass_over(len(self._data))
                return False

    def _find_closing(self) -> tuple[int, bool]:
        """Return where the element ends, and whether by its closing tag; else by the next opening tag, or the end."""
        opening, closing = self._tags.opening, self._tags.closing
        searched = len(opening) - self._tags.lead
        while True:
            end = self._data.find(closing, max(0, searched - len(closing)))
            start = max(len(opening) - self._tags.lead, searched - len(opening))
            next_opening = self._data.find(opening, start, end if end >= 0 else len(self._data))
            if next_opening >= 0:
                return next_opening, False
            if end >= 0:
                return end, True
            searched = len(self._data)
            if searched > _ELEMENT_BYTES or not self._read_more():
                return searched, False

    def _pass_over(self, count: int) -> None:
        passed = self._data[:count]
        bare = passed.lstrip()
        if bare and self._stray < 0:
            self._stray = self._offset + len(passed) - len(bare)
        self._drop(count)

    def _drop(self, count: int) -> None:
        del self._data[:count]
        self._offset += count

    def _read_more(self) -> bool:
        block = next(self._blocks, b"") if self._left is None or self._left > 0 else b""
        while self._is_first and 0 < len(block) < len(codecs.BOM_UTF8) and (more := next(self._blocks, b"")):
            block += more
        if self._left is not None:
            block = block[: self._left]
            self._left -= len(block)
        if self._is_first and block.startswith(codecs.BOM_UTF8):
            self._data += block[len(codecs.BOM_UTF8) :]
            self._offset += len(codecs.BOM_UTF8)
        else:
            self._data += block
        self._is_first = False
        return bool(block)
