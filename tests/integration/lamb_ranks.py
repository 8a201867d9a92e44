"""Started by the launcher on some ranks: LAMB through the engine for 20 steps, by ZeRO stage and precision.

    deepspeed --num_gpus 2 tests/integration/lamb_ranks.py OUTPUT.json

Rank zero writes, for every setting, the largest difference to LAMB on whole parameters and a whole batch, and the
elements of optimizer state that a rank holds.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent.parent)

from typing import Any

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import safe_get_full_fp32_param
from torch import Tensor
from transformers import BertConfig

from pretrain.engine.build import build_engine, take_step
from pretrain.engine.checkpoint import Retention, TrainingState, begin_save, find_checkpoint, load_checkpoint
from pretrain.engine.ds_config import resolve_ds_config
from pretrain.model.bert import StreamBert
from pretrain.model.loss import loss_sums, micro_batch_loss
from runtime.dist import process_group, world_from_environment
from runtime.files import write_json
from tests.pretrain.engine.plain_lamb import PlainLamb

STEPS = 20
LR, DECAY, CLIPPING = 0.02, 0.1, 0.5
SETTINGS = [*((stage, kind) for kind in ("fp32", "bf16") for stage in (0, 1, 2, 3)), (2, "fp16")]
MASKED = 2
"""Places to predict in the pair of each rank."""


def bert() -> StreamBert:
    """Return a small BERT without dropout, whose parameters have odd sizes."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=64,
        hidden_size=18,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=37,
        max_position_embeddings=11,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return StreamBert(config)


def loss_of(model: Any, step: int, rank: int, world_size: int) -> Tensor:
    """Return the loss of a rank's one pair in a step, as a share of the global batch's."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    length = 6 + (step + rank) % 4
    output = model(
        input_ids=torch.randint(5, 60, (1, length), generator=generator),
        token_type_ids=(torch.arange(length) >= length // 2).long()[None],
        position_ids=torch.arange(length)[None],
        cu_seqlens=torch.tensor([0, length], dtype=torch.int32),
        masked_positions=torch.tensor([1, 3]),
        pair_lengths=[length],
    )
    sums = loss_sums(
        output.mlm_logits,
        torch.randint(5, 60, (MASKED,), generator=generator),
        output.nsp_logits,
        torch.tensor([(step + rank) % 2]),
    )
    return micro_batch_loss(
        sums,
        global_masked_tokens=MASKED * world_size,
        global_pairs=world_size,
        world_size=dist.get_world_size() if model is not REFERENCE else 1,
        accumulation=1,
    )


REFERENCE = bert()


def reference(world_size: int) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Train the whole model on the whole batch in one process."""
    plain = PlainLamb(lr=LR)
    weights = {name: parameter.detach() for name, parameter in REFERENCE.named_parameters()}
    decay = {name: DECAY if weight.ndim > 1 else 0.0 for name, weight in weights.items()}
    for step in range(STEPS):
        REFERENCE.zero_grad()
        for rank in range(world_size):
            loss_of(REFERENCE, step, rank, world_size).backward()
        torch.nn.utils.clip_grad_norm_(REFERENCE.parameters(), CLIPPING)
        plain.step(weights, {name: parameter.grad for name, parameter in REFERENCE.named_parameters()}, decay)
    return weights, plain.ratios


def resolved(stage: int, precision: str) -> dict[str, Any]:
    """Return the JSON of a setting."""
    world_size = dist.get_world_size()
    config: dict[str, Any] = {
        "train_batch_size": world_size,
        "optimizer": {"type": "Lamb", "params": {"lr": LR, "weight_decay": DECAY}},
        "gradient_clipping": CLIPPING,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 100},
    }
    if precision != "fp32":
        config[precision] = {"enabled": True}
    if precision == "fp16":
        config["fp16"] |= {"initial_scale_power": 8}
    return resolve_ds_config(
        config,
        path="lamb.json",
        world_size=world_size,
        total_steps=STEPS,
        warmup_steps=None,
        on_cuda=precision == "fp16",
    )


def train(engine: Any, first: int, last: int) -> None:
    """Make steps; every rank must call."""
    for step in range(first, last):
        engine.backward(loss_of(engine, step, dist.get_rank(), dist.get_world_size()))
        take_step(engine)


def masters(engine: Any) -> dict[str, Tensor]:
    """Return the fp32 weights; every rank must call."""
    names, optimizer = engine.param_names, engine.optimizer
    if optimizer is engine.basic_optimizer:  # fp32 without ZeRO
        return {names[p]: p.detach() for p in engine.module.parameters()}
    if hasattr(optimizer, "fp32_groups"):  # bf16 without ZeRO
        groups = zip(optimizer.fp32_groups, optimizer.fp16_groups, strict=True)
        return {names[p]: master.detach() for group in groups for master, p in zip(*group, strict=True)}
    return {names[p]: safe_get_full_fp32_param(p) for p in engine.module.parameters()}


def resumed(stage: int, precision: str, folder: Path) -> dict[str, Tensor]:
    """Train half of the steps, save, and the other half with another engine; every rank must call."""
    settings, half = resolved(stage, precision), STEPS // 2
    engine = build_engine(bert(), settings)
    train(engine, 0, half)
    begin_save(
        engine,
        folder,
        TrainingState(step=half),
        world_size=dist.get_world_size(),
        recipe={},
        ds_config=settings,
        fingerprints={},
        retention=Retention(1),
    ).finish()
    engine = build_engine(bert(), settings)
    checkpoint = find_checkpoint(folder)
    assert checkpoint is not None
    load_checkpoint(engine, checkpoint)
    train(engine, half, STEPS)
    return masters(engine)


def compare(stage: int, precision: str, weights: dict[str, Tensor], ratios: dict[str, float]) -> tuple[Any, Any]:
    """Train by a setting, and hold it against the reference; every rank must call."""
    engine = build_engine(bert(), resolved(stage, precision))
    train(engine, 0, STEPS)
    ours, lamb = masters(engine), engine.basic_optimizer
    ours_ratios = lamb.trust_ratios()
    assert ours.keys() == weights.keys() == ours_ratios.keys()
    return ours, {
        "weights": max(float((ours[name].float() - weights[name]).abs().max()) for name in weights),
        # A key's bias moves no attention weight: its gradient is rounding alone, and so is its ratio.
        "ratios": max(abs(ours_ratios[name] / ratios[name] - 1) for name in ratios if not name.endswith("key.bias")),
        "state": sum(state["exp_avg"].numel() for state in lamb.state.values()),
    }


def main(output: str) -> None:
    """Train by every setting and compare."""
    get_accelerator().is_fp16_supported = lambda: True
    with process_group(world_from_environment(None)):
        weights, ratios = reference(dist.get_world_size())
        start = dict(bert().named_parameters())
        found: dict[str, Any] = {
            "moved": max(float((weights[name] - start[name]).detach().abs().max()) for name in weights)
        }
        for stage, precision in SETTINGS:
            ours, found[f"{stage} {precision}"] = compare(stage, precision, weights, ratios)
            if precision != "fp16":
                again = resumed(stage, precision, Path(output).with_name(f"{stage}_{precision}"))
                found[f"{stage} {precision}"]["resumed"] = all(torch.equal(again[name], ours[name]) for name in ours)
        found["parameters"] = sum(weight.numel() for weight in weights.values())
        if dist.get_rank() == 0:
            write_json(Path(output), found)


if __name__ == "__main__":
    main(next(argument for argument in sys.argv[1:] if not argument.startswith("--")))
