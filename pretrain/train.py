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
import math
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from pretrain.data.pairing import PairingSettings
from pretrain.data.reader import TRAIN_SPLIT, PairReader
from pretrain.data.stream import MicroBatch, PairStream, validation_batches
from pretrain.engine.build import batch_sizes_of, build_engine, describe_precision
from pretrain.engine.checkpoint import SaveError, TrainingState, load_checkpoint
from pretrain.engine.ds_warnings import warnings_of
from pretrain.health import DivergedError
from pretrain.host_memory import keep_freed_memory
from pretrain.initial import build_model
from pretrain.launch_check import Launch, check_launch
from pretrain.loop import Run, train
from pretrain.model.bert import StreamBert
from pretrain.model.compiling import compile_layers
from pretrain.plan.at_start import explained_out_of_memory, plan_lines
from pretrain.saver import Saver
from pretrain.settle import run_dir_of_this_run, settle
from pretrain.stopping import Stopper
from runtime.ancestors import watch_ancestors
from runtime.command import EXIT_DONE, EXIT_FAILED, EXIT_SAVED, run_command
from runtime.dist import World, add_local_rank_argument, barrier, process_group, world_from_environment
from runtime.files import write_json
from runtime.tracking import Tracker
from runtime.watchdog import Watchdog
from tokenization.manifest import verify

if TYPE_CHECKING:
    from deepspeed.runtime.engine import DeepSpeedEngine

logger = logging.getLogger(__name__)

PLANS_DIR = "plans"
VALIDATION_SPLIT = "validation"
TOKEN_MULTIPLE = 128
"""On CUDA a stream is padded to a multiple of this: few sizes, for which kernels are compiled once."""
MASK_MULTIPLE = 64
"""The same for the places to predict."""


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
    if launch.is_complete:
        if launch.world.is_rank_zero:
            logger.info("%s: all %d steps are done", launch.run_dir, launch.recipe.training.steps)
        return EXIT_DONE
    with explained_out_of_memory(launch):
        # These can still find fault with the input, so they come before anything is written.
        model = build_model(launch.recipe, launch.tokenizer, is_resumed=launch.checkpoint is not None)
        compile_layers(model, launch.compiled)
        _warn(launch, model, arguments.deepspeed_config)
        if launch.checkpoint is None and launch.world.is_rank_zero:
            verify(launch.manifest)
        readers = {split: open_reader(launch, split) for split in _splits(launch)}
        if "LOCAL_RANK" in os.environ:
            watch_ancestors()
        with process_group(launch.world) as device, run_dir_of_this_run(launch.run_dir):
            launch = settle(launch, arguments.resume)
            if launch.is_complete:
                return EXIT_DONE
            try:
                return _run(launch, model, readers, device, arguments.max_seconds)
            except (DivergedError, SaveError) as error:  # every rank has the same
                if launch.world.is_rank_zero:
                    logger.error("zerobert pretrain: stopped: %s", error)
                return EXIT_FAILED


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
    parser.add_argument(
        "--max-seconds",
        type=_positive,
        help="save and stop before so many have gone since the start; exit code 75",
    )
    add_local_rank_argument(parser)
    return parser.parse_args(argv)


def _positive(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of seconds above 0")
    return seconds


def _warn(launch: Launch, model: torch.nn.Module, source: str) -> None:
    if launch.world.is_rank_zero:
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        for warning in warnings_of(launch.ds_config, on_cuda=torch.cuda.is_available(), num_parameters=num_parameters):
            logger.warning("%s: %s", source, warning)


def _run(
    launch: Launch,
    model: StreamBert,
    readers: Mapping[str, PairReader],
    device: torch.device,
    max_seconds: float | None,
) -> int:
    recipe, world = launch.recipe, launch.world
    stopper = Stopper(max_seconds)
    if world.is_rank_zero:
        _write_settings(launch)
    barrier()
    engine = build_engine(model, launch.ds_config)
    stream = open_stream(readers[TRAIN_SPLIT], engine, world)
    state = TrainingState()
    if launch.checkpoint is not None:
        load_checkpoint(engine, launch.checkpoint)
        state = launch.checkpoint.state
    if device.type == "cpu":
        keep_freed_memory()  # of the steps; what starting took has gone back by now
    if world.is_rank_zero:
        _describe(launch, model, describe_precision(engine), state)
    saver = Saver(
        engine,
        launch.run_dir,
        recipe,
        launch.ds_config,
        launch.fingerprints,
        world.size,
        world.is_rank_zero,
        launch.checkpoint.path if launch.checkpoint else None,
    )
    tracker = _tracker(launch, first_step=state.step + 1)
    watchdog = Watchdog(world.rank, world.size, recipe.training.hang_seconds)
    with tracker, stopper.listening(), watchdog:
        state, reason = train(
            Run(
                recipe=recipe,
                world=world,
                device=device,
                engine=engine,
                stream=stream,
                validation=_validation(launch, readers, stream.train_micro_batch_size_per_gpu),
                tracker=tracker,
                saver=saver,
                stopper=stopper,
                watchdog=watchdog,
            ),
            state,
        )
    if reason is None or state.step >= recipe.training.steps:
        return EXIT_DONE
    if world.is_rank_zero:
        logger.info("stopped by %s after step %d, saved: the same command goes on from there", reason, state.step)
    return EXIT_SAVED


def _tracker(launch: Launch, first_step: int) -> Tracker:
    tracking = launch.recipe.tracking
    return Tracker(
        launch.run_dir,
        is_rank_zero=launch.world.is_rank_zero,
        config=_settings(launch),
        first_step=first_step,
        project=tracking.project,
        name=tracking.name or launch.recipe.name,
        wandb_mode=tracking.wandb,
        tensorboard=tracking.tensorboard,
    )


def open_stream(reader: PairReader, engine: DeepSpeedEngine, world: World) -> PairStream:
    """Return this rank's global batches; on CUDA padded to a few sizes and page-locked."""
    sizes, on_cuda = batch_sizes_of(engine), engine.device.type == "cuda"
    return PairStream(
        reader=reader,
        train_batch_size=sizes.train_batch_size,
        train_micro_batch_size_per_gpu=sizes.train_micro_batch_size_per_gpu,
        gradient_accumulation_steps=sizes.gradient_accumulation_steps,
        rank=world.rank,
        world_size=world.size,
        pad_to_multiple=min(TOKEN_MULTIPLE, reader.pairing.seq_len) if on_cuda else 1,
        mask_multiple=MASK_MULTIPLE if on_cuda else 1,
        pin_memory=on_cuda,
    )


def _splits(launch: Launch) -> list[str]:
    """Return the splits that the run reads: training, and validation where it is wanted and possible."""
    recipe = launch.recipe
    if recipe.evaluation.interval_steps == 0:
        return [TRAIN_SPLIT]
    documents = launch.manifest.splits[VALIDATION_SPLIT].documents
    if documents >= (2 if recipe.data.nsp else 1):
        return [TRAIN_SPLIT, VALIDATION_SPLIT]
    if launch.world.is_rank_zero:
        logger.warning(
            "%s: the validation split has %d document(s), too few to evaluate: shard with a larger --validation-share",
            recipe.shards,
            documents,
        )
    return [TRAIN_SPLIT]


def open_reader(launch: Launch, split: str) -> PairReader:
    """Return the reader of a split, as the recipe wants its pairs."""
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


def _validation(
    launch: Launch, readers: Mapping[str, PairReader], micro_batch: int
) -> Callable[[], Iterable[MicroBatch]] | None:
    """Return what makes this rank's validation micro-batches, or None without evaluation."""
    if VALIDATION_SPLIT not in readers:
        return None
    return lambda: validation_batches(
        readers[VALIDATION_SPLIT],
        micro_batch=micro_batch,
        rank=launch.world.rank,
        world_size=launch.world.size,
        max_pairs=launch.recipe.evaluation.max_pairs,
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
    if recipe.training.lr_scaling != "none":
        logger.info(
            "lr %.4g: the JSON's is for %s pairs, scaled %s to %d",
            config["optimizer"]["params"]["lr"],
            recipe.training.lr_reference_batch,
            {"linear": "linearly", "sqrt": "by the square root"}[recipe.training.lr_scaling],
            config["train_batch_size"],
        )
    logger.info("train split: %s documents, %s tokens", f"{train_split.documents:,}", f"{train_split.tokens:,}")
    for line in plan_lines(launch):
        logger.info("%s", line)
    if launch.checkpoint is not None:
        logger.info("resumed from %s: step %d of %d", launch.checkpoint.path, state.step, recipe.training.steps)
    else:
        logger.info("starting from scratch: no checkpoint in %s", launch.run_dir)


if __name__ == "__main__":
    run_command(main, "pretrain")
