"""Look at the checkpoints of a run, verify them, remove older ones, convert one for DeepSpeed's own tools.

zerobert checkpoint ls runs/demo/run
zerobert checkpoint verify runs/demo/run
zerobert checkpoint prune runs/demo/run --keep-last 2
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pretrain.engine.checkpoint import CHECKPOINTS_DIR, DamagedError, convert, damage, find_checkpoint, read_checkpoint
from pretrain.engine.checkpoint.folder import BROKEN_PREFIX, LATEST_FILE, whole_tags
from pretrain.engine.checkpoint.saving import Retention, remove_older
from pretrain.engine.checkpoint.universal import UNIVERSAL_PREFIX
from pretrain.engine.ds_config import precision, zero_stage
from runtime.command import EXIT_DONE, EXIT_FAILED, ConfigError, run_command
from runtime.lock import only_one


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0; 1 where `verify` finds a file that is not as it was saved.

    Raises:
        ConfigError: no such run, no checkpoint in it, another process trains in it.
    """
    parser = argparse.ArgumentParser(prog="zerobert checkpoint", description="The checkpoints of a run.")
    commands = parser.add_subparsers(required=True, metavar="ls|verify|prune|convert")
    listing = commands.add_parser("ls", help="what there is")
    listing.add_argument("--json", action="store_true", help="as JSON, on standard output")
    listing.set_defaults(run_command=_list)
    verifying = commands.add_parser("verify", help="read every file and compare its sha256")
    verifying.add_argument("--step", type=int, help="of one checkpoint; default: all")
    verifying.set_defaults(run_command=_verify)
    pruning = commands.add_parser("prune", help="remove older checkpoints")
    pruning.add_argument("--keep-last", type=int, required=True, metavar="N", help="the newest that stay, at least 1")
    pruning.add_argument("--milestones", type=int, default=0, metavar="M", help="keep those of every M steps as well")
    pruning.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")
    pruning.set_defaults(run_command=_prune)
    converting = commands.add_parser("convert", help="write DeepSpeed's universal checkpoint of one")
    converting.add_argument("--step", type=int, help="default: the newest checkpoint")
    converting.add_argument("--to", type=Path, required=True, metavar="DIR", help="must not exist, or be empty")
    converting.set_defaults(run_command=_convert)
    for command in (listing, verifying, pruning, converting):
        command.add_argument("run", type=Path, metavar="RUN", help="a run dir")
    options = parser.parse_args(argv)
    root = options.run / CHECKPOINTS_DIR
    if not root.is_dir():
        raise ConfigError(f"{options.run}: no run dir, there is no {CHECKPOINTS_DIR}/ in it")
    code: int = options.run_command(root, options)
    return code


def describe(root: Path) -> list[dict[str, Any]]:
    """Describe every folder of a run's checkpoints, by step.

    Args:
        root: their folder.

    Returns:
        name, is_latest, is_whole (list and sizes), fault, and of a readable one step, bytes, num_files, world_size,
        zero_stage, precision.
    """
    latest = root / LATEST_FILE
    newest = latest.read_text(encoding="utf-8").strip() if latest.is_file() else ""
    rows = []
    folders = (path for path in root.iterdir() if path.is_dir() and not path.name.startswith(UNIVERSAL_PREFIX))
    for path in sorted(folders):
        row: dict[str, Any] = {"name": path.name, "is_latest": path.name == newest, "is_whole": True, "fault": None}
        try:
            checkpoint = read_checkpoint(path)
            row |= {
                "step": checkpoint.state.step,
                "bytes": sum(entry["bytes"] for entry in checkpoint.files.values()),
                "num_files": len(checkpoint.files),
                "world_size": checkpoint.world_size,
                "zero_stage": zero_stage(checkpoint.ds_config),
                "precision": precision(checkpoint.ds_config),
            }
        except DamagedError as error:
            row |= {"is_whole": False, "fault": str(error)}
        rows.append(row)
    return rows


def _list(root: Path, options: argparse.Namespace) -> int:
    rows = describe(root)
    if options.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return EXIT_DONE
    table = Table()
    for column in ("checkpoint", "step", "MiB", "files", "ranks", "ZeRO", "precision", ""):
        table.add_column(column, justify="left" if column in ("checkpoint", "precision", "") else "right")
    for row in rows:
        if row["is_whole"]:
            numbers = [f"{row['step']}", f"{row['bytes'] / 2**20:.1f}"]
            numbers += [f"{row[key]}" for key in ("num_files", "world_size", "zero_stage", "precision")]
            note = "kept aside" if row["name"].startswith(BROKEN_PREFIX) else "latest" if row["is_latest"] else ""
        else:
            numbers, note = [""] * 6, "kept aside" if row["name"].startswith(BROKEN_PREFIX) else "not whole"
        table.add_row(row["name"], *numbers, note)
    Console().print(table)
    return EXIT_DONE


def _verify(root: Path, options: argparse.Namespace) -> int:
    tags = whole_tags(root)
    if options.step is not None:
        tags = [tag for tag in tags if int(tag[5:]) == options.step]
    if not tags:
        wanted = "" if options.step is None else f" of step {options.step}"
        raise ConfigError(f"{root.parent}: no checkpoint{wanted}")
    code = EXIT_DONE
    for tag in tags:
        try:
            checkpoint = read_checkpoint(root / tag)
            faults = damage(checkpoint)
        except DamagedError as error:
            faults = [str(error)]
        else:
            if not faults and any("sha256" not in entry for entry in checkpoint.files.values()):
                sys.stdout.write(f"{tag}: sizes are right; it was saved without sha256\n")
                continue
        if faults:
            code = EXIT_FAILED
        sys.stdout.write(
            "\n".join([f"{tag}: {'broken' if faults else 'whole'}", *(f"  {fault}" for fault in faults), ""])
        )
    return code


def _prune(root: Path, options: argparse.Namespace) -> int:
    if options.keep_last < 1 or options.milestones < 0:
        raise ConfigError(
            f"--keep-last {options.keep_last}, --milestones {options.milestones}: must be at least 1 and at least 0"
        )
    retention, tags = Retention(options.keep_last, options.milestones), whole_tags(root)
    removed = retention.removed(tags)
    freed = sum(file.stat().st_size for tag in removed for file in (root / tag).iterdir())
    if removed and not options.dry_run:
        with only_one(root.parent, 0.0):
            remove_older(root, tags[-1], retention)
    sys.stdout.write(
        "\n".join(
            [
                *(f"{'would remove' if options.dry_run else 'removed'} {tag}" for tag in removed),
                f"{len(removed)} of {len(tags)} checkpoints, {freed / 2**20:.1f} MiB",
                "",
            ]
        )
    )
    return EXIT_DONE


def _convert(root: Path, options: argparse.Namespace) -> int:
    checkpoint = find_checkpoint(root.parent, options.step)
    if checkpoint is None:
        raise ConfigError(f"{root.parent}: there is no checkpoint in it")
    faults = damage(checkpoint)
    if faults:
        raise ConfigError("\n".join(faults))
    folder = convert(checkpoint, options.to)
    sys.stdout.write(f"converted {checkpoint.path} to {folder}: DeepSpeed's universal checkpoint\n")
    return EXIT_DONE


if __name__ == "__main__":
    run_command(main, "checkpoint")
