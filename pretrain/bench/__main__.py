"""`python -m pretrain.bench`, for the launcher: `deepspeed --num_gpus 2 --module pretrain.bench step ...`."""

from __future__ import annotations

from pretrain.bench.command import main
from runtime.command import run_command

run_command(main, "bench")
