"""The command `zerobert plan`: what a launch would do, before it does it.

    zerobert plan --recipe recipes/bert_base.toml --deepspeed_config ds_configs/gpu_zero1_bf16.json --world-size 8 \
        --device-gib 80 --suggest

Needs no GPU, no process group and no model in memory; writes nothing but --json.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from pretrain.plan.hosts import count_slots
from pretrain.plan.report import write_report
from pretrain.plan.speed import read_speed
from pretrain.plan.subject import read_subject
from pretrain.plan.values import Options, plan_values
from runtime.command import EXIT_BAD_INPUT, EXIT_DONE, ConfigError
from runtime.files import write_json


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(prog="zerobert plan", description="Say what a launch would do.")
    parser.add_argument("--recipe", required=True, help="what to train: a TOML file of recipes/")
    parser.add_argument("--deepspeed_config", required=True, help="how to run it: a DeepSpeed JSON")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a field of the recipe"
    )
    parser.add_argument("--run-dir", metavar="DIR", help="whose plans and metrics are read (default: the recipe's)")
    ranks = parser.add_mutually_exclusive_group()
    ranks.add_argument("--world-size", type=int, metavar="N", help="ranks of the launch (default: 1)")
    ranks.add_argument("--hostfile", metavar="FILE", help="count its slots")
    parser.add_argument("--device-gib", type=float, metavar="G", help="memory of one device (default: this GPU's)")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), help="where it will run (default: a GPU, if there is a sign of one)"
    )
    parser.add_argument(
        "--tokens-per-second",
        metavar="X",
        help="speed of all devices: a number, a run dir, or the JSON of zerobert bench step (default: the run dir's)",
    )
    parser.add_argument("--suggest", action="store_true", help="largest micro-batch and smallest ZeRO stage that fit")
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write all figures as JSON; -: on stdout in place of the tables",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: arguments after the command's name; None: those of the process.

    Returns:
        0, or 2 where training would refuse the setting.

    Raises:
        ConfigError: what was given cannot be read at all.
    """
    arguments = build_parser().parse_args(argv)
    _check(arguments)
    world_size = arguments.world_size or 1
    if arguments.hostfile is not None:
        world_size = sum(count_slots(arguments.hostfile).values())
    subject = read_subject(arguments, world_size)
    speed = read_speed(arguments.tokens_per_second, subject.run_dir)
    values = plan_values(subject, Options(arguments.device_gib, speed, arguments.suggest))
    if arguments.json == "-":
        sys.stdout.write(json.dumps(values, indent=2) + "\n")
    else:
        write_report(values, sys.stdout)
        if arguments.json is not None:
            write_json(arguments.json, values)
    return EXIT_BAD_INPUT if subject.faults else EXIT_DONE


def _check(arguments: argparse.Namespace) -> None:
    if arguments.world_size is not None and arguments.world_size < 1:
        raise ConfigError(f"--world-size {arguments.world_size}: must be at least 1")
    gib = arguments.device_gib
    if gib is not None and not (math.isfinite(gib) and gib > 0):
        raise ConfigError(f"--device-gib {gib}: must be a number above 0")
    if arguments.json not in (None, "-") and not Path(arguments.json).parent.is_dir():
        raise ConfigError(f"--json {arguments.json}: its folder is not there")
