"""The plan as training uses it: a few lines at the start, and what to turn when memory has run out."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pretrain.engine.ds_config import zero_stage
from pretrain.launch_check import Launch
from pretrain.plan.device import Setting, device_memory, what_to_turn
from pretrain.plan.report import compact_lines, size
from pretrain.plan.subject import Subject
from pretrain.plan.values import setting_of, start_values
from runtime.command import EXIT_FAILED, rank_prefix

logger = logging.getLogger(__name__)

_CPU_ALLOCATOR = ("DefaultCPUAllocator: can't allocate", "DefaultCPUAllocator: not enough memory")
"""In the text of torch's RuntimeError where the host's memory is out."""


def plan_lines(launch: Launch) -> list[str]:
    """Return the plan of a launch in a few lines; one that says why, where there is none: a run never fails of it."""
    try:
        return compact_lines(start_values(_subject_of(launch)))
    except Exception as error:  # noqa: BLE001 - see above
        return [f"no plan: {type(error).__name__}: {error}"]


@contextmanager
def explained_out_of_memory(launch: Launch) -> Iterator[None]:
    """End the process with exit code 1 and a message that helps, where the device or the host has no memory left.

    Args:
        launch: whose engine is built and trained inside.

    Raises:
        SystemExit: memory has run out; the message is logged.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        found = _out_of_memory_in(error)
        if found is None:
            raise
        logger.error("%s%s", rank_prefix(), explain(launch, found))
        raise SystemExit(EXIT_FAILED) from error


def explain(launch: Launch, error: BaseException) -> str:
    """Return what was tried, what this setting takes by part, and what to turn first, in numbers."""
    tried = (str(error).strip().split("\n")[0] or type(error).__name__)[:300]
    lines = [f"zerobert pretrain: error: out of memory: {tried}"]
    try:
        setting = setting_of(_subject_of(launch))
        lines += [*_by_part(setting), *_turns(setting)]
    except Exception as fault:  # noqa: BLE001 - the first line is worth having without the rest
        lines.append(f"(no plan: {type(fault).__name__}: {fault})")
    return "\n".join(lines)


def _by_part(setting: Setting) -> list[str]:
    memory = device_memory(setting)
    states, taken = memory.states, memory.activations
    parts = {
        "parameters": states.parameters,
        "gradients": states.gradients,
        "masters": states.masters,
        "moments": states.moments,
        "buckets": states.buckets + states.backward,
        "activations of the layers": taken.layers,
        "embeddings": taken.embeddings,
        "MLM head": taken.head,
        "stream": taken.stream,
    }
    said = ", ".join(f"{name} {size(number)}" for name, number in parts.items())
    pairs, length = setting.micro_batch, setting.recipe.data.seq_len
    return [
        f"planned for ZeRO {zero_stage(setting.config)} on {setting.world_size} ranks with {pairs} pairs of up to "
        f"{length} tokens a micro-batch: {size(memory.peak)} a rank at most",
        f"  {said}" + (f"; on the host {size(states.host)}" if states.host else ""),
    ]


def _turns(setting: Setting) -> list[str]:
    turns = what_to_turn(setting)
    if not turns:
        return ["nothing in the recipe or the JSON would save more: a smaller model, or devices with more memory"]
    return ["what to turn, and what it saves:", *(f"  {turn.what}: {size(turn.saves)}" for turn in turns)]


def _subject_of(launch: Launch) -> Subject:
    return Subject(
        recipe=launch.recipe,
        config=launch.ds_config,
        world_size=launch.world.size,
        on_cuda=torch.cuda.is_available(),
        tokenizer=launch.tokenizer,
        manifest=launch.manifest,
        run_dir=launch.run_dir,
    )


def _out_of_memory_in(error: BaseException | None) -> BaseException | None:
    """Return the error itself, or the one that it was raised from, that says that memory is out."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return error
        if isinstance(error, RuntimeError) and any(text in str(error) for text in _CPU_ALLOCATOR):
            return error
        error = error.__cause__ or error.__context__
    return None
