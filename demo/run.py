"""From raw text to a filled mask, on a laptop: the commands of the README in turn, and a table of what came.

    python -m demo.run

Each stage is the real command in a process of its own; a stage that fails ends the demo with its exit code. A second
call makes tokenizer and shards only if they are not there, and a new run each time.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from pretrain.recipe import Recipe, load_recipe
from runtime.files import read_json
from runtime.tracking import read_metrics
from tokenization.indexed import IndexedReader
from tokenization.manifest import Manifest, load_manifest

ROOT = Path(__file__).resolve().parent.parent
CORPUS = "demo/corpus/state_of_the_union.jsonl.xz"
RECIPE = "recipes/demo.toml"
DS_CONFIG = "ds_configs/cpu_zero2_bf16.json"
HOME = Path("runs/demo")
MODEL = HOME / "model"
VOCAB_SIZE = 4096
NUM_PROCESSES = 2

SENTENCES = (
    "The President of the United [MASK] spoke to the Congress.",
    "We must work together for peace and [MASK] in the world.",
    "The Secretary of the [MASK] has sent his report to Congress.",
)


def main() -> int:
    """Run every stage, then print the table and three filled sentences."""
    os.chdir(ROOT)
    shutil.rmtree(HOME / "run", ignore_errors=True)
    shutil.rmtree(MODEL, ignore_errors=True)
    HOME.mkdir(parents=True, exist_ok=True)
    recipe = load_recipe(RECIPE)
    seconds = {
        "tokenizer": _unless_there(Path(recipe.tokenizer), make_tokenizer),
        "shard": _unless_there(Path(recipe.shards), make_shards),
        "pretrain": _run(_pretrain_command()),
        "export": _run(["zerobert", "export", str(recipe.run_dir), "--to", str(MODEL)]),
    }
    console = Console(width=100)
    console.print(_table(recipe, seconds))
    _fill_masks(console)
    console.print("A model of a million parameters, minutes old: it knows a speech's words, hardly yet their order.")
    console.print(f"The model is in [bold]{MODEL}[/bold]; its README.md says where it comes from.")
    return 0


def make_tokenizer(to: Path) -> list[str]:
    """Return the command that makes the demo's tokenizer."""
    return ["zerobert", "tokenizer", "--input", CORPUS, "--output", str(to), "--vocab-size", str(VOCAB_SIZE)]


def make_shards(to: Path) -> list[str]:
    """Return the command that makes the demo's shards."""
    tokenizer = load_recipe(RECIPE).tokenizer
    command = ["zerobert", "shard", "--input", CORPUS, "--tokenizer", tokenizer, "--output", str(to)]
    return [*command, "--workers", "2", "--validation-share", "0.03"]


def _pretrain_command() -> list[str]:
    return [
        *("deepspeed", "--num_gpus", str(NUM_PROCESSES), "--module", "pretrain.train"),
        *("--recipe", RECIPE, "--deepspeed_config", DS_CONFIG, "--resume", "none"),
    ]


def _unless_there(path: Path, command: Callable[[Path], list[str]]) -> float | None:
    if path.is_dir():
        return None
    return _run(command(path))


def _run(command: list[str]) -> float:
    """Run a command of this environment; return its seconds, or end the demo with its exit code."""
    sys.stdout.write(f"\n$ {' '.join(command)}\n")
    sys.stdout.flush()
    began = time.monotonic()
    executable = Path(sys.executable).with_name(command[0])
    result = subprocess.run([str(executable), *command[1:]], check=False)
    if result.returncode:
        sys.exit(result.returncode)
    return time.monotonic() - began


def _table(recipe: Recipe, seconds: dict[str, float | None]) -> Table:
    manifest = load_manifest(recipe.shards)
    metrics = read_metrics(Path(str(recipe.run_dir)))
    figures = {
        "tokenizer": f"{manifest.vocab_size:,} tokens of vocabulary",
        "shard": ", ".join(
            f"{split.documents:,} documents / {split.tokens:,} tokens to {'train' if name == 'train' else 'validate'}"
            for name, split in manifest.splits.items()
        ),
        "pretrain": _training_figures(metrics, manifest),
        "export": f"largest logit difference {read_json(MODEL / 'export.json')['largest_logit_difference']:.1e}",
    }
    table = Table(title="ZeroBERT demo", show_lines=True)
    for column in ("stage", "seconds", "figures"):
        table.add_column(column, justify="right" if column == "seconds" else "left")
    for stage, figure in figures.items():
        spent = seconds[stage]
        table.add_row(stage, "made before" if spent is None else f"{spent:.0f}", figure)
    return table


def _training_figures(metrics: list[dict[str, Any]], manifest: Manifest) -> str:
    train = [entry for entry in metrics if "train/loss" in entry]
    evaluation = [entry for entry in metrics if "eval/loss" in entry][-1]
    speeds = sorted(entry["speed/tokens_per_second"] for entry in train)
    return "\n".join(
        [
            f"{train[-1]['pairs_seen']:,} pairs, {train[-1]['tokens_seen']:,} tokens, {train[-1]['step']} steps",
            f"training loss {train[0]['train/loss']:.3f} -> {train[-1]['train/loss']:.3f} (MLM + NSP)",
            f"validation MLM loss {evaluation['eval/mlm_loss']:.3f} nats, "
            f"accuracy {evaluation['eval/mlm_accuracy']:.3f}",
            f"unigram entropy of the validation text {unigram_entropy(manifest):.3f} nats",
            f"validation NSP accuracy {evaluation['eval/nsp_accuracy']:.3f}",
            f"{speeds[len(speeds) // 2]:,.0f} tokens/s (median of the log lines)",
        ]
    )


def unigram_entropy(manifest: Manifest) -> float:
    """Return the entropy of the validation split's token frequencies, nats a token.

    The loss of a model that knows the frequencies and nothing else; a model that is above it has learnt no context.
    """
    counts = np.zeros(manifest.vocab_size, dtype=np.int64)
    for shard in manifest.splits["validation"].shards:
        tokens = IndexedReader(manifest.directory / shard.name).tokens
        counts += np.bincount(tokens, minlength=manifest.vocab_size)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _fill_masks(console: Console) -> None:
    from transformers import pipeline  # noqa: PLC0415 - slow; not needed before
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error  # noqa: PLC0415

    disable_progress_bar()
    set_verbosity_error()  # a fill-mask model has no use for the NSP weights, and reports it
    torch.manual_seed(0)
    fill = pipeline("fill-mask", model=str(MODEL), device="cpu")
    for sentence in SENTENCES:
        guesses = fill(sentence, top_k=3)
        words = ", ".join(f"{guess['token_str']} {math.floor(100 * guess['score'])} %" for guess in guesses)
        console.print(f"{sentence}\n    -> {words}", markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
