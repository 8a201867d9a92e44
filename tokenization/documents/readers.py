"""The reader of each kind of file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tokenization.documents.columns import read_arrow_documents, read_parquet_documents
from tokenization.documents.faults import CUT_SHORT, NO_TEXT, REFUSED
from tokenization.documents.json_list import read_json_documents
from tokenization.documents.lines import read_blank_documents, read_file_document, read_line_documents
from tokenization.documents.model import Document
from tokenization.documents.reading import Reading
from tokenization.documents.records import read_jsonl_documents
from tokenization.documents.streams import DamagedError
from tokenization.documents.tables import read_table_documents
from tokenization.documents.wiki import read_mediawiki_documents, read_wikiextractor_documents

READERS: dict[str, Callable[[Reading], Iterator[Document]]] = {
    "line": read_line_documents,
    "blank": read_blank_documents,
    "file": read_file_document,
    "jsonl": read_jsonl_documents,
    "json": read_json_documents,
    "csv": read_table_documents,
    "tsv": read_table_documents,
    "parquet": read_parquet_documents,
    "arrow": read_arrow_documents,
    "wikiextractor": read_wikiextractor_documents,
    "mediawiki": read_mediawiki_documents,
}


def read(reading: Reading) -> Iterator[Document]:
    """Read the documents of a piece of a file, whatever its kind, empty ones included.

    Raises:
        ConfigError: a fault, and the policy is "fail".
    """
    source, faults = reading.source, reading.faults
    if source.refusal:
        faults.found(REFUSED, source, 0, source.refusal)
        return
    has_text = False
    faults_before = faults.counts.total()
    try:
        for document in READERS[source.kind](reading):
            has_text = has_text or bool(document.text)
            yield document
    except DamagedError as error:
        reading.fault(CUT_SHORT, error.offset, error.offset, str(error))
    if reading.count == 1 and not has_text and faults.counts.total() == faults_before:
        faults.found(NO_TEXT, source, 0, "holds no text: no document that is not empty")
