"""The end of `zerobert shard`: what the tasks left becomes a manifest."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from runtime.command import ConfigError
from tokenization.documents import Source
from tokenization.encode import token_dtype
from tokenization.indexed import bin_path, idx_path
from tokenization.job import Job
from tokenization.manifest import MANIFEST_NAME, SPLITS, Contents, SplitInfo, write_manifest
from tokenization.shard_task import TaskResult, load_result
from tokenization.vocabulary.wordpiece import load_tokenizer

_MOST_PLACES = 20


def collect(job: Job) -> list[str]:
    """Write the manifest of finished tasks.

    Args:
        job: all its tasks are done.

    Returns:
        Names of the files that belong to the output.

    Raises:
        ConfigError: an input file changed meanwhile, or no document is left for training.
    """
    results = [load_result(job.results_dir, rank) for rank in range(len(job.tasks))]
    changed = [source.path for source in job.sources if _has_changed(source)]
    if changed:
        raise ConfigError(f"--input {changed[0]}: was changed while it was read; start again")
    contents = _describe(job, results)
    write_manifest(job.work_dir, contents)
    prefixes = [job.work_dir / shard.name for split in contents.splits.values() for shard in split.shards]
    return [MANIFEST_NAME, *(path(prefix).name for prefix in prefixes for path in (bin_path, idx_path))]


def _has_changed(source: Source) -> bool:
    """Whether a local file is another one than when the work was cut into tasks."""
    if source.is_remote or source.refusal:
        return False
    stat = os.stat(source.path)
    return (stat.st_size, str(stat.st_mtime_ns)) != (source.num_bytes, source.version)


def _describe(job: Job, results: Sequence[TaskResult]) -> Contents:
    """Gather what the manifest says; nothing in it may differ between two runs over the same input."""
    splits = {
        split: SplitInfo.of(tuple(result.shards[split] for result in results if split in result.shards))
        for split in SPLITS
    }
    dropped = _sum([result.dropped for result in results])
    if not splits["train"].documents:
        why = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items()) or "all are in the validation split"
        raise ConfigError(
            f"--input: no document is left for training ({why}); add text, or ask less by --min-chars, --filter or "
            "--validation-share"
        )
    vocab_size = load_tokenizer(job.tokenizer_dir).get_vocab_size()
    return Contents(
        tokenizer_fingerprint=job.tokenizer_fingerprint,
        vocab_size=vocab_size,
        dtype=np.dtype(token_dtype(vocab_size)).name,
        splits=splits,
        sources=_sources(job, results),
        settings={
            "tokenizer": job.tokenizer_name,
            "language": job.language,
            "sentences": job.sentence_mode,
            "validation_share": job.validation_share,
            **asdict(job.settings),
            **job.quality.settings(),
            "tasks": len(job.tasks),
        },
        dropped=dropped,
        repaired=_sum([result.repaired for result in results]),
        places=_first_places(results),
        text_bytes=sum(result.text_bytes for result in results),
    )


def _sources(job: Job, results: Sequence[TaskResult]) -> list[dict[str, Any]]:
    """Return path, size, documents and hash of every input file; of a remote one what its server calls its version."""
    documents = _sum([result.documents for result in results])
    sha256 = {path: value for result in results for path, value in result.sha256.items()}
    sources = []
    for source in job.sources:
        known = {"sha256": sha256[source.path]} if source.path in sha256 else {"version": source.version}
        described = {"path": source.path, "bytes": source.num_bytes, "documents": documents.get(source.path, 0)}
        sources.append({**described, **known})
    return sources


def _sum(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Add counts up by reason; reasons in the order of the alphabet, those without a count left out."""
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return {reason: total[reason] for reason in sorted(total) if total[reason]}


def _first_places(results: Sequence[TaskResult]) -> list[Mapping[str, Any]]:
    """Return the first places of each kind of fault."""
    seen: Counter[str] = Counter()
    places = []
    for result in results:
        for place in result.places:
            seen[place["reason"]] += 1
            if seen[place["reason"]] <= _MOST_PLACES:
                places.append(place)
    return places
