"""Dropout over a thousand draws: its share, its scale, its mean, and where its random numbers come from."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pretrain import loop
from pretrain.metrics import LossMeter
from pretrain.model.attention import StreamLayout, attend_stream
from runtime.dist import World
from tests.pretrain.beside_stock import forward, micro_batch_maker, model_maker, rows, showing_hidden_states, stock

CPU = torch.device("cpu")


@pytest.fixture
def model(recipe_path):
    return model_maker(recipe_path)


@pytest.fixture
def micro_batches(recipe_path):
    return micro_batch_maker(recipe_path)


def test_attention_dropout_drops_its_share_scales_the_rest_and_is_right_on_average():
    """Values that are a unit matrix make the output the dropped weights themselves, in which it is linear."""
    length, pairs, heads, dropout, draws = 16, 3, 2, 0.1, 1000
    layout = StreamLayout.from_lengths([length] * pairs, torch.arange(pairs + 1).int() * length)
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn((2, 1, heads, pairs * length, length), generator=generator)
    value = torch.eye(length).repeat(1, heads, pairs, 1)

    def weights(seed: int, chance: float) -> Tensor:
        torch.manual_seed(seed)
        out, _ = attend_stream(torch.nn.Module(), query, key, value, None, layout=layout, dropout=chance)
        return out

    expected = weights(0, 0.0)
    drawn = torch.stack([weights(seed, dropout) for seed in range(draws)])
    dropped = drawn == 0
    count = drawn.numel()
    assert dropped.float().mean().item() == pytest.approx(dropout, abs=4 * (dropout * (1 - dropout) / count) ** 0.5)
    torch.testing.assert_close(drawn, torch.where(dropped, 0.0, expected / (1 - dropout)), atol=1e-6, rtol=1e-5)
    assert_mean_is(expected, drawn)
    # every weight is dropped as often as every other, in every head and pair
    shares = dropped.float().mean(0)
    assert (shares - dropout).abs().max().item() < 5.5 * (dropout * (1 - dropout) / draws) ** 0.5


def assert_mean_is(expected: Tensor, drawn: Tensor) -> None:
    """Hold the mean of draws (first dimension) against what is expected, by its standard error, element by element."""
    error = drawn.std(0) / len(drawn) ** 0.5
    scores = (drawn.mean(0) - expected)[error > 0] / error[error > 0]
    assert scores.square().mean().sqrt().item() < 1.15
    assert scores.abs().max().item() < 6


@torch.no_grad()
def draw(run: Callable[[], Tensor], draws: int = 1000) -> Tensor:
    """Return what came of so many runs, stacked, each with a seed of its own."""
    outputs = []
    for seed in range(draws):
        torch.manual_seed(seed)
        outputs.append(run())
    return torch.stack(outputs)


def test_dropout_of_the_embeddings_drops_its_share_and_is_right_on_average(model, micro_batches):
    """Without layers and head the dropped embeddings themselves come out."""
    (part, *_), *_ = micro_batches(4, 3)
    ours = showing_hidden_states(model("model.hidden_dropout_prob=0.1"))
    ours.bert.encoder.layer = ours.bert.encoder.layer[:0]
    drawn = draw(lambda: forward(ours, part))
    expected = draw(lambda: forward(ours.eval(), part), 1)[0]
    share = (drawn == 0).float().mean().item()
    assert share == pytest.approx(0.1, abs=5 * (0.09 / drawn.numel()) ** 0.5)
    torch.testing.assert_close(drawn, torch.where(drawn == 0, 0.0, expected / 0.9), atol=1e-6, rtol=1e-5)
    assert_mean_is(expected, drawn)


@pytest.mark.parametrize("place", ["attention weights", "attention output", "feed-forward output"])
def test_dropout_inside_a_layer_is_right_on_average_and_as_large_as_stock_bert_s(place, model, micro_batches):
    """What is dropped is made small beside the residual, so that LayerNorm behind it is linear in it."""
    (part, *_), *_ = micro_batches(4, 3)
    weights, hidden = (0.1, 0.0) if place == "attention weights" else (0.0, 0.1)
    ours = model(
        f"model.attention_probs_dropout_prob={weights}",
        f"model.hidden_dropout_prob={hidden}",
        "model.num_hidden_layers=1",
    )
    (layer,) = ours.bert.encoder.layer
    factors = {layer.attention.output: 0.01, layer.output: 0.0}
    if place == "feed-forward output":
        factors = {layer.attention.output: 0.0, layer.output: 0.01}
    with torch.no_grad():
        for block, factor in factors.items():
            block.dense.weight.mul_(factor)
            block.dense.bias.mul_(factor)
    plain, padded = stock(ours), rows(part)
    real = padded["attention_mask"].bool()
    for network in (ours, plain):
        network.bert.embeddings.eval()
    showing_hidden_states(ours)
    drawn = draw(lambda: forward(ours, part))
    theirs = draw(lambda: plain(**padded, output_hidden_states=True).hidden_states[-1][real])
    assert_mean_is(draw(lambda: forward(ours.eval(), part), 1)[0], drawn)
    assert (drawn.var(0).sum() / theirs.var(0).sum()).item() == pytest.approx(1.0, abs=0.05)


def test_dropout_differs_by_step_micro_step_and_rank_and_repeats_with_them(model, micro_batches, monkeypatch):
    """The loop's own seeds: nothing else but the place in the run decides what is dropped."""
    monkeypatch.setattr(loop, "take_step", lambda _: None)
    (part, *_), *_ = micro_batches(4, 3)
    ours = model()
    outputs: list[Tensor] = []

    class Engine:
        def get_lr(self) -> list[float]:
            return [0.0]

        def __call__(self, **batch):
            output = ours(**batch)
            outputs.append(output.mlm_logits.detach().clone())  # the loss takes their memory
            return output

        def backward(self, loss: Tensor) -> None:
            assert torch.isfinite(loss)

    def outputs_at(step: int, rank: int, seed: int) -> list[Tensor]:
        world = World(rank=rank, local_rank=rank, size=2)
        outputs.clear()
        # the same pairs in both micro-steps
        loop.train_step(Engine(), [part, part], LossMeter(CPU), device=CPU, world=world, seed=seed, step=step)
        return list(outputs)

    places = [(step, rank, seed) for step in (0, 1) for rank in (0, 1) for seed in (42, 43)]
    drawn = [output for place in places for output in outputs_at(*place)]
    assert len(drawn) == 16
    assert all(not torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])
    again = [output for place in places for output in outputs_at(*place)]
    assert all(torch.equal(a, b) for a, b in zip(drawn, again, strict=True))
