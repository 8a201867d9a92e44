"""The page: whole, self-contained, and without a tag that came from the corpus."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from pretrain.audit.figures import Audit
from pretrain.audit.findings import find
from pretrain.audit.page import render_page, shown
from pretrain.audit.samples import KEPT, MASKED, PLAIN, REPLACED, SPECIAL, Mark, Sample
from pretrain.audit.text import render_text
from tests.pretrain.audit.workshop import FIRST_WORD, HOSTILE, Workshop

TAGS = set(
    "html head meta title style body header h1 h2 h3 p code bdi div span b s br table thead tbody tr th td "
    "svg rect line text polyline".split()
)
ATTRIBUTES = set(
    "lang charset http-equiv content name class role aria-label viewbox x y x1 y1 x2 y2 width height text-anchor "
    "points".split()
)
VOID = {"meta", "br"}


class Page(HTMLParser):
    """Reads a page as a browser would, and keeps what it is made of."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: dict[str, list[str]] = {}
        self.texts: list[str] = []
        self.open: list[str] = []
        self.isolated: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data)
            if "bdi" in self.open:
                self.isolated.append(data)


@pytest.fixture
def hostile_audit(workshop: Workshop) -> Audit:
    """Shards of hostile tokens, in a manifest of hostile reasons and places."""
    words = list(range(5, FIRST_WORD))
    line = [*words, FIRST_WORD]
    documents = [[[*words, FIRST_WORD + number], line, [*words[::-1], FIRST_WORD + number]] * 4 for number in range(8)]
    places = [{"path": "<img src=x onerror=alert(1)>", "offset": 7, "reason": "<b>", "detail": "\u202e\x00'\""}]
    shards = workshop.shards(
        [documents],
        [documents[:1]],
        dropped={"<script>alert(2)</script>": 7},
        repaired={"<i>": 3, '"x"': 0},
        places=places,
    )
    audit = workshop.audit(shards, seq_len=48)
    # each kind of mark with each hostile text, which a drawn sample may miss
    kinds = (PLAIN, SPECIAL, MASKED, KEPT, REPLACED)
    marks = tuple(Mark(kind, text, text, False) for kind in kinds for text in HOSTILE)
    audit = replace(audit, samples=(Sample(0, "next", 48, marks), *audit.samples))
    return replace(audit, shards_dir='/tmp/"><script>alert(3)</script>', damaged=("<u>x</u>\u202e",))


def test_nothing_of_the_corpus_becomes_markup(hostile_audit):
    source = render_page(hostile_audit, find(hostile_audit))
    page = Page(source)
    assert set(page.tags) <= TAGS
    assert set(page.attributes) <= ATTRIBUTES
    # what the tags would have been stands there to be read
    isolated = "".join(page.isolated)
    for text in (
        "<script>alert(1)</script>",
        '"onload=',
        "'onerror='",
        "&amp;",
        "⟨U+202E⟩odd",
        "bell⟨U+0007⟩",
        "</bdi>",
    ):
        assert text in isolated
    for text in ("<script>alert(2)</script>", "<script>alert(3)</script>", "<img src=x onerror=alert(1)>", "<u>x</u>"):
        assert text in isolated
    foreign = "".join(text for text in page.texts if text not in page.isolated)
    assert "alert" not in foreign
    assert "onload" not in foreign


def test_no_character_acts_in_secret(hostile_audit):
    source = render_page(hostile_audit, find(hostile_audit))
    text = render_text(hostile_audit, find(hostile_audit))
    for sign in "\x00\x07\x1b\u202e":
        assert sign not in source
        assert sign not in text
    assert "⟨U+001B⟩" in text or "⟨U+202E⟩" in text


def test_a_clean_page_has_the_same_kinds_of_tags(hostile_audit, workshop):
    """Replaced by harmless words, the corpus gives the same sequence of tags: markup does not depend on it."""
    harmless = {ord(sign): "x" for sign in "<>&\"'\x00\x07\x1b\u202e"}

    def clean(value):
        if isinstance(value, str):
            return value.translate(harmless)
        if isinstance(value, tuple):
            return tuple(clean(item) for item in value)
        if isinstance(value, dict):
            return {clean(key): clean(item) for key, item in value.items()}
        if isinstance(value, list):
            return [clean(item) for item in value]
        if hasattr(value, "__dataclass_fields__"):
            return replace(value, **{name: clean(getattr(value, name)) for name in value.__dataclass_fields__})
        return value

    cleaned = clean(hostile_audit)
    assert cleaned != hostile_audit
    assert Page(render_page(cleaned, find(cleaned))).tags == Page(render_page(hostile_audit, find(hostile_audit))).tags


def test_the_page_loads_nothing(hostile_audit):
    source = render_page(hostile_audit, find(hostile_audit))
    page = Page(source)
    assert not {"script", "link", "img", "iframe", "object", "image", "use", "a"} & set(page.tags)
    assert not re.search(r"url\(|@import|https?:", source)
    assert "default-src 'none'" in page.attributes["content"][0]
    assert "prefers-color-scheme: dark" in source


@pytest.mark.parametrize("text", HOSTILE)
def test_foreign_text_is_escaped_and_isolated(text):
    assert re.fullmatch(r"<bdi>[^<>\"'\x00-\x1f\u202e]*</bdi>", shown(text))


def test_plots_have_a_bar_for_each_length(hostile_audit):
    audit = hostile_audit
    page = Page(render_page(audit, find(audit)))
    lengths = [audit.train.sentence_tokens, audit.train.document_sentences, audit.train.document_tokens]
    assert page.tags.count("rect") == sum(len(one.bars) for one in [*lengths, audit.pairs["train"].lengths] if one.bars)
    assert page.tags.count("svg") == 5


def test_a_page_without_pairs(workshop):
    audit = workshop.audit(workshop.shards([[[[FIRST_WORD] * 5]]]))
    page = Page(render_page(audit, find(audit)))
    text = " ".join(page.texts)
    assert "There are no pairs." in text
    assert "next-sentence prediction needs 2 documents or more" in text


def test_the_text_is_short(hostile_audit):
    lines = render_text(hostile_audit, find(hostile_audit)).splitlines()
    assert len(lines) <= 75
    assert max(len(line) for line in lines) <= 112
