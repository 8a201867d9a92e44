from __future__ import annotations

import importlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.command import ConfigError
from tokenization.indexed import IndexedReader, IndexedWriter, idx_bytes

# Imported in the tests that need them: they take seconds.
MEGATRON = "megatron.core.datasets.indexed_dataset"
DEEPSPEED = "deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset"
DOCUMENTS = [[[1, 2, 3], [4]], [[65_535, 0]], [[7], [8], [9, 10]]]


def write(prefix: Path, documents: list[list[list[int]]], dtype: type[np.integer[Any]] = np.uint16) -> IndexedReader:
    with IndexedWriter(prefix, dtype) as writer:
        for sentences in documents:
            writer.add_document(sentences)
    return IndexedReader(prefix)


def read(reader: IndexedReader) -> list[list[list[int]]]:
    bounds = reader.document_indices
    return [
        [reader[sentence].tolist() for sentence in range(bounds[document], bounds[document + 1])]
        for document in range(len(bounds) - 1)
    ]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.lists(st.integers(0, 32_767), min_size=1), min_size=1), max_size=6),
    st.sampled_from([np.int16, np.uint16, np.int32]),
)
def test_what_was_written_is_read(
    tmp_path: Path, documents: list[list[list[int]]], dtype: type[np.integer[Any]]
) -> None:
    reader = write(tmp_path / "a", documents, dtype)
    assert read(reader) == documents
    assert reader.dtype == dtype
    assert reader.tokens.tolist() == [token for sentences in documents for ids in sentences for token in ids]


def test_layout_of_the_files(tmp_path: Path) -> None:
    reader = write(tmp_path / "a.b", DOCUMENTS)
    index = (tmp_path / "a.b.idx").read_bytes()
    assert index[:34] == b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 6, 4)
    assert len(index) == idx_bytes(3, 6)
    assert reader.sentence_lengths.tolist() == [3, 1, 2, 1, 1, 2]
    assert reader.sentence_pointers.tolist() == [0, 6, 8, 12, 14, 16]
    assert reader.document_indices.tolist() == [0, 2, 3, 6]
    assert (tmp_path / "a.b.bin").read_bytes() == struct.pack("<10H", 1, 2, 3, 4, 65_535, 0, 7, 8, 9, 10)


def test_close_counts(tmp_path: Path) -> None:
    writer = IndexedWriter(tmp_path / "a", np.int32)
    writer.add_document([np.array([1, 2], dtype=np.int64), np.array([3], dtype=np.int32)])
    assert writer.close() == (1, 2, 3)
    assert writer.close() == (1, 2, 3)


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with IndexedWriter(tmp_path / "a", np.uint16) as writer:
            writer.add_document([[1]])
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert not list(tmp_path.iterdir())


def test_a_second_writer_leaves_the_first_ones_shard_whole(tmp_path: Path) -> None:
    """A job that was submitted twice: the second may still write, or die, when the first is done."""
    late = IndexedWriter(tmp_path / "a", np.uint16)
    late.add_document([[1, 2, 3]])
    write(tmp_path / "a", DOCUMENTS)
    late.add_document([[4]])
    assert read(IndexedReader(tmp_path / "a")) == DOCUMENTS
    late.close()
    assert read(IndexedReader(tmp_path / "a")) == [[[1, 2, 3]], [[4]]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx"]


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ([], "a document without a sentence"),
        ([[1], []], "a sentence of shape"),
        ([[[1]]], "a sentence of shape"),
        ([[65_536]], "ids that are no uint16"),
        ([[-1]], "ids that are no uint16"),
        ([[1.5]], "ids that are no uint16"),
    ],
)
def test_bad_documents_are_refused_whole(tmp_path: Path, sentences: Any, message: str) -> None:
    with IndexedWriter(tmp_path / "a", np.uint16) as writer:
        writer.add_document([[5]])
        with pytest.raises(ValueError, match=message):
            writer.add_document(sentences)
    assert read(IndexedReader(tmp_path / "a")) == [[[5]]]


def test_unknown_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no code for token type"):
        IndexedWriter(tmp_path / "a", np.uint64)


def edit(path: Path, offset: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(data)] = data
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("offset", "data", "message"),
    [
        (0, b"X", "not a .idx file of Megatron"),
        (9, struct.pack("<Q", 2), "version 2; only version 1"),
        (17, b"\x06", "token type code 6"),
        (17, b"\x04", r"a\.bin: 20 bytes where 40 are due"),
        (18, struct.pack("<Q", 5), r"a\.idx: 138 bytes where 126 are due"),
        (26, struct.pack("<Q", 0), "holds no document boundaries"),
        (34, struct.pack("<2i", 2, 2), "lengths, pointers and document boundaries disagree"),
        (34, struct.pack("<2i", -1, 5), "lengths, pointers and document boundaries disagree"),
        (106, struct.pack("<q", 1), "lengths, pointers and document boundaries disagree"),
        (114, struct.pack("<q", 5), "lengths, pointers and document boundaries disagree"),
        (130, struct.pack("<q", 9), "lengths, pointers and document boundaries disagree"),
    ],
)
def test_damaged_index_is_refused(tmp_path: Path, offset: int, data: bytes, message: str) -> None:
    write(tmp_path / "a", DOCUMENTS)
    edit(tmp_path / "a.idx", offset, data)
    with pytest.raises(ConfigError, match=message):
        IndexedReader(tmp_path / "a")


@pytest.mark.parametrize("suffix", ["bin", "idx"])
def test_truncated_or_missing_files_are_refused(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / "a", DOCUMENTS)
    path = tmp_path / f"a.{suffix}"
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(ConfigError, match=rf"a\.{suffix}: "):
            IndexedReader(tmp_path / "a")
    path.unlink()
    with pytest.raises(ConfigError, match=rf"a\.{suffix}: no such file"):
        IndexedReader(tmp_path / "a")


def fitting(dtype: type[np.integer[Any]]) -> list[list[list[int]]]:
    """Return DOCUMENTS with no id above the type's largest."""
    largest = int(np.iinfo(dtype).max)
    return [[[min(token, largest) for token in ids] for ids in sentences] for sentences in DOCUMENTS]


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.int32])
def test_megatron_reads_the_same(tmp_path: Path, dtype: type[np.integer[Any]]) -> None:
    documents = fitting(dtype)
    write(tmp_path / "a", documents, dtype)
    peer = importlib.import_module(MEGATRON).IndexedDataset(str(tmp_path / "a"))
    assert [peer[index].tolist() for index in range(len(peer))] == [ids for document in documents for ids in document]
    assert peer.document_indices.tolist() == [0, 2, 3, 6]
    assert peer[0].dtype == dtype


@pytest.mark.parametrize("dtype", [np.int16, np.int32])
def test_deepspeed_reads_the_same(tmp_path: Path, dtype: type[np.integer[Any]]) -> None:
    documents = fitting(dtype)
    write(tmp_path / "a", documents, dtype)
    peer = importlib.import_module(DEEPSPEED).MMapIndexedDataset(str(tmp_path / "a"), skip_warmup=True)
    assert [peer[index].tolist() for index in range(len(peer))] == [ids for document in documents for ids in document]
    assert peer.doc_idx.tolist() == [0, 2, 3, 6]


def test_megatron_writes_what_can_be_read(tmp_path: Path) -> None:
    torch = importlib.import_module("torch")
    builder = importlib.import_module(MEGATRON).IndexedDatasetBuilder(str(tmp_path / "a.bin"), dtype=np.int32)
    for sentences in DOCUMENTS:
        for ids in sentences:
            builder.add_item(torch.tensor(ids))
        builder.end_document()
    builder.finalize(str(tmp_path / "a.idx"))
    assert read(IndexedReader(tmp_path / "a")) == DOCUMENTS
