"""Invariant 3 from shards to gradients: a step is that of one plain batch of stock BERT, however it is split.

The reference is transformers' own class on padded rows with logits at every position and its own loss: the mean over
all masked tokens of the global batch plus the mean over all its pairs.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from transformers import BertForPreTraining

from pretrain import loop, train
from pretrain.data.order import Cursor
from pretrain.data.reader import TRAIN_SPLIT
from pretrain.engine.build import build_engine
from pretrain.engine.ds_config import resolve_ds_config
from pretrain.forward import forward_sums
from pretrain.initial import build_model
from pretrain.metrics import LossMeter
from pretrain.model.bert import StreamBert
from pretrain.model.loss import micro_batch_loss
from pretrain.recipe import load_recipe
from pretrain.tokenizer import load_tokenizer_info
from runtime.dist import World
from tests.pretrain.beside_stock import cut, forward, micro_batch_maker, model_maker, rows, showing_hidden_states, stock
from tokenization.manifest import load_manifest

CPU = torch.device("cpu")
NO_DROPOUT = ("model.hidden_dropout_prob=0.0", "model.attention_probs_dropout_prob=0.0")


@pytest.fixture
def model(recipe_path):
    return model_maker(recipe_path)


@pytest.fixture
def micro_batches(recipe_path):
    return micro_batch_maker(recipe_path)


def assert_same_gradients(ours: StreamBert, theirs: BertForPreTraining) -> None:
    for (name, parameter), plain in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        gradient, expected = parameter.grad, plain.grad
        assert gradient is not None, name
        kept = len(expected)
        assert torch.count_nonzero(gradient[kept:]) == 0, name  # rows beyond the vocabulary
        error = (gradient[:kept].double() - expected.double()).abs().max().item()
        assert error <= 1e-6 * max(1.0, expected.abs().max().item()), f"{name}: {error}"


UNEQUAL = {
    "1 rank x 3": [[(0, 1), (1, 19), (19, 24)]],
    "2 ranks x 2": [[(0, 1), (1, 3)], [(3, 22), (22, 24)]],
    "4 ranks x 1": [[(0, 17)], [(17, 18)], [(18, 20)], [(20, 24)]],
}
DEALT = {
    "1 rank x 1": (1, 1),
    "1 rank x 8": (1, 8),
    "2 ranks x 3": (2, 3),
    "4 ranks x 2": (4, 2),
    "8 ranks x 3": (8, 3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("split", [*DEALT, *(f"{name}, unequal" for name in UNEQUAL)])
def test_gradients_of_a_split_step_equal_stock_bert_s(split, dtype, model, micro_batches):
    """Dealt as training does, and with other numbers of pairs in each; the reference in float64 is the truth."""
    (whole,), ours = micro_batches(1, 1)[0], model(*NO_DROPOUT)
    plain = stock(ours, dtype)
    loss = plain(**rows(whole)).loss
    loss.backward()

    if split in DEALT:
        by_rank = micro_batches(*DEALT[split])
    else:
        by_rank = [[cut(whole, *pairs) for pairs in rank] for rank in UNEQUAL[split.removesuffix(", unequal")]]
    world_size, accumulation, step_loss = len(by_rank), len(by_rank[0]), 0.0
    assert sum(len(part.labels) for parts in by_rank for part in parts) == whole.global_masked_tokens
    for parts in by_rank:
        for part in parts:
            share = micro_batch_loss(
                forward_sums(ours, part, CPU),
                global_masked_tokens=part.global_masked_tokens,
                global_pairs=part.global_pairs,
                world_size=world_size,
                accumulation=accumulation,
            )
            share = share / accumulation / world_size  # DeepSpeed's division, and its mean over ranks
            share.backward()
            step_loss += share.item()
    assert step_loss == pytest.approx(loss.item(), abs=2e-6)
    assert_same_gradients(ours, plain)


def test_a_mean_of_micro_batches_means_would_be_another_loss(model, micro_batches):
    """What other trainers do; the test above tells one from the other."""
    (whole,), ours = micro_batches(1, 1)[0], model(*NO_DROPOUT)
    exact = stock(ours)(**rows(whole)).loss.item()
    for split in UNEQUAL.values():
        means = [stock(ours)(**rows(cut(whole, *pairs))).loss.item() for rank in split for pairs in rank]
        assert abs(sum(means) / len(means) - exact) > 1e-2


@pytest.mark.parametrize("layers", [1, 2])
@torch.no_grad()
def test_hidden_states_and_logits_equal_every_pair_run_alone(layers, model, micro_batches):
    """Pairs of the shards, at every token and after each layer: the stream around a pair changes nothing."""
    (whole,), ours = micro_batches(1, 1)[0], model(*NO_DROPOUT, f"model.num_hidden_layers={layers}").eval()
    plain, ids, types = stock(ours), whole.to_torch("cpu")["input_ids"], whole.to_torch("cpu")["token_type_ids"]
    alone = [
        plain(input_ids=pair, token_type_ids=kind, output_hidden_states=True)
        for pair, kind in zip(
            torch.split(ids, whole.pair_lengths, 1), torch.split(types, whole.pair_lengths, 1), strict=True
        )
    ]
    logits = torch.cat([output.prediction_logits[0] for output in alone])
    torch.testing.assert_close(forward(ours, whole), logits, atol=1e-5, rtol=1e-5)
    states = torch.cat([output.hidden_states[-1][0] for output in alone])
    torch.testing.assert_close(forward(showing_hidden_states(ours), whole), states, atol=1e-5, rtol=1e-5)


@pytest.mark.distributed
@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("stage", [0, 2])
def test_accumulation_of_1_2_and_8_through_the_engine_gives_the_same_losses_and_weights(
    stage, recipe_path, ds_config_path, tmp_path
):
    runs = {}
    for micro in (16, 8, 2):
        config = json.loads(ds_config_path(stage, "fp32", train_micro_batch_size_per_gpu=micro).read_text())
        runs[16 // micro] = five_steps(recipe_path, config, tmp_path)
    losses, weights = runs.pop(1)
    assert losses[-1] < losses[0]
    for accumulation, (other_losses, other_weights) in runs.items():
        assert other_losses == pytest.approx(losses, abs=1e-6), accumulation
        for name, weight in weights.items():
            torch.testing.assert_close(other_weights[name], weight, atol=2e-5, rtol=0, msg=f"{accumulation}: {name}")


def five_steps(recipe_path, config: dict, tmp_path) -> tuple[list[float], dict[str, Tensor]]:
    """Train five steps through the real engine and loop; return the losses and the weights."""
    recipe = load_recipe(recipe_path, [*NO_DROPOUT, "training.steps=5", "training.warmup_steps=1"])
    resolved = resolve_ds_config(config, path="j.json", world_size=1, total_steps=5, warmup_steps=1, on_cuda=False)
    world, tokenizer = World(rank=0, local_rank=0, size=1), load_tokenizer_info(recipe.tokenizer)
    engine = build_engine(build_model(recipe, tokenizer), resolved)
    launch = SimpleNamespace(
        recipe=recipe,
        manifest=load_manifest(recipe.shards),
        tokenizer=tokenizer,
        run_dir=tmp_path,
        world=SimpleNamespace(is_first_of_host=True),
    )
    stream = train.open_stream(train.open_reader(launch, TRAIN_SPLIT), engine, world)
    losses, cursor = [], Cursor()
    engine.train()
    for step in range(5):
        parts, cursor = stream.batch(cursor)
        meter = LossMeter(CPU)
        loop.train_step(engine, parts, meter, device=CPU, world=world, seed=1, step=step)
        losses.append(meter.reduce("train")["train/loss"])
    return losses, {name: weight.detach().clone() for name, weight in engine.module.state_dict().items()}
