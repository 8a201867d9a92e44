from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tokenization.vocabulary import counts
from tokenization.vocabulary.counts import WordCounter, join_counts, keep_frequent, read_counts, write_counts
from tokenization.vocabulary.words import Casing, WordSplitter

BERT = WordSplitter("wordpiece", Casing())


def test_files_are_merged_in_the_order_of_code_points(tmp_path: Path) -> None:
    write_counts(tmp_path / "a", [("a", 1), ("c", 5_000_000_000), ("\U00010000", 2)])
    write_counts(tmp_path / "b", [("B", 1), ("c", 7), ("\uffee", 3)])
    write_counts(tmp_path / "empty", [])
    merged = list(read_counts([tmp_path / "a", tmp_path / "b", tmp_path / "empty"]))
    assert merged == [("B", 1), ("a", 1), ("c", 5_000_000_007), ("\uffee", 3), ("\U00010000", 2)]


def test_many_files_are_joined_first(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(11)]
    for number, path in enumerate(paths):
        write_counts(path, [("all", 1), (f"word{number:02d}", number + 1)])
    left = join_counts(paths, tmp_path / "joined", most_files=3)
    assert len(left) <= 3
    assert dict(read_counts(left)) == {"all": 11} | {f"word{number:02d}": number + 1 for number in range(11)}
    assert all(path.is_file() for path in paths)


def test_words_that_do_not_fit_into_memory_go_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    texts = [" ".join(f"w{draw.randrange(200)}" for _ in range(50)) for _ in range(40)]
    contents = []
    for most in (1_000_000, 20):
        monkeypatch.setattr(counts, "_MOST_STRETCHES", most)
        counter = WordCounter(BERT, tmp_path / "counts")
        for text in texts:
            counter.add(text)
            assert len(counter._stretches) <= most + 50
        counter.close()
        contents.append((tmp_path / "counts").read_text(encoding="utf-8"))
        assert [path.name for path in tmp_path.iterdir()] == ["counts"]
    assert contents[0] == contents[1]
    expected = Counter(" ".join(texts).split())
    assert contents[0] == "".join(f"{word}\t{expected[word]}\n" for word in sorted(expected))


def test_the_most_frequent_words_are_kept() -> None:
    kept = keep_frequent([("a", 1), ("b", 3), ("c", 1), ("d", 2), ("e", 1)], most_words=3)
    assert kept.words == {"a": 1, "b": 3, "d": 2}
    assert (kept.num_words, kept.num_occurrences, kept.dropped_occurrences) == (5, 8, 2)
    assert kept.characters == {"a": 1, "b": 3, "c": 1, "d": 2, "e": 1}


@pytest.mark.parametrize("seed", range(20))
def test_thinning_on_the_way_keeps_the_same_words(seed: int) -> None:
    draw = random.Random(seed)
    words = sorted((f"{number:03d}", draw.randint(1, draw.choice([2, 50]))) for number in range(300))
    kept = keep_frequent(words, most_words=40)
    expected = sorted(words, key=lambda item: (-item[1], item[0]))[:40]
    assert kept.words == dict(expected)
    assert kept.dropped_occurrences == sum(count for _, count in words) - sum(count for _, count in expected)
