"""Which characters a vocabulary keeps, what is lost with the others, and which scripts they belong to."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

ALPHABET_LIMIT = 1000
_SHOWN_CHARACTERS = 10
# The first words of names such as "FULLWIDTH LATIN SMALL LETTER A" that say how a character looks, not what it is.
_FORMS = frozenset(
    {"FULLWIDTH", "HALFWIDTH", "MODIFIER", "MATHEMATICAL", "CIRCLED", "PARENTHESIZED", "SQUARED", "BOLD"}
)
_LETTER_CATEGORIES = ("L", "M")


@dataclass(frozen=True)
class Alphabet:
    """The characters of a text that a vocabulary keeps.

    Args:
        kept: characters kept, by code point.
        num_dropped: how many different ones are left out.
        dropped_share: their share of all characters of the text, 0 to 1.
        dropped_first: the most frequent of them.
        dropped_scripts: how many of them belong to each script, most first.
    """

    kept: tuple[str, ...]
    num_dropped: int
    dropped_share: float
    dropped_first: tuple[str, ...]
    dropped_scripts: Mapping[str, int]


def count_characters(words: Mapping[str, int]) -> Counter[str]:
    """Count the characters of counted words."""
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    return characters


def choose_alphabet(characters: Mapping[str, int], limit: int, always: Iterable[str] = ()) -> Alphabet:
    """Keep the most frequent characters, among equals those of the lower code point.

    Args:
        characters: count of each.
        limit: most characters kept.
        always: characters kept beyond the limit, and whether they occur or not.
    """
    ranked = sorted(characters, key=lambda character: (-characters[character], character))
    kept = {*ranked[:limit], *always}
    dropped = [character for character in ranked[limit:] if character not in kept]
    total = sum(characters.values())
    scripts = Counter(script_of(character) for character in dropped)
    return Alphabet(
        kept=tuple(sorted(kept)),
        num_dropped=len(dropped),
        dropped_share=sum(characters[character] for character in dropped) / max(1, total),
        dropped_first=tuple(dropped[:_SHOWN_CHARACTERS]),
        dropped_scripts=dict(sorted(scripts.items(), key=lambda item: (-item[1], item[0]))),
    )


@lru_cache(maxsize=1 << 16)
def script_of(character: str) -> str:
    """Return the script of a character, from the first words of its name in Unicode.

    Returns:
        Such as "Latin", "Cyrillic" or "Cjk"; "digits", "punctuation and signs", or "unnamed" for what has no name
        (private use, control characters, unassigned).
    """
    category = unicodedata.category(character)
    if category == "Nd":
        return "digits"
    words = [word for word in unicodedata.name(character, "").split() if word not in _FORMS]
    if not words:
        return "unnamed"
    if not category.startswith(_LETTER_CATEGORIES) or words[0] == "COMBINING":
        return "punctuation and signs"
    return words[0].split("-")[0].capitalize()


def script_of_word(word: str) -> str:
    """Return the script of a word: that of its first letter, or of its first character where it has none."""
    letters = (character for character in word if unicodedata.category(character).startswith("L"))
    return script_of(next(letters, word[:1] or "\0"))
