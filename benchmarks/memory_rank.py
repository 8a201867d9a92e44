"""Started by DeepSpeed's launcher on every rank: the bytes of live tensors of a training process, by ZeRO stage.

    deepspeed --num_gpus 2 --module benchmarks.memory_rank OUTPUT.json

Rank zero writes a list with an entry a cell: stage, precision, bytes of the rank that holds most, the resolved JSON.
Each cell trains one step, runs forward and backward of the next, and is measured just before its `step()`: parameters,
gradients, masters, moments and what buffers live then. Activations are gone by then, all but a few numbers of a pair of
16 tokens; what was there before the cell's model is left out.
"""

from __future__ import annotations

import argparse
import gc
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models import bert_config
from benchmarks.samples import make_micro_batch
from pretrain.data.stream import MicroBatch
from pretrain.engine.build import build_engine, take_step
from pretrain.engine.ds_config import resolve_ds_config
from pretrain.forward import forward_sums
from pretrain.model.bert import StreamBert
from pretrain.model.loss import micro_batch_loss
from runtime.dist import World, add_local_rank_argument, max_over_ranks, process_group, world_from_environment
from runtime.files import write_json

CELLS = tuple((stage, precision) for precision in ("bf16", "fp32") for stage in (0, 1, 2, 3))
BUCKET_ELEMENTS = 5_000_000
LAYERS, HIDDEN, VOCAB_SIZE = 8, 512, 30_528
PAIR_TOKENS = 16
"""Of the one pair of a rank. What forward and backward leave is a few numbers: next to nothing."""
CPU = torch.device("cpu")


def ds_config(stage: int, precision: str, world_size: int, accumulation: int) -> dict[str, Any]:
    """Return the JSON of a cell as this project resolves it on a CPU, one pair a micro-batch."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "zero_optimization": {"stage": stage},
    }
    if stage == 3:  # kept for the whole run; DeepSpeed's 5e8 elements would hide all else
        config["zero_optimization"]["reduce_bucket_size"] = BUCKET_ELEMENTS
    if precision == "bf16":
        config["bf16"] = {"enabled": True}
    return resolve_ds_config(
        config, path="memory.json", world_size=world_size, total_steps=2, warmup_steps=None, on_cuda=False
    )


def measured_bert(layers: int = LAYERS, hidden: int = HIDDEN) -> StreamBert:
    """Return the model that is measured, 41.7M parameters unless told otherwise, in fp32, the same on every rank."""
    torch.manual_seed(0)
    model = StreamBert(bert_config(layers, hidden, VOCAB_SIZE, dropout=0.0))
    model.train()
    return model


def live_storages(model: nn.Module | None = None) -> dict[int, int]:
    """Return the memory that tensors hold: address of a storage -> its bytes, each storage once.

    Python's garbage collector knows every tensor that a Python object holds; a gradient that only its parameter holds
    gets one by being looked at.

    Args:
        model: whose gradients are to be looked at.
    """
    gradients = [] if model is None else [parameter.grad for parameter in model.parameters()]
    gc.collect()
    storages = {}
    for tensor in [*gradients, *gc.get_objects()]:
        if isinstance(tensor, Tensor) and tensor.device == CPU and tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return storages


def measure(
    stage: int, precision: str, world: World, micro_batch: MicroBatch, model: StreamBert, accumulation: int
) -> dict[str, Any]:
    """Train one step, run the next to the end of its backward, and add up what lives just before `step()`."""
    config = ds_config(stage, precision, world.size, accumulation)
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    before = set(live_storages()) - own
    engine = build_engine(model, config)
    for micro_step in range(2 * accumulation):
        loss = micro_batch_loss(
            forward_sums(engine, micro_batch, CPU),
            global_masked_tokens=micro_batch.global_masked_tokens,
            global_pairs=micro_batch.global_pairs,
            world_size=world.size,
            accumulation=accumulation,
        )
        engine.backward(loss)
        if micro_step < 2 * accumulation - 1:
            take_step(engine)
    del loss
    held = sum(size for key, size in live_storages(model).items() if key not in before)
    take_step(engine)
    engine.destroy()
    return {"stage": stage, "precision": precision, "bytes": int(max_over_ranks(held, CPU)), "ds_config": config}


def main() -> None:
    """Measure every cell on this many ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--hidden", type=int, default=HIDDEN)
    parser.add_argument("--accumulation", type=int, default=1, help="micro-steps of a step")
    add_local_rank_argument(parser)
    arguments = parser.parse_args()
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    world = world_from_environment(arguments.local_rank)
    torch.set_num_threads(1)
    with process_group(world):
        micro_batch = make_micro_batch([PAIR_TOKENS], VOCAB_SIZE)
        cells = [
            measure(
                *cell, world, micro_batch, measured_bert(arguments.layers, arguments.hidden), arguments.accumulation
            )
            for cell in CELLS
        ]
    if world.is_rank_zero:
        write_json(arguments.output, cells)


if __name__ == "__main__":
    main()
