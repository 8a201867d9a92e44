"""Cuts the input into tasks and reads their pieces. All of it depends on the input alone, never on workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenization.documents.faults import Faults
from tokenization.documents.model import Document, Piece, Source
from tokenization.documents.readers import read
from tokenization.documents.reading import Reading

TASK_BYTES = 4 << 20
MOST_TASKS = 1024
# Pieces a task, so that tasks of several files come out about equal.
_FINENESS = 4


def cut(sources: Sequence[Source], num_tasks: int | None = None) -> list[tuple[Piece, ...]]:
    """Cut the input into tasks of about equal text, in the order of the input.

    Args:
        sources: the files.
        num_tasks: how many at most; fewer where the input cannot be cut so often. None: one for 4 MiB of text, at
            most 1024.

    Returns:
        The pieces of each task; no task is empty.
    """
    total = sum(source.text_bytes for source in sources)
    if num_tasks is None:
        num_tasks = min(MOST_TASKS, -(-total // TASK_BYTES))
    num_tasks = max(1, num_tasks)
    share = max(1.0, total / num_tasks)
    tasks: list[list[Piece]] = [[] for _ in range(num_tasks)]
    before = 0.0
    for index, source in enumerate(sources):
        count = _num_pieces(source, share, len(sources))
        for part in range(count):
            middle = before + source.text_bytes * (part + 0.5) / count
            tasks[min(num_tasks - 1, int(middle / share))].append(Piece(index, part, count))
        before += source.text_bytes
    return [tuple(task) for task in tasks if task]


def _num_pieces(source: Source, share: float, num_sources: int) -> int:
    """Return into how many pieces a file is cut where a task is to have `share` bytes."""
    wanted = source.text_bytes / share
    if source.is_stream:
        return max(1, min(source.num_pieces, int(wanted)))  # no task is to read a stream twice
    if num_sources > 1:
        wanted *= _FINENESS
    return max(1, min(source.num_pieces, round(wanted)))


def piece_bytes(sources: Sequence[Source], piece: Piece) -> int:
    """Return an estimate of the bytes of text in a piece."""
    total = sources[piece.source].text_bytes
    return total * (piece.index + 1) // piece.count - total * piece.index // piece.count


def read_piece(sources: Sequence[Source], piece: Piece, faults: Faults) -> Iterator[Document]:
    """Read the documents of a piece in order, empty ones included.

    All pieces of a file together give each of its documents once.

    Args:
        sources: the files.
        piece: which of their pieces.
        faults: where faults are counted, and what is done about them.

    Raises:
        ConfigError: a fault, and the policy is "fail".
    """
    return read(Reading(sources[piece.source], faults, piece.index, piece.count))


def read_documents(source: Source, faults: Faults) -> Iterator[Document]:
    """Read the documents of a whole file in order, empty ones included (see `read_piece`)."""
    return read(Reading(source, faults))
