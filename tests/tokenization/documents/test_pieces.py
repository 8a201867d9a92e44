from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokenization.documents.inputs import COMPRESS, write
from tokenization.documents import Faults, ReadSettings, Source, cut, open_sources, piece_bytes, read_piece

MIB = 1 << 20


def source(num_bytes: int, num_pieces: int = 1000, path: str = "a.txt") -> Source:
    return Source(path, "line", num_bytes, num_bytes, "", num_pieces=num_pieces)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 40 * MIB), st.integers(1, 50), st.booleans()), min_size=1, max_size=30),
    num_tasks=st.none() | st.integers(1, 60),
)
def test_every_piece_is_in_one_task(sizes: list[tuple[int, int, bool]], num_tasks: int | None) -> None:
    sources = [source(size, pieces, "a.gz" if is_packed else "a") for size, pieces, is_packed in sizes]
    tasks = cut(sources, num_tasks)
    pieces = [piece for task in tasks for piece in task]
    assert all(tasks)
    assert len(tasks) <= (num_tasks or 1024)
    assert pieces == sorted(pieces)
    counts = Counter(piece.source for piece in pieces)
    assert set(counts) == set(range(len(sources)))
    for piece in pieces:
        assert piece.count == counts[piece.source] <= sources[piece.source].num_pieces
    assert sum(piece_bytes(sources, piece) for piece in pieces) == sum(each.text_bytes for each in sources)
    for task in tasks:
        streams = [piece.source for piece in task if sources[piece.source].is_stream]
        assert len(streams) == len(set(streams))  # no task reads a stream twice


def test_tasks_are_of_about_equal_text() -> None:
    assert [len(cut([source(num_bytes)])) for num_bytes in (1, 4 * MIB, 4 * MIB + 1, 41 * MIB)] == [1, 1, 2, 11]
    assert len(cut([source(10**12, 10**9)])) == 1024
    sources = [source(size * MIB) for size in (1, 30, 2, 2, 90, 1, 1, 1)]
    sizes = [sum(piece_bytes(sources, piece) for piece in task) for task in cut(sources, 8)]
    assert len(sizes) == 8
    assert max(sizes) < 1.3 * 16 * MIB


def test_small_files_are_grouped() -> None:
    tasks = cut([source(MIB // 2) for _ in range(64)])
    assert [len(task) for task in tasks] == [8] * 8


@pytest.mark.parametrize("num_tasks", [1, 2, 7, 100, None])
def test_tasks_go_on_from_file_to_file_and_lose_nothing(tmp_path: Path, num_tasks: int | None) -> None:
    lines = [f"file {file} line {line} it\u2019s" for file in range(4) for line in range(500)]
    for file in range(4):
        part = "\n".join(lines[file * 500 : file * 500 + 500]).encode()
        write(tmp_path / f"{file}.txt{'.gz' * (file == 2)}", COMPRESS[".gz"](part) if file == 2 else part)
    sources = open_sources([tmp_path], ReadSettings())
    tasks = cut(sources, num_tasks)
    read = [
        document.text for task in tasks for piece in task for document in read_piece(sources, piece, Faults("fail"))
    ]
    assert read == lines
