"""Sorted files of counted words: written in parts, merged line by line, never more than a part in memory.

A file has a line "word<TAB>count" for each word, in the order of code points.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tokenization.vocabulary.words import WordSplitter, chunks

MOST_WORDS = 2_000_000
"""Different words that a vocabulary is learned from at most: about 300 bytes of memory each."""
_MOST_STRETCHES = 500_000
_MOST_CHARS = 16 << 20
_MOST_OPEN_FILES = 128


@dataclass(frozen=True)
class CountedWords:
    """The most frequent words of a text.

    Args:
        words: count of each.
        characters: count of each character, over all words.
        num_words: different words there were.
        num_occurrences: words there were.
        dropped_occurrences: occurrences of the words that are left out.
    """

    words: dict[str, int]
    characters: Counter[str]
    num_words: int
    num_occurrences: int
    dropped_occurrences: int


class WordCounter:
    """Counts the words of texts into a file, in bounded memory.

    Args:
        splitter: how text is cut into words.
        path: the file to be; files of its own beginning with its name may stand beside it until `close`.
    """

    def __init__(self, splitter: WordSplitter, path: Path) -> None:
        self._splitter = splitter
        self._path = path
        self._stretches: Counter[str] = Counter()
        self._chars = 0
        self._runs: list[Path] = []

    def add(self, text: str) -> None:
        """Count the words of a text."""
        for chunk in chunks(text):
            self._stretches.update(self._splitter.stretches(chunk))
            self._chars += len(chunk)
            if len(self._stretches) > _MOST_STRETCHES or self._chars > _MOST_CHARS:
                self._spill()

    def close(self) -> None:
        """Write the file of all counts."""
        self._spill()
        if len(self._runs) == 1:
            os.replace(self._runs[0], self._path)
            return
        write_counts(self._path, read_counts(join_counts(self._runs, self._path)))
        for path in sorted(self._path.parent.glob(f"{self._path.name}.*")):
            path.unlink()

    def _spill(self) -> None:
        run = self._path.with_name(f"{self._path.name}.run-{len(self._runs):05d}")
        write_counts(run, sorted(self._splitter.count_words(self._stretches).items()))
        self._runs.append(run)
        self._stretches = Counter()
        self._chars = 0


def read_counts(paths: Sequence[Path]) -> Iterator[tuple[str, int]]:
    """Merge files of counts.

    Args:
        paths: so few that all can be open at once (see `join_counts`).

    Yields:
        Each word once, with the sum of its counts, in the order of code points.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(open(path, encoding="utf-8", newline="\n")) for path in paths]
        current, total = "", 0
        for word, count in heapq.merge(*map(_parse, files)):
            if word != current:
                if total:
                    yield current, total
                current, total = word, 0
            total += count
        if total:
            yield current, total


def join_counts(paths: Sequence[Path], target: Path, most_files: int = _MOST_OPEN_FILES) -> list[Path]:
    """Merge files of counts until they are so few that all can be open at once.

    Args:
        paths: the files; they stay.
        target: new files stand beside it and begin with its name.
        most_files: how many there may be, 2 or more.

    Returns:
        Files that hold the same counts.
    """
    left = list(paths)
    number = 0
    while len(left) > most_files:
        batch, left = left[:most_files], left[most_files:]
        joined = target.with_name(f"{target.name}.joined-{number:05d}")
        write_counts(joined, read_counts(batch))
        left.append(joined)
        number += 1
    return left


def write_counts(path: Path, counts: Iterable[tuple[str, int]]) -> None:
    """Write a file of counts, line by line; it is whole or not there.

    Args:
        path: where.
        counts: words, ascending, and their counts.
    """
    partial = path.with_name(f"{path.name}.partial")
    with open(partial, "w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(f"{word}\t{count}\n" for word, count in counts)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(partial, path)


def keep_frequent(counts: Iterable[tuple[str, int]], most_words: int = MOST_WORDS) -> CountedWords:
    """Keep the most frequent words, among equals those of the lower code points.

    Args:
        counts: each word once, ascending.
        most_words: different words kept at most; a quarter more are in memory at times.
    """
    words: dict[str, int] = {}
    characters: Counter[str] = Counter()
    num_words = num_occurrences = floor = 0
    for word, count in counts:
        num_words += 1
        num_occurrences += count
        for character in word:
            characters[character] += count
        if count > floor:  # an equal one comes behind those that are kept, by its text
            words[word] = count
            if len(words) > most_words + most_words // 4:
                floor = _thin(words, most_words)
    if len(words) > most_words:
        _thin(words, most_words)
    kept = sum(words.values())
    return CountedWords(words, characters, num_words, num_occurrences, num_occurrences - kept)


def _thin(words: dict[str, int], most_words: int) -> int:
    """Delete the rarest words, of equals the last ones; return the least count that is kept."""
    ranked = sorted(words.values(), reverse=True)
    floor = ranked[most_words - 1]
    equals_left = most_words - sum(1 for count in ranked[:most_words] if count > floor)
    for word in list(words):
        count = words[word]
        if count == floor and equals_left:
            equals_left -= 1
        elif count <= floor:
            del words[word]
    return floor


def _parse(lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    for line in lines:
        word, _, count = line.rpartition("\t")
        yield word, int(count)
