"""Draws text by chance from the whole input, up to a budget of bytes, without reading what is not drawn.

A file that can be cut is drawn in pieces of about 1 MiB. A file that must be read through (compressed, or with pieces
that are large beside the budget) is drawn document by document. A piece or document is drawn where a hash of the seed
and its place is small enough; a piece also where chance has left the sample a tenth of the budget behind its due, so
that every larger file takes part. How much text a file holds is only estimated before it is read: where less came out
than was expected, another round draws from the rest. Nothing depends on the number of workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tokenization.documents import Piece, Source

LEAST_FILLED = 0.9
"""Share of the budget that ends the rounds."""
_UNIT_BYTES = 1 << 20
_LARGEST_LAG = 0.1
_LARGEST_UNIT_SHARE = 64
_LARGEST_UNIT_BYTES = 4 << 20
_TASK_BYTES = 8 << 20
_READ_BYTES = 64 << 20
_MOST_TASKS = 256
# The last round takes all that is left, for input whose estimates are far off.
_MOST_ROUNDS = 4
_HASH_BITS = 64


class Draw(NamedTuple):
    """What is taken of a piece: documents whose `document_draw` lies in [low, high); all where that is [0, 1).

    Args:
        piece: see `Piece`.
        low: 0 to 1.
        high: 0 to 1.
        expected_bytes: text that this should give.
        read_bytes: text that is read for it.
    """

    piece: Piece
    low: float
    high: float
    expected_bytes: int
    read_bytes: int


class SampleTask(NamedTuple):
    """What one task takes.

    Args:
        draws: in order.
        most_bytes: most UTF-8 bytes of text; what goes beyond is left out.
    """

    draws: tuple[Draw, ...]
    most_bytes: int

    @property
    def read_bytes(self) -> int:
        """Bytes of text that are read, estimated; 1 or more."""
        return max(1, sum(draw.read_bytes for draw in self.draws))


class _Unit(NamedTuple):
    piece: Piece
    text_bytes: int


@dataclass
class Sampler:
    """Plans rounds until the budget is filled or nothing is left.

    Call `next_round`, do its tasks, and tell `add` what came out, until `next_round` gives nothing.

    Args:
        sources: all input files.
        budget_bytes: most UTF-8 bytes of text.
        seed: another seed draws other text.
    """

    sources: Sequence[Source]
    budget_bytes: int
    seed: int
    used_bytes: int = 0
    num_rounds: int = 0
    _expected: int = 0
    _left: list[_Unit] = field(default_factory=list)
    _through: list[int] = field(default_factory=list)
    _taken_share: float = 0.0

    def __post_init__(self) -> None:
        """Cut the files; nothing is read."""
        for index, source in enumerate(self.sources):
            if self._is_read_through(source):
                self._through.append(index)
                continue
            count = _num_units(source)
            self._left += [_Unit(Piece(index, piece, count), source.text_bytes // count) for piece in range(count)]

    @property
    def is_exhausted(self) -> bool:
        """Whether all of the input has been drawn."""
        return not self._left and (not self._through or self._taken_share >= 1)

    def next_round(self) -> list[SampleTask]:
        """Return the tasks of the next round; none when the sample is full, or all has been drawn."""
        is_full = self.used_bytes >= LEAST_FILLED * self.budget_bytes
        if is_full or self.is_exhausted or self.num_rounds == _MOST_ROUNDS:
            return []
        self.num_rounds += 1
        draws = self._draw(self._share())
        expected = sum(draw.expected_bytes for draw in draws)
        self._expected += expected
        budget_left = self.budget_bytes - self.used_bytes
        groups = _group(draws)
        return [SampleTask(tuple(group), budget_left * _expect(group) // max(1, expected)) for group in groups]

    def add(self, used_bytes: int) -> None:
        """Tell how many bytes of text the tasks of the round gave."""
        self.used_bytes += used_bytes

    def _is_read_through(self, source: Source) -> bool:
        largest = max(_LARGEST_UNIT_BYTES, self.budget_bytes // _LARGEST_UNIT_SHARE)
        return source.is_stream or source.text_bytes // _num_units(source) > largest

    def _share(self) -> float:
        """Return which share of what is left must be drawn."""
        through = sum(self.sources[index].text_bytes for index in self._through)
        left = sum(unit.text_bytes for unit in self._left) + (1 - self._taken_share) * through
        wanted: float = self.budget_bytes - self.used_bytes
        if self._expected:
            wanted /= max(self.used_bytes / self._expected, 1e-9)
        return 1.0 if self.num_rounds == _MOST_ROUNDS or wanted >= left else wanted / left

    def _draw(self, share: float) -> list[Draw]:
        """Draw a share of what is left; documents and pieces drawn before are not drawn again."""
        low = self._taken_share
        self._taken_share = 1.0 if share >= 1 else low + share * (1 - low)
        drawn = [draw for index in self._through for draw in self._draw_documents(index, low)]
        units, self._left = self._left, []
        largest_lag = _LARGEST_LAG * share * sum(unit.text_bytes for unit in units)
        seen_bytes = drawn_bytes = 0
        for unit in units:
            seen_bytes += unit.text_bytes
            is_behind = drawn_bytes < share * seen_bytes - largest_lag
            if is_behind or self._unit_draw(unit.piece) < share:
                drawn_bytes += unit.text_bytes
                drawn.append(Draw(unit.piece, 0.0, 1.0, unit.text_bytes, unit.text_bytes))
            else:
                self._left.append(unit)
        return sorted(drawn, key=lambda draw: draw.piece)

    def _draw_documents(self, index: int, low: float) -> list[Draw]:
        source = self.sources[index]
        expected = int((self._taken_share - low) * source.text_bytes)
        count = source.num_pieces
        if source.is_stream:  # each piece reads all of it
            count = min(count, max(1, expected // _READ_BYTES))
        read = source.text_bytes if source.is_stream else source.text_bytes // count
        return [
            Draw(Piece(index, piece, count), low, self._taken_share, expected // count, read) for piece in range(count)
        ]

    def _unit_draw(self, piece: Piece) -> float:
        return draw_number(self.seed, "piece", self.num_rounds, piece.source, piece.index)


def document_draw(seed: int, source: int, offset: int) -> float:
    """Return the number, 0 <= number < 1, by which a document of a file that is read through is drawn."""
    return draw_number(seed, "document", source, offset)


def draw_number(*place: object) -> float:
    """Return a number, 0 <= number < 1, that is uniform over places and always the same for one."""
    digest = hashlib.blake2b("/".join(map(str, place)).encode(), digest_size=_HASH_BITS // 8).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)  # all 53 bits that a float holds


def _num_units(source: Source) -> int:
    return max(1, min(source.num_pieces, -(-source.text_bytes // _UNIT_BYTES)))


def _expect(draws: Sequence[Draw]) -> int:
    return sum(draw.expected_bytes for draw in draws)


def _group(draws: Sequence[Draw]) -> list[list[Draw]]:
    """Put draws together to tasks of about as much text, not more than a few hundred."""
    most_expected = max(_TASK_BYTES, _expect(draws) // _MOST_TASKS)
    most_read = max(_READ_BYTES, sum(draw.read_bytes for draw in draws) // _MOST_TASKS)
    groups: list[list[Draw]] = []
    expected = read = 0
    for draw in draws:
        is_full = expected + draw.expected_bytes > most_expected or read + draw.read_bytes > most_read
        if not groups or is_full:
            groups.append([])
            expected = read = 0
        groups[-1].append(draw)
        expected += draw.expected_bytes
        read += draw.read_bytes
    return groups
