"""The shards of a split end to end: index, spans, and what is refused."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pretrain.data.store import SentenceIndex, TokenStore, shard_token_starts, split_of
from runtime.command import ConfigError
from tokenization.manifest import Manifest, SplitInfo

TRAIN = [[[[11, 12], [13]], [[14, 15, 16]]], [[[17]]], [[[18, 19], [20, 21, 22, 23]]]]
IDX_HEADER_BYTES = 34


def flat(shards: Any) -> list[int]:
    return [token for corpus in shards for document in corpus for sentence in document for token in sentence]


@pytest.mark.parametrize("piece_sentences", [1, 2, 1000])
@pytest.mark.parametrize("on_disk", [False, True])
def test_index_by_hand(corpora: Any, tmp_path: Path, piece_sentences: int, on_disk: bool) -> None:
    manifest = corpora.write(tmp_path / "shards", TRAIN)
    index = SentenceIndex.open(manifest, "train", tmp_path / "cache" if on_disk else None, piece_sentences)
    assert index.sentence_offsets.tolist() == [0, 2, 3, 6, 7, 9, 13]
    assert index.document_starts.tolist() == [0, 2, 3, 4, 6]
    assert index.shard_token_starts.tolist() == [0, 6, 7, 13]
    assert index.sentence_lengths.tolist() == [2, 1, 3, 1, 2, 4]
    assert index.sentence_lengths.dtype == np.int32
    assert (index.num_documents, index.num_sentences) == (4, 6)
    assert not index.sentence_offsets.flags.writeable


def test_index_on_disk_is_the_same_bytes_whatever_the_pieces(corpora: Any, tmp_path: Path) -> None:
    manifest = corpora.write(tmp_path / "shards", [corpora.random(1, 20), corpora.random(2, 20)])
    for name, piece_sentences in {"one": 7, "two": 10_000}.items():
        SentenceIndex.open(manifest, "train", tmp_path / name, piece_sentences)
    files = {name: sorted((tmp_path / name).rglob("*.npy")) for name in ("one", "two")}
    assert [path.name for path in files["one"]] == ["document_starts.npy", "sentence_offsets.npy"]
    assert [path.read_bytes() for path in files["one"]] == [path.read_bytes() for path in files["two"]]


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_spans_are_the_tokens_of_the_text(corpora: Any, tmp_path: Path, dtype: Any) -> None:
    shards = [corpora.random(seed, 5) for seed in range(3)]
    manifest = corpora.write(tmp_path, shards, dtype=dtype)
    store, text = TokenStore(manifest, "train"), flat(shards)
    index = SentenceIndex.open(manifest, "train")
    assert store.num_tokens == len(text)
    generator = np.random.default_rng(0)
    documents = generator.integers(0, index.num_documents, 50)
    starts = index.sentence_offsets[index.document_starts[documents]]
    lengths = generator.integers(0, 30, 50)
    expected = [token for start, length in zip(starts, lengths, strict=True) for token in text[start : start + length]]
    tokens = store.gather(starts, lengths)
    assert tokens.dtype == dtype
    assert tokens.tolist() == expected
    assert store.gather(starts[:0], lengths[:0]).tolist() == []


def test_an_empty_shard_is_passed_over(corpora: Any, tmp_path: Path) -> None:
    manifest = corpora.write(tmp_path, [[], TRAIN[0], [], TRAIN[1]])
    store = TokenStore(manifest, "train")
    assert store.gather(np.array([0, 5, 6]), np.array([2, 1, 1])).tolist() == [11, 12, 16, 17]
    assert SentenceIndex.open(manifest, "train").num_documents == 3


def test_missing_and_empty_splits_are_refused(manifest: Manifest, corpora: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no split 'test'; it has train, validation"):
        split_of(manifest, "test")
    without = corpora.write(tmp_path, [TRAIN[0]])
    with pytest.raises(ConfigError, match="split 'validation' holds no document"):
        SentenceIndex.open(without, "validation")
    with pytest.raises(ConfigError, match="split 'validation' holds no document"):
        TokenStore(without, "validation")


def patch(path: Path, offset: int, layout: str, *values: int) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into(layout, data, offset, *values)
    path.write_bytes(data)


def test_a_sentence_without_tokens_is_refused(corpora: Any, tmp_path: Path) -> None:
    manifest = corpora.write(tmp_path, [TRAIN[1], [[[5, 6, 7], [8, 9]]]])
    path = tmp_path / "train-00001.idx"
    patch(path, IDX_HEADER_BYTES, "<ii", 5, 0)
    patch(path, IDX_HEADER_BYTES + 8, "<qq", 0, 10)
    with pytest.raises(ConfigError, match="train-00001: sentence 1 holds no token"):
        SentenceIndex.open(manifest, "train")


def test_a_document_without_sentences_is_refused(corpora: Any, tmp_path: Path) -> None:
    manifest = corpora.write(tmp_path, [[[[5, 6]], [[7]]]])
    patch(tmp_path / "train-00000.idx", IDX_HEADER_BYTES + 2 * 12, "<qqq", 0, 0, 2)
    with pytest.raises(ConfigError, match="train-00000: document 0 holds no sentence"):
        SentenceIndex.open(manifest, "train")


def test_shards_that_differ_from_the_manifest_are_refused(corpora: Any, tmp_path: Path) -> None:
    manifest = corpora.write(tmp_path, [TRAIN[0]])
    info = manifest.splits["train"]

    def changed(**fields: int) -> Manifest:
        shard = replace(info.shards[0], **fields)
        return replace(manifest, splits={"train": SplitInfo.of((shard,))})

    with pytest.raises(ConfigError, match=r"train-00000: holds 2 documents, manifest.json says 3"):
        SentenceIndex.open(changed(documents=3), "train")
    with pytest.raises(ConfigError, match=r"train-00000: holds 6 tokens, manifest.json says 7"):
        SentenceIndex.open(changed(tokens=7), "train")
    with pytest.raises(ConfigError, match=r"train-00000.bin: 12 bytes, manifest.json says 7 tokens"):
        TokenStore(changed(tokens=7), "train")
    with pytest.raises(ConfigError, match=r"train-00000: holds uint16, manifest.json says int32"):
        SentenceIndex.open(replace(manifest, dtype="int32"), "train")


def test_shard_starts(manifest: Manifest) -> None:
    info = manifest.splits["train"]
    starts = shard_token_starts(info)
    assert starts[0] == 0
    assert starts[-1] == info.tokens
    assert np.diff(starts).tolist() == [shard.tokens for shard in info.shards]


def test_spans_outside_of_the_shards_are_refused(corpora: Any, tmp_path: Path) -> None:
    store = TokenStore(corpora.write(tmp_path, TRAIN), "train")  # shards of 6, 1 and 6 tokens
    assert len(store.gather(np.array([7, 13]), np.array([6, 0]))) == 6
    for start, length in ((5, 2), (7, 7), (13, 1), (-1, 1)):
        with pytest.raises(IndexError, match="a span of tokens that lies in no shard"):
            store.gather(np.array([start]), np.array([length]))
