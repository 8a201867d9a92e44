"""Reads one column of Parquet files and of Arrow files (also those of datasets saved on disk), in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from runtime.command import ConfigError, did_you_mean
from tokenization.documents.faults import CUT_SHORT, DAMAGED, NO_STRING, Faults
from tokenization.documents.lines import tidy
from tokenization.documents.model import Document, NoLanguageFieldError, Source
from tokenization.documents.reading import Reading
from tokenization.documents.streams import DamagedError, open_plain, remote_errors

_BATCH_ROWS = 1024
_FILE_MAGIC = b"ARROW1"


def examine_columns(source: Source) -> Source:
    """Return the source of a Parquet or Arrow file with pieces and size of text settled.

    Raises:
        ConfigError: the file cannot be read, or lacks a field, or the policy is "fail" and it is damaged.
    """
    try:
        return _examine_parquet(source) if source.kind == "parquet" else _examine_arrow(source)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise ConfigError(f"{source.path}: not a whole {source.kind} file: {_first_line(error)}") from None


def read_parquet_documents(reading: Reading) -> Iterator[Document]:
    """Read one document a row of a piece's row groups."""
    with _open_parquet(reading.source.path) as file:
        metadata = file.metadata
        groups = range(metadata.num_row_groups)[_share(reading, metadata.num_row_groups)]
        first_row = sum(metadata.row_group(group).num_rows for group in range(groups.start))
        fields = list(reading.source.settings.fields)
        for group in groups:
            batches = file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=fields, use_threads=False)
            try:
                yield from _documents(reading, batches, first_row)
            except DamagedError as error:
                reading.fault(DAMAGED, error.offset, error.offset, f"row group {group} {error}")
            first_row += metadata.row_group(group).num_rows


def read_arrow_documents(reading: Reading) -> Iterator[Document]:
    """Read one document a row of a piece's record batches."""
    with _open_arrow(reading.source.path) as batches:
        wanted = range(reading.source.num_pieces)[_share(reading, reading.source.num_pieces)]
        is_last = reading.index == reading.count - 1
        yield from _documents(reading, _select(batches, wanted, is_last), 0)


def _share(reading: Reading, num_parts: int) -> slice:
    return slice(num_parts * reading.index // reading.count, num_parts * (reading.index + 1) // reading.count)


def _select(batches: Iterable[Any], wanted: range, is_last: bool) -> Iterator[Any]:
    """Yield the wanted batches, and for each one before them its number of rows."""
    for index, batch in enumerate(batches):
        if index >= wanted.stop and not is_last:
            return
        yield batch if index >= wanted.start else batch.num_rows


def _documents(reading: Reading, batches: Iterable[Any], row: int) -> Iterator[Document]:
    """Yield the documents of record batches; an int among them is a number of rows to pass over."""
    with _damage_at(lambda: row):
        for batch in batches:
            if isinstance(batch, int):
                row += batch
                continue
            columns = [_values(_column(batch, name)) for name in reading.source.settings.fields]
            for values in zip(*columns, strict=True):
                yield from _document(reading, values, row)
                row += 1


def _document(reading: Reading, values: tuple[Any, ...], row: int) -> Iterator[Document]:
    text = values[0]
    if isinstance(text, bytes):
        text = reading.decode_record(text, row)
    elif text is None:
        reading.fault(NO_STRING, row, row, f"field {reading.source.settings.text_field!r} is null")
    if text is not None:
        language = values[1] if len(values) > 1 else ""
        yield Document(tidy(text), row, str(language or "").strip())


def _column(batch: Any, name: str) -> Any:
    return batch.column(batch.schema.get_field_index(name))


def _values(column: Any) -> list[Any]:
    """Return a column's values: str, bytes where they are not all UTF-8, None."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return list(column.cast(pa.large_binary()).to_pylist())


@contextmanager
def _damage_at(place: Any) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:
        raise DamagedError(f"is damaged or ends early: {_first_line(error)}", place()) from None


@contextmanager
def _open_parquet(path: str) -> Iterator[Any]:
    with open_plain(path) as stream, remote_errors(path), pq.ParquetFile(stream) as file:
        yield file


@contextmanager
def _open_arrow(path: str) -> Iterator[Iterable[Any]]:
    """Give the record batches of an Arrow file, of the stream or of the file format."""
    with open_plain(path) as stream:
        is_file = stream.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        stream.seek(0)
        with remote_errors(path), _map_or_wrap(path, stream) as data:
            if is_file:
                file = pa.ipc.open_file(data)
                yield (file.get_batch(index) for index in range(file.num_record_batches))
            else:
                yield pa.ipc.open_stream(data)


def _map_or_wrap(path: str, stream: IO[bytes]) -> Any:
    return pa.PythonFile(stream, mode="r") if "://" in path else pa.memory_map(path)


def _examine_parquet(source: Source) -> Source:
    with _open_parquet(source.path) as file:
        _check_fields(source, file.schema_arrow)
        metadata = file.metadata
        column = metadata.schema.names.index(source.settings.text_field)
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        num_bytes = sum(group.column(column).total_uncompressed_size for group in groups)
    return replace(source, text_bytes=num_bytes, num_pieces=max(1, len(groups)))


def _examine_arrow(source: Source) -> Source:
    num_bytes = num_batches = num_rows = 0
    try:
        with _open_arrow(source.path) as batches:
            schema = getattr(batches, "schema", None)
            if schema is not None:
                _check_fields(source, schema)
            for batch in batches:
                if num_batches == 0:
                    _check_fields(source, batch.schema)
                num_batches += 1
                num_rows += batch.num_rows
                num_bytes += _column(batch, source.settings.text_field).nbytes
    except (pa.ArrowException, OSError, EOFError) as error:
        if num_batches == 0:
            raise
        if source.settings.errors == "fail":
            Faults("fail").found(CUT_SHORT, source, num_rows, f"is damaged or ends early: {_first_line(error)}")
    return replace(source, text_bytes=num_bytes, num_pieces=max(1, num_batches))


def _check_fields(source: Source, schema: Any) -> None:
    for name in source.settings.fields:
        if name not in schema.names:
            hint = did_you_mean(name, schema.names)
            is_text = name == source.settings.text_field
            flag = "--text-field" if is_text else "--language-field"
            raise (ConfigError if is_text else NoLanguageFieldError)(
                f"{source.path}: no field {name!r}{hint}; it has {', '.join(schema.names[:20])}; name it with {flag}"
            )
        count = schema.names.count(name)
        if count > 1:
            raise ConfigError(f"{source.path}: {count} fields are named {name!r}; rename all but one")
        kind = schema.field(name).type
        if not _is_text(kind):
            raise ConfigError(f"{source.path}: field {name!r} is {kind}, not text")


def _is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    types = pa.types
    checks = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary)
    return any(check(kind) for check in checks)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
