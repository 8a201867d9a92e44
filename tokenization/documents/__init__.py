"""Reads documents from text of every common kind: see `model` for what they are, `readers` for the kinds.

`open_sources` finds the files, `cut` makes tasks of them, `read_piece` reads their documents, `Faults` counts what is
wrong in them.
"""

from tokenization.documents.faults import Faults
from tokenization.documents.flags import add_input_arguments, read_settings
from tokenization.documents.model import Document, Piece, ReadSettings, Source, is_url
from tokenization.documents.pieces import cut, piece_bytes, read_documents, read_piece
from tokenization.documents.sources import open_sources

__all__ = [
    "Document",
    "Faults",
    "Piece",
    "ReadSettings",
    "Source",
    "add_input_arguments",
    "cut",
    "is_url",
    "open_sources",
    "piece_bytes",
    "read_documents",
    "read_piece",
    "read_settings",
]
