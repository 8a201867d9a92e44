"""Our arm of `prepare` on a tiny text, and its checks; the peers' code where it can be fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import fetch, google_peer, lddl_peer, prepare
from benchmarks.harness import UnequalError

WORDS = ["the", "fox", "dog", "sees", "and", "a", "cat", ".", "##s"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
DOCUMENTS = [[f"The fox{'s' * (number % 2)} sees a dog and {'a ' * number}cat." for number in range(20)]] * 12


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("".join(f"{token}\n" for token in VOCABULARY), encoding="utf-8")
    return path


@pytest.fixture
def ours(tmp_path: Path, vocabulary: Path) -> prepare.Ours:
    text = tmp_path / "text.txt"
    prepare.write_text(DOCUMENTS, text)
    return prepare.Ours(text, prepare.write_tokenizer(vocabulary, tmp_path / "tokenizer"), tmp_path, epochs=2)


def ids_of(sentence: str) -> list[int]:
    words = sentence.lower().replace(".", " .").split()
    return [VOCABULARY.index(piece) for word in words for piece in (["fox", "##s"] if word == "foxs" else [word])]


def sentences_of(documents: list[list[str]]) -> list[str]:
    return [sentence for document in documents for sentence in document]


def fetch_or_skip(peer: str) -> Path:
    try:
        return fetch.peer(peer)
    except fetch.UnreachableError as error:
        pytest.skip(str(error))


def test_text_is_read_as_it_was_written(tmp_path: Path):
    prepare.write_text(DOCUMENTS, tmp_path / "text.txt")
    assert prepare.read_text(tmp_path / "text.txt") == DOCUMENTS
    assert 0 < len(prepare.read_text(tmp_path / "text.txt", megabytes=0.002)) < len(DOCUMENTS)


def test_our_arm_stores_every_sentence_and_reads_every_pair(ours: prepare.Ours):
    result = ours.run(ours.prepare())
    stored = result.sentences()
    assert stored == [ids_of(sentence) for sentence in sentences_of(DOCUMENTS)]
    assert result.pairs > 2 * len(DOCUMENTS)
    assert 0.1 < result.masked / result.tokens < 0.2


def test_rounds_leave_nothing_of_each_other(ours: prepare.Ours):
    first, second = ours.prepare(), ours.prepare()
    assert not first.exists()
    assert sorted(path.name for path in second.iterdir()) == ["tokenizer"]


def test_each_round_has_a_tokenizer_of_its_own(ours: prepare.Ours):
    first = (ours.prepare() / "tokenizer" / "tokenizer.json").read_bytes()
    assert (ours.prepare() / "tokenizer" / "tokenizer.json").read_bytes() != first


def test_equal_sentences_pass():
    sentences = sentences_of(DOCUMENTS)
    said = prepare.check_sentences([ids_of(sentence) for sentence in sentences], sentences, ids_of)
    assert said == "ids of 240 sentences"


@pytest.mark.parametrize("fault", ["other id", "lost"])
def test_unequal_sentences_are_refused(fault: str):
    sentences = sentences_of(DOCUMENTS)
    stored = [ids_of(sentence) for sentence in sentences]
    if fault == "lost":
        stored.pop()
    else:
        stored[17][0] += 1
    with pytest.raises(UnequalError):
        prepare.check_sentences(stored, sentences, ids_of)


def test_counts_may_differ_by_five_per_cent():
    assert prepare.check_counts(1040, 1000, 5) == "208 pairs an epoch, 200 of the peer (+4.0%)"
    for ours in (949, 1051):
        with pytest.raises(UnequalError, match=f"{ours} pairs, the peer has 1000"):
            prepare.check_counts(ours, 1000, 5)


def test_cpu_time_counts_children(monkeypatch: pytest.MonkeyPatch):
    class Times:
        children_user, children_system = 2.0, 3.0

    monkeypatch.setattr(prepare.os, "times", Times)
    monkeypatch.setattr(prepare.time, "process_time", lambda: 1.0)
    assert prepare.cpu_seconds() == 6.0


def test_google_runs_without_tensorflow(tmp_path: Path, vocabulary: Path):
    peer = google_peer.open_peer(fetch_or_skip(google_peer.PACKAGE), vocabulary)
    text = tmp_path / "text.txt"
    prepare.write_text(DOCUMENTS, text)
    assert [peer.token_ids(sentence) for sentence in DOCUMENTS[0]] == [ids_of(sentence) for sentence in DOCUMENTS[0]]
    once, twice = peer.make_pairs(text, 32, 1), peer.make_pairs(text, 32, 2)
    assert len(once) > len(DOCUMENTS)
    assert len(twice) > 1.5 * len(once)
    assert all(3 < len(pair.tokens) <= 32 for pair in twice)
    assert any("[MASK]" in pair.tokens for pair in twice)


def test_lddl_runs_without_dask(tmp_path: Path, vocabulary: Path):
    peer = lddl_peer.open_peer(fetch_or_skip(lddl_peer.PACKAGE), vocabulary)
    lddl_peer.write_source(DOCUMENTS, tmp_path / "source")
    assert [peer.token_ids(sentence) for sentence in DOCUMENTS[0]] == [ids_of(sentence) for sentence in DOCUMENTS[0]]
    once, twice = peer.make_pairs(tmp_path / "source", 32, 1), peer.make_pairs(tmp_path / "source", 32, 2)
    assert len(once) > len(DOCUMENTS)
    assert len(twice) > 1.5 * len(once)
    assert all(3 < pair["num_tokens"] <= 32 for pair in twice)
    assert any("[MASK]" in pair["A"] for pair in twice)


def test_long_documents_are_cut(tmp_path: Path):
    prepare.write_text([[f"S {number}." for number in range(120)]], tmp_path / "text.txt")
    read = prepare.read_text(tmp_path / "text.txt")
    assert [len(document) for document in read] == [50, 50, 20]
    assert sentences_of(read) == [f"S {number}." for number in range(120)]
