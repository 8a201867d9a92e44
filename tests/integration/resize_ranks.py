"""Started by the launcher on some ranks: a checkpoint goes through every ZeRO stage and precision, without a step.

    deepspeed --num_gpus 2 tests/integration/resize_ranks.py FOLDER start
    deepspeed --num_gpus 3 tests/integration/resize_ranks.py FOLDER chain

`start` trains three steps and saves; `chain` loads what was saved last and saves it again, once for every setting.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent.parent)

from typing import Any

import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from pretrain.engine.build import build_engine
from pretrain.engine.checkpoint import Retention, TrainingState, begin_save, find_checkpoint, load_checkpoint
from pretrain.engine.ds_config import resolve_ds_config
from runtime.dist import process_group, world_from_environment
from tests.integration.lamb_ranks import bert, train

KINDS = ("AdamW", "Lamb")
STEPS = 3
CHAIN = [
    *((0, "fp32"), (1, "fp32"), (1, "bf16"), (3, "bf16"), (2, "bf16"), (0, "bf16"), (3, "fp32"), (1, "fp16")),
    *((3, "fp16"), (2, "fp16"), (2, "fp32")),
]
"""Stage and precision of each save."""


def resolved(kind: str, stage: int, precision: str) -> dict[str, Any]:
    """Return a whole JSON."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": kind, "params": {"lr": 0.02, "weight_decay": 0.1}},
        "zero_optimization": {"stage": stage, "round_robin_gradients": stage == 2},
    }
    if precision != "fp32":
        config[precision] = {"enabled": True}
    return resolve_ds_config(
        config,
        path="j.json",
        world_size=dist.get_world_size(),
        total_steps=9,
        warmup_steps=None,
        on_cuda=precision == "fp16",
    )


def save(engine: Any, settings: dict[str, Any], folder: Path) -> None:
    """Save where `find_checkpoint(folder)` finds it; every rank must call."""
    begin_save(
        engine,
        folder,
        TrainingState(step=STEPS),
        world_size=dist.get_world_size(),
        recipe={},
        ds_config=settings,
        fingerprints={},
        retention=Retention(1),
    ).finish()


def folder_of(root: Path, kind: str, number: int) -> Path:
    """Return where a kind's save number so many is; 0 is that of the start."""
    return root / kind / f"{number:02d}"


def main() -> None:
    """Start or go through the chain."""
    root = Path(sys.argv[-2])
    get_accelerator().is_fp16_supported = lambda: True
    with process_group(world_from_environment()):
        for kind in KINDS:
            if sys.argv[-1] == "start":
                settings = resolved(kind, 2, "fp32")
                engine = build_engine(bert(), settings)
                train(engine, 0, STEPS)
                save(engine, settings, folder_of(root, kind, 0))
                continue
            for number, (stage, precision) in enumerate(CHAIN):
                checkpoint = find_checkpoint(folder_of(root, kind, number))
                assert checkpoint is not None
                settings = resolved(kind, stage, precision)
                engine = build_engine(bert(), settings)
                load_checkpoint(engine, checkpoint)
                save(engine, settings, folder_of(root, kind, number + 1))


if __name__ == "__main__":
    main()
