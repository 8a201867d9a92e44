from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runtime.command import ConfigError
from tests.tokenization.documents.inputs import read, read_pieces, texts, write
from tokenization.documents import ReadSettings, open_sources

LINES = [f"number {number} \u2019" for number in range(1000)]


def parquet(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path, row_group_size=70)
    return path


def arrow_stream(path: Path, table: pa.Table) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=70)
    return path


def arrow_file(path: Path, table: pa.Table) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=70)
    return path


WRITERS = [
    pytest.param(parquet, "a.parquet", id="parquet"),
    pytest.param(arrow_stream, "a.arrow", id="arrow stream"),
    pytest.param(arrow_file, "a.arrow", id="arrow file"),
]
Writer = Callable[[Path, Any], Path]


@pytest.mark.parametrize(("writer", "name"), WRITERS)
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())])
def test_pieces_give_every_document_once_and_in_order(tmp_path: Path, writer: Writer, name: str, kind: Any) -> None:
    column = pa.array(LINES, pa.binary() if kind == pa.binary() else pa.string()).cast(kind)
    path = writer(tmp_path / name, pa.table({"id": list(range(1000)), "text": column, "lang": ["de"] * 1000}))
    source = open_sources([path], ReadSettings(language_field="lang"))[0]
    assert source.num_pieces == 15
    for count in (1, 2, 7, 15, 40):
        documents, faults = read_pieces(source, count)
        assert documents == [(line, row, "de") for row, line in enumerate(LINES)]
        assert not faults.counts


@pytest.mark.parametrize(("writer", "name"), WRITERS)
def test_null_text_and_bad_bytes(tmp_path: Path, writer: Writer, name: str) -> None:
    column = pa.array([b"a", None, b"b\xff\xc3", b""], pa.binary())
    path = writer(tmp_path / name, pa.table({"text": column}))
    with pytest.raises(ConfigError, match=r"record 1: field 'text' is null"):
        read_pieces(open_sources([path], ReadSettings())[0], 1)
    documents, faults = read(path, errors="replace")
    assert documents == [("a", 0, ""), ("b\ufffd\ufffd", 2, "")]
    assert faults.dropped == {"records whose text is not a string": 1}
    assert faults.repaired == {"bytes that are not in the encoding": 2}
    assert texts(path, errors="skip") == ["a"]


@pytest.mark.parametrize(("writer", "name"), WRITERS)
def test_two_fields_of_one_name_are_refused(tmp_path: Path, writer: Writer, name: str) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    with pytest.raises(ConfigError, match=rf"{name}: 2 fields are named 'text'"):
        texts(writer(tmp_path / name, table))


def test_a_string_column_with_bad_bytes(tmp_path: Path) -> None:
    bad = pa.array([b"a", b"b\xff"], pa.binary()).view(pa.string())
    path = parquet(tmp_path / "a.parquet", pa.table({"text": bad}))
    assert texts(path, errors="replace") == ["a", "b\ufffd"]
    with pytest.raises(ConfigError, match=r"record 1: is not UTF-8 text: 0xFF"):
        read_pieces(open_sources([path], ReadSettings())[0], 1)


@pytest.mark.parametrize(("writer", "name"), WRITERS)
def test_fields_are_checked(tmp_path: Path, writer: Writer, name: str) -> None:
    path = writer(tmp_path / name, pa.table({"texts": ["a"], "n": [1]}))
    with pytest.raises(
        ConfigError, match=r"no field 'text' \(did you mean 'texts'\?\); it has texts, n; .*--text-field"
    ):
        texts(path)
    with pytest.raises(ConfigError, match="field 'n' is int64, not text"):
        texts(path, text_field="n")
    with pytest.raises(ConfigError, match=r"no field 'lang'.*--language-field"):
        texts(path, text_field="texts", language_field="lang")


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_what_is_no_such_file_is_named(tmp_path: Path, name: str) -> None:
    for content in (b"", b"nothing of the kind"):
        with pytest.raises(ConfigError, match=rf"{name}: not a whole {name[2:]} file"):
            texts(write(tmp_path / name, content))


def test_a_parquet_file_cut_short_is_refused(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "a.parquet", pa.table({"text": LINES})).read_bytes()
    with pytest.raises(ConfigError, match=r"b\.parquet: not a whole parquet file"):
        texts(write(tmp_path / "b.parquet", whole[: len(whole) // 2]))


def test_a_damaged_row_group_costs_its_own_rows(tmp_path: Path) -> None:
    data = bytearray(parquet(tmp_path / "a.parquet", pa.table({"text": LINES})).read_bytes())
    group = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(7).column(0)
    data[group.dictionary_page_offset : group.dictionary_page_offset + 40] = b"\xff" * 40
    path = write(tmp_path / "b.parquet", bytes(data))
    with pytest.raises(ConfigError, match=r"b\.parquet: record 490: row group 7 is damaged"):
        read_pieces(open_sources([path], ReadSettings())[0], 1)
    source = open_sources([path], ReadSettings(errors="skip"))[0]
    for count in (1, 4):
        documents, faults = read_pieces(source, count)
        assert [document.text for document in documents] == LINES[:490] + LINES[560:]
        assert documents[-1].offset == 999
        assert faults.counts == {"row groups damaged": 1}


def test_an_arrow_stream_cut_short_gives_its_whole_batches(tmp_path: Path) -> None:
    whole = arrow_stream(tmp_path / "a.arrow", pa.table({"text": LINES})).read_bytes()
    path = write(tmp_path / "b.arrow", whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"b\.arrow: record \d+: is damaged or ends early"):
        texts(path)
    source = open_sources([path], ReadSettings(errors="skip"))[0]
    for count in (1, 3):
        documents, faults = read_pieces(source, count)
        assert [document.text for document in documents] == LINES[: len(documents)]
        assert len(documents) > 300
        assert faults.counts == {"files cut short": 1}


@pytest.mark.parametrize("is_split", [False, True])
def test_a_dataset_saved_on_disk(tmp_path: Path, is_split: bool) -> None:
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    saved = datasets.Dataset.from_dict({"text": LINES, "id": list(range(1000))})
    if is_split:
        saved = datasets.DatasetDict(
            {"train": saved, "test": datasets.Dataset.from_dict({"text": ["last"], "id": [0]})}
        )
        saved.save_to_disk(str(tmp_path / "set"), num_shards={"train": 3, "test": 1})
    else:
        saved.save_to_disk(str(tmp_path / "set"), num_shards=3)
    assert texts(tmp_path / "set") == LINES + ["last"] * is_split
    assert texts(tmp_path) == LINES + ["last"] * is_split


def test_a_saved_dataset_that_lacks_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-0.arrow"}]}))
    with pytest.raises(ConfigError, match=r"data-0\.arrow: no such file, though .*state\.json names it"):
        texts(tmp_path)
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"f": 1}]}))
    with pytest.raises(ConfigError, match=r"state\.json: an entry of '_data_files' has no 'filename': \{'f': 1\}"):
        texts(tmp_path)
    (tmp_path / "state.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"state\.json: no list '_data_files'"):
        texts(tmp_path)
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["x", 5]}))
    with pytest.raises(ConfigError, match=r"dataset_dict\.json: 'splits' is to hold names, not \['x', 5\]"):
        texts(tmp_path)
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train"]}))
    with pytest.raises(ConfigError, match=r"train: no state\.json, though .*dataset_dict\.json names this split"):
        texts(tmp_path)
