"""First pass of exact deduplication: what a task's documents and lines hash to, one sorted file a task and kind.

Equal texts have equal hashes; of different ones, two in 2**64 pairs share theirs by chance (about 0.03 pairs
among a billion lines). A file of signatures holds, little-endian and one after the other: runs, each the sorted
hashes uint64 (n,) and their ordinals uint32 (n,), filled up to 8 bytes; the ordinals of what a run of this task
already had, uint32; the run lengths and three counts, int64.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from datatrove.pipeline.base import PipelineStep

from tokenization.documents import Document

HASH_BITS = 64
KINDS = ("documents", "lines")
_RUN_LENGTH = 1 << 21  # entries sorted at once: about 100 MB with the sort's own
_BATCH_CHARS = 1 << 20
# A bucket is read as a whole: at 50 bytes a line this many are 300 MB of text, and take about 200 MB of memory.
BUCKET_ENTRIES = 6_000_000
_BYTES_AN_ENTRY = {"documents": 500, "lines": 50}

Hashes = npt.NDArray[np.uint64]
Ordinals = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class DedupPlan:
    """What all tasks of a deduplication share.

    Args:
        work_dir: where signatures and drops are kept; every task sees it.
        kinds: of `KINDS`: equal documents, repeated lines, or both.
        num_tasks: tasks that read the corpus.
        num_buckets: tasks that look for duplicates.
    """

    work_dir: Path
    kinds: tuple[str, ...]
    num_tasks: int
    num_buckets: int

    @classmethod
    def of(cls, work_dir: Path, kinds: Sequence[str], num_tasks: int, text_bytes: int) -> DedupPlan:
        """Return the plan for a corpus; it depends on the corpus alone, not on the workers.

        Args:
            work_dir: see the class.
            kinds: see the class.
            num_tasks: see the class.
            text_bytes: estimate of the corpus' text, in bytes. A bad one costs time, not memory.
        """
        entries = text_bytes // min(_BYTES_AN_ENTRY[kind] for kind in kinds)
        return cls(work_dir, tuple(kinds), num_tasks, max(1, -(-entries // BUCKET_ENTRIES)))

    def signature_path(self, kind: str, rank: int) -> Path:
        """Return where task `rank` leaves its signatures of a kind."""
        return self.work_dir / "signatures" / f"{kind}-{rank:05d}"

    def drops_path(self, kind: str, bucket: int) -> Path:
        """Return where a bucket leaves what is to be dropped of a kind."""
        return self.work_dir / "duplicates" / f"{kind}-{bucket:05d}"


class SignatureTask(PipelineStep):  # type: ignore[misc]  # datatrove has no types
    """Pipeline step: reads the documents of a task and writes their signatures.

    Args:
        plan: shared by all tasks.
        read: gives the documents of a task, always the same ones in the same order; picklable.
    """

    name = "signatures"
    type = "dedup"

    def __init__(self, plan: DedupPlan, read: Callable[[int], Iterable[Document]]) -> None:
        super().__init__()
        self.plan = plan
        self.read = read

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        """Do the work of one task.

        Args:
            data: what an earlier step gave; there is none.
            rank: index of the task.
            world_size: number of tasks.
        """
        for kind in self.plan.kinds:
            self.plan.signature_path(kind, rank).parent.mkdir(parents=True, exist_ok=True)
        writers = {kind: _SignatureWriter(self.plan.signature_path(kind, rank)) for kind in self.plan.kinds}
        try:
            for texts in _batches(self.read(rank)):
                for kind, writer in writers.items():
                    writer.add(hash_texts(texts) if kind == "documents" else hash_lines(texts))
            for writer in writers.values():
                writer.close()
        finally:
            for writer in writers.values():
                writer.discard()


def hash_texts(texts: Iterable[str]) -> Hashes:
    """Return the hash of each text: uint64 (number of texts,); an empty text's is `EMPTY`."""
    blake2b = hashlib.blake2b
    digests = [blake2b(data, digest_size=8).digest() for data in map(str.encode, texts)]
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64, copy=False)


def hash_lines(texts: Sequence[str]) -> Hashes:
    """Return the hash of each line of all texts, stripped: uint64; a blank line's is `EMPTY`.

    A text has as many lines as line feeds, and one more.
    """
    return hash_texts(map(str.strip, "\n".join(texts).split("\n"))) if texts else np.empty(0, np.uint64)


EMPTY = hash_texts([""])[0]


class Signatures:
    """A file of signatures, memory-mapped.

    Args:
        path: the file.

    Attributes:
        num_items: documents or lines of the task, empty ones counted.
        repeats: ordinals of what stood earlier in the same run.
        runs: (hashes ascending and all different, their ordinals), in the order of the task.
    """

    def __init__(self, path: Path) -> None:
        raw = np.memmap(path, dtype=np.uint8, mode="r")
        self.num_items, num_repeats, num_runs = (int(count) for count in raw[-24:].view("<i8"))
        end = len(raw) - 24 - 8 * num_runs
        lengths = raw[end : end + 8 * num_runs].view("<i8").tolist()
        self.repeats: Ordinals = raw[end - 4 * num_repeats : end].view("<u4")
        self.runs: list[tuple[Hashes, Ordinals]] = []
        start = 0
        for length in lengths:
            middle, stop = start + 8 * length, start + 12 * length
            self.runs.append((raw[start:middle].view("<u8"), raw[middle:stop].view("<u4")))
            start = stop + 4 * (length % 2)


class _SignatureWriter:
    """Writes a file of signatures; it has its name only when it is whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._stream: IO[bytes] = open(self._temporary, "wb")
        self._pending: list[Hashes] = []
        self._num_pending = 0
        self._start = 0  # ordinal of the first that is pending
        self._lengths: list[int] = []
        self._repeats: list[Ordinals] = []

    def add(self, hashes: Hashes) -> None:
        """Take the hashes of what follows in the task."""
        self._pending.append(hashes)
        self._num_pending += len(hashes)
        if self._num_pending >= _RUN_LENGTH:
            self._write_run()

    def close(self) -> None:
        """Write what is left and give the file its name."""
        self._write_run()
        repeats = np.concatenate([np.empty(0, np.uint32), *self._repeats])
        self._stream.write(repeats.astype("<u4").tobytes())
        counts = [*self._lengths, self._start, len(repeats), len(self._lengths)]
        self._stream.write(np.array(counts, dtype="<i8").tobytes())
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        os.replace(self._temporary, self._path)

    def discard(self) -> None:
        """Remove what is half written; without effect after `close`."""
        self._stream.close()
        self._temporary.unlink(missing_ok=True)

    def _write_run(self) -> None:
        """Sort what is pending; of equal hashes the first goes into the run, the others are repeats."""
        hashes = np.concatenate([np.empty(0, np.uint64), *self._pending])
        ordinals = np.flatnonzero(hashes != EMPTY)
        ordinals = ordinals[np.argsort(hashes[ordinals], kind="stable")]
        hashes = hashes[ordinals]
        is_first = np.ones(len(hashes), dtype=np.bool_)
        is_first[1:] = hashes[1:] != hashes[:-1]
        ordinals += self._start
        self._stream.write(hashes[is_first].astype("<u8").tobytes())
        self._stream.write(ordinals[is_first].astype("<u4").tobytes())
        self._stream.write(bytes(4 * (int(is_first.sum()) % 2)))  # numpy copies hashes that are not aligned
        self._repeats.append(np.sort(ordinals[~is_first]).astype(np.uint32))
        self._lengths.append(int(is_first.sum()))
        self._start += self._num_pending
        self._pending, self._num_pending = [], 0


def _batches(documents: Iterable[Document]) -> Iterator[list[str]]:
    """Gather texts: arrays are slow to make for every short one."""
    texts: list[str] = []
    chars = 0
    for document in documents:
        texts.append(document.text)
        chars += len(document.text) + 1
        if chars >= _BATCH_CHARS:
            yield texts
            texts, chars = [], 0
    if texts:
        yield texts
