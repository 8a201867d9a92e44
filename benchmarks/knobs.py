"""What turning one thing in the DeepSpeed JSON does to the speed and to the loss.

    python -m benchmarks.knobs [--steps N] [NAME ...]

The demo's recipe, text and JSON (made first where `make demo` has not been run), trained by the real launcher on two
CPU processes for a few hundred steps, once as they are and once with each change. A row is one run: a difference of
0.02 nats is noise. The loss is that of the whole validation split's first 2,000 pairs.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from demo.run import DS_CONFIG, NUM_PROCESSES, RECIPE, make_shards, make_tokenizer
from pretrain.recipe import load_recipe
from runtime.command import ConfigError, did_you_mean, run_command
from runtime.files import read_json, write_json
from runtime.tracking import read_metrics

STEPS = 300
WARMUP_SHARE = 0.1
LR = 3e-3


@dataclass(frozen=True)
class Knob:
    """One change.

    Args:
        name: on the command line.
        what: in the table.
        config: of the JSON, by dotted path; None takes a key out.
        steps_share: of the benchmark's steps, where a step has more pairs.
    """

    name: str
    what: str
    config: Mapping[str, Any]
    steps_share: float = 1.0


KNOBS = (
    Knob("as-it-is", "ds_configs/cpu_zero2_bf16.json as it is: AdamW, lr 3e-3, 64 pairs", {}),
    Knob("fp32", "fp32 for bf16", {"bf16.enabled": False, "data_types": None}),
    Knob("stage-1", "ZeRO 1 for 2", {"zero_optimization.stage": 1}),
    Knob("stage-3", "ZeRO 3 for 2", {"zero_optimization.stage": 3}),
    Knob("accumulate", "4 micro-batches of 8 pairs for 1 of 32", {"train_micro_batch_size_per_gpu": 8}),
    Knob("checkpointing", "activation checkpointing", {"activation_checkpointing": {}}),
    Knob("lr-low", "lr 3e-4 for 3e-3", {"optimizer.params.lr": 3e-4}),
    Knob("lr-high", "lr 3e-2 for 3e-3", {"optimizer.params.lr": 3e-2}),
    Knob("batch", "256 pairs a step for 64, a quarter of the steps", {"train_batch_size": 256}, 0.25),
    Knob(
        "batch-lr",
        "the same with lr 6e-3, by the square root",
        {"train_batch_size": 256, "optimizer.params.lr": 6e-3},
        0.25,
    ),
    Knob(
        "lamb",
        "Lamb with lr 2e-2 for AdamW",
        {"optimizer": {"type": "Lamb", "params": {"lr": 2e-2, "weight_decay": 0.01}}},
    ),
)


@dataclass(frozen=True)
class Row:
    """What came of one run."""

    name: str
    what: str
    steps: int
    tokens_per_second: float
    """Median of the log lines, all ranks."""
    mlm_loss: float
    """Of validation, nats a masked token."""
    nsp_loss: float
    """Of validation, nats a pair."""


def changed(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON with values put at dotted paths; None takes a key out."""
    result = copy.deepcopy(dict(config))
    for path, value in changes.items():
        *blocks, key = path.split(".")
        place = result
        for block in blocks:
            place = place.setdefault(block, {})
        if value is None:
            place.pop(key, None)
        else:
            place[key] = value
    return result


def measure(knob: Knob, steps: int, folder: Path) -> Row:
    """Train with one change.

    Args:
        knob: the change.
        steps: of the unchanged run.
        folder: for the JSON and the run.

    Raises:
        CalledProcessError: training failed; its output is in the error.
    """
    steps = max(20, round(steps * knob.steps_share))
    ds_config, run_dir = folder / f"{knob.name}.json", folder / knob.name
    write_json(ds_config, changed(read_json(DS_CONFIG), knob.config))
    settings = {
        "training.steps": steps,
        "training.warmup_steps": max(1, round(steps * WARMUP_SHARE)),
        "training.log_interval_steps": max(1, steps // 10),
        "evaluation.interval_steps": steps,
        "checkpoint.interval_steps": steps,
        "tracking.wandb": "off",
    }
    subprocess.run(
        [
            *(str(Path(sys.executable).with_name("deepspeed")), "--num_gpus", str(NUM_PROCESSES)),
            *("--module", "pretrain.train", "--recipe", RECIPE, "--deepspeed_config", str(ds_config)),
            *(
                "--run-dir",
                str(run_dir),
                *(part for key, value in settings.items() for part in ("--set", f"{key}={value}")),
            ),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    metrics = read_metrics(run_dir)
    speeds = [entry["speed/tokens_per_second"] for entry in metrics if "train/loss" in entry]
    evaluation = [entry for entry in metrics if "eval/loss" in entry][-1]
    return Row(
        knob.name,
        knob.what,
        steps,
        statistics.median(speeds),
        evaluation["eval/mlm_loss"],
        evaluation["eval/nsp_loss"],
    )


def make_data() -> None:
    """Make the demo's tokenizer and shards where they are not there."""
    recipe = load_recipe(RECIPE)
    for path, command in ((recipe.tokenizer, make_tokenizer), (recipe.shards, make_shards)):
        if not Path(path).is_dir():
            words = command(Path(path))
            subprocess.run([str(Path(sys.executable).with_name(words[0])), *words[1:]], check=True)


def table(rows: Sequence[Row]) -> Table:
    """Return the rows as a table, speed beside that of the first."""
    shown = Table()
    for column in ("", "steps", "tokens/s", "speed", "MLM loss", "NSP loss"):
        shown.add_column(column, justify="left" if column == "" else "right")
    for row in rows:
        speed = row.tokens_per_second / rows[0].tokens_per_second
        shown.add_row(
            row.what,
            f"{row.steps}",
            f"{row.tokens_per_second:,.0f}",
            f"{speed:.2f}",
            f"{row.mlm_loss:.3f}",
            f"{row.nsp_loss:.3f}",
        )
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; it has no goal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.knobs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--steps", type=int, default=STEPS, help="of the unchanged run (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file, too")
    options = parser.parse_args(arguments)
    known = {knob.name: knob for knob in KNOBS}
    for name in options.names:
        if name not in known:
            raise ConfigError(f"{name}: no such change{did_you_mean(name, known)}; there are {', '.join(known)}")
    make_data()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for knob in [known[name] for name in options.names] or KNOBS:
            rows.append(measure(knob, options.steps, Path(folder)))
            sys.stdout.write(f"{knob.name}: {rows[-1].mlm_loss:.3f}\n")
            sys.stdout.flush()
    Console(width=120).print(table(rows))
    if options.json:
        write_json(options.json, [asdict(row) for row in rows])
    return 0


if __name__ == "__main__":
    run_command(main, "benchmark")
