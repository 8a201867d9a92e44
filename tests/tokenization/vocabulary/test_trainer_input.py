from __future__ import annotations

from collections import Counter

from tokenization.vocabulary.trainer_input import MOST_CHARACTERS, fit_counts, trainer_lines


def test_counts_that_fit_stay_as_they_are() -> None:
    assert fit_counts({"ab": 3, "c": 1}, 2, most_characters=7) == ({"ab": 3, "c": 1}, 2)


def test_counts_that_do_not_fit_are_divided() -> None:
    # 2 * 6 + 3 = 15 characters; by 2: 2 * 3 + 2 = 8; by 3 (15 / 7 rounded up): 2 * 2 + 1 = 5
    assert fit_counts({"ab": 6, "c": 3}, 4, most_characters=7) == ({"ab": 2, "c": 1}, 2)


def test_words_that_are_rounded_to_nothing_are_left_out() -> None:
    fitted, least = fit_counts({"a": 1_000, "b": 4, "c": 5}, 1, most_characters=101)
    assert fitted == {"a": 100, "c": 1}
    assert least == 1


def test_counts_above_32_bits_come_below_31_bits() -> None:
    fitted, _ = fit_counts({"ab": 10 * 2**32, "cd": 5 * 2**32, "e": 1}, 2)
    assert 0.9 * MOST_CHARACTERS < sum(len(word) * count for word, count in fitted.items()) <= MOST_CHARACTERS
    assert abs(fitted["ab"] - 2 * fitted["cd"]) <= 1
    assert "e" not in fitted


def test_each_word_stands_as_often_as_it_was_counted() -> None:
    lines = list(trainer_lines({"b": 2_001, "a": 3}))
    assert [len(line) for line in lines] == [6, 2_000, 2_000, 2]
    assert Counter(" ".join(lines).split()) == {"b": 2_001, "a": 3}
