"""What `zerobert shard` is to make, cut into tasks: all that the bytes of its output depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from tokenization.documents import Document, Faults, Piece, ReadSettings, Source, piece_bytes, read_piece
from tokenization.quality.screen import Quality
from tokenization.quality.signatures import DedupPlan

# A change of what the same input becomes must change this, so that unfinished work of before is not taken up.
_FORMAT_VERSION = 1
_LIBRARIES = ("tokenizers", "sentencex", "datatrove")


@dataclass(frozen=True)
class Job:
    """What all tasks of a run share.

    Args:
        sources: all input files.
        tasks: the pieces of each task, in order.
        settings: how text is read.
        tokenizer_dir: tokenizer folder, absolute: workers may run elsewhere.
        tokenizer_name: the same as the user wrote it, for the manifest.
        tokenizer_fingerprint: its fingerprint.
        sentence_mode: "auto" or "line" (see `split_sentences`).
        language: code such as "en"; a document may name its own.
        validation_share: share of documents that go to the validation split, 0 <= share < 1.
        quality: which documents and lines are left out.
        work_dir: folder of the shards and of all notes about finished tasks.
    """

    sources: Sequence[Source]
    tasks: Sequence[tuple[Piece, ...]]
    settings: ReadSettings
    tokenizer_dir: Path
    tokenizer_name: str
    tokenizer_fingerprint: str
    sentence_mode: str
    language: str
    validation_share: float
    quality: Quality
    work_dir: Path

    @property
    def results_dir(self) -> Path:
        """Folder where each task leaves what it did."""
        return self.work_dir / "results"

    @property
    def weights(self) -> tuple[int, ...]:
        """Bytes of text of each task, estimated, 1 or more."""
        return tuple(max(1, sum(piece_bytes(self.sources, piece) for piece in pieces)) for pieces in self.tasks)

    @property
    def dedup_plan(self) -> DedupPlan:
        """How duplicates are looked for."""
        text_bytes = sum(source.text_bytes for source in self.sources)
        return DedupPlan.of(self.work_dir, self.quality.dedup, len(self.tasks), text_bytes)

    def read(self, rank: int) -> Iterator[Document]:
        """Read the documents of a task, empty ones included."""
        faults = Faults(self.settings.errors)
        for piece in self.tasks[rank]:
            yield from read_piece(self.sources, piece, faults)

    def reading_identities(self) -> tuple[str, ...]:
        """Return for each task a hash of what its documents depend on, the error policy left out."""
        settings = {**asdict(self.settings), "errors": None}
        return tuple(
            _hash(
                _FORMAT_VERSION,
                settings,
                [
                    (source.path, source.kind, source.num_bytes, source.version, piece.index, piece.count)
                    for piece in pieces
                    for source in (self.sources[piece.source],)
                ],
            )
            for pieces in self.tasks
        )

    def shard_identities(self) -> tuple[str, ...]:
        """Return for each task a hash of what its shards depend on, the error policy left out."""
        reading = self.reading_identities()
        shared = [
            self.tokenizer_fingerprint,
            self.sentence_mode,
            self.language,
            self.validation_share,
            self.quality.settings(),
            [(name, version(name)) for name in _LIBRARIES],
        ]
        if self.quality.dedup:  # what is a repetition here depends on all the other tasks
            shared += [reading, self.settings.errors]
        return tuple(_hash(own, shared) for own in reading)


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8")).hexdigest()
