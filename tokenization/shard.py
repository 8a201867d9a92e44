"""The command `zerobert shard`: text to token shards and a manifest.

    python -m tokenization.shard --input corpus/*.jsonl.xz --tokenizer tokenizer --output shards --workers 8

The work is cut into tasks by the input alone, so any number of workers writes the same bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from datatrove.executor import LocalPipelineExecutor
from rich.console import Console
from rich.progress import Progress

from runtime.command import ConfigError, run_command
from runtime.files import sha256_of
from tokenization.documents import add_input_arguments, open_sources
from tokenization.encode import token_dtype
from tokenization.folder import check_output, output_folder
from tokenization.manifest import (
    MANIFEST_NAME,
    SPLITS,
    Contents,
    Manifest,
    SplitInfo,
    load_manifest,
    tokenizer_fingerprint,
    write_manifest,
)
from tokenization.sentences import SENTENCE_MODES, check_language
from tokenization.shard_task import DROPPED_REASONS, Job, ShardTask, TaskResult, load_result
from tokenization.survey import Survey, survey
from tokenization.wordpiece import load_tokenizer

logger = logging.getLogger(__name__)

_TASK_BYTES = 4 << 20
_MOST_TASKS = 1024
_POLL_SECONDS = 0.5


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(prog="zerobert shard", description="Turn text into token shards.")
    add_input_arguments(parser)
    parser.add_argument("--tokenizer", required=True, type=Path, metavar="DIR", help="tokenizer folder")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder of shards to be made")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes at work (default: 1)")
    parser.add_argument(
        "--tasks",
        type=int,
        metavar="N",
        help="parts the input is cut into at most, a shard of each split from each (default: "
        "one for 4 MiB of text, 1024 at most)",
    )
    parser.add_argument("--language", default="en", help="language of the sentence rules (default: en)")
    parser.add_argument(
        "--sentences",
        choices=SENTENCE_MODES,
        default="auto",
        help="auto: cut documents by the rules of the language; line: each line of a document is a sentence",
    )
    parser.add_argument(
        "--validation-share",
        type=float,
        default=0.01,
        metavar="X",
        help="share of documents kept for validation, chosen by a hash of the text (default: 0.01)",
    )
    parser.add_argument("--executor", choices=("local",), default="local", help="where tasks run (default: local)")
    parser.add_argument("--force", action="store_true", help="replace older shards in the output folder")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: arguments after the command's name; None: those of the process.

    Returns:
        Exit code 0.

    Raises:
        ConfigError: the input or an argument is wrong; nothing was written.
    """
    arguments = build_parser().parse_args(argv)
    _check(arguments)
    fingerprint = tokenizer_fingerprint(arguments.tokenizer)
    load_tokenizer(arguments.tokenizer)  # refuses a bad one before hours of reading
    started = time.perf_counter()
    found = survey(open_sources(arguments.input, arguments.text_field, arguments.txt_layout))
    num_tasks = arguments.tasks or min(_MOST_TASKS, -(-found.text_bytes // _TASK_BYTES))
    with output_folder(arguments.output) as partial:
        job = Job(
            sources=found.sources,
            parts=found.cut(num_tasks),
            tokenizer_dir=arguments.tokenizer,
            tokenizer_fingerprint=fingerprint,
            sentence_mode=arguments.sentences,
            language=arguments.language,
            validation_share=arguments.validation_share,
            output_dir=partial,
            results_dir=partial / "logs",
        )
        results = _run_tasks(job, arguments.workers)
        write_manifest(partial, _describe(arguments, found, job, results))
    _print_result(load_manifest(arguments.output), time.perf_counter() - started)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    for name in ("workers", "tasks"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name} {value}: must be 1 or more")
    if not 0 <= arguments.validation_share < 1:
        raise ConfigError(f"--validation-share {arguments.validation_share}: must be 0 or more and below 1")
    check_language(arguments.language)
    check_output(arguments.output, arguments.force, MANIFEST_NAME, arguments.input)


def _run_tasks(job: Job, workers: int) -> list[TaskResult]:
    """Run all tasks and return what each wrote, in order."""
    num_tasks = len(job.parts)
    job.results_dir.mkdir()
    executor = LocalPipelineExecutor(
        pipeline=[ShardTask(job)],
        tasks=num_tasks,
        workers=min(workers, num_tasks),
        logging_dir=str(job.results_dir),
    )
    if workers > 1:
        # Each worker would start a thread for every core.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with _progress(job.results_dir, num_tasks):
        executor.run()
    results = [load_result(job.results_dir, rank) for rank in range(num_tasks)]
    shutil.rmtree(job.results_dir)
    return results


@contextlib.contextmanager
def _progress(logs: Path, num_tasks: int) -> Iterator[None]:
    """Show on a terminal how many tasks are done."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    done = threading.Event()
    with Progress(console=console, transient=True) as progress:
        line = progress.add_task("sharding", total=num_tasks)

        def watch() -> None:
            while not done.wait(_POLL_SECONDS):
                progress.update(line, completed=sum(1 for _ in logs.glob("result-*.json")))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def _describe(arguments: argparse.Namespace, found: Survey, job: Job, results: Sequence[TaskResult]) -> Contents:
    """Gather what the manifest says; nothing in it may differ between two runs over the same input."""
    splits = {
        split: SplitInfo.of(tuple(result.shards[split] for result in results if split in result.shards))
        for split in SPLITS
    }
    if not splits["train"].documents:
        raise ConfigError("--input: no document is left for training; lower --validation-share or add text")
    vocab_size = load_tokenizer(job.tokenizer_dir).get_vocab_size()
    return Contents(
        tokenizer_fingerprint=job.tokenizer_fingerprint,
        vocab_size=vocab_size,
        dtype=np.dtype(token_dtype(vocab_size)).name,
        splits=splits,
        sources=[
            {"path": str(source.path), "bytes": source.path.stat().st_size, "sha256": sha256_of(source.path)}
            for source in found.sources
        ],
        settings={
            "language": job.language,
            "sentences": job.sentence_mode,
            "validation_share": job.validation_share,
            "text_field": arguments.text_field,
            "txt_layout": arguments.txt_layout,
            "tasks": len(job.parts),
        },
        dropped={reason: sum(result.dropped[reason] for result in results) for reason in DROPPED_REASONS},
        text_bytes=found.text_bytes,
    )


def _print_result(manifest: Manifest, seconds: float) -> None:
    lines = [f"{'split':<12}{'documents':>14}{'sentences':>16}{'tokens':>18}{'shards':>8}\n"]
    for name, split in manifest.splits.items():
        lines.append(
            f"{name:<12}{split.documents:>14,}{split.sentences:>16,}{split.tokens:>18,}{len(split.shards):>8,}\n"
        )
    tokens = sum(split.tokens for split in manifest.splits.values())
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in manifest.dropped.items())
    lines += [
        f"dropped     {dropped}\n",
        f"speed       {tokens / seconds:,.0f} tokens/s, {manifest.text_bytes / 1e6 / seconds:.1f} MB/s "
        f"({seconds:.1f} s)\n",
        f"shards      {os.fspath(manifest.directory)}\n",
    ]
    sys.stdout.write("".join(lines))
    if not manifest.splits["validation"].documents:
        logger.warning("the validation split is empty; raise --validation-share for a held-out loss")


if __name__ == "__main__":
    run_command(main, "shard")
