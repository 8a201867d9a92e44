"""Exact deduplication: of equal documents, and of equal lines, the first of the corpus stays.

Three passes, each a stage of tasks: `SignatureTask` hashes what every task reads; `DuplicateTask` takes from all
tasks the hashes of one range, a bucket, and notes whatever is not the first of its hash; `Drops` takes that out
while a task reads its documents again. First means: in the order of tasks, and of documents and lines within a
task. So the result is a function of the corpus, not of the number of workers.

A line counts without white space at its ends. Blank lines, and empty documents, are never duplicates. A file of
drops holds, little-endian: num_tasks, num_buckets and num_tasks + 1 offsets, int64; ordinals, uint32, ascending
within each task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
from datatrove.pipeline.base import PipelineStep

from runtime.command import ConfigError
from runtime.files import write_bytes
from tokenization.documents import Document
from tokenization.quality.signatures import BUCKET_ENTRIES, HASH_BITS, DedupPlan, Hashes, Signatures

DUPLICATE_DOCUMENTS = "duplicate documents"
REPEATED_LINES = "repeated lines"
ONLY_REPEATED_LINES = "documents of repeated lines alone"

Mask = npt.NDArray[np.bool_]


class DuplicateTask(PipelineStep):  # type: ignore[misc]  # datatrove has no types
    """Pipeline step: task b notes what is to be dropped of bucket b, once all signatures are there.

    Args:
        plan: shared by all tasks.
    """

    name = "duplicates"
    type = "dedup"

    def __init__(self, plan: DedupPlan) -> None:
        super().__init__()
        self.plan = plan

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        """Do the work of one bucket.

        Args:
            data: what an earlier step gave; there is none.
            rank: index of the bucket.
            world_size: number of buckets.
        """
        for kind in self.plan.kinds:
            places = find_duplicates(self.plan, kind, rank)
            bounds = np.arange(self.plan.num_tasks + 1, dtype=np.uint64) << np.uint64(32)
            offsets = np.searchsorted(places, bounds)
            head = np.array([self.plan.num_tasks, self.plan.num_buckets, *offsets], dtype="<i8")
            path = self.plan.drops_path(kind, rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, head.tobytes() + places.astype("<u4").tobytes())


def find_duplicates(plan: DedupPlan, kind: str, bucket: int, most_entries: int = BUCKET_ENTRIES) -> Hashes:
    """Find what is not the first of its hash among all tasks, in one bucket of hashes.

    What a task's own signatures already call a repeat is not found again.

    Args:
        plan: shared by all tasks.
        kind: one of the plan's kinds.
        bucket: which, 0 <= bucket < num_buckets.
        most_entries: signatures held in memory at once, about 32 bytes each; a fuller bucket is taken in parts.

    Returns:
        uint64 (n,), ascending: task << 32 | ordinal.
    """
    entries = _count(plan, kind, bucket, plan.num_buckets)
    parts = max(1, -(-entries // most_entries))
    found = [_find_in_range(plan, kind, bucket * parts + part, plan.num_buckets * parts) for part in range(parts)]
    places = np.concatenate(found)
    places.sort()
    return places


class Drops:
    """What deduplication takes out of one task's documents.

    Args:
        documents: bool (documents of the task,): to be dropped; None: documents are not compared.
        lines: bool (lines of the task,), likewise.
    """

    def __init__(self, documents: Mask | None, lines: Mask | None) -> None:
        self._documents = documents
        self._lines = lines

    @classmethod
    def open(cls, plan: DedupPlan, rank: int) -> Drops:
        """Gather from all buckets what is to be dropped of a task.

        Args:
            plan: shared by all tasks.
            rank: index of the task.

        Raises:
            ValueError: drops of another plan lie in the folder.
        """
        masks = {kind: _read_mask(plan, kind, rank) for kind in plan.kinds}
        return cls(masks.get("documents"), masks.get("lines"))

    def apply(self, documents: Iterable[Document], dropped: Counter[str]) -> Iterator[Document]:
        """Yield the documents that stay, without their repeated lines.

        Args:
            documents: all documents of the task, as they were when their signatures were taken.
            dropped: gains a count for `DUPLICATE_DOCUMENTS`, `REPEATED_LINES` and `ONLY_REPEATED_LINES`.

        Raises:
            ConfigError: they are more or fewer documents or lines than before.
        """
        num_documents = num_lines = 0
        for document in documents:
            lines = slice(num_lines, num_lines + document.text.count("\n") + 1)
            num_documents, num_lines = num_documents + 1, lines.stop
            if _is_past(self._documents, num_documents) or _is_past(self._lines, num_lines):
                break
            if self._documents is not None and self._documents[num_documents - 1]:
                dropped[DUPLICATE_DOCUMENTS] += 1
                continue
            if self._lines is None:
                yield document
                continue
            text, num_dropped = drop_lines(document.text, self._lines[lines])
            dropped[REPEATED_LINES] += num_dropped
            if text is None:
                dropped[ONLY_REPEATED_LINES] += 1
            else:
                yield document if text is document.text else document._replace(text=text)
        self._check("documents", self._documents, num_documents)
        self._check("lines", self._lines, num_lines)

    def _check(self, kind: str, mask: Mask | None, found: int) -> None:
        if mask is not None and found != len(mask):
            raise ConfigError(
                f"--input: {'more than ' if found > len(mask) else ''}{min(found, len(mask))} {kind} where there were "
                f"{len(mask)} when duplicates were looked for; the input changed meanwhile"
            )


def drop_lines(text: str, is_dropped: Mask) -> tuple[str | None, int]:
    """Take lines out of a text.

    Args:
        text: lines joined by line feeds.
        is_dropped: bool (lines,).

    Returns:
        The text without them and without white space at either end, None where nothing is left of it; the number
        of lines taken out. The text itself where there are none.
    """
    num_dropped = int(np.count_nonzero(is_dropped))
    if not num_dropped:
        return text, 0
    kept = "\n".join(compress(text.split("\n"), (~is_dropped).tolist())).strip()
    return kept or None, num_dropped


def _is_past(mask: Mask | None, count: int) -> bool:
    return mask is not None and count > len(mask)


def _read_mask(plan: DedupPlan, kind: str, rank: int) -> Mask:
    signatures = Signatures(plan.signature_path(kind, rank))
    mask = np.zeros(signatures.num_items, dtype=np.bool_)
    mask[signatures.repeats] = True
    for bucket in range(plan.num_buckets):
        path = plan.drops_path(kind, bucket)
        raw = np.memmap(path, dtype=np.uint8, mode="r")
        num_tasks, num_buckets = (int(count) for count in raw[:16].view("<i8"))
        if (num_tasks, num_buckets) != (plan.num_tasks, plan.num_buckets):
            raise ValueError(
                f"{path}: is of {num_tasks} tasks and {num_buckets} buckets, not of {plan.num_tasks} and "
                f"{plan.num_buckets}; remove the folder and start again"
            )
        start, stop = raw[16 + 8 * rank : 32 + 8 * rank].view("<i8")
        ordinals = raw[16 + 8 * (num_tasks + 1) :].view("<u4")
        mask[ordinals[start:stop]] = True
    return mask


def _find_in_range(plan: DedupPlan, kind: str, index: int, count: int) -> Hashes:
    """Return the places, task << 32 | ordinal, of what is not first, in range `index` of `count`; unsorted."""
    total = _count(plan, kind, index, count)
    hashes = np.empty(total, dtype=np.uint64)
    places = np.empty(total, dtype=np.uint64)
    at = 0
    for rank in range(plan.num_tasks):
        for run_hashes, run_ordinals in Signatures(plan.signature_path(kind, rank)).runs:
            taken = _range_of(run_hashes, index, count)
            end = at + taken.stop - taken.start
            hashes[at:end] = run_hashes[taken]
            places[at:end] = run_ordinals[taken]
            places[at:end] |= np.uint64(rank << 32)
            at = end
    # Runs stand in the order of tasks and ordinals, and the sort keeps it: the first of equal ones is the first.
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    repeats: Hashes = places[order[1:][hashes[1:] == hashes[:-1]]]
    return repeats


def _count(plan: DedupPlan, kind: str, index: int, count: int) -> int:
    """Return how many signatures of all tasks lie in range `index` of `count`."""
    total = 0
    for rank in range(plan.num_tasks):
        for hashes, _ in Signatures(plan.signature_path(kind, rank)).runs:
            taken = _range_of(hashes, index, count)
            total += taken.stop - taken.start
    return total


def _range_of(hashes: Hashes, index: int, count: int) -> slice:
    """Return which of some sorted hashes lie in range `index` of the `count` equal ranges of all hashes."""

    def boundary(of: int) -> int:
        if of == count:
            return len(hashes)
        return int(np.searchsorted(hashes, np.uint64((of << HASH_BITS) // count)))

    return slice(boundary(index), boundary(index + 1))
