"""Wikitext to plain text: the passages of an article, without lists, tables, headings and footnotes.

One pass of a regular expression over each of a few steps; none of them looks further than the next bracket, so that the
time is linear in the text whatever stands in it.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from typing import NamedTuple

# Elements whose content is no running text.
_DROPPED_ELEMENTS = (
    "ref|references|math|chem|ce|gallery|timeline|score|source|syntaxhighlight|code|pre|graph|mapframe|maplink|hiero|imagemap|"
    "inputbox|templatedata|templatestyles|section|table|style|script|indicator|poem|categorytree|charinsert|noinclude"
)
_DROPPED_TAG = re.compile(rf"<(/?)({_DROPPED_ELEMENTS})\b([^<>]*)>", re.IGNORECASE)
_COMMENT_MARK = re.compile(r"<!--|-->")
_BREAK_TAG = re.compile(r"<(?:br|hr)\b[^<>]*>", re.IGNORECASE)
_PARAGRAPH_TAG = re.compile(r"</?(?:p|div|blockquote|center)\b[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
# {{ }} templates, [[ ]] links, and at the start of a line {| |} tables.
_BRACKET = re.compile(r"\{\{|\}\}|\[\[|\]\]|^[ \t:*#]*\{\||^[ \t]*\|\}(?!\})", re.MULTILINE)
_CLOSES = {"}}": "{{", "]]": "[[", "|}": "{|"}
_DEEPEST = 64
_EXTERNAL_LINK = re.compile(r"\[(?:https?:|ftp:|mailto:)?//?[^\s\[\]<>]*([^\[\]\n]*)\]", re.IGNORECASE)
_QUOTES = re.compile(r"'{2,}")
_SWITCH = re.compile(r"__[A-Z]+__")
_VARIANT = re.compile(r"-\{([^{}]*)\}-")
# Headings, lists, table rows left over, indented lines, rules.
_DROPPED_LINE = re.compile(r"[ \t]*(?:=[^\n]*=[ \t]*$|[*#:;|!]|----)", re.MULTILINE)
_EMPTY_BRACKETS = re.compile(r"[ \t]?\([\s,;:/\u2013]*\)")
_STRAY_START = re.compile(r"\([ \t]*[,;:][ \t]*")
_SPACES = re.compile(r"[ \t\u00a0\u2009\u202f]{2,}|[\t\u00a0\u2009\u202f]")
_LINE_ENDS = re.compile(r" \n ?|\n ")
_BLANK_LINES = re.compile(r"\n{3,}")
_LANGUAGE_PREFIX = re.compile(r"[a-z]{2,3}(?:-[a-z]+)*")
_MEDIA = frozenset(
    "file image media category datei bild kategorie fichier catégorie archivo imagen categoría categoria immagine "
    "ficheiro imagem bestand afbeelding categorie fil kategori plik kategoria soubor файл изображение категория 文件 "
    "分类 分類 ファイル カテゴリ 파일 분류".split()
)
# Templates that stand for text: those that show one of their arguments, and those that are a sign.
_SHOWN_ARGUMENT = {"lang": 1, "transl": -1, "nowrap": 0, "nobr": 0, "convert": 0, "cvt": 0, "as of": 0, "sic": 0}
_SIGNS = {"ndash": "–", "mdash": "—", "snd": " – ", "spnd": " – ", "nbsp": " ", "'": "'", "'s": "'s", "!": "|"}


class Namespaces(NamedTuple):
    """What a wiki calls its files and categories, in lower case, beside their common names."""

    media: frozenset[str] = frozenset()


class _Frame(NamedTuple):
    """A bracket that is open, and the text in it so far."""

    opening: str
    parts: list[str]


def to_plain_text(wikitext: str, namespaces: Namespaces | None = None) -> str:
    """Return the running text of an article; its paragraphs are parted by empty lines.

    Args:
        wikitext: the source of the page.
        namespaces: names of files and categories, whose links are left out.
    """
    namespaces = namespaces or Namespaces()
    text = wikitext.replace("\r\n", "\n")
    text = _drop_comments(text)
    text = _drop_elements(text)
    text = _resolve_brackets(text, namespaces)
    text = _PARAGRAPH_TAG.sub("\n\n", _BREAK_TAG.sub("\n", text))
    text = _TAG.sub("", text)
    text = _EXTERNAL_LINK.sub(r"\1", text)
    text = _SWITCH.sub("", _VARIANT.sub(_show_variant, text))
    text = _QUOTES.sub(lambda run: "'" if len(run[0]) == 4 else "", text)
    text = "\n".join("" if _DROPPED_LINE.match(line) else line for line in text.split("\n"))
    text = html.unescape(text)
    text = _EMPTY_BRACKETS.sub("", text)
    text = _STRAY_START.sub("(", text)
    text = _LINE_ENDS.sub("\n", _SPACES.sub(" ", text))
    return _BLANK_LINES.sub("\n\n", text).strip()


def _drop_comments(text: str) -> str:
    """Take out comments; one without an end stays."""
    kept: list[str] = []
    at = 0
    start = -1
    for mark in _COMMENT_MARK.finditer(text):
        if mark[0] == "<!--" and start < 0:
            start = mark.start()
        elif mark[0] == "-->" and start >= 0:
            kept.append(text[at:start])
            at, start = mark.end(), -1
    return "".join([*kept, text[at:]])


def _drop_elements(text: str) -> str:
    """Take out the elements whose content is no running text; of one without an end, the tag alone."""
    tags = list(_DROPPED_TAG.finditer(text))
    last_close = {tag[2].lower(): tag.start() for tag in tags if tag[1]}
    kept: list[str] = []
    at = 0
    inside = ""
    for tag in tags:
        name = tag[2].lower()
        if inside:
            if tag[1] and name == inside:
                inside, at = "", tag.end()
            continue
        kept.append(text[at : tag.start()])
        at = tag.end()
        if not tag[1] and not tag[3].rstrip().endswith("/") and last_close.get(name, -1) > tag.start():
            inside = name
    return "".join([*kept, text[at:]])


def _resolve_brackets(text: str, namespaces: Namespaces) -> str:
    """Put what is shown in place of templates, tables and links, the innermost first."""
    stack = [_Frame("", [])]
    num_open: Counter[str] = Counter()
    at = 0
    for bracket in _BRACKET.finditer(text):
        stack[-1].parts.append(text[at : bracket.start()])
        at = bracket.end()
        mark = bracket[0][-2:]
        opening = _CLOSES.get(mark)
        if opening is None:
            if len(stack) <= _DEEPEST:
                stack.append(_Frame(mark, []))
                num_open[mark] += 1
        elif num_open[opening]:
            _close(stack, num_open, opening, namespaces)
    stack[-1].parts.append(text[at:])
    while len(stack) > 1:
        _give_up(stack, num_open)
    return "".join(stack[0].parts)


def _close(stack: list[_Frame], num_open: Counter[str], opening: str, namespaces: Namespaces) -> None:
    """Close the innermost bracket of a kind; those in it that are still open are none."""
    while stack[-1].opening != opening:
        _give_up(stack, num_open)
    frame = stack.pop()
    num_open[opening] -= 1
    stack[-1].parts.append(_show(opening, "".join(frame.parts), namespaces))


def _give_up(stack: list[_Frame], num_open: Counter[str]) -> None:
    frame = stack.pop()
    num_open[frame.opening] -= 1
    stack[-1].parts.append("".join(frame.parts))


def _show(opening: str, content: str, namespaces: Namespaces) -> str:
    if opening == "[[":
        return _show_link(content, namespaces)
    return _show_template(content) if opening == "{{" else ""


def _show_link(content: str, namespaces: Namespaces) -> str:
    target, bar, label = content.partition("|")
    prefix, colon, rest = target.partition(":")
    prefix = prefix.strip().lower()
    if colon and prefix and rest:
        if prefix in _MEDIA or prefix in namespaces.media:
            return ""
        if not bar and _LANGUAGE_PREFIX.fullmatch(prefix) and not rest.startswith(" "):
            return ""  # the same article in another language
    return label.rpartition("|")[2] if bar else target.removeprefix(":").partition("#")[0] or target.removeprefix("#")


def _show_template(content: str) -> str:
    name, *arguments = content.split("|")
    name = name.strip().lower()
    if name in _SIGNS:
        return _SIGNS[name]
    shown = [argument for argument in arguments if "=" not in argument]
    index = _SHOWN_ARGUMENT.get(name, -1 if name.startswith("lang-") else None)
    if index is None or not shown or index >= len(shown):
        return ""
    if name in ("convert", "cvt") and len(shown) > 1:
        return f"{shown[0].strip()} {shown[1].strip()}"
    return shown[index].strip()


def _show_variant(variant: re.Match[str]) -> str:
    """Return the first of the ways to write a Chinese word."""
    return variant[1].split(";")[0].rpartition(":")[2]
