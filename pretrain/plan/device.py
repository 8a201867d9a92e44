"""The memory of one device for a whole setting, what else could be turned, and the setting that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pretrain.engine.ds_config import precision, zero_stage
from pretrain.parameters import Parameter, bert_parameters
from pretrain.plan.activations import Activations, Stream, activations, upper_stream
from pretrain.plan.memory import BYTES, ModelStates, model_states
from pretrain.recipe import Recipe

GIB = 1 << 30
USABLE = 0.92
"""Share of a device that tensors can have: the rest goes to CUDA's context, kernels' workspaces and fragmentation."""
STAGES = (0, 1, 2, 3)


@dataclass(frozen=True)
class Setting:
    """All that memory depends on."""

    recipe: Recipe
    config: Mapping[str, Any]
    vocab_size: int
    world_size: int
    checkpointing: bool
    on_cuda: bool = True
    """Whether a device has memory of its own, beside the host's."""

    @property
    def parameters(self) -> list[Parameter]:
        """The model's."""
        return bert_parameters(self.recipe.model, self.vocab_size)

    @property
    def micro_batch(self) -> int:
        """Pairs of a micro-batch."""
        return int(self.config["train_micro_batch_size_per_gpu"])


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes on the device of the rank that holds most."""

    states: ModelStates
    activations: Activations

    @property
    def peak(self) -> int:
        """Most that lives at once: at the end of a forward pass, or in the update."""
        return self.states.total + max(self.states.backward + self.activations.total, self.states.step)


def device_memory(
    setting: Setting,
    *,
    stage: int | None = None,
    stream: Stream | None = None,
    checkpointing: bool | None = None,
    config: Mapping[str, Any] | None = None,
) -> DeviceMemory:
    """Return the memory of a setting, with one thing or another turned.

    Args:
        setting: as it is.
        stage: another ZeRO stage.
        stream: the micro-batch; default: the largest that there can be.
        checkpointing: another choice of activation checkpointing.
        config: another JSON.
    """
    config = setting.config if config is None else config
    pairs = int(config["train_micro_batch_size_per_gpu"])
    taken = activations(
        setting.recipe,
        setting.vocab_size,
        upper_stream(setting.recipe, pairs) if stream is None else stream,
        BYTES[precision(config)],
        checkpointing=setting.checkpointing if checkpointing is None else checkpointing,
    )
    return DeviceMemory(model_states(setting.parameters, config, setting.world_size, stage), taken)


def allowed_stages(config: Mapping[str, Any]) -> Sequence[int]:
    """Return the stages that the JSON could have as it is: none in fp16, or with sums in another type, is 0."""
    kind = precision(config)
    sums = config.get("data_types", {}).get("grad_accum_dtype") or kind
    return STAGES if kind != "fp16" and sums == kind else STAGES[1:]


def other_micro_batch(setting: Setting, micro_batch: int) -> dict[str, Any]:
    """Return the JSON with another micro-batch, and accumulation so that train_batch_size stays."""
    accumulation = int(setting.config["train_batch_size"]) // (micro_batch * setting.world_size)
    return dict(setting.config) | {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
    }


def micro_batches(setting: Setting) -> list[int]:
    """Return the micro-batches that keep train_batch_size, the largest first."""
    share = int(setting.config["train_batch_size"]) // setting.world_size
    return [size for size in range(share, 0, -1) if share % size == 0]


@dataclass(frozen=True)
class Turn:
    """Something to turn, and the bytes that it saves at the peak."""

    what: str
    saves: int


def what_to_turn(setting: Setting) -> list[Turn]:
    """Return what would save memory, the most first."""
    before, turns = device_memory(setting).peak, []
    accumulation = int(setting.config["gradient_accumulation_steps"])
    smaller = [size for size in micro_batches(setting) if size < setting.micro_batch]
    if smaller:
        config = other_micro_batch(setting, smaller[0])
        what = (
            f"train_micro_batch_size_per_gpu {setting.micro_batch} -> {smaller[0]}, gradient_accumulation_steps "
            f"{accumulation} -> {config['gradient_accumulation_steps']} (the same train_batch_size)"
        )
        turns.append(Turn(what, before - device_memory(setting, config=config).peak))
    if not setting.checkpointing:
        saved = before - device_memory(setting, checkpointing=True).peak
        turns.append(
            Turn("activation checkpointing (model.activation_checkpointing = true; about a third more work)", saved)
        )
    stage = zero_stage(setting.config)
    turns += [
        Turn(f"zero_optimization.stage {stage} -> {higher}", before - device_memory(setting, stage=higher).peak)
        for higher in STAGES[stage + 1 :]
    ]
    zero = dict(setting.config.get("zero_optimization", {}))
    if stage and setting.on_cuda and not zero.get("offload_optimizer"):
        zero["offload_optimizer"] = {"device": "cpu"}
        config = dict(setting.config) | {"zero_optimization": zero}
        what = 'zero_optimization.offload_optimizer {"device": "cpu"} (masters and moments in the host\'s memory)'
        turns.append(Turn(what, before - device_memory(setting, config=config).peak))
    return sorted((turn for turn in turns if turn.saves > 0), key=lambda turn: -turn.saves)


@dataclass(frozen=True)
class Suggestion:
    """A setting that fits."""

    stage: int
    micro_batch: int
    accumulation: int
    peak: int


def suggest(setting: Setting, device_bytes: int) -> Suggestion | None:
    """Return the largest micro-batch that fits under any ZeRO stage, and the smallest stage for it.

    The upper bound of the stream counts, and USABLE of the device. train_batch_size stays.

    Args:
        setting: as it is.
        device_bytes: of one device.

    Returns:
        None where not even one pair fits.
    """
    room = int(device_bytes * USABLE)
    for size in micro_batches(setting):
        config = other_micro_batch(setting, size)
        for stage in allowed_stages(setting.config):
            peak = device_memory(setting, stage=stage, config=config).peak
            if peak <= room:
                return Suggestion(stage, size, config["gradient_accumulation_steps"], peak)
    return None
