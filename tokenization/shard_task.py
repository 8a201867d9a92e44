"""One task of `zerobert shard`: a part of the input to one shard of each split.

A module of its own, so that worker processes can import it by name.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep
from loguru import logger as datatrove_logger
from numpy.typing import NDArray

from runtime.files import read_json, sha256_of, write_json
from tokenization.documents import Document, Source
from tokenization.encode import WordPieceEncoder
from tokenization.indexed import IndexedWriter, bin_path, idx_path
from tokenization.manifest import SPLITS, ShardInfo
from tokenization.sentences import split_sentences
from tokenization.survey import Part, read_part
from tokenization.wordpiece import load_tokenizer

# datatrove reports every task through loguru, in each worker; errors reach the command as exceptions.
datatrove_logger.disable("datatrove")

DROPPED_REASONS = ("empty documents", "documents without tokens", "sentences without tokens")
_BATCH_CHARS = 1 << 20
_LARGEST_HASH = 1 << 64


@dataclass(frozen=True)
class Job:
    """What all tasks of a run share.

    Args:
        sources: all input files.
        parts: one a task.
        tokenizer_dir: tokenizer folder.
        tokenizer_fingerprint: its fingerprint.
        sentence_mode: "auto" or "line" (see `split_sentences`).
        language: code such as "en".
        validation_share: share of documents that go to the validation split, 0 <= share < 1.
        output_dir: where shards go.
        results_dir: where each task leaves its `TaskResult`.
    """

    sources: Sequence[Source]
    parts: Sequence[Part]
    tokenizer_dir: Path
    tokenizer_fingerprint: str
    sentence_mode: str
    language: str
    validation_share: float
    output_dir: Path
    results_dir: Path


@dataclass(frozen=True)
class TaskResult:
    """What a task wrote and what it left out.

    Args:
        shards: by split; a split without a document has no shard.
        dropped: count by reason (`DROPPED_REASONS`).
    """

    shards: dict[str, ShardInfo]
    dropped: dict[str, int]


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
        encoder = _open_encoder(job.tokenizer_dir, job.tokenizer_fingerprint)
        writers: dict[str, IndexedWriter] = {}
        dropped: Counter[str] = Counter()
        for batch in _batches(read_part(job.sources, job.parts[rank])):
            for text, ids in _encode(batch, encoder, job, dropped):
                split = choose_split(text, job.validation_share)
                if split not in writers:
                    writers[split] = IndexedWriter(job.output_dir / f"{split}-{rank:05d}", encoder.dtype)
                writers[split].add_document(ids)
        shards = {split: _close(writer) for split, writer in writers.items()}
        result = TaskResult(shards, {reason: dropped[reason] for reason in DROPPED_REASONS})
        write_json(_result_path(job.results_dir, rank), asdict(result))


def choose_split(text: str, validation_share: float) -> str:
    """Return the split of a document: a function of its text alone, so equal documents are never parted.

    Args:
        text: the document.
        validation_share: share of documents that go to the validation split, 0 <= share < 1.
    """
    digest = hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()
    is_validation = int.from_bytes(digest, "big") < validation_share * _LARGEST_HASH
    return SPLITS[is_validation]


def load_result(results_dir: Path, rank: int) -> TaskResult:
    """Read what a finished task left."""
    value = read_json(_result_path(results_dir, rank))
    return TaskResult({split: ShardInfo(**shard) for split, shard in value["shards"].items()}, value["dropped"])


@lru_cache(maxsize=1)
def _open_encoder(tokenizer_dir: Path, fingerprint: str) -> WordPieceEncoder:
    """Return the encoder of a tokenizer; a worker keeps it, and the words it knows, from task to task."""
    return WordPieceEncoder(load_tokenizer(tokenizer_dir))


def _result_path(results_dir: Path, rank: int) -> Path:
    return results_dir / f"result-{rank:05d}.json"


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Gather documents, so that the encoder is called with much text at once."""
    batch: list[Document] = []
    chars = 0
    for document in documents:
        batch.append(document)
        chars += len(document.text)
        if chars >= _BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def _encode(
    documents: Sequence[Document], encoder: WordPieceEncoder, job: Job, dropped: Counter[str]
) -> Iterator[tuple[str, list[NDArray[Any]]]]:
    """Yield text and sentences of every document that has tokens; count the others in `dropped`."""
    texts = [document.text for document in documents if document.text]
    dropped["empty documents"] += len(documents) - len(texts)
    cut = [split_sentences(text, job.sentence_mode, job.language) for text in texts]
    encoded = encoder.encode([sentence for sentences in cut for sentence in sentences])
    start = 0
    for text, sentences in zip(texts, cut, strict=True):
        ids = [sentence for sentence in encoded[start : start + len(sentences)] if sentence.size]
        start += len(sentences)
        dropped["sentences without tokens"] += len(sentences) - len(ids)
        if ids:
            yield text, ids
        else:
            dropped["documents without tokens"] += 1


def _close(writer: IndexedWriter) -> ShardInfo:
    counts = writer.close()
    prefix = writer.prefix
    return ShardInfo(
        name=prefix.name,
        documents=counts.documents,
        sentences=counts.sentences,
        tokens=counts.tokens,
        bytes=bin_path(prefix).stat().st_size,
        sha256=sha256_of(bin_path(prefix)),
        idx_sha256=sha256_of(idx_path(prefix)),
    )
