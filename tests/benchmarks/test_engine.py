"""The engine's benchmark on a tiny model: both arms make the same updates, and a difference is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import engine
from benchmarks.harness import UnequalError
from benchmarks.samples import make_micro_batch, wikipedia_lengths

ROOT = Path(__file__).parents[2]
LENGTHS = [20, 17, 9, 8]


def case(precision: str) -> engine.Case:
    return engine.Case(f"tiny {precision}", 1, 32, precision, vocab_size=128)


def test_a_step_has_at_least_4096_tokens():
    assert make_micro_batch(wikipedia_lengths(engine.NUM_PAIRS), engine.VOCAB_SIZE).num_tokens >= 4096
    assert [case.name for case in engine.CASES] == [
        *("mini 4x256 fp32", "mini 4x256 bf16", "small 4x512 fp32", "small 4x512 bf16")
    ]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_bare_loop_is_plain_adamw_with_clipping(precision: str):
    """One step by the formula: the first update of Adam is lr · sign(gradient), and the weight's decay."""
    tiny = case(precision)
    batch = make_micro_batch(LENGTHS, 128)
    bare = engine.BareStep(tiny, batch)
    before = tiny.model().to(torch.bfloat16 if precision == "bf16" else torch.float32).float()
    bare()
    after = dict(bare.model.named_parameters())["bert.pooler.dense.weight"].float()
    start = before.bert.pooler.dense.weight
    moved = (after - start * (1 - 1e-4 * 0.01)).abs()
    assert moved.max().item() == pytest.approx(1e-4, rel=0.02 if precision == "fp32" else 1.0)
    assert next(bare.model.parameters()).dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)
    assert bare._masters[0].dtype == torch.float32


def test_losses_that_differ_are_refused():
    def arm(*losses: float):
        left = iter(losses)
        return lambda: torch.tensor(next(left))

    said = engine.check_equal(case("fp32"), arm(3.0, 2.0, 1.0), arm(3.0, 2.0, 1.00001))
    assert said.startswith("losses of 3 steps within 1e-05")
    with pytest.raises(UnequalError, match="tiny fp32: losses"):
        engine.check_equal(case("fp32"), arm(3.0, 2.0, 1.0), arm(3.0, 2.0, 1.1))
    with pytest.raises(UnequalError):  # neither learns
        engine.check_equal(case("fp32"), arm(3.0, 3.0, 3.0), arm(3.0, 3.0, 3.0))
    with pytest.raises(UnequalError):
        engine.check_equal(case("fp32"), arm(3.0, 2.0, float("nan")), arm(3.0, 2.0, 1.0))


ARMS = """
import sys
import deepspeed
from benchmarks import engine
from benchmarks.samples import make_micro_batch
from runtime.dist import World, process_group

# a shared-memory collective that DeepSpeed would compile for a minute
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
with process_group(World(rank=0, local_rank=0, size=1)):
    for precision in ("fp32", "bf16"):
        case = engine.Case(f"tiny {precision}", 1, 32, precision, vocab_size=128)
        ratio, said = engine.overhead(case, make_micro_batch([20, 17, 9, 8], 128), rounds=3)
        print(precision, ratio > 0, said)
"""


@pytest.mark.distributed
@pytest.mark.timeout(120)
def test_the_engine_makes_the_updates_of_the_bare_loop():
    """In a process of its own: DeepSpeed keeps its groups for the life of a process."""
    done = subprocess.run(
        [sys.executable, "-c", ARMS], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for precision in ("fp32", "bf16"):
        assert any(line.startswith(f"{precision} True losses of 3 steps within ") for line in lines), done.stdout
