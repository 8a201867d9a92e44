"""What the user gave to a launch, checked whole before anything is written or a process group is joined."""

from __future__ import annotations

import argparse
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pretrain.engine.checkpoint import Checkpoint, check_resumable, find_checkpoint, newest_readable
from pretrain.engine.ds_config import checkpoints_activations, load_ds_config, resolve_ds_config, zero_stage
from pretrain.engine.ds_schedule import schedule_changes
from pretrain.health import check_health
from pretrain.model.compiling import resolve_compile
from pretrain.parameters import num_parameters_of
from pretrain.recipe import Recipe, load_recipe
from pretrain.tokenizer import TokenizerInfo, load_tokenizer_info
from runtime.command import ConfigError
from runtime.dist import World
from tokenization.manifest import Manifest, load_manifest

logger = logging.getLogger(__name__)

DATA_FIELDS = ("seq_len", "short_seq_prob", "nsp", "mlm_probability")
"""Recipe fields of [data] that decide which pairs an epoch has; a resumed run cannot change them."""


@dataclass(frozen=True)
class Launch:
    """All that the user gave, checked."""

    recipe: Recipe
    ds_config: dict[str, Any]
    run_dir: Path
    manifest: Manifest
    tokenizer: TokenizerInfo
    checkpoint: Checkpoint | None
    world: World
    compiled: str = "off"
    """What model.compile comes to here; see `pretrain.model.compiling`."""

    @property
    def is_complete(self) -> bool:
        """Whether the run has done all its steps."""
        return self.checkpoint is not None and self.checkpoint.state.step >= self.recipe.training.steps

    @property
    def fingerprints(self) -> dict[str, str]:
        """sha256 of what the run reads."""
        return {"tokenizer": self.tokenizer.fingerprint, "shards": self.manifest.fingerprint}


def check_launch(arguments: argparse.Namespace, world: World) -> Launch:
    """Check all that the user gave; writes nothing, joins nothing.

    Raises:
        ConfigError: names the file, the field, the value and the rule.
    """
    recipe = load_recipe(arguments.recipe, arguments.set)
    given = load_ds_config(arguments.deepspeed_config)
    tokenizer = load_tokenizer_info(recipe.tokenizer)  # its size is a part of the model's
    ds_config = resolve_ds_config(
        given,
        path=arguments.deepspeed_config,
        world_size=world.size,
        total_steps=recipe.training.steps,
        warmup_steps=recipe.training.warmup_steps,
        on_cuda=torch.cuda.is_available(),
        num_parameters=num_parameters_of(recipe.model, tokenizer.size),
        lr_scaling=recipe.training.lr_scaling,
        lr_reference_batch=recipe.training.lr_reference_batch,
    )
    recipe = with_activation_checkpointing(recipe, ds_config, arguments)
    manifest = load_manifest(recipe.shards)
    check_data(recipe, arguments.recipe, tokenizer, manifest)
    run_dir = Path(arguments.run_dir or recipe.run_dir or f"runs/{recipe.name}")
    checkpoint = _find_resume(arguments.resume, run_dir)
    compiled = resolve_compile(
        recipe.model.compile,
        on_cuda=torch.cuda.is_available(),
        zero_stage=zero_stage(ds_config),
        accumulation=ds_config["gradient_accumulation_steps"],
    )
    kind = ds_config["optimizer"]["type"]
    if recipe.tracking.trust_ratios and kind.lower() != "lamb":
        raise ConfigError(
            f"{arguments.recipe}: tracking.trust_ratios = true, but {arguments.deepspeed_config} has optimizer.type = "
            f"{kind!r}: only Lamb has trust ratios; take one of them out"
        )
    check_health(recipe.health, ds_config, arguments.recipe)
    launch = Launch(recipe, ds_config, run_dir, manifest, tokenizer, checkpoint, world, compiled)
    check_checkpoint(launch)
    return launch


def check_checkpoint(launch: Launch) -> None:
    """Refuse to go on from a checkpoint of another run.

    Raises:
        ConfigError: names what differs.
    """
    if launch.checkpoint is not None:
        check_resumable(launch.checkpoint, launch.ds_config, launch.world.size)
        _check_same_run(launch.checkpoint, launch)


def with_activation_checkpointing(recipe: Recipe, ds_config: dict[str, Any], arguments: argparse.Namespace) -> Recipe:
    """Return the recipe with activation checkpointing on, where the JSON asks for it."""
    if not checkpoints_activations(ds_config):
        return recipe
    model = recipe.model
    if "activation_checkpointing" in model.model_fields_set and not model.activation_checkpointing:
        raise ConfigError(
            f"{arguments.recipe}: model.activation_checkpointing = false, but {arguments.deepspeed_config} has the "
            "block activation_checkpointing, which turns it on: take one of them out"
        )
    return recipe.model_copy(update={"model": model.model_copy(update={"activation_checkpointing": True})})


def check_data(recipe: Recipe, source: str, tokenizer: TokenizerInfo, manifest: Manifest) -> None:
    """Refuse a recipe, a tokenizer and shards that do not belong together; `source` is the recipe's file."""
    if tokenizer.fingerprint != manifest.tokenizer_fingerprint:
        raise ConfigError(
            f"{recipe.shards}/manifest.json was made with another tokenizer "
            f"({manifest.tokenizer_fingerprint[:12]}…) than {recipe.tokenizer}/tokenizer.json "
            f"({tokenizer.fingerprint[:12]}…): shard the text anew, or name the tokenizer that it was made with"
        )
    vocab_size = recipe.model.vocab_size
    if vocab_size is not None and tokenizer.size > vocab_size:
        raise ConfigError(
            f"{source}: model.vocab_size = {vocab_size} is below the {tokenizer.size} tokens of "
            f"{recipe.tokenizer}: raise it or leave it out"
        )
    documents = manifest.splits["train"].documents
    if documents < (2 if recipe.data.nsp else 1):
        raise ConfigError(
            f"{recipe.shards}: the train split has {documents} document(s); "
            "with data.nsp = true a random segment B needs another document: add text, or set data.nsp = false"
        )


def _find_resume(resume: str, run_dir: Path) -> Checkpoint | None:
    if resume not in ("auto", "none"):
        wanted = find_checkpoint(Path(resume))
        if wanted is None:
            raise ConfigError(f"--resume {resume}: there is no checkpoint to resume from")
        there = newest_readable(run_dir)
        if there is not None and there.path.resolve() != wanted.path.resolve():
            raise ConfigError(
                f"--resume {resume}: {run_dir} holds a run at step {there.state.step} already: "
                "go on from another checkpoint in a new --run-dir"
            )
        return wanted
    found = newest_readable(run_dir)
    if resume == "none" and found is not None:
        raise ConfigError(
            f"--resume none: {run_dir} holds a run at step {found.state.step}: "
            "go on with --resume auto, or give another --run-dir"
        )
    return found


def _check_same_run(checkpoint: Checkpoint, launch: Launch) -> None:
    """Refuse to resume a run whose data or model changed; say what else changed."""
    now, before = launch.recipe.model_dump(mode="json"), checkpoint.recipe
    fixed: dict[str, tuple[Any, Any]] = {f"data.{key}": (before["data"][key], now["data"][key]) for key in DATA_FIELDS}
    # A key that the checkpoint lacks is younger than it.
    fixed |= {f"model.{key}": (before["model"].get(key, value), value) for key, value in now["model"].items()}
    fixed["training.seed"] = (before["training"]["seed"], now["training"]["seed"])
    fixed |= {f"sha256 of {key}": (checkpoint.fingerprints[key], value) for key, value in launch.fingerprints.items()}
    free = {
        f"model.{key}"
        for key in ("hidden_dropout_prob", "attention_probs_dropout_prob", "activation_checkpointing", "compile")
    }
    changed = [f"{key}: {old!r}, now {new!r}" for key, (old, new) in fixed.items() if old != new and key not in free]
    if changed:
        raise ConfigError(
            f"{checkpoint.path}: cannot resume, these changed since it was saved:\n  " + "\n  ".join(changed) + "\n"
            "start a new run; training.init_from takes the weights along"
        )
    for key in ("steps", "warmup_steps"):
        old, new = before["training"][key], now["training"][key]
        if old != new and launch.world.is_rank_zero:
            logger.warning("training.%s was %s, is now %s: the schedule changes from here on", key, old, new)
    if launch.world.is_rank_zero:
        for change in schedule_changes(checkpoint.ds_config, launch.ds_config):
            logger.warning("%s, from here on", change)
