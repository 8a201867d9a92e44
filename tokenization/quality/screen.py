"""What is left out of the shards on request: duplicates, short documents, and what datatrove's filters refuse.

Nothing is left out unless a flag says so, and every drop is counted by its reason.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from runtime.command import ConfigError
from tokenization.quality.filters import FilterSpec, TextFilter
from tokenization.quality.signatures import KINDS


@dataclass(frozen=True)
class Quality:
    """Which documents and lines are left out.

    Args:
        dedup: of `KINDS`: later documents equal to an earlier one, later lines equal to an earlier one.
        min_chars: shortest document that stays, in characters; 0: any.
        filters: what else a document must pass, in this order.
    """

    dedup: tuple[str, ...] = ()
    min_chars: int = 0
    filters: tuple[FilterSpec, ...] = ()

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: one is unknown or out of range.
        """
        for kind in self.dedup:
            if kind not in KINDS:
                raise ConfigError(f"--dedup {kind}: must be one of {', '.join(KINDS)}")
        if self.min_chars < 0:
            raise ConfigError(f"--min-chars {self.min_chars}: must be 0 or more")

    def open(self, language: str) -> Screen:
        """Make the filters and try each on a short text: once before any work, and once in every task.

        Args:
            language: code such as "en", of documents that name none.

        Raises:
            ConfigError: a filter cannot be used (see `FilterSpec.open`).
        """
        return Screen(self, language)

    def settings(self) -> dict[str, Any]:
        """Return what the manifest and the tasks' identities say of it; plain JSON values."""
        return {
            "dedup": list(self.dedup),
            "min_chars": self.min_chars,
            "filters": [str(spec) for spec in self.filters],
        }


class Screen:
    """Judges the documents of one task, one after the other (a sampling filter's draws depend on the order).

    Args:
        quality: what is asked.
        language: of documents that name none.
    """

    def __init__(self, quality: Quality, language: str) -> None:
        self._quality = quality
        self._language = language
        self._filters: dict[str, list[TextFilter]] = {}
        self._filters_for(language)

    def judge(self, text: str, language: str = "") -> tuple[str, str | None]:
        """Return the text, which a filter may have shortened, and why it is to be dropped (None: it stays).

        Args:
            text: a document, not empty.
            language: of this document; "": the screen's.

        Raises:
            ConfigError: a filter fails on this text, or knows no such language.
        """
        reason = self._too_short(text)
        for text_filter in self._filters_for(language or self._language):
            if reason is not None:
                break
            text, reason = text_filter.judge(text)
        return text, reason or self._too_short(text)

    def _too_short(self, text: str) -> str | None:
        return f"shorter than {self._quality.min_chars} characters" if len(text) < self._quality.min_chars else None

    def _filters_for(self, language: str) -> list[TextFilter]:
        if language not in self._filters:
            self._filters[language] = [spec.open(language) for spec in self._quality.filters]
        return self._filters[language]


def add_quality_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that leave documents and lines out."""
    parser.add_argument(
        "--dedup",
        nargs="+",
        choices=KINDS,
        default=[],
        metavar="KIND",
        help="documents: of equal documents keep the first; lines: of equal lines, anywhere in the corpus, keep the "
        "first (white space at the ends and blank lines do not count); or both (default: keep all)",
    )
    parser.add_argument(
        "--min-chars", type=int, default=0, metavar="N", help="drop documents of fewer than N characters (default: 0)"
    )
    parser.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="NAME[:KEY=VALUE,...]",
        help="drop what a filter of datatrove refuses, for example GopherQualityFilter:min_doc_words=20,"
        "max_doc_words=5000 or 'RegexFilter:regex_exp=lorem ipsum'; may be given more than once, and they are asked "
        "in that order (default: none)",
    )


def read_quality(arguments: argparse.Namespace) -> Quality:
    """Return what the flags ask for.

    Raises:
        ConfigError: a flag's value is refused.
    """
    kinds = tuple(kind for kind in KINDS if kind in arguments.dedup)
    return Quality(kinds, arguments.min_chars, tuple(FilterSpec.parse(text) for text in arguments.filter))
