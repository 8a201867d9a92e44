from __future__ import annotations

import bz2
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.command import ConfigError
from tests.tokenization.documents.inputs import read, read_pieces, source_of, texts, write

DOC = '<doc id="{0}" url="u?curid={0}" title="T{0}">\nT{0}\n\nText &lt;b&gt; of \u2019{0}\u2019 &amp; more.\n\n</doc>\n'
HEAD = (
    '<mediawiki xml:lang="de">\n  <siteinfo>\n    <namespaces>\n      <namespace key="0" case="first-letter" />\n'
    '      <namespace key="6" case="first-letter">Datoteka</namespace>\n    </namespaces>\n  </siteinfo>\n'
)
PAGE = (
    "  <page>\n    <title>T{0}</title>\n    <ns>{1}</ns>\n    <id>{0}</id>{2}\n    <revision>\n"
    "      <model>wikitext</model>\n"
    '      <text bytes="9" xml:space="preserve">{3}</text>\n    </revision>\n  </page>\n'
)
ANY_PIECES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def dump(count: int = 3) -> bytes:
    pages = [
        PAGE.format(
            n, 0, "", f"'''T{n}''' is [[a|b]]{{{{c}}}} &amp;ndash; \u2019{n}\u2019 &lt;ref&gt;r&lt;/ref&gt;end."
        )
        for n in range(count)
    ]
    pages.insert(1, PAGE.format(98, 1, "", "talk"))
    pages.insert(1, PAGE.format(99, 0, '\n    <redirect title="T0" />', "#REDIRECT [[T0]]"))
    return (HEAD + "".join(pages) + "</mediawiki>\n").encode()


def article(n: int) -> str:
    return f"T{n} is b \u2013 \u2019{n}\u2019 end."


@pytest.mark.parametrize("name", ["AA/wiki_00", "AB/wiki_117", "wiki_00.bz2", "any.name"])
def test_wikiextractor_elements(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    content = "".join(DOC.format(n) for n in range(3)).encode()
    write(path, bz2.compress(content) if name.endswith("bz2") else content)
    expected = [f"T{n}\n\nText <b> of \u2019{n}\u2019 & more." for n in range(3)]
    assert texts(path) == expected
    if name != "any.name":
        assert texts(tmp_path) == expected


def test_wikiextractor_json_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path / "wiki_00", b'{"id": "1", "title": "T", "text": "a"}\n{"id": "2", "title": "T", "text": ""}\n'
    )
    assert texts(path) == ["a"]


@pytest.mark.parametrize(
    ("content", "message", "kept", "counts"),
    [
        (
            b'<doc id="1">\na\n<doc id="2">\nb\n</doc>\n',
            r"byte 0 \(line 1\): a <doc> without </doc>",
            ["b"],
            {"documents without their end": 1},
        ),
        (
            b'<doc id="1">\na\n</doc>\n<doc id="2">\nb',
            r"byte 22 \(line 4\): a <doc> without",
            ["a"],
            {"documents without their end": 1},
        ),
        (
            b'<doc id="1">\na\n</doc>\nlost\n<doc id="2">\nb\n</doc>\n',
            r"byte 22 \(line 4\): text that stands in no",
            ["a", "b"],
            {"text outside of documents": 1},
        ),
        (
            b'<doc id="1">\na\n</doc>\nlost\n',
            r"byte 22 \(line 4\): text that stands in no <doc>",
            ["a"],
            {"text outside of documents": 1},
        ),
        (
            b'<doc id="1">\na\n</doc>\n<doc id="2">\n\xff\n</doc>\n',
            r"byte 35 \(line 5\): is not UTF-8 text: 0xFF",
            ["a"],
            {"documents with bytes that are not in the encoding": 1},
        ),
    ],
)
def test_bad_wikiextractor_output(
    tmp_path: Path, content: bytes, message: str, kept: list[str], counts: dict[str, int]
) -> None:
    path = write(tmp_path / "wiki_00", content)
    with pytest.raises(ConfigError, match=message):
        read_pieces(source_of(path, "wikiextractor"), 1)
    documents, faults = read(path, errors="skip")
    assert [document.text for document in documents] == kept
    assert faults.counts == counts


@given(
    fragments=st.lists(
        st.sampled_from(
            [
                b'<doc id="1">\n',
                b"a\n",
                "\u2019\n".encode(),
                b"</doc>\n",
                b"\n",
                b"x<doc y",
                DOC.format(1).encode(),
                b"\xff",
                b"\xef\xbb\xbf",
            ]
        ),
        max_size=30,
    ),
    count=st.integers(2, 12),
    block=st.sampled_from([1, 3, 7, 1 << 20]),
)
@ANY_PIECES
def test_pieces_of_wikiextractor_output(tmp_path: Path, fragments: list[bytes], count: int, block: int) -> None:
    source = source_of(write(tmp_path / "wiki_00", b"".join(fragments)), "wikiextractor", errors="replace")
    whole, whole_faults = read_pieces(source, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenization.documents.streams.read_blocks.__defaults__", (block,))
        parts, part_faults = read_pieces(source, count)
    assert parts == whole
    del whole_faults.counts["files without text"]  # known of whole files alone
    assert part_faults.counts == whole_faults.counts


@pytest.mark.parametrize("name", ["wiki.xml", "wiki.xml.bz2", "dump.bz2", "dump"])
def test_a_mediawiki_dump(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, bz2.compress(dump()) if name.endswith("bz2") else dump())
    documents, faults = read(path)
    assert [document.text for document in documents] == [article(n) for n in range(3)]
    assert faults.dropped == {"redirects": 1, "pages of other namespaces": 1}
    assert not faults.places


def test_pieces_of_a_dump_give_every_document_once(tmp_path: Path) -> None:
    content = dump(400)
    for name in ("wiki.xml", "wiki.xml.bz2"):
        source = source_of(
            write(tmp_path / name, bz2.compress(content) if name.endswith("bz2") else content), "mediawiki"
        )
        for count in (1, 2, 5, 8):
            documents, faults = read_pieces(source, count)
            assert Counter(document.text for document in documents) == Counter(article(n) for n in range(400))
            assert faults.dropped == {"redirects": 1, "pages of other namespaces": 1}


def test_the_wiki_s_own_names_of_files_are_left_out(tmp_path: Path) -> None:
    content = HEAD + PAGE.format(1, 0, "", "[[Datoteka:x.png|thumb|caption]] Text.") + "</mediawiki>"
    assert texts(write(tmp_path / "a.xml", content.encode())) == ["Text."]


def test_the_last_revision_counts(tmp_path: Path) -> None:
    page = PAGE.format(1, 0, "", "old").replace("</revision>", "</revision><revision><text>new</text></revision>")
    assert texts(write(tmp_path / "a.xml", (HEAD + page).encode())) == ["new"]


def test_a_page_without_end(tmp_path: Path) -> None:
    content = dump()
    path = write(tmp_path / "a.xml", content[: content.rindex(b"</page>")])
    with pytest.raises(ConfigError, match=r"a\.xml: byte \d+ \(line \d+\): a <page> without </page>"):
        read_pieces(source_of(path, "mediawiki"), 1)
    documents, faults = read(path, errors="skip")
    assert [document.text for document in documents] == [article(0), article(1)]
    assert faults.counts["documents without their end"] == 1


def test_xml_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.xml: not a MediaWiki dump"):
        texts(write(tmp_path / "a.xml", b"<html><p>x</p></html>"))
