"""One task of `zerobert tokenizer`: its share of the sample to a sorted file of counted words.

A module of its own, so that worker processes can import it by name.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep

from runtime.files import read_json, write_json
from tokenization.documents import Document, Faults, ReadSettings, Source, read_piece
from tokenization.vocabulary.counts import WordCounter
from tokenization.vocabulary.sample import SampleTask, document_draw, draw_number
from tokenization.vocabulary.words import WordSplitter

SAMPLE_LINES = 500
"""Lines kept for the report on the tokenizer."""
# A change of what the same text is counted as must change this, so that unfinished work of before is not taken up.
_FORMAT_VERSION = 1
_LONGEST_LINE_CHARS = 500


@dataclass(frozen=True)
class CountJob:
    """What all tasks of a round share.

    Args:
        sources: all input files.
        tasks: what each task takes.
        splitter: how text is cut into words.
        seed: of the sample.
        folder: where each task leaves its counts and its `CountResult`.
    """

    sources: Sequence[Source]
    tasks: Sequence[SampleTask]
    splitter: WordSplitter
    seed: int
    folder: Path

    @property
    def errors(self) -> str:
        """Policy for faults in the text."""
        return self.sources[0].settings.errors

    def counts_path(self, rank: int) -> Path:
        """Return the file of a task's counts."""
        return self.folder / f"counts-{rank:05d}.tsv"

    def result_path(self, rank: int) -> Path:
        """Return the file of a task's `CountResult`."""
        return self.folder / f"result-{rank:05d}.json"

    def identities(self) -> tuple[str, ...]:
        """Return for each task a hash of all that its result depends on, the error policy left out."""
        shared = [_FORMAT_VERSION, version("tokenizers"), asdict(self.splitter), self.seed]
        described = [asdict(replace(source, settings=_without_policy(source.settings))) for source in self.sources]
        found = []
        for task in self.tasks:
            own = [(*draw, described[draw.piece.source]) for draw in task.draws]
            text = json.dumps([shared, task.most_bytes, own], sort_keys=True)
            found.append(hashlib.sha256(text.encode()).hexdigest())
        return tuple(found)

    def is_reusable(self, rank: int) -> bool:
        """Whether what a finished task left is there, and would be the same under the error policy of today."""
        if not (self.counts_path(rank).is_file() and self.result_path(rank).is_file()):
            return False
        result = load_result(self, rank)
        return result.errors == self.errors or not (result.repaired or result.dropped)


@dataclass(frozen=True)
class CountResult:
    """What a task took.

    Args:
        used_bytes: UTF-8 bytes of text.
        used_documents: documents, empty ones not counted.
        is_cut: whether text was left out because the task had its fill.
        errors: policy for faults in the text.
        repaired: faults in documents that were kept, by reason.
        dropped: documents left out, by reason.
        lines: some lines of the text, each with the number by which it was drawn; ascending.
    """

    used_bytes: int
    used_documents: int
    is_cut: bool
    errors: str
    repaired: Mapping[str, int]
    dropped: Mapping[str, int]
    lines: Sequence[tuple[float, str]]


class CountTask(PipelineStep):  # type: ignore[misc]  # datatrove has no types
    """Reads a task's share of the sample, counts its words and writes them down, sorted."""

    name = "count words"
    type = "counter"

    def __init__(self, job: CountJob) -> None:
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
        faults = Faults(job.errors)
        share = _Share(job, rank, faults)
        counter = WordCounter(job.splitter, job.counts_path(rank))
        for text in share:
            counter.add(text)
        counter.close()
        result = CountResult(
            used_bytes=share.used_bytes,
            used_documents=share.used_documents,
            is_cut=share.is_cut,
            errors=job.errors,
            repaired=dict(faults.repaired),
            dropped=dict(faults.dropped),
            lines=share.lines(),
        )
        write_json(job.result_path(rank), asdict(result))


def load_result(job: CountJob, rank: int) -> CountResult:
    """Read what a finished task left."""
    value = read_json(job.result_path(rank))
    value["lines"] = [(number, line) for number, line in value["lines"]]
    return CountResult(**value)


def _without_policy(settings: ReadSettings) -> ReadSettings:
    return replace(settings, errors="")


class _Share:
    """The text of a task's documents, as far as it is drawn and fits into the task's bytes."""

    def __init__(self, job: CountJob, rank: int, faults: Faults) -> None:
        self._job = job
        self._task = job.tasks[rank]
        self._faults = faults
        self._lines: list[tuple[float, str]] = []  # a heap of (-number, line): the largest number is first
        self.used_bytes = 0
        self.used_documents = 0
        self.is_cut = False

    def __iter__(self) -> Iterator[str]:
        """Yield texts that are not empty."""
        for source, document in self._documents():
            text = self._fit(document.text)
            if text:
                self.used_documents += 1
                self._look_at(source, document.offset, text)
                yield text
            if self.is_cut:
                return

    def lines(self) -> list[tuple[float, str]]:
        """Return lines of the texts, each drawn from another document, with ascending numbers."""
        return sorted((-negative, line) for negative, line in self._lines)

    def _documents(self) -> Iterator[tuple[int, Document]]:
        for draw in self._task.draws:
            source = draw.piece.source
            is_whole = draw.low <= 0 and draw.high >= 1
            for document in read_piece(self._job.sources, draw.piece, self._faults):
                if is_whole or draw.low <= document_draw(self._job.seed, source, document.offset) < draw.high:
                    yield source, document

    def _fit(self, text: str) -> str:
        """Return as much of a text as fits, without a part of a character at its end."""
        raw = text.encode("utf-8")
        left = self._task.most_bytes - self.used_bytes
        if len(raw) > left:
            self.is_cut = True
            raw = raw[:left]
            text = raw.decode("utf-8", errors="ignore")
            raw = text.encode("utf-8")
        self.used_bytes += len(raw)
        return text

    def _look_at(self, source: int, offset: int, text: str) -> None:
        number = draw_number(self._job.seed, "line", source, offset)
        if len(self._lines) == SAMPLE_LINES and -number <= self._lines[0][0]:
            return
        lines = [stripped for line in text[: 16 * _LONGEST_LINE_CHARS].split("\n") if (stripped := line.strip())]
        if not lines:
            return
        line = lines[int(number * (1 << 32)) % len(lines)][:_LONGEST_LINE_CHARS].strip()
        push = heapq.heappush if len(self._lines) < SAMPLE_LINES else heapq.heapreplace
        push(self._lines, (-number, line))
