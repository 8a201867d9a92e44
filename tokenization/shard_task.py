"""One task of `zerobert shard`: a part of the input to one shard of each split.

A module of its own, so that worker processes can import it by name.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from datatrove.pipeline.base import PipelineStep

from runtime.files import read_json, sha256_of, write_json
from tokenization.documents import Document, Faults, read_piece
from tokenization.encode import WordPieceEncoder
from tokenization.indexed import IndexedWriter
from tokenization.job import Job
from tokenization.manifest import MANIFEST_NAME, SPLITS, ShardInfo
from tokenization.quality.duplicates import Drops
from tokenization.sentences import split_sentences
from tokenization.vocabulary.wordpiece import load_tokenizer

EMPTY_DOCUMENTS = "empty documents"
DOCUMENTS_WITHOUT_TOKENS = "documents without tokens"
SENTENCES_WITHOUT_TOKENS = "sentences without tokens"
_SHARD_FILE = re.compile(rf"({'|'.join(SPLITS)})-\d{{5}}\.(bin|idx)")
_BATCH_CHARS = 1 << 20
_LARGEST_HASH = 1 << 64


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """What a task wrote, left out and met.

    Args:
        shards: by split; a split without a document has no shard.
        dropped: documents, lines and sentences left out, by reason.
        repaired: faults of the input in documents that were kept, by reason.
        places: the first places of each kind of fault.
        errors: the error policy it ran under.
        text_bytes: UTF-8 bytes of the text read.
        documents: documents that are not empty, by path of the source.
        sha256: of the local sources whose first piece is this task's, by path of the source.
    """

    shards: Mapping[str, ShardInfo]
    dropped: Mapping[str, int]
    repaired: Mapping[str, int]
    places: Sequence[Mapping[str, Any]]
    errors: str
    text_bytes: int
    documents: Mapping[str, int]
    sha256: Mapping[str, str]


class _Text(NamedTuple):
    """A document that is to be stored."""

    text: str
    language: str


class ShardTask(PipelineStep):  # type: ignore[misc]  # datatrove has no types
    """The pipeline of `zerobert shard`: reads a part, encodes it, writes its shards."""

    name = "shard"
    type = "writer"

    def __init__(self, job: Job) -> None:
        """Keep what all tasks share."""
        super().__init__()
        self.job = job

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        """Do the work of one task.

        Args:
            data: what an earlier step gave; there is none.
            rank: index of the task.
            world_size: number of tasks.
        """
        job = self.job
        faults = Faults(job.settings.errors)
        reader = _Reader(job, rank, faults)
        writer = _Writer(job, rank)
        for batch in _batches(reader.texts()):
            writer.write(batch)
        result = TaskResult(
            shards=writer.close(),
            dropped=dict(faults.dropped + reader.dropped + writer.dropped),
            repaired=dict(faults.repaired),
            places=faults.places,
            errors=job.settings.errors,
            text_bytes=reader.text_bytes,
            documents=dict(reader.documents),
            sha256=_hash_sources(job, rank),
        )
        write_json(_result_path(job.results_dir, rank), asdict(result))


def _hash_sources(job: Job, rank: int) -> dict[str, str]:
    """Hash the local files that begin in a task."""
    sources = [job.sources[piece.source] for piece in job.tasks[rank] if piece.index == 0]
    return {source.path: sha256_of(source.path) for source in sources if not source.is_remote}


def choose_split(ids: bytes, validation_share: float) -> str:
    """Return the split of a document: a function of its ids alone, so what training sees as equal is never parted.

    Args:
        ids: token ids of all its sentences, end to end.
        validation_share: share of documents that go to the validation split, 0 <= share < 1.
    """
    digest = hashlib.blake2b(ids, digest_size=8).digest()
    is_validation = int.from_bytes(digest, "big") < validation_share * _LARGEST_HASH
    return SPLITS[is_validation]


def is_shard_file(name: str) -> bool:
    """Whether a name is one that `zerobert shard` gives to a file of its output."""
    return name == MANIFEST_NAME or bool(_SHARD_FILE.fullmatch(name))


def has_result(results_dir: Path, rank: int) -> bool:
    """Whether a task has left its result."""
    return _result_path(results_dir, rank).is_file()


def load_result(results_dir: Path, rank: int) -> TaskResult:
    """Read what a finished task left."""
    value = read_json(_result_path(results_dir, rank))
    shards = {split: ShardInfo(**shard) for split, shard in value.pop("shards").items()}
    return TaskResult(shards=shards, **value)


class _Reader:
    """Reads a task's documents and leaves out those that are not wanted."""

    def __init__(self, job: Job, rank: int, faults: Faults) -> None:
        self._job = job
        self._rank = rank
        self._faults = faults
        self.dropped: Counter[str] = Counter()
        self.text_bytes = 0
        self.documents: Counter[str] = Counter()

    def texts(self) -> Iterator[_Text]:
        """Yield the documents that stay, in order."""
        job = self._job
        documents = self._documents()
        if job.quality.dedup:
            documents = Drops.open(job.dedup_plan, self._rank).apply(documents, self.dropped)
        screen = job.quality.open(job.language)
        for document in documents:
            if not document.text:
                self.dropped[EMPTY_DOCUMENTS] += 1
                continue
            text, reason = screen.judge(document.text, document.language)
            if reason:
                self.dropped[reason] += 1
            else:
                yield _Text(text, document.language or job.language)

    def _documents(self) -> Iterator[Document]:
        job = self._job
        for piece in job.tasks[self._rank]:
            for document in read_piece(job.sources, piece, self._faults):
                self.text_bytes += len(document.text.encode("utf-8"))
                self.documents[job.sources[piece.source].path] += bool(document.text)
                yield document


class _Writer:
    """Encodes documents and writes them into the shard of their split."""

    def __init__(self, job: Job, rank: int) -> None:
        self._job = job
        self._rank = rank
        self._encoder = _open_encoder(job.tokenizer_dir, job.tokenizer_fingerprint)
        self._writers: dict[str, IndexedWriter] = {}
        self.dropped: Counter[str] = Counter()

    def write(self, texts: Sequence[_Text]) -> None:
        """Append documents; those without tokens are counted and left out."""
        cut = [split_sentences(text, self._job.sentence_mode, language) for text, language in texts]
        ids, lengths = self._encoder.encode_flat([sentence for sentences in cut for sentence in sentences])
        owners = np.repeat(np.arange(len(cut)), [len(sentences) for sentences in cut])
        has_tokens = lengths > 0
        self.dropped[SENTENCES_WITHOUT_TOKENS] += int(np.count_nonzero(~has_tokens))
        lengths, owners = lengths[has_tokens], owners[has_tokens]
        document_sentences = np.bincount(owners, minlength=len(cut))
        self.dropped[DOCUMENTS_WITHOUT_TOKENS] += int(np.count_nonzero(document_sentences == 0))
        tokens = np.bincount(owners, weights=lengths, minlength=len(cut)).astype(np.int64)
        ends = np.cumsum(tokens)
        splits = np.array(
            [
                choose_split(ids[end - count : end].tobytes(), self._job.validation_share)
                for end, count in zip(ends.tolist(), tokens.tolist(), strict=True)
            ]
        )
        for split in SPLITS:
            is_chosen = (splits == split) & (document_sentences > 0)
            if is_chosen.any():
                of_split = is_chosen[owners]
                self._writer(split).add_documents(
                    ids[np.repeat(of_split, lengths)], lengths[of_split], document_sentences[is_chosen]
                )

    def close(self) -> dict[str, ShardInfo]:
        """Close the shards and return what is in them, by split."""
        return {split: ShardInfo.of(writer.prefix, writer.close()) for split, writer in self._writers.items()}

    def _writer(self, split: str) -> IndexedWriter:
        if split not in self._writers:
            prefix = self._job.work_dir / f"{split}-{self._rank:05d}"
            self._writers[split] = IndexedWriter(prefix, self._encoder.dtype)
        return self._writers[split]


@lru_cache(maxsize=1)
def _open_encoder(tokenizer_dir: Path, fingerprint: str) -> WordPieceEncoder:
    """Return the encoder of a tokenizer; a worker keeps it, and the words it knows, from task to task."""
    return WordPieceEncoder(load_tokenizer(tokenizer_dir))


def _result_path(results_dir: Path, rank: int) -> Path:
    return results_dir / f"result-{rank:05d}.json"


def _batches(texts: Iterator[_Text]) -> Iterator[list[_Text]]:
    """Gather documents, so that the encoder is called with much text at once."""
    batch: list[_Text] = []
    chars = 0
    for text in texts:
        batch.append(text)
        chars += len(text.text)
        if chars >= _BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch
