"""Counts what is wrong in the input, and stops at the first fault where the policy says so."""

from __future__ import annotations

from collections import Counter
from typing import Any

from runtime.command import ConfigError
from tokenization.documents.model import Source
from tokenization.documents.streams import line_number

BAD_BYTES = "bytes that are not in the encoding"
BAD_DOCUMENTS = "documents with bytes that are not in the encoding"
BAD_JSON = "records that are not JSON"
NO_OBJECT = "records that are not JSON objects"
NO_FIELD = "records without the text field"
NO_STRING = "records whose text is not a string"
HALF_SURROGATES = "half surrogate pairs"
DUPLICATE_FIELD = "records with the text field twice"
BAD_ROW = "rows that do not fit the header"
NO_END = "documents without their end"
STRAY_TEXT = "text outside of documents"
CUT_SHORT = "files cut short"
DAMAGED = "row groups damaged"
NO_TEXT = "files without text"
REFUSED = "files that cannot be read"
REDIRECTS = "redirects"
OTHER_NAMESPACES = "pages of other namespaces"

_MOST_PLACES = 20
_SKIP = "or leave such documents out with --errors skip"
_REMEDIES = {
    BAD_BYTES: "name the file's encoding with --encoding, or choose --errors replace or skip",
    NO_FIELD: f"name the field with --text-field, {_SKIP}",
    HALF_SURROGATES: "choose --errors replace or skip",
    CUT_SHORT: "fetch the file again, or take what is whole with --errors skip",
    DAMAGED: "fetch the file again, or take what is whole with --errors skip",
    NO_TEXT: "take it out of --input, or go on without it with --errors skip",
    REFUSED: "or go on without it with --errors skip",
}
_DEFAULT_REMEDY = "mend it, or leave it out with --errors skip"


class Faults:
    """What was repaired, skipped or refused while reading.

    Args:
        policy: "fail": the first fault is a `ConfigError`; "replace": what can be repaired is, the rest is skipped;
            "skip": the document is skipped.

    Attributes:
        counts: number by reason; the sum of `repaired` and `dropped`.
        repaired: faults in documents that were kept, by reason.
        dropped: documents (or files) left out, by reason.
        places: the first 20 of each reason: {"path", "offset", "reason", "detail"}.
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.counts: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.places: list[dict[str, Any]] = []
        self._num_places: Counter[str] = Counter()

    def found(
        self, reason: str, source: Source, offset: int, detail: str, count: int = 1, is_repaired: bool = False
    ) -> None:
        """Count a fault, or stop at it.

        Args:
            reason: kind of fault, such as "files cut short".
            source: the file.
            offset: byte or record number at which it is.
            detail: what stands there.
            count: how many there are.
            is_repaired: whether the document is kept.

        Raises:
            ConfigError: the policy is "fail"; names file, place, fault and remedy.
        """
        if self.policy == "fail":
            remedy = _REMEDIES.get(reason, _DEFAULT_REMEDY)
            raise ConfigError(f"{source.path}: {_place(source, offset)}: {detail}; {remedy}")
        self._count(reason, count, is_repaired)
        if self._num_places[reason] < _MOST_PLACES:
            self._num_places[reason] += 1
            self.places.append({"path": source.path, "offset": offset, "reason": reason, "detail": detail})

    def left_out(self, reason: str) -> None:
        """Count a document that is left out by rule, under any policy: it is no fault."""
        self._count(reason, 1, False)

    def _count(self, reason: str, count: int, is_repaired: bool) -> None:
        self.counts[reason] += count
        (self.repaired if is_repaired else self.dropped)[reason] += count


def _place(source: Source, offset: int) -> str:
    if not source.has_byte_offsets:
        return f"record {offset}"
    number = line_number(source, offset)
    return f"byte {offset} (line {number})" if number else f"byte {offset}"
