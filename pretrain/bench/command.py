"""The command `zerobert bench`: one benchmark a name, in the place where training would run.

    zerobert bench step --recipe recipes/bert_base.toml --deepspeed_config ds_configs/gpu_zero1_bf16.json --synthetic
    deepspeed --num_gpus 8 --module pretrain.bench step ...

Nothing of the run that it measures is written.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pretrain.bench.report import render, report_values
from pretrain.bench.step import measure, prepare
from runtime.command import EXIT_DONE, ConfigError
from runtime.dist import add_local_rank_argument, process_group, world_from_environment
from runtime.files import write_json


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(prog="zerobert bench", description="Measure what this machine does.")
    # Launchers put it before the benchmark's name.
    add_local_rank_argument(parser)
    names = parser.add_subparsers(dest="name", metavar="NAME", title="benchmarks")
    step = names.add_parser(
        "step",
        help="training steps of a recipe and a DeepSpeed JSON: tokens a second, TFLOP/s, MFU, where the time goes",
        description="Measure the training steps of a recipe and a DeepSpeed JSON.",
    )
    step.add_argument("--recipe", required=True, help="what to train: a TOML file of recipes/")
    step.add_argument("--deepspeed_config", required=True, help="how to run it: a DeepSpeed JSON")
    step.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a field of the recipe")
    step.add_argument(
        "--synthetic",
        action="store_true",
        help="random tokens, every pair of full length; the recipe's tokenizer and shards need not exist",
    )
    step.add_argument("--seconds", type=float, default=60.0, metavar="X", help="time to measure (default: 60)")
    step.add_argument("--json", type=Path, metavar="FILE", help="write all figures as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: arguments after the command's name; None: those of the process.

    Returns:
        The exit code.

    Raises:
        ConfigError: bad input, as in training.
    """
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.name is None:
        parser.print_help()
        return EXIT_DONE
    _check(arguments)
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    world = world_from_environment(arguments.local_rank)
    if not world.is_rank_zero:
        logging.getLogger("pretrain.data").setLevel(logging.WARNING)  # every rank plans for itself; one says so
    with TemporaryDirectory(prefix="zerobert-bench-") as scratch:
        subject = prepare(arguments, world, Path(scratch))
        with process_group(world) as device:
            measures = measure(subject, device, arguments.seconds)
        if world.is_rank_zero:
            if arguments.json is not None:
                write_json(arguments.json, report_values(measures))
            sys.stdout.write(render(measures))
    return EXIT_DONE


def _check(arguments: argparse.Namespace) -> None:
    """Refuse at once what would fail after the measurement."""
    if not (math.isfinite(arguments.seconds) and arguments.seconds > 0):
        raise ConfigError(f"--seconds {arguments.seconds}: must be a number above 0")
    path: Path | None = arguments.json
    if path is not None and (path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK)):
        raise ConfigError(f"--json {path}: must be a file in a folder that is there and may be written to")
