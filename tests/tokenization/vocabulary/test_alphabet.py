from __future__ import annotations

from collections import Counter

import pytest

from tokenization.vocabulary.alphabet import choose_alphabet, count_characters, script_of, script_of_word


@pytest.mark.parametrize(
    ("character", "script"),
    [
        ("a", "Latin"),
        ("é", "Latin"),
        ("Ａ", "Latin"),
        ("я", "Cyrillic"),
        ("字", "Cjk"),
        ("豈", "Cjk"),
        ("か", "Hiragana"),
        ("ｶ", "Katakana"),
        ("한", "Hangul"),
        ("\u0939", "Devanagari"),
        ("\u093f", "Devanagari"),
        ("5", "digits"),
        ("٥", "digits"),
        (",", "punctuation and signs"),
        ("😀", "punctuation and signs"),
        ("\u0301", "punctuation and signs"),
        ("\ue000", "unnamed"),
        ("\x00", "unnamed"),
    ],
)
def test_scripts(character: str, script: str) -> None:
    assert script_of(character) == script


def test_the_script_of_a_word_is_that_of_its_first_letter() -> None:
    assert [script_of_word(word) for word in ("«да", "12", "'", "")] == [
        "Cyrillic",
        "digits",
        "punctuation and signs",
        "unnamed",
    ]


def test_rare_characters_are_left_out_and_counted_by_script() -> None:
    characters = count_characters({"aab": 3, "я字": 1, "ж": 1})
    assert characters == Counter({"a": 6, "b": 3, "я": 1, "字": 1, "ж": 1})
    alphabet = choose_alphabet(characters, 3)
    assert alphabet.kept == ("a", "b", "ж")
    assert alphabet.dropped_first == ("я", "字")
    assert (alphabet.num_dropped, alphabet.dropped_share) == (2, pytest.approx(2 / 12))
    assert alphabet.dropped_scripts == {"Cjk": 1, "Cyrillic": 1}


def test_some_characters_are_always_kept() -> None:
    alphabet = choose_alphabet(Counter({"a": 5, "b": 1}), 1, always=("b", "z"))
    assert alphabet.kept == ("a", "b", "z")
    assert (alphabet.num_dropped, alphabet.dropped_share) == (0, 0)
