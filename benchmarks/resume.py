"""How long training waits for its first batch after 90 % of an epoch of 100 million pairs.

    python -m benchmarks.resume

Ours: everything that lies between the start and the first batch is made anew, at position 0 and at position 90,000,000
in turns: the shards and the plan are mapped, the order is computed, 64 pairs of seq_len 128 are read and masked. The
plan is 2 GB of real arrays; the tokens are a sparse file, as in `sparse_store`.

Peer: a torch `DataLoader` skipped with `itertools.islice`, and its sampler alone skipped, as accelerate does. Both are
run over fewer items, and their time is multiplied: real loaders do not get cheaper with length, and the items here are
single numbers, which favours them.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.sparse_store import make_store
from pretrain.data.arrays import ArrayWriter
from pretrain.data.masking import Vocabulary
from pretrain.data.micro_batch import MicroBatch
from pretrain.data.order import Cursor
from pretrain.data.pairing import COLUMN_DTYPES, PairingSettings
from pretrain.data.reader import TRAIN_SPLIT, PairReader
from pretrain.data.stream import PairStream
from tokenization.manifest import load_manifest

MOST_SLOWDOWN = 1.2
LEAST_SPEEDUP = 100.0
PAIRS = 100_000_000
SHARE = 0.9
SEQ_LEN = 128
BATCH_PAIRS = 64
_LEAST_STARTS = 25
_PIECE_PAIRS = 1_000_000
_BYTES_A_PAIR = 220  # of the store
_LEAST_GIGABYTES = 0.04  # two of its documents
_SKIPPED_ITEMS = 200_000
_SKIPPED_INDICES = 2_000_000
_SEED = 1


def open_reader(shards: Path, plans: Path) -> PairReader:
    """Return a reader with nothing open but the shards. All tokens of the store are 0, a word here."""
    return PairReader(
        manifest=load_manifest(shards),
        split=TRAIN_SPLIT,
        pairing=PairingSettings(seed=_SEED, seq_len=SEQ_LEN, short_seq_prob=0.1, nsp=True),
        mlm_probability=0.15,
        vocabulary=Vocabulary(size=30522, pad_id=1, cls_id=2, sep_id=3, mask_id=4, special_ids=(1, 2, 3, 4)),
        cache_dir=plans,
        build_plans=False,
        wait_seconds=0.0,
    )


def write_plan(reader: PairReader, num_tokens: int, num_pairs: int) -> None:
    """Write a plan of epoch 0 without planning: pairs one behind the other in the text, of random lengths.

    Args:
        reader: whose plan.
        num_tokens: of the split.
        num_pairs: pairs of the plan.
    """
    assert reader.cache_dir is not None
    folder = reader.cache_dir / reader.plan_key(0).folder_name
    folder.mkdir(parents=True)
    draw = np.random.default_rng(_SEED)
    writers = {name: ArrayWriter(folder / f"{name}.npy", dtype) for name, dtype in COLUMN_DTYPES.items()}
    for first in range(0, num_pairs, _PIECE_PAIRS):
        numbers = np.arange(first, min(first + _PIECE_PAIRS, num_pairs))
        a_length = draw.integers(1, SEQ_LEN - 3, len(numbers))
        a_start = numbers * ((num_tokens - SEQ_LEN) // num_pairs)
        columns = {
            "a_start": a_start,
            "a_length": a_length,
            "b_start": a_start + a_length,
            "b_length": SEQ_LEN - 3 - a_length,
            "next_sentence_label": numbers % 2,
        }
        for name, values in columns.items():
            writers[name].append(values)
    for writer in writers.values():
        writer.close()


def first_batch(shards: Path, plans: Path, position: int) -> MicroBatch:
    """Start from nothing and return the batch that begins at a position of the epoch."""
    stream = PairStream(
        reader=open_reader(shards, plans),
        train_batch_size=BATCH_PAIRS,
        train_micro_batch_size_per_gpu=BATCH_PAIRS,
        gradient_accumulation_steps=1,
        rank=0,
        world_size=1,
    )
    (micro_batch,), _ = stream.batch(Cursor(0, position))
    micro_batch.to_torch("cpu")
    return micro_batch


def check(cold: MicroBatch, resumed: MicroBatch) -> str:
    """Check that both batches are whole, and not the same.

    Raises:
        UnequalError: not so.
    """
    for batch in (cold, resumed):
        if (batch.num_pairs, batch.num_tokens) != (BATCH_PAIRS, BATCH_PAIRS * SEQ_LEN):
            raise harness.UnequalError(f"a batch of {batch.num_pairs} pairs and {batch.num_tokens} tokens")
    if np.array_equal(cold.token_type_ids, resumed.token_type_ids):
        raise harness.UnequalError("both positions give the same pairs")
    return f"{BATCH_PAIRS} pairs of {SEQ_LEN} tokens each"


def time_starts(shards: Path, plans: Path, positions: Sequence[int], rounds: int) -> list[float]:
    """Start at some positions in turns; return the median of each, wall seconds."""

    def arm_at(position: int) -> harness.Arm:
        return harness.Arm(f"at {position}", lambda _: first_batch(shards, plans, position))

    seconds = harness.measure([arm_at(position) for position in positions], rounds, time.perf_counter)
    return [statistics.median(times) for times in seconds]


def seconds_a_pair(batches: Iterable[Any], num_pairs: int) -> float:
    """Skip batches that hold so many pairs, and take the next one; return wall seconds a pair skipped."""
    start = time.perf_counter()
    next(itertools.islice(iter(batches), num_pairs // BATCH_PAIRS, None))
    return (time.perf_counter() - start) / num_pairs


def skip_items(num_pairs: int) -> float:
    """Return the seconds a pair that `islice` over a `DataLoader` takes, made for a little more than the skip."""
    from torch.utils.data import DataLoader  # noqa: PLC0415 - takes seconds

    numbers: Any = range(num_pairs + 2 * BATCH_PAIRS)
    return seconds_a_pair(DataLoader(numbers, batch_size=BATCH_PAIRS, shuffle=True), num_pairs)


def skip_indices(num_pairs: int) -> float:
    """Return the seconds a pair that skipping the loader's sampler takes, no item being fetched."""
    from torch.utils.data import BatchSampler, RandomSampler  # noqa: PLC0415 - takes seconds

    numbers: Any = range(num_pairs + 2 * BATCH_PAIRS)
    return seconds_a_pair(BatchSampler(RandomSampler(numbers), BATCH_PAIRS, drop_last=False), num_pairs)


def compare(report: harness.Report, folder: Path, num_pairs: int) -> None:
    """Measure all.

    Args:
        report: where the figures go.
        folder: an empty one.
        num_pairs: pairs of the epoch.
    """
    shards, plans = folder / "shards", folder / "plans"
    shards.mkdir()
    num_tokens = make_store(shards, max(num_pairs * _BYTES_A_PAIR / 1e9, _LEAST_GIGABYTES), num_shards=1)
    write_plan(open_reader(shards, plans), num_tokens, num_pairs)
    position = int(SHARE * num_pairs)
    # this compiles as well
    checked = check(first_batch(shards, plans, 0), first_batch(shards, plans, position))
    cold, resumed = time_starts(shards, plans, (0, position), max(report.rounds, _LEAST_STARTS))
    at = f"at {position:,} of {num_pairs:,} pairs"
    report.figure(f"first batch at 0 ({checked})", 1e3 * cold, "ms")
    report.figure(f"first batch {at}", 1e3 * resumed, "ms")
    report.figure("the second over the first", resumed / cold, "times", most=MOST_SLOWDOWN)
    goal = LEAST_SPEEDUP if report.options.goal is None else report.options.goal
    for what, skip, skipped in (
        ("DataLoader skipped by islice", skip_items, _SKIPPED_ITEMS),
        ("its sampler alone skipped", skip_indices, _SKIPPED_INDICES),
    ):
        skip(skipped // 10)  # warm
        seconds = statistics.median(skip(skipped) for _ in range(report.rounds)) * position
        name = f"{what} {at}: {seconds:,.1f} s, measured over {skipped:,} and multiplied; over ours"
        report.figure(name, seconds / resumed, "times", least=goal)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 where the limits are kept."""
    parser = harness.parser("resume", __doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--pairs", type=int, default=PAIRS, metavar="N", help="pairs of the epoch (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    report = harness.Report("resume", options)
    with tempfile.TemporaryDirectory() as folder:
        compare(report, Path(folder), options.pairs)
    return report.finish()


if __name__ == "__main__":
    harness.start(main)
