from __future__ import annotations

import pytest

from tokenization.documents import Piece, Source
from tokenization.vocabulary.sample import Sampler, SampleTask, document_draw, draw_number

MIB = 1 << 20


def plain(index: int, mib: float, pieces: int = 100_000) -> Source:
    size = int(mib * MIB)
    return Source(f"{index}.jsonl", "jsonl", size, size, "v", num_pieces=pieces)


def stream(index: int, mib: int) -> Source:
    return Source(f"{index}.jsonl.gz", "jsonl", mib * MIB // 4, mib * MIB, "v", num_pieces=8)


def pieces_of(tasks: list[SampleTask]) -> list[Piece]:
    return [draw.piece for task in tasks for draw in task.draws]


def most_bytes(tasks: list[SampleTask]) -> int:
    return sum(task.most_bytes for task in tasks)


def test_a_budget_above_the_text_takes_every_piece_once() -> None:
    sampler = Sampler([plain(0, 3), plain(1, 0.5), plain(2, 20)], 1000 * MIB, 0)
    tasks = sampler.next_round()
    expected = [Piece(0, i, 3) for i in range(3)] + [Piece(1, 0, 1)] + [Piece(2, i, 20) for i in range(20)]
    assert pieces_of(tasks) == expected
    assert all((draw.low, draw.high) == (0, 1) for task in tasks for draw in task.draws)
    assert sampler.is_exhausted
    sampler.add(20 * MIB)
    assert sampler.next_round() == []
    assert [len(task.draws) for task in tasks] == [8, 8, 8]  # 3 + 0.5 + 4 pieces of 1 MiB; 8 MiB a task at most


def test_a_sample_fills_nine_tenths_and_takes_from_every_larger_file() -> None:
    sources = [plain(index, 100) for index in range(8)]
    drawn = []
    for seed in (1, 1, 2):
        sampler = Sampler(sources, 80 * MIB, seed)
        tasks = sampler.next_round()
        pieces = pieces_of(tasks)
        assert 72 <= len(pieces) <= 100
        assert most_bytes(tasks) <= 80 * MIB
        assert len(set(pieces)) == len(pieces)
        assert {piece.source for piece in pieces} == set(range(8))
        drawn.append(pieces)
    assert drawn[0] == drawn[1] != drawn[2]


def test_many_seeds_fill_nine_tenths() -> None:
    for seed in range(50):
        tasks = Sampler([plain(0, 200)], 20 * MIB, seed).next_round()
        assert len(pieces_of(tasks)) >= 18


def test_where_less_text_came_out_another_round_takes_other_pieces() -> None:
    sampler = Sampler([plain(0, 400)], 40 * MIB, 3)
    first = pieces_of(sampler.next_round())
    sampler.add(len(first) * MIB // 4)  # a quarter of a piece is text, so 40 MiB of text take 160 pieces
    tasks = sampler.next_round()
    second = pieces_of(tasks)
    assert not set(first) & set(second)
    assert 100 <= len(second) <= 145
    assert most_bytes(tasks) <= 40 * MIB - len(first) * MIB // 4
    sampler.add(int(0.95 * 40 * MIB) - sampler.used_bytes)
    assert sampler.next_round() == []


def test_where_nothing_comes_out_all_is_taken_in_the_end() -> None:
    sampler = Sampler([plain(0, 50), stream(1, 50)], 5 * MIB, 0)
    seen: list[Piece] = []
    rounds = 0
    while tasks := sampler.next_round():
        seen += [draw.piece for task in tasks for draw in task.draws if draw.piece.source == 0]
        sampler.add(0)
        rounds += 1
    assert rounds == 2
    assert sorted(seen) == [Piece(0, index, 50) for index in range(50)]
    assert sampler.is_exhausted


def test_a_file_that_is_read_through_is_drawn_by_document() -> None:
    sampler = Sampler([stream(0, 100), stream(1, 100)], 20 * MIB, 0)
    draws = [draw for task in sampler.next_round() for draw in task.draws]
    assert [(draw.piece, draw.low, draw.high) for draw in draws] == [
        (Piece(0, 0, 1), 0.0, pytest.approx(0.1)),
        (Piece(1, 0, 1), 0.0, pytest.approx(0.1)),
    ]
    assert [draw.read_bytes for draw in draws] == [100 * MIB] * 2
    sampler.add(10 * MIB)
    draws = [draw for task in sampler.next_round() for draw in task.draws]
    assert [(draw.low, draw.high) for draw in draws] == [(pytest.approx(0.1), pytest.approx(0.2))] * 2


def test_a_whole_large_stream_is_read_by_several_tasks() -> None:
    tasks = Sampler([stream(0, 640)], 1000 * MIB, 0).next_round()
    assert pieces_of(tasks) == [Piece(0, index, 8) for index in range(8)]
    assert len(tasks) == 8


def test_large_row_groups_are_drawn_by_document() -> None:
    source = Source("a.parquet", "parquet", 900 * MIB, 900 * MIB, "v", num_pieces=3)
    draws = [draw for task in Sampler([source], 90 * MIB, 0).next_round() for draw in task.draws]
    assert [draw.piece for draw in draws] == [Piece(0, index, 3) for index in range(3)]
    assert [draw.high for draw in draws] == [pytest.approx(0.1)] * 3


def test_the_number_of_tasks_is_bounded() -> None:
    sources = [plain(index, 40) for index in range(1000)] + [stream(index, 40) for index in range(1000)]
    tasks = Sampler(sources, 1 << 40, 0).next_round()
    assert len(tasks) <= 1024
    assert most_bytes(tasks) <= 1 << 40


def test_draws_are_uniform_and_independent_of_each_other() -> None:
    numbers = [document_draw(0, source, offset) for source in range(20) for offset in range(500)]
    assert all(0 <= number < 1 for number in numbers)
    assert abs(sum(numbers) / len(numbers) - 0.5) < 0.01  # standard deviation 0.0029
    assert abs(sum(number < 0.1 for number in numbers) / len(numbers) - 0.1) < 0.01
    assert draw_number(0, "a", 1) != draw_number(0, "b", 1)
