"""Documents to sentences: nothing is lost, and the ends are where a reader would see them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.command import ConfigError
from tokenization.sentences import _WINDOW_CHARS, check_language, split_sentences


def squeezed(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Mr. Fox came. He left.", ["Mr. Fox came.", "He left."]),
        ('He said. "Come in. Sit down." She left.', ["He said.", '"Come in.', 'Sit down."', "She left."]),
        ("\u201cYes. No.\u201d he said. Then we go.", ["\u201cYes.", "No.\u201d he said.", "Then we go."]),
        ('"Is it? Now?" she asked. He left.', ['"Is it?', 'Now?" she asked.', "He left."]),
        ("One line\nthe same sentence.", ["One line\nthe same sentence."]),
        ("A paragraph without an end\n\nAnother one", ["A paragraph without an end", "Another one"]),
        ('"', ['"']),
        ("  ", []),
    ],
)
def test_ends_by_the_rules_of_english(text: str, sentences: list[str]) -> None:
    assert split_sentences(text, "auto", "en") == sentences


def test_other_languages_have_other_ends() -> None:
    assert split_sentences("日本。語。「はい。いいえ。」と言った。", "auto", "ja") == [
        "日本。",
        "語。",
        "「はい。",
        "いいえ。」",
        "と言った。",
    ]
    assert split_sentences("यह है। वह था।", "auto", "hi") == ["यह है।", "वह था।"]


def test_line_ends_can_end_sentences_too() -> None:
    text = "A heading\nMr. Fox came. He left.\n\nA list\n"
    assert split_sentences(text, "paragraph", "en") == ["A heading", "Mr. Fox came.", "He left.", "A list"]


def test_lines_are_taken_as_they_are() -> None:
    assert split_sentences("Mr. Fox. \n\n He left", "line", "en") == ["Mr. Fox.", "He left"]


@given(
    st.text(
        alphabet=st.sampled_from(list("aB1.?! \n\t\u00a0\u3000\"'()\u201c\u201d\u00ab\u00bb\u300c\u300d。é\u0301")),
        max_size=60,
    )
)
def test_no_character_is_lost_or_doubled(text: str) -> None:
    for language in ("en", "de", "ja"):
        sentences = split_sentences(text, "auto", language)
        assert squeezed("".join(sentences)) == squeezed(text)
        assert all(sentence == sentence.strip() != "" for sentence in sentences)


def test_a_long_document_is_cut_in_windows_without_a_seam() -> None:
    sentences = [f'Number {number} said "go on. Now." and left.' for number in range(10_000)]
    assert len(" ".join(sentences)) > 5 * _WINDOW_CHARS
    cut = split_sentences(" ".join(sentences), "auto", "en")
    assert cut == [part for sentence in sentences for part in split_sentences(sentence, "auto", "en")]
    endless = "word " * 100_000
    assert split_sentences(endless, "auto", "en") == [endless.strip()]


@pytest.mark.timeout(60)
def test_time_grows_with_the_text_not_with_its_square() -> None:
    text = 'He said "go on. Now." and left. ' * 100_000  # 3.2 MB; with the square it would take minutes
    assert len(split_sentences(text, "auto", "en")) == 200_000


@pytest.mark.parametrize("space", ["\u00a0", "\u2009", "\u2028", "\u3000", "\u0085"])
def test_a_wide_space_before_a_stop_is_no_trap(space: str) -> None:
    """sentencex 1.0.32 panics on these."""
    for text in (f"vitamine A{space}.", f"See Figure A{space}. Then", f"J{space}. K. Rowling", f'"A{space}."{space}B'):
        for language in ("en", "fr", "ja"):
            assert squeezed("".join(split_sentences(text, "auto", language))) == squeezed(text)


def test_two_documents_written_in_many_ways_have_six_sentences() -> None:
    wanted = ["The fox sees.", "The dog hears.", "The cat sleeps."]
    for text in (
        "The fox sees. The dog hears. The cat sleeps.",
        "The fox sees.  The dog hears.  The cat sleeps.",
        "The fox\tsees. The dog\thears. The cat\tsleeps.",
    ):
        assert [sentence.replace("\t", " ") for sentence in split_sentences(text, "auto", "en")] == wanted


@pytest.mark.parametrize("language", ["English", "", "EN", "e", "en_US"])
def test_a_language_is_a_code(language: str) -> None:
    with pytest.raises(ConfigError, match=r"--language .*: a language code is wanted"):
        check_language(language)
