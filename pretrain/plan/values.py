"""All figures of a plan by name, as `--json` writes them. Bytes, tokens, seconds; pairs are DeepSpeed's samples."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from pretrain.engine.ds_config import BATCH_KEYS, precision, zero_stage
from pretrain.parameters import count_by_part
from pretrain.plan.activations import Stream, mean_stream, upper_stream
from pretrain.plan.data import EpochCounts, count_epoch
from pretrain.plan.device import GIB, STAGES, USABLE, Setting, device_memory, suggest
from pretrain.plan.schedule import lr_at, milestones
from pretrain.plan.speed import Speed
from pretrain.plan.subject import Subject
from pretrain.plan.time_model import from_tokens_per_second
from pretrain.plan.traffic import traffic_of_step


@dataclass(frozen=True)
class Options:
    """What the command line adds."""

    device_gib: float | None = None
    speed: Speed | None = None
    suggest: bool = False
    may_plan: bool = True


def setting_of(subject: Subject) -> Setting:
    """Return what memory depends on."""
    return Setting(
        recipe=subject.recipe,
        config=subject.config,
        vocab_size=subject.vocab_size,
        world_size=subject.world_size,
        checkpointing=subject.checkpointing,
        on_cuda=subject.on_cuda,
    )


def plan_values(subject: Subject, options: Options) -> dict[str, Any]:
    """Return the whole plan."""
    setting, config = setting_of(subject), subject.config
    epoch = None
    if subject.manifest is not None:
        epoch = count_epoch(subject.manifest, subject.recipe, subject.run_dir / "plans", may_plan=options.may_plan)
    values: dict[str, Any] = {
        "name": subject.recipe.name,
        "world_size": subject.world_size,
        "device": "cuda" if subject.on_cuda else "cpu",
        "precision": precision(config),
        "zero_stage": zero_stage(config),
        "batch": {key: config[key] for key in BATCH_KEYS},
        "parameters": parameter_values(subject),
        "memory": _memory(subject, setting, epoch, options),
        "traffic_bytes_per_step": asdict(traffic_of_step(subject.parameters, config, subject.world_size)),
        "run": run_values(subject, epoch),
        "lr": _lr(subject),
        "faults": subject.faults,
        "notes": subject.notes,
    }
    values["time"] = _time(values["run"], subject, options.speed)
    return values


def start_values(subject: Subject) -> dict[str, Any]:
    """Return what `compact_lines` says, in some hundredths of a second: nothing is planned or walked through."""
    setting, stage = setting_of(subject), zero_stage(subject.config)
    epoch = None
    if subject.manifest is not None:
        epoch = count_epoch(subject.manifest, subject.recipe, subject.run_dir / "plans", may_plan=False)
    own = memory_values(setting, stage)
    size, source = device_bytes(None)
    return {
        "zero_stage": stage,
        "parameters": parameter_values(subject),
        "memory": {
            "stages": [own],
            "peak": own["peak"],
            "device_bytes": size,
            "device_source": source,
            "usable_share": USABLE,
            "fits": None if size is None else own["peak"] <= size * USABLE,
        },
        "traffic_bytes_per_step": asdict(traffic_of_step(subject.parameters, subject.config, subject.world_size)),
        "run": run_values(subject, epoch),
    }


def parameter_values(subject: Subject) -> dict[str, Any]:
    """Return the parameters by part, and in all."""
    parts = count_by_part(subject.parameters)
    return {"vocab_size": subject.vocab_size, "total": sum(parts.values()), "parts": parts}


def memory_values(setting: Setting, stage: int, stream: Stream | None = None) -> dict[str, Any]:
    """Return the bytes of a device under a ZeRO stage."""
    memory = device_memory(setting, stage=stage, stream=stream)
    other = device_memory(setting, stage=stage, stream=stream, checkpointing=not setting.checkpointing)
    return {
        "stage": stage,
        "states": asdict(memory.states) | {"total": memory.states.total},
        "activations": asdict(memory.activations) | {"total": memory.activations.total},
        "checkpointing": setting.checkpointing,
        "peak": memory.peak,
        "peak_with_other_checkpointing": other.peak,
    }


def device_bytes(device_gib: float | None) -> tuple[int | None, str]:
    """Return the bytes of a device and where the number is from; None where there is none to hold a plan against."""
    if device_gib is not None:
        return int(device_gib * GIB), "--device-gib"
    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(0).total_memory), torch.cuda.get_device_name(0)
    return None, "no GPU here, no --device-gib"


def run_values(subject: Subject, epoch: EpochCounts | None) -> dict[str, Any]:
    """Return steps, pairs, tokens and epochs of the run, against what is on disk."""
    recipe = subject.recipe
    steps = recipe.training.steps
    pairs = steps * int(subject.config["train_batch_size"])
    mean = recipe.data.seq_len if epoch is None else epoch.tokens_of_pair
    return {
        "steps": steps,
        "pairs": pairs,
        "tokens": pairs * mean,
        "tokens_of_pair": mean,
        "tokens_of_pair_source": "upper bound: seq_len" if epoch is None else epoch.source,
        "epochs": None if epoch is None else pairs / max(1.0, epoch.pairs),
        "epoch": None if epoch is None else asdict(epoch),
    }


def _memory(subject: Subject, setting: Setting, epoch: EpochCounts | None, options: Options) -> dict[str, Any]:
    upper = upper_stream(subject.recipe, setting.micro_batch)
    mean = None
    if epoch is not None:
        mean = mean_stream(subject.recipe, setting.micro_batch, epoch.tokens_of_pair, epoch.source)
    size, source = device_bytes(options.device_gib)
    stage = zero_stage(subject.config)
    values: dict[str, Any] = {
        "stream": asdict(upper),
        "mean_stream": None if mean is None else asdict(mean),
        "stages": [memory_values(setting, other) for other in STAGES],
        "peak": device_memory(setting).peak,
        "peak_of_mean_stream": None if mean is None else device_memory(setting, stream=mean).peak,
        "zero_stage": stage,
        "device_bytes": size,
        "device_source": source,
        "usable_share": USABLE,
        "fits": None if size is None else device_memory(setting).peak <= size * USABLE,
        "suggestion": None,
    }
    if options.suggest and size is not None:
        found = suggest(setting, size)
        values["suggestion"] = None if found is None else asdict(found)
        values["nothing_fits"] = found is None
    return values


def _lr(subject: Subject) -> dict[str, float]:
    try:
        found = lr_at(subject.config, milestones(subject.recipe.training.steps, subject.recipe.training.warmup_steps))
    except Exception:  # noqa: BLE001 - a schedule that cannot be made is among the faults
        return {}
    return {str(step): lr for step, lr in found.items()}


def _time(run: dict[str, Any], subject: Subject, speed: Speed | None) -> dict[str, Any] | None:
    if speed is None:
        return None
    measured_on = speed.world_size or subject.world_size
    time = from_tokens_per_second(run["tokens"], speed.tokens_per_second, measured_on, subject.world_size, run["steps"])
    return {
        "tokens_per_second": speed.tokens_per_second,
        "measured_on": measured_on,
        "source": speed.source,
        "seconds": time.seconds,
        "device_hours": time.device_hours,
    }
