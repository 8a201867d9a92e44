"""Pretrain BERT with DeepSpeed: the entry that the launcher starts on every device.

    deepspeed --num_gpus 2 --module pretrain.train --recipe recipes/demo.toml \
        --deepspeed_config ds_configs/cpu_zero2_bf16.json

All that the user gave is checked before anything is written or a process group is joined.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__" and not __package__:
    # Started as a script: its own folder would shadow other modules (ours is called `data`), the tree's root is wanted.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import argparse
import logging
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pretrain.data.pairing import PairingSettings
from pretrain.data.reader import PairReader
from pretrain.data.stream import MicroBatch, PairStream, validation_batches
from pretrain.engine.build import batch_sizes_of, build_engine, describe_precision
from pretrain.engine.checkpoint import (
    Checkpoint,
    TrainingState,
    check_resumable,
    find_checkpoint,
    load_checkpoint,
)
from pretrain.engine.ds_config import load_ds_config, resolve_ds_config
from pretrain.initial import build_model
from pretrain.loop import Run, train
from pretrain.recipe import Recipe, load_recipe
from pretrain.tokenizer import TokenizerInfo, load_tokenizer_info
from runtime.command import EXIT_DONE, ConfigError, run_command
from runtime.dist import World, add_local_rank_argument, barrier, process_group, world_from_environment
from runtime.files import write_json
from runtime.tracking import Tracker
from tokenization.manifest import Manifest, load_manifest

logger = logging.getLogger(__name__)

PLANS_DIR = "plans"

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

    @property
    def fingerprints(self) -> dict[str, str]:
        """sha256 of what the run reads."""
        return {"tokenizer": self.tokenizer.fingerprint, "shards": self.manifest.fingerprint}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit code.

    Raises:
        ConfigError: bad input, before anything was written.
    """
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    arguments = _parse(argv)
    launch = check_launch(arguments, world_from_environment(arguments.local_rank))
    with process_group(launch.world) as device:
        _run(launch, device)
    return EXIT_DONE


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="pretrain.train", description="Pretrain BERT with DeepSpeed.")
    parser.add_argument("--recipe", required=True, help="what to train: a TOML file of recipes/")
    parser.add_argument("--deepspeed_config", required=True, help="how to run it: a DeepSpeed JSON")
    parser.add_argument("--run-dir", help="default: the recipe's run_dir, else runs/NAME")
    parser.add_argument(
        "--resume",
        default="auto",
        help="auto: go on where the run dir has a checkpoint, else start; none: only start; PATH: go on from there",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a field of the recipe"
    )
    parser.add_argument("--deepspeed", action="store_true", help=argparse.SUPPRESS)  # old launch scripts pass it
    add_local_rank_argument(parser)
    return parser.parse_args(argv)


def check_launch(arguments: argparse.Namespace, world: World) -> Launch:
    """Check all that the user gave; writes nothing, joins nothing.

    Raises:
        ConfigError: names the file, the field, the value and the rule.
    """
    recipe = load_recipe(arguments.recipe, arguments.set)
    ds_config = resolve_ds_config(
        load_ds_config(arguments.deepspeed_config),
        path=arguments.deepspeed_config,
        world_size=world.size,
        total_steps=recipe.training.steps,
        warmup_steps=recipe.training.warmup_steps,
        on_cuda=torch.cuda.is_available(),
    )
    tokenizer = load_tokenizer_info(recipe.tokenizer)
    manifest = load_manifest(recipe.shards)
    _check_data(recipe, arguments.recipe, tokenizer, manifest)
    run_dir = Path(arguments.run_dir or recipe.run_dir or f"runs/{recipe.name}")
    checkpoint = _find_resume(arguments.resume, run_dir)
    launch = Launch(recipe, ds_config, run_dir, manifest, tokenizer, checkpoint, world)
    if checkpoint is not None:
        check_resumable(checkpoint, ds_config, world.size)
        _check_same_run(checkpoint, launch)
    return launch


def _check_data(recipe: Recipe, source: str, tokenizer: TokenizerInfo, manifest: Manifest) -> None:
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
        found = find_checkpoint(Path(resume))
        if found is None:
            raise ConfigError(f"--resume {resume}: there is no checkpoint to resume from")
        return found
    found = find_checkpoint(run_dir)
    if resume == "none" and found is not None:
        raise ConfigError(
            f"--resume none: {run_dir} holds a run at step {found.state.step}: "
            "go on with --resume auto, or give another --run-dir"
        )
    return found


def _check_same_run(checkpoint: Checkpoint, launch: Launch) -> None:
    """Refuse to resume a run whose data or model changed; say what else changed."""
    now, before = launch.recipe.model_dump(mode="json"), checkpoint.recipe
    fixed = {f"data.{key}": (before["data"][key], now["data"][key]) for key in DATA_FIELDS}
    fixed |= {f"model.{key}": (before["model"][key], now["model"][key]) for key in now["model"]}
    fixed["training.seed"] = (before["training"]["seed"], now["training"]["seed"])
    fixed |= {f"sha256 of {key}": (checkpoint.fingerprints[key], value) for key, value in launch.fingerprints.items()}
    free = ("model.hidden_dropout_prob", "model.attention_probs_dropout_prob", "model.activation_checkpointing")
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


def _run(launch: Launch, device: torch.device) -> None:
    recipe, world = launch.recipe, launch.world
    if world.is_rank_zero:
        launch.run_dir.mkdir(parents=True, exist_ok=True)
        _write_settings(launch)
    barrier()
    model = build_model(recipe, launch.tokenizer)
    engine = build_engine(model, launch.ds_config)
    sizes = batch_sizes_of(engine)
    stream = PairStream(
        reader=_reader(launch, "train"),
        train_batch_size=sizes.train_batch_size,
        train_micro_batch_size_per_gpu=sizes.train_micro_batch_size_per_gpu,
        gradient_accumulation_steps=sizes.gradient_accumulation_steps,
        rank=world.rank,
        world_size=world.size,
    )
    state = TrainingState()
    if launch.checkpoint is not None:
        load_checkpoint(engine, launch.checkpoint)
        state = launch.checkpoint.state
    if world.is_rank_zero:
        _describe(launch, model, describe_precision(engine), state)
    if state.step >= recipe.training.steps:
        return
    with Tracker(
        launch.run_dir,
        is_rank_zero=world.is_rank_zero,
        config=_settings(launch),
        first_step=state.step + 1,
        project=recipe.tracking.project,
        name=recipe.tracking.name or recipe.name,
        wandb_mode=recipe.tracking.wandb,
        tensorboard=recipe.tracking.tensorboard,
    ) as tracker:
        train(
            Run(
                recipe=recipe,
                ds_config=launch.ds_config,
                fingerprints=launch.fingerprints,
                run_dir=launch.run_dir,
                world=world,
                device=device,
                engine=engine,
                stream=stream,
                validation=_validation(launch, sizes.train_micro_batch_size_per_gpu),
                tracker=tracker,
            ),
            state,
        )


def _reader(launch: Launch, split: str) -> PairReader:
    recipe = launch.recipe
    return PairReader(
        manifest=launch.manifest,
        split=split,
        pairing=PairingSettings(
            seed=recipe.training.seed,
            seq_len=recipe.data.seq_len,
            short_seq_prob=recipe.data.short_seq_prob,
            nsp=recipe.data.nsp,
        ),
        mlm_probability=recipe.data.mlm_probability,
        vocabulary=launch.tokenizer.vocabulary,
        cache_dir=launch.run_dir / PLANS_DIR,
        build_plans=launch.world.is_first_of_host,
    )


def _validation(launch: Launch, micro_batch: int) -> Callable[[], Iterable[MicroBatch]] | None:
    """Return what makes this rank's validation micro-batches, or None without evaluation."""
    recipe, world = launch.recipe, launch.world
    if recipe.evaluation.interval_steps == 0:
        return None
    documents = launch.manifest.splits["validation"].documents
    if documents < (2 if recipe.data.nsp else 1):
        if world.is_rank_zero:
            logger.warning(
                "%s: the validation split has %d document(s), too few to evaluate: shard with a larger "
                "--validation-share",
                recipe.shards,
                documents,
            )
        return None
    reader = _reader(launch, "validation")
    return lambda: validation_batches(
        reader,
        micro_batch=micro_batch,
        rank=world.rank,
        world_size=world.size,
        max_pairs=recipe.evaluation.max_pairs,
    )


def _settings(launch: Launch) -> dict[str, Any]:
    versions = {package: _version(package) for package in ("zerobert", "torch", "deepspeed", "transformers", "numpy")}
    return {
        "recipe": launch.recipe.model_dump(mode="json"),
        "deepspeed": launch.ds_config,
        "fingerprints": launch.fingerprints,
        "world_size": launch.world.size,
        "versions": {"python": platform.python_version(), **versions},
    }


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _write_settings(launch: Launch) -> None:
    write_json(launch.run_dir / "run.json", _settings(launch))
    write_json(launch.run_dir / "ds_config.json", launch.ds_config)


def _describe(launch: Launch, model: torch.nn.Module, precision: str, state: TrainingState) -> None:
    recipe, config = launch.recipe, launch.ds_config
    train_split = launch.manifest.splits["train"]
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    logger.info(
        "%s: %d layers x %d, %.1fM parameters",
        recipe.name,
        recipe.model.num_hidden_layers,
        recipe.model.hidden_size,
        parameters / 1e6,
    )
    logger.info("%s; %s", precision, "CUDA" if torch.cuda.is_available() else "CPU")
    logger.info(
        "a step: %d pairs of up to %d tokens = %d a micro-batch x %d micro-steps x %d ranks",
        config["train_batch_size"],
        recipe.data.seq_len,
        config["train_micro_batch_size_per_gpu"],
        config["gradient_accumulation_steps"],
        launch.world.size,
    )
    logger.info("train split: %s documents, %s tokens", f"{train_split.documents:,}", f"{train_split.tokens:,}")
    if launch.checkpoint is not None:
        logger.info("resumed from %s: step %d of %d", launch.checkpoint.path, state.step, recipe.training.steps)
    else:
        logger.info("starting from scratch: no checkpoint in %s", launch.run_dir)


if __name__ == "__main__":
    run_command(main, "pretrain")
