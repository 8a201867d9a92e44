"""Input of any size to the counted words of a sample of it, in tasks that a second call need not repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenization.documents import Source
from tokenization.tasks.executors import Stage, forget_stale, run_local
from tokenization.vocabulary.count_task import SAMPLE_LINES, CountJob, CountResult, CountTask, load_result
from tokenization.vocabulary.counts import CountedWords, join_counts, keep_frequent, read_counts
from tokenization.vocabulary.sample import Sampler
from tokenization.vocabulary.words import WordSplitter


@dataclass(frozen=True)
class CountedSample:
    """What was drawn and counted.

    Args:
        counted: the words.
        lines: some lines of the text.
        used_bytes: UTF-8 bytes of text that were drawn.
        used_documents: documents that were drawn.
        is_whole: whether that is all of the input.
        total_bytes: bytes of text of the input; an estimate where not all was drawn.
        total_documents: documents of the input; an estimate where not all was drawn.
        repaired: faults in documents that were kept, by reason.
        dropped: documents left out, by reason.
    """

    counted: CountedWords
    lines: tuple[str, ...]
    used_bytes: int
    used_documents: int
    is_whole: bool
    total_bytes: int
    total_documents: int
    repaired: Mapping[str, int]
    dropped: Mapping[str, int]


def count_sample(
    sources: Sequence[Source],
    splitter: WordSplitter,
    budget_bytes: int,
    seed: int,
    workers: int,
    work_dir: Path,
) -> CountedSample:
    """Draw a sample and count its words; the same for any number of workers.

    Args:
        sources: all input files.
        splitter: how text is cut into words.
        budget_bytes: most UTF-8 bytes of text.
        seed: another seed draws other text.
        workers: processes.
        work_dir: what finished tasks left there for the same input is taken up.

    Raises:
        ConfigError: a fault in the text, and the policy is "fail".
    """
    sampler = Sampler(sources, budget_bytes, seed)
    paths: list[Path] = []
    results: list[CountResult] = []
    while tasks := sampler.next_round():
        name = "counting" if sampler.num_rounds == 1 else f"counting-{sampler.num_rounds}"
        job = CountJob(tuple(sources), tuple(tasks), splitter, seed, work_dir / name)
        job.folder.mkdir(exist_ok=True)
        weights = tuple(task.read_bytes for task in tasks)
        stage = Stage(name, CountTask(job), job.identities(), weights)
        forget_stale(stage, work_dir, job.is_reusable)
        run_local([stage], work_dir, min(workers, len(tasks)))
        found = [load_result(job, rank) for rank in range(len(tasks))]
        sampler.add(sum(result.used_bytes for result in found))
        results += found
        paths += [job.counts_path(rank) for rank in range(len(tasks))]
    counted = keep_frequent(read_counts(join_counts(paths, work_dir / "counting" / "all")))
    is_whole = sampler.is_exhausted and not any(result.is_cut for result in results)
    return _gather(counted, results, is_whole, sum(source.text_bytes for source in sources))


def _gather(
    counted: CountedWords, results: Sequence[CountResult], is_whole: bool, estimated_bytes: int
) -> CountedSample:
    """Add up what the tasks took."""
    used_bytes = sum(result.used_bytes for result in results)
    used_documents = sum(result.used_documents for result in results)
    total_bytes = used_bytes if is_whole else max(used_bytes, estimated_bytes)
    lines = sorted(line for result in results for line in result.lines)[:SAMPLE_LINES]
    repaired: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    for result in results:
        repaired.update(result.repaired)
        dropped.update(result.dropped)
    return CountedSample(
        counted=counted,
        lines=tuple(line for _, line in lines),
        used_bytes=used_bytes,
        used_documents=used_documents,
        is_whole=is_whole,
        total_bytes=total_bytes,
        total_documents=round(used_documents * total_bytes / max(1, used_bytes)),
        repaired=repaired,
        dropped=dropped,
    )
