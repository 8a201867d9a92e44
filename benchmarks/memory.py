"""How near the planned memory of model states is to what real ranks hold.

    python -m benchmarks.memory

For ZeRO 0 to 3 in bf16 and fp32 on 1, 2 and 4 ranks, started by DeepSpeed's launcher with the JSON as this project
resolves it on a CPU: bytes of all distinct live storages of tensors just before `step()`, gradients live, activations
gone (see `memory_rank.py`), on the rank that holds most. Our formula's figure stands beside it, and DeepSpeed's own
estimator's, which knows stages 2 and 3 in half precision and no buckets.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

from benchmarks import harness
from benchmarks.memory_rank import HIDDEN, LAYERS, VOCAB_SIZE
from benchmarks.models import HEAD_SIZE
from pretrain.parameters import Parameter, bert_parameters
from pretrain.plan.memory import model_states
from pretrain.recipe import ModelSettings
from runtime.dist import free_port
from runtime.files import read_json

MOST_ERROR_PERCENT = 3.0
RANKS = (1, 2, 4)
_SECONDS = 400
_ROOT = Path(__file__).resolve().parent.parent


def planned_parameters(layers: int = LAYERS, hidden: int = HIDDEN) -> list[Parameter]:
    """Return the parameters of the measured model, by formula."""
    settings = ModelSettings(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=max(1, hidden // HEAD_SIZE),
        intermediate_size=4 * hidden,
    )
    return bert_parameters(settings, VOCAB_SIZE)


def measure_cells(
    ranks: int, layers: int = LAYERS, hidden: int = HIDDEN, accumulation: int = 1
) -> list[dict[str, Any]]:
    """Start `memory_rank` on some ranks.

    Returns:
        A dict a cell: stage, precision, bytes, ds_config.

    Raises:
        CalledProcessError: a rank failed.
        TimeoutExpired: it took too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "cells.json"
        command = [
            *(str(Path(sys.executable).with_name("deepspeed")), "--num_gpus", str(ranks)),
            *("--master_port", str(free_port()), "--module", "benchmarks.memory_rank", str(output)),
            *("--layers", str(layers), "--hidden", str(hidden), "--accumulation", str(accumulation)),
        ]
        subprocess.run(command, check=True, cwd=_ROOT, timeout=_SECONDS, capture_output=True)
        cells: list[dict[str, Any]] = read_json(output)
    return cells


def estimate_of_deepspeed(stage: int, parameters: Sequence[Parameter], ranks: int) -> float | None:
    """Return the device bytes that DeepSpeed's estimator gives, or None where it has none for the stage."""
    count, largest = sum(p.numel for p in parameters), max(p.numel for p in parameters)
    with contextlib.redirect_stdout(io.StringIO()):
        if stage == 2:
            return float(estimate_zero2_model_states_mem_needs(count, ranks, 1, cpu_offload=False)[1])
        if stage == 3:
            needs = estimate_zero3_model_states_mem_needs(
                count, largest, ranks, 1, cpu_offload=False, cpu_offload_params=False
            )
            return float(needs[1])
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 where every cell is within the goal."""
    options = harness.parser("memory", __doc__).parse_args(arguments)
    report = harness.Report("memory", options)
    parameters = planned_parameters()
    count = sum(p.numel for p in parameters)
    errors = []
    for ranks in RANKS:
        for cell in measure_cells(ranks):
            stage, live = cell["stage"], cell["bytes"]
            planned = model_states(parameters, cell["ds_config"], ranks).total
            theirs = estimate_of_deepspeed(stage, parameters, ranks) if cell["precision"] == "bf16" else None
            beside = "has none" if theirs is None else f"{theirs / count:.2f} ({100 * (theirs / live - 1):+.0f} %)"
            errors.append(100 * abs(planned / live - 1))
            name = (
                f"ZeRO {stage} {cell['precision']} on {ranks}: {live / count:.3f} bytes a parameter live, "
                f"planned {planned / count:.3f}, DeepSpeed's estimator {beside}; error"
            )
            report.figure(name, errors[-1], "%", most=MOST_ERROR_PERCENT)
    report.figure(f"largest error of {len(errors)} cells", max(errors), "%", most=MOST_ERROR_PERCENT)
    return report.finish()


if __name__ == "__main__":
    harness.start(main)
