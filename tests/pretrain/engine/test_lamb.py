"""LAMB by hand, against the plain one, and on the pieces that ZeRO makes of parameters."""

from __future__ import annotations

import math
from itertools import repeat
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pretrain.engine.lamb import Lamb, Layout, Piece
from pretrain.engine.partitions import end_to_end, slices
from tests.pretrain.engine.plain_lamb import PlainLamb


def cut(lengths: list[int], rank: int, size: int) -> list[Piece]:
    """Return the rank-th slice of parameters end to end, as ZeRO 1 and 2 cut them; they are numbered."""
    placed = end_to_end([(str(number), length) for number, length in enumerate(lengths)], repeat(0))
    return [Piece(int(at.name), at.start, at.length) for at in slices(placed, rank, size)]


def stepped(weights: list[float], gradient: list[float], **settings: Any) -> tuple[Tensor, Lamb]:
    """Return weights after one step, and the optimizer."""
    parameter = torch.tensor(weights)
    parameter.grad = torch.tensor(gradient)
    lamb = Lamb([parameter], **settings)
    lamb.step()
    return parameter, lamb


def test_the_first_step_by_hand():
    """u = sign(g) at the first step, so |u| = sqrt(2); |w| = 5; the ratio is 3.5355."""
    weights, _ = stepped([3.0, 4.0], [0.5, -2.0], lr=0.1, eps=0.0)
    ratio = 5 / math.sqrt(2)
    torch.testing.assert_close(weights, torch.tensor([3 - 0.1 * ratio, 4 + 0.1 * ratio]))


def test_weight_decay_is_part_of_the_update_whose_norm_is_taken():
    """u = (1, -1) + 0.5 (3, 4) = (2.5, 1); |w| / |u| = 5 / sqrt(7.25)."""
    weights, _ = stepped([3.0, 4.0], [0.5, -2.0], lr=0.1, eps=0.0, weight_decay=0.5)
    ratio = 5 / math.sqrt(7.25)
    torch.testing.assert_close(weights, torch.tensor([3 - 0.25 * ratio, 4 - 0.1 * ratio]))


@pytest.mark.parametrize(
    ("weights", "settings", "ratio"),
    [
        ([300.0, 400.0], {}, 10.0),
        ([300.0, 400.0], {"max_coeff": 20.0}, 20.0),
        ([3e-4, 4e-4], {}, 0.01),
        ([3e-4, 4e-4], {"min_coeff": 0.0}, 5e-4 / math.sqrt(2)),
        ([0.0, 0.0], {}, 1.0),
    ],
)
def test_the_ratio_is_bounded_and_1_for_weights_of_0(weights: list[float], settings: dict[str, float], ratio: float):
    after, _ = stepped(weights, [1.0, -1.0], lr=1.0, eps=0.0, **settings)
    torch.testing.assert_close(after, torch.tensor([weights[0] - ratio, weights[1] + ratio]))


def test_a_gradient_of_0_without_decay_changes_nothing():
    weights, _ = stepped([3.0, 4.0], [0.0, 0.0], lr=0.1)
    assert weights.tolist() == [3.0, 4.0]


SHAPES = {"table": (50, 8), "weight": (8, 8), "bias": (8,), "norm": (3,)}
DECAYED = {"table": 0.1, "weight": 0.1, "bias": 0.0, "norm": 0.0}


def draws(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def groups_of(weights: dict[str, Tensor]) -> list[dict[str, Any]]:
    return [
        {"params": [weight for name, weight in weights.items() if DECAYED[name] == decay], "weight_decay": decay}
        for decay in (0.1, 0.0)
    ]


@pytest.mark.parametrize("bias_correction", [True, False])
def test_twenty_steps_equal_the_plain_ones(bias_correction: bool):
    ours, theirs = draws(0), draws(0)
    lamb = Lamb(groups_of(ours), lr=0.01, bias_correction=bias_correction)
    plain = PlainLamb(lr=0.01, bias_correction=bias_correction)
    for step in range(1, 21):
        gradients = draws(step)
        for name, weight in ours.items():
            weight.grad = gradients[name].clone()
        lamb.step()
        plain.step(theirs, gradients, DECAYED)
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=2e-6, atol=2e-6)
        assert not torch.equal(weight, draws(0)[name])


def test_a_flat_tensor_of_several_parameters_equals_them_one_by_one():
    """Padding behind them stays 0, and the ratios have the parameters' names."""
    ours, theirs = draws(0), draws(0)
    flat = torch.cat([*(weight.flatten() for weight in ours.values()), torch.zeros(5)])
    lamb = Lamb([flat], lr=0.01)
    lengths = [weight.numel() for weight in ours.values()]
    lamb.describe(flat, Layout(list(ours), cut(lengths, 0, flat.numel())))
    plain = PlainLamb(lr=0.01)
    for step in range(1, 6):
        gradients = draws(step)
        flat.grad = torch.cat([*(gradients[name].flatten() for name in ours), torch.ones(5)])
        lamb.step()
        plain.step(theirs, gradients, dict.fromkeys(SHAPES, 0.0))
    torch.testing.assert_close(flat[:-5], torch.cat([weight.flatten() for weight in theirs.values()]))
    assert flat[-5:].tolist() == [0.0] * 5
    assert lamb.trust_ratios() == pytest.approx(plain.ratios)


def test_ranks_that_share_a_parameter_take_its_whole_norm(monkeypatch):
    """Two ranks by turns: the first passes are for what each has, the second for the sum."""
    whole_weights, gradient = torch.tensor([3.0, 4.0, 12.0, 8.0]), torch.tensor([1.0, 1.0, -1.0, 1.0])
    sums: list[Tensor] = []

    def slices(rank: int) -> tuple[Tensor, Lamb]:
        part = whole_weights[2 * rank : 2 * rank + 2].clone()
        part.grad = gradient[2 * rank : 2 * rank + 2].clone()
        lamb = Lamb([part], lr=0.1, eps=0.0)
        lamb.describe(part, Layout(["a", "b"], cut([3, 1], rank, 2), process_group="both"))
        return part, lamb

    def note(squares: Tensor, group: str) -> None:
        assert group == "both"
        sums.append(squares.clone())

    monkeypatch.setattr("torch.distributed.all_reduce", note)
    for rank in (0, 1):
        slices(rank)[1].step()
    monkeypatch.setattr("torch.distributed.all_reduce", lambda squares, group: squares.copy_(sums[0] + sums[1]))
    both = [slices(rank) for rank in (0, 1)]
    for _, lamb in both:
        lamb.step()
    # a: |w| = 13, |u| = sqrt(3); b: 8 / 1
    ratio = 13 / math.sqrt(3)
    expected = whole_weights - 0.1 * torch.tensor([ratio, ratio, -ratio, 8.0])
    torch.testing.assert_close(torch.cat([part for part, _ in both]), expected)
    assert both[0][1].trust_ratios() == both[1][1].trust_ratios() == pytest.approx({"a": ratio, "b": 8.0})


def test_a_rank_with_nothing_but_padding_takes_part(monkeypatch):
    calls = []
    monkeypatch.setattr("torch.distributed.all_reduce", lambda squares, group: calls.append(squares.tolist()))
    part = torch.zeros(4)
    part.grad = torch.zeros(4)
    lamb = Lamb([part], lr=0.1)
    lamb.describe(part, Layout(["a"], [], process_group="both"))
    lamb.step()
    assert calls == [[[0.0], [0.0]]]
    assert part.tolist() == [0.0] * 4


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [1, 4096, 4097, 20_000])
def test_compiled_passes_equal_torch_s_for_any_size_and_threads(monkeypatch, size: int, threads: int):
    """And whatever the number of threads, the same bits."""

    def updated(by_torch: bool, threads: int) -> Tensor:
        generator = torch.Generator().manual_seed(size)
        weight = torch.randn(size, generator=generator)
        lamb = Lamb([weight], lr=0.01, weight_decay=0.1)
        monkeypatch.setattr("torch.get_num_threads", lambda: threads)
        for _ in range(3):
            weight.grad = torch.randn(size, generator=generator)
            with monkeypatch.context() as patch:
                if by_torch:
                    patch.setattr("pretrain.engine.lamb_cpu.can_take", lambda _: False)
                lamb.step()
        return weight

    torch.testing.assert_close(updated(False, threads), updated(True, threads), rtol=1e-6, atol=1e-6)
    assert torch.equal(updated(False, threads), updated(False, 1))


def test_nan_stays_nan():
    weights, _ = stepped([3.0, 4.0], [float("nan"), 1.0], lr=0.1)
    assert weights.isnan().all()


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8), size=st.integers(1, 40))
def test_slices_hold_every_element_once_in_its_place(lengths: list[int], size: int):
    owners = [(number, at) for number, length in enumerate(lengths) for at in range(length)]
    found = []
    for start in range(0, sum(lengths), size):
        for piece in cut(lengths, start // size, size):
            assert piece.length >= 1
            assert piece.start + piece.length <= size
            found += [owners[start + piece.start + at] for at in range(piece.length)]
            assert {number for number, _ in found[-piece.length :]} == {piece.parameter}
    assert found == owners


def test_a_slice_by_hand():
    assert cut([3, 2, 4], 1, 4) == [Piece(1, 0, 1), Piece(2, 1, 3)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, r"lr = -1\.0: must be at least 0"),
        ({"eps": float("nan")}, r"eps = nan: must be at least 0"),
        ({"weight_decay": -0.1}, r"weight_decay = -0\.1: must be at least 0"),
        ({"betas": [0.9]}, r"betas = \[0\.9\]: must be two numbers"),
        ({"betas": (0.9, 1.0)}, r"betas = \(0\.9, 1\.0\): must be two numbers"),
        ({"min_coeff": 2.0, "max_coeff": 1.0}, r"min_coeff = 2\.0, max_coeff = 1\.0: must be"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Lamb([torch.zeros(1)], **settings)
