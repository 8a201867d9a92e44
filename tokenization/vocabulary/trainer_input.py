"""Counted words for Hugging Face's trainers, which take text alone and count with 32 bits.

Pairs of pieces are counted there with 31 bits and a sign. So where all words together have more characters than that,
the counts are divided by a common factor first; then no pair, whatever it is, can be counted past the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

MOST_CHARACTERS = 2**31 - 1
_REPEATS_A_LINE = 1000


def fit_counts(
    words: Mapping[str, int], min_frequency: int, most_characters: int = MOST_CHARACTERS
) -> tuple[Counter[str], int]:
    """Divide counts so that no sum over them overflows.

    Args:
        words: count of each word.
        min_frequency: least count of a pair that is merged.
        most_characters: most characters that all words may have in all.

    Returns:
        The counts, rounded, words whose count is rounded to 0 left out; and the least count divided likewise, 1 or
        more. Both are as they were where nothing must be divided.
    """
    total = sum(len(word) * count for word, count in words.items())
    # Rounding adds half a count a word at most.
    divisor = 1
    while True:
        fitted = Counter(
            {word: quotient for word, count in words.items() if (quotient := (2 * count + divisor) // (2 * divisor))}
        )
        if sum(len(word) * count for word, count in fitted.items()) <= most_characters:
            return fitted, -(-min_frequency // divisor)
        divisor = max(divisor + 1, -(-total // most_characters))


def trainer_lines(words: Mapping[str, int]) -> Iterator[str]:
    """Yield lines in which each word stands as often as it was counted; the trainers take no counts."""
    for word in sorted(words):
        full, rest = divmod(words[word], _REPEATS_A_LINE)
        line = f"{word} "
        for _ in range(full):
            yield line * _REPEATS_A_LINE
        if rest:
            yield line * rest
