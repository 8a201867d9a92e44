"""What the quality flags ask for, and the reasons for which documents are dropped."""

from __future__ import annotations

import argparse
import json
import pickle

import pytest

from runtime.command import ConfigError
from tokenization.quality import screen
from tokenization.quality.filters import FilterSpec
from tokenization.quality.screen import Quality, add_quality_arguments, read_quality


def read(*flags: str) -> Quality:
    parser = argparse.ArgumentParser()
    add_quality_arguments(parser)
    return read_quality(parser.parse_args(flags))


def test_nothing_is_dropped_unless_asked() -> None:
    assert read() == Quality()
    assert read().open("en").judge(".") == (".", None)
    assert read().settings() == {"dedup": [], "min_chars": 0, "filters": []}


def test_flags_are_read() -> None:
    found = read(
        "--dedup", "lines", "documents", "lines", "--min-chars", "9",
        "--filter", "RegexFilter:regex_exp=x,y", "--filter", "C4ParagraphFilter",
    )  # fmt: skip
    assert found == Quality(
        ("documents", "lines"),
        9,
        (FilterSpec("RegexFilter", {"regex_exp": "x,y"}), FilterSpec("C4ParagraphFilter", {})),
    )
    assert json.loads(json.dumps(found.settings())) == {
        "dedup": ["documents", "lines"],
        "min_chars": 9,
        "filters": ['RegexFilter:regex_exp="x,y"', "C4ParagraphFilter"],
    }
    assert pickle.loads(pickle.dumps(found)) == found


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--min-chars -1: must be 0 or more"):
        read("--min-chars", "-1")
    with pytest.raises(ConfigError, match=r"--dedup words: must be one of documents, lines"):
        Quality(dedup=("words",))
    with pytest.raises(ConfigError, match=r"--filter Nothing: no such filter"):
        read("--filter", "Nothing")


def test_length_counts_characters() -> None:
    screen = Quality(min_chars=4).open("en")
    assert screen.judge("äöü") == ("äöü", "shorter than 4 characters")
    assert screen.judge("äöüß") == ("äöüß", None)


def test_the_first_reason_counts() -> None:
    screen = read("--min-chars", "3", "--filter", "RegexFilter:regex_exp=b", "--filter", "C4ParagraphFilter").open("en")
    assert screen.judge("ab")[1] == "shorter than 3 characters"
    assert screen.judge("abc")[1] == "filter RegexFilter"
    assert screen.judge("acc")[1] == "filter C4ParagraphFilter: < 3 paragraphs"


class Shortening:
    """Stands for a filter that edits: keeps the first word, in capitals where the language is German."""

    def __init__(self, language: str) -> None:
        self.language = language

    def judge(self, text: str) -> tuple[str, str | None]:
        first = text.split(maxsplit=1)[0]
        return (first.upper() if self.language == "de" else first), None


@pytest.fixture
def opened_languages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    opened: list[str] = []

    def make(spec: FilterSpec, language: str) -> Shortening:
        opened.append(language)
        return Shortening(language)

    monkeypatch.setattr(screen.FilterSpec, "open", make)
    return opened


def test_what_a_filter_leaves_is_what_goes_on(opened_languages: list[str]) -> None:
    screen = Quality(min_chars=3, filters=(FilterSpec("C4QualityFilter", {}),)).open("en")
    assert screen.judge("word and more") == ("word", None)
    assert screen.judge("an apple")[1] == "shorter than 3 characters"


def test_each_language_has_its_filters_once(opened_languages: list[str]) -> None:
    screen = Quality(filters=(FilterSpec("C4QualityFilter", {}),)).open("en")
    assert opened_languages == ["en"]  # before any document: what is missing shows at once
    assert [screen.judge("ein wort", language)[0] for language in ("de", "", "de", "en")] == [
        "EIN",
        "ein",
        "EIN",
        "ein",
    ]
    assert opened_languages == ["en", "de"]
