"""The command `zerobert shard`: text to token shards and a manifest.

    python -m tokenization.shard --input corpus/*.jsonl.xz --tokenizer tokenizer --output shards --workers 8

The work is cut into tasks by the input alone, so any number of workers writes the same bytes. Until all is done it
stands in OUTPUT.partial; the same command, called again, does only what is missing there.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from runtime.command import ConfigError, run_command
from tokenization.collect import collect
from tokenization.documents import add_input_arguments, cut, is_url, open_sources, read_settings
from tokenization.folder import check_output, partial_path, publish, work_folder
from tokenization.job import Job
from tokenization.manifest import MANIFEST_NAME, Manifest, load_manifest, tokenizer_fingerprint
from tokenization.quality.duplicates import DuplicateTask
from tokenization.quality.screen import add_quality_arguments, read_quality
from tokenization.quality.signatures import SignatureTask
from tokenization.sentences import SENTENCE_MODES, check_language
from tokenization.shard_task import ShardTask, has_result, is_shard_file, load_result
from tokenization.tasks.executors import Stage, forget_stale, run_local, run_ray, submit_slurm
from tokenization.tasks.slurm_tasks import check_sbatch, check_slurm_options, parse_slurm_options
from tokenization.vocabulary.wordpiece import load_tokenizer

logger = logging.getLogger(__name__)

EXECUTORS = ("local", "slurm", "ray")
_SHOWN_PLACES = 5


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(prog="zerobert shard", description="Turn text into token shards.")
    add_input_arguments(parser)
    parser.add_argument("--tokenizer", required=True, type=Path, metavar="DIR", help="tokenizer folder")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="folder of shards to be made")
    parser.add_argument("--language", default="en", help="language of the sentence rules (default: en)")
    parser.add_argument(
        "--sentences",
        choices=SENTENCE_MODES,
        default="auto",
        help="auto: by the rules of the language, a single line end ends no sentence; paragraph: by the same rules in "
        "each line; line: each line of a document is a sentence (default: auto)",
    )
    add_quality_arguments(parser)
    parser.add_argument(
        "--validation-share",
        type=float,
        default=0.01,
        metavar="X",
        help="share of documents kept for validation, chosen by a hash of its ids (default: 0.01)",
    )
    parser.add_argument(
        "--tasks",
        type=int,
        metavar="N",
        help="parts the input is cut into, a shard of each split from each (default: one for 4 MiB of text, 1024 at "
        "most)",
    )
    parser.add_argument("--executor", choices=EXECUTORS, default="local", help="where tasks run (default: local)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="tasks at work at once (default: 1)")
    parser.add_argument(
        "--slurm",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="for --executor slurm: partition (required), time, cpus_per_task, mem_per_cpu_gb, qos, or any option of "
        "sbatch",
    )
    parser.add_argument("--ray-address", metavar="HOST:PORT", help="for --executor ray: a cluster that is running")
    parser.add_argument("--force", action="store_true", help="replace older shards in the output folder")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: arguments after the command's name; None: those of the process.

    Returns:
        Exit code 0.

    Raises:
        ConfigError: the input or an argument is wrong. Finished tasks are kept in OUTPUT.partial.
    """
    arguments = build_parser().parse_args(argv)
    _check(arguments)
    started = time.perf_counter()
    job = _plan(arguments)
    with work_folder(arguments.output, is_kept=arguments.executor == "slurm"):
        stages = _stages(job)
        if arguments.executor != "slurm":
            _run(stages, job, arguments)
            publish(arguments.output, kept=collect(job))
    if arguments.executor == "slurm":  # outside: the last job works in the folder, and may start at once
        _submit(stages, job, arguments, sys.argv[1:] if argv is None else argv)
        return 0
    _print_result(load_manifest(arguments.output), time.perf_counter() - started)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    for name in ("workers", "tasks"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name} {value}: must be 1 or more")
    if not 0 <= arguments.validation_share < 1:
        raise ConfigError(f"--validation-share {arguments.validation_share}: must be 0 or more and below 1")
    for flag, value, executor in (
        ("--slurm", arguments.slurm, "slurm"),
        ("--ray-address", arguments.ray_address, "ray"),
    ):
        if value and arguments.executor != executor and "SLURM_JOB_ID" not in os.environ:  # the last job has --slurm
            raise ConfigError(f"{flag}: is for --executor {executor}, this is --executor {arguments.executor}")
    for given in arguments.input if arguments.ray_address else ():
        if not os.path.isabs(given) and not is_url(given):
            raise ConfigError(f"--input {given}: must be absolute with --ray-address; workers run in other folders")
    if arguments.executor == "slurm":
        check_slurm_options(parse_slurm_options(arguments.slurm))
        check_sbatch()
    check_language(arguments.language)
    check_output(
        arguments.output, arguments.force, MANIFEST_NAME, arguments.input, is_shard_file, tokenizer=arguments.tokenizer
    )


def _plan(arguments: argparse.Namespace) -> Job:
    """Look at all that the user gave, and cut the work into tasks."""
    quality = read_quality(arguments)
    settings = read_settings(arguments)
    fingerprint = tokenizer_fingerprint(arguments.tokenizer)
    load_tokenizer(arguments.tokenizer)  # refuses a bad one before hours of reading
    sources = open_sources(arguments.input, settings)
    quality.open(arguments.language)  # likewise a filter that can't work here
    return Job(
        sources=sources,
        tasks=cut(sources, arguments.tasks),
        settings=settings,
        tokenizer_dir=arguments.tokenizer.absolute(),
        tokenizer_name=os.fspath(arguments.tokenizer),
        tokenizer_fingerprint=fingerprint,
        sentence_mode=arguments.sentences,
        language=arguments.language,
        validation_share=arguments.validation_share,
        quality=quality,
        work_dir=partial_path(arguments.output),
    )


def _stages(job: Job) -> list[Stage]:
    """Return what is to be done, in order; forgets what was done for other input or settings."""
    job.results_dir.mkdir(exist_ok=True)
    stages = []
    if job.quality.dedup:
        plan = job.dedup_plan
        identities = job.shard_identities()
        bucket = str((identities, plan.num_buckets))
        bucket_bytes = -(-sum(job.weights) // plan.num_buckets)
        stages += [
            Stage("signatures", SignatureTask(plan, job.read), identities, job.weights),
            Stage(
                "duplicates",
                DuplicateTask(plan),
                (bucket,) * plan.num_buckets,
                (bucket_bytes,) * plan.num_buckets,
            ),
        ]
    stages.append(Stage("shards", ShardTask(job), job.shard_identities(), job.weights))
    for stage in stages:
        forget_stale(stage, job.work_dir, partial(_is_reusable, job) if stage.name == "shards" else lambda rank: True)
    return stages


def _is_reusable(job: Job, rank: int) -> bool:
    """Whether what a finished task left is there, and would be the same under the error policy of today."""
    if not has_result(job.results_dir, rank):
        return False
    result = load_result(job.results_dir, rank)
    return result.errors == job.settings.errors or not result.places


def _run(stages: Sequence[Stage], job: Job, arguments: argparse.Namespace) -> None:
    """Run all that is missing, where the user wants it."""
    if arguments.executor == "ray":
        run_ray(stages, job.work_dir, arguments.workers, arguments.ray_address)
    else:
        run_local(stages, job.work_dir, min(arguments.workers, len(job.tasks)))


def _submit(stages: Sequence[Stage], job: Job, arguments: argparse.Namespace, argv: Sequence[str]) -> None:
    """Hand all that is missing to Slurm, and behind it the same command, which then finds all tasks done."""
    options = parse_slurm_options(arguments.slurm)
    jobs = submit_slurm(stages, job.work_dir, arguments.workers, options, finish=_finishing_command(argv))
    sys.stdout.write(f"submitted   jobs {', '.join(jobs)}; the last one makes {arguments.output}\n")


def _finishing_command(argv: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "tokenization.shard", *argv, "--executor", "local"]


def _print_result(manifest: Manifest, seconds: float) -> None:
    lines = [f"{'split':<12}{'documents':>14}{'sentences':>16}{'tokens':>18}{'shards':>8}\n"]
    for name, split in manifest.splits.items():
        lines.append(
            f"{name:<12}{split.documents:>14,}{split.sentences:>16,}{split.tokens:>18,}{len(split.shards):>8,}\n"
        )
    tokens = sum(split.tokens for split in manifest.splits.values())
    for what, counts in (("dropped", manifest.dropped), ("repaired", manifest.repaired)):
        for reason, count in counts.items():
            lines.append(f"{what:<12}{count:>14,} {reason}\n")
    lines += [
        f"speed       {tokens / seconds:,.0f} tokens/s, {manifest.text_bytes / 1e6 / seconds:.1f} MB/s "
        f"({seconds:.1f} s)\n",
        f"shards      {os.fspath(manifest.directory)}\n",
    ]
    sys.stdout.write("".join(lines))
    for place in manifest.places[:_SHOWN_PLACES]:
        logger.warning("%s, %s: %s: %s", place["path"], place["offset"], place["reason"], place["detail"])
    if not manifest.splits["validation"].documents:
        logger.warning("the validation split is empty; raise --validation-share for a held-out loss")


if __name__ == "__main__":
    run_command(main, "shard")
