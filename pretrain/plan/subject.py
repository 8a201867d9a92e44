"""All that the user gave to a launch, read as far as it can be, and every fault of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from pretrain.engine.ds_config import (
    BATCH_KEYS,
    checkpoints_activations,
    load_ds_config,
    precision,
    resolve_batch_sizes,
    resolve_ds_config,
)
from pretrain.engine.ds_warnings import warnings_of
from pretrain.launch_check import check_data, with_activation_checkpointing
from pretrain.model.bert import padded_vocab_size
from pretrain.parameters import Parameter, bert_parameters, num_parameters_of
from pretrain.recipe import Recipe, load_recipe
from pretrain.tokenizer import TokenizerInfo, load_tokenizer_info
from runtime.command import ConfigError
from tokenization.manifest import MANIFEST_NAME, Manifest, load_manifest

BERTS_VOCABULARY = 30_522
T = TypeVar("T")


@dataclass(frozen=True)
class Subject:
    """What is planned."""

    recipe: Recipe
    config: dict[str, Any]
    """Resolved; where it is faulty, with whatever makes the rest readable."""
    world_size: int
    on_cuda: bool
    tokenizer: TokenizerInfo | None
    manifest: Manifest | None
    run_dir: Path
    faults: list[str] = field(default_factory=list)
    """What training would refuse."""
    notes: list[str] = field(default_factory=list)
    """What is not there yet, and what of the JSON does nothing or wastes memory."""

    @property
    def vocab_size(self) -> int:
        """Rows of the word table, padding counted."""
        known = BERTS_VOCABULARY if self.tokenizer is None else self.tokenizer.size
        wanted = self.recipe.model.vocab_size or 0
        return padded_vocab_size(max(wanted, known) if self.tokenizer or not wanted else wanted)

    @property
    def parameters(self) -> list[Parameter]:
        """The model's."""
        return bert_parameters(self.recipe.model, self.vocab_size)

    @property
    def checkpointing(self) -> bool:
        """Whether layers are computed again in the backward pass."""
        return self.recipe.model.activation_checkpointing or checkpoints_activations(self.config)


def read_subject(arguments: argparse.Namespace, world_size: int) -> Subject:
    """Read the recipe, the JSON and what they name.

    Args:
        arguments: recipe, deepspeed_config, set, run_dir, device ("cuda", "cpu" or None).
        world_size: ranks of the launch.

    Raises:
        ConfigError: the recipe or the JSON cannot be read at all; both are named where both cannot.
    """
    faults: list[str] = []
    notes: list[str] = []
    read_recipe = _try(faults, lambda: load_recipe(arguments.recipe, arguments.set))
    given = _try(faults, lambda: load_ds_config(arguments.deepspeed_config))
    if read_recipe is None or given is None:
        raise ConfigError("\n".join(faults))
    recipe: Recipe = read_recipe
    on_cuda = _on_cuda(arguments, given)
    tokenizer = _read(faults, notes, Path(recipe.tokenizer) / "tokenizer.json", lambda: _tokenizer(recipe))
    num_parameters = num_parameters_of(recipe.model, tokenizer.size if tokenizer else BERTS_VOCABULARY)
    config = _resolve(given, arguments.deepspeed_config, recipe, world_size, on_cuda, num_parameters, faults)
    notes += warnings_of(config, on_cuda=on_cuda, num_parameters=num_parameters)
    recipe = _try(faults, lambda: with_activation_checkpointing(read_recipe, given, arguments)) or recipe
    manifest = _read(faults, notes, Path(recipe.shards) / MANIFEST_NAME, lambda: load_manifest(recipe.shards))
    if tokenizer is not None and manifest is not None:
        _try(faults, lambda: check_data(recipe, arguments.recipe, tokenizer, manifest))
    source = recipe.training.init_from
    if source is not None and not Path(source).exists():
        notes.append(f"training.init_from = {source!r} is not there yet")
    run_dir = Path(arguments.run_dir or recipe.run_dir or f"runs/{recipe.name}")
    lines = list(dict.fromkeys(line for fault in faults for line in fault.split("\n")))
    return Subject(recipe, config, world_size, on_cuda, tokenizer, manifest, run_dir, lines, notes)


def _tokenizer(recipe: Recipe) -> TokenizerInfo:
    return load_tokenizer_info(recipe.tokenizer)


def _on_cuda(arguments: argparse.Namespace, given: Mapping[str, Any]) -> bool:
    """Return where the launch is planned for: as told, else a GPU where there is any sign of one."""
    if arguments.device is not None:
        return bool(arguments.device == "cuda")
    return torch.cuda.is_available() or arguments.device_gib is not None or precision(given) == "fp16"


def _try(faults: list[str], read: Callable[[], T]) -> T | None:
    try:
        return read()
    except ConfigError as error:
        faults.append(str(error))
        return None


def _read(faults: list[str], notes: list[str], path: Path, read: Callable[[], T]) -> T | None:
    if not path.exists():
        notes.append(f"{path} is not there yet")
        return None
    return _try(faults, read)


def _resolve(
    given: dict[str, Any],
    path: str,
    recipe: Recipe,
    world_size: int,
    on_cuda: bool,
    num_parameters: int,
    faults: list[str],
) -> dict[str, Any]:
    """Return the resolved JSON. Where it is refused, the block at fault gets a stand-in, and the rest is looked at."""

    def attempt(config: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
        try:
            resolved = resolve_ds_config(
                config,
                path=path,
                world_size=world_size,
                total_steps=recipe.training.steps,
                warmup_steps=recipe.training.warmup_steps,
                on_cuda=on_cuda,
                num_parameters=num_parameters,
                lr_scaling=recipe.training.lr_scaling,
                lr_reference_batch=recipe.training.lr_reference_batch,
            )
        except ConfigError as error:
            return None, str(error)
        return resolved, ""

    _try(faults, lambda: resolve_batch_sizes(given, world_size, path))
    rest = dict(given)
    for _ in range(len(_STAND_INS) + 2):
        resolved, fault = attempt(rest)
        if resolved is not None:
            return resolved
        faults.append(fault)
        # What changes the message when it is taken out is at fault; where nothing does, all but the least goes.
        tries = [_without(rest, keys) | stand_in for keys, stand_in in _STAND_INS]
        tries = [other for other in tries if other != rest and attempt(other)[1] != fault]
        rest = [*tries, _LEAST][0]
    raise ConfigError("\n".join(faults))


def _without(config: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


_STAND_INS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (BATCH_KEYS, {BATCH_KEYS[1]: 1}),
    (("fp16", "bf16", "bfloat16", "data_types", "torch_autocast"), {}),
    (("scheduler",), {"scheduler": {"type": "LRRangeTest", "params": {}}}),
    (("optimizer",), {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}),
    (("zero_optimization",), {}),
)
"""What may be taken out of a JSON to find the faults behind the first, and what takes its place."""
_LEAST: dict[str, Any] = {key: value for _, stand_in in _STAND_INS for key, value in stand_in.items()}
