"""Activation checkpointing from the recipe or from the JSON's block: less memory, the same losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from pretrain import train
from pretrain.data.order import Cursor
from pretrain.data.reader import TRAIN_SPLIT
from pretrain.engine.build import build_engine, take_step
from pretrain.engine.ds_config import checkpoints_activations
from pretrain.forward import forward_sums
from pretrain.initial import build_model
from pretrain.launch_check import Launch, check_launch
from pretrain.model.loss import micro_batch_loss
from runtime.command import ConfigError
from runtime.dist import World

CPU = torch.device("cpu")
ONE = World(rank=0, local_rank=0, size=1)
ON = "model.activation_checkpointing=true"
OFF = "model.activation_checkpointing=false"
SWITCHED_OFF = {
    "partition_activations": False,
    "cpu_checkpointing": False,
    "contiguous_memory_optimization": False,
    "number_checkpoints": None,
    "synchronize_checkpoint_boundary": False,
    "profile": False,
}


@pytest.fixture
def check(recipe_path, ds_config_path) -> Any:
    """Checks a launch: (block of the JSON or None, *recipe settings) -> Launch."""

    def make(block: dict[str, Any] | None, *settings: str, stage: int = 1) -> Launch:
        ds_config = ds_config_path(stage, "fp32", activation_checkpointing=block, train_micro_batch_size_per_gpu=16)
        arguments = ["--recipe", str(recipe_path), "--deepspeed_config", str(ds_config)]
        arguments += [part for setting in settings for part in ("--set", setting)]
        return check_launch(train._parse(arguments), ONE)

    return make


@pytest.mark.parametrize(
    ("block", "settings", "is_on"),
    [
        (None, [], False),
        (None, [OFF], False),
        (None, [ON], True),
        ({}, [], True),
        (SWITCHED_OFF, [], True),
        ({}, [ON], True),
    ],
)
def test_on_or_off_from_either_home(block, settings, is_on, check):
    launch = check(block, *settings)
    assert checkpoints_activations(launch.ds_config) == (block is not None)
    assert launch.recipe.model.activation_checkpointing == is_on  # what is written into the run dir says so, too
    assert build_model(launch.recipe, launch.tokenizer).is_gradient_checkpointing == is_on


def test_homes_that_disagree_are_both_named(check, recipe_path):
    with pytest.raises(
        ConfigError,
        match=rf"{recipe_path}: model.activation_checkpointing = false, but .*\d.json has the block "
        "activation_checkpointing, which turns it on",
    ):
        check({}, OFF)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            {"partition_activations": True},
            r"json: activation_checkpointing.partition_activations = True: has no effect",
        ),
        ({"contiguous_memory_optimization": True}, r"contiguous_memory_optimization = True: has no effect"),
        ({"number_checkpoints": 4}, r"number_checkpoints = 4: has no effect: every layer is one checkpoint"),
        ({"cpu_checkpointing": True}, r"cpu_checkpointing = True: has no effect"),
        ({"synchronize_checkpoint_boundary": True}, r"synchronize_checkpoint_boundary = True: has no effect"),
        ({"profile": True}, r"profile = True: has no effect"),
        ({"partition_activation": True}, r"partition_activation: .*\(did you mean 'partition_activations'\?\)"),
        (True, r"activation_checkpointing = True: must be an object"),
    ],
)
def test_what_would_change_nothing_is_refused(block, message, check):
    """Case O2: DeepSpeed would read these, and nothing would use them."""
    with pytest.raises(ConfigError, match=message):
        check(block)


def steps(launch: Launch, num_steps: int = 3) -> Iterator[Tensor]:
    """Train with dropout through the engine; yield each step's loss."""
    engine = build_engine(build_model(launch.recipe, launch.tokenizer), launch.ds_config)
    stream = train.open_stream(train.open_reader(launch, TRAIN_SPLIT), engine, ONE)
    engine.train()
    cursor = Cursor()
    for step in range(num_steps):
        (batch,), cursor = stream.batch(cursor)
        torch.manual_seed(step)
        loss = micro_batch_loss(
            forward_sums(engine, batch, CPU),
            global_masked_tokens=batch.global_masked_tokens,
            global_pairs=batch.global_pairs,
            world_size=1,
            accumulation=1,
        )
        engine.backward(loss)
        take_step(engine)
        yield loss.detach()


@pytest.mark.distributed
@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_the_same_losses_bit_for_bit_with_dropout(stage, check, tmp_path, monkeypatch):
    """Case O2. The recomputed layers draw the same masks: later losses follow from the first gradients."""
    monkeypatch.chdir(tmp_path)  # plans are written into runs/
    plain, by_block, by_recipe = (
        [loss.item() for loss in steps(check(block, *settings, stage=stage))]
        for block, settings in ((None, []), ({}, []), (None, [ON]))
    )
    assert len(set(plain)) == 3
    assert by_block == plain
    assert by_recipe == plain


class Saved:
    """Counts what autograd keeps for the backward pass: bytes of each tensor's memory, once."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._kept: list[Tensor] = []  # so that no address is used again

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self._sizes[storage.data_ptr()] = storage.nbytes()
        self._kept.append(tensor)
        return tensor

    @property
    def total(self) -> int:
        return sum(self._sizes.values())


def saved_bytes(launch: Launch) -> int:
    """Return what a forward pass keeps of activations; weights are not counted."""
    model = build_model(launch.recipe, launch.tokenizer).train()
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    reader = train.open_reader(launch, TRAIN_SPLIT)
    batch = next(iter(_batches(reader)))
    saved = Saved()

    def pack(tensor: Tensor) -> Tensor:
        return tensor if tensor.untyped_storage().data_ptr() in weights else saved.pack(tensor)

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward_sums(model, batch, CPU)
    return saved.total


def _batches(reader: Any) -> Iterator[Any]:
    from pretrain.data.stream import PairStream

    stream = PairStream(
        reader=reader,
        train_batch_size=16,
        train_micro_batch_size_per_gpu=16,
        gradient_accumulation_steps=1,
        rank=0,
        world_size=1,
    )
    yield from (micro_batches[0] for micro_batches, _ in stream.batches(Cursor()))


def test_less_is_kept_for_the_backward_pass(check, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    six_layers = "model.num_hidden_layers=6"
    without, with_block = saved_bytes(check(None, six_layers)), saved_bytes(check({}, six_layers))
    # head and embeddings are kept either way; of each layer only its input, by the checkpoint itself
    assert with_block < 0.35 * without
