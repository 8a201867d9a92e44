"""Pairs a second that one core makes ready for training, against Hugging Face's data set and collator.

    python -m benchmarks.load

Ours: `PairStream` as training uses it, batches of 64 at seq_len 128: find the next pairs of the permuted epoch, deal
them by length, count, read them from the mapped shards, lay them end to end, mask, hand over tensors. The epochs are
planned beforehand, as the peer's rows are. Peer: the same pairs, a row of ids each in an Arrow file on disk (with the
`special_tokens_mask` that spares its collator a loop in Python), through `datasets`, a shuffling `DataLoader` without
workers, and `DataCollatorForLanguageModeling`.

Equal means: as many pairs; the same rows, read anew from the shards, once the masks are taken off; the same share of
masked tokens within 0.01.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import fetch, harness
from benchmarks.prepare import make_shards, read_text, write_text, write_tokenizer
from pretrain.data.micro_batch import MicroBatch
from pretrain.data.order import Cursor
from pretrain.data.pairing import PairingSettings
from pretrain.data.reader import IGNORE_INDEX, TRAIN_SPLIT, PairReader
from pretrain.data.stream import PairStream
from pretrain.tokenizer import load_tokenizer_info
from tokenization.indexed import IndexedReader
from tokenization.manifest import load_manifest

GOAL = 40.0
SEQ_LEN = 128
BATCH_PAIRS = 64
MLM_PROBABILITY = 0.15
EPOCHS = 4
SEED = 12345
_SHARE_TOLERANCE = 0.01

Rows = Counter[tuple[int, ...]]


@dataclass(frozen=True)
class Totals:
    """What an arm has seen.

    Args:
        pairs: pairs.
        tokens: their tokens, specials counted, padding not.
        masked: tokens to predict.
    """

    pairs: int
    tokens: int
    masked: int


@dataclass(frozen=True)
class Ours:
    """Our arm.

    Args:
        reader: of the shards.
    """

    reader: PairReader

    def batches(self, epoch: int) -> Iterator[tuple[MicroBatch, dict[str, Any]]]:
        """Yield the micro-batches of an epoch, but for the rest of its pairs that fill none, and their tensors."""
        stream = PairStream(
            reader=self.reader,
            train_batch_size=BATCH_PAIRS,
            train_micro_batch_size_per_gpu=BATCH_PAIRS,
            gradient_accumulation_steps=1,
            rank=0,
            world_size=1,
        )
        cursor = Cursor(epoch)
        for _ in range(self.reader.num_pairs(epoch) // BATCH_PAIRS):
            (micro_batch,), cursor = stream.batch(cursor)
            yield micro_batch, micro_batch.to_torch("cpu")

    def run(self, epochs: int) -> Totals:
        """Go through some epochs."""
        pairs = tokens = masked = 0
        for batch, tensors in itertools.chain.from_iterable(map(self.batches, range(epochs))):
            pairs += batch.num_pairs
            tokens += batch.num_tokens
            masked += len(tensors["labels"])
        return Totals(pairs, tokens, masked)

    def rows(self, epoch: int) -> Rows:
        """Return the pairs of an epoch as they come out, their masks taken off."""
        rows: Rows = Counter()
        for batch, tensors in self.batches(epoch):
            ids = tensors["input_ids"][0].clone()
            ids[tensors["masked_positions"]] = tensors["labels"]
            rows.update(tuple(row.tolist()) for row in ids.split(batch.pair_lengths))
        return rows


@dataclass(frozen=True)
class Peer:
    """The other arm.

    Args:
        loaders: a `DataLoader` for each epoch.
    """

    loaders: Sequence[Any]

    def run(self, epochs: int) -> Totals:
        """Go through some epochs."""
        pairs = tokens = masked = 0
        for batch in itertools.chain.from_iterable(self.loaders[:epochs]):
            pairs += len(batch["input_ids"])
            tokens += int(batch["attention_mask"].sum())
            masked += int((batch["labels"] != IGNORE_INDEX).sum())
        return Totals(pairs, tokens, masked)

    def rows(self, epoch: int) -> Rows:
        """Return the pairs of an epoch as they come out, their masks taken off."""
        rows: Rows = Counter()
        for batch in self.loaders[epoch]:
            labels = batch["labels"]
            ids = batch["input_ids"].where(labels == IGNORE_INDEX, labels)
            for row, length in zip(ids.tolist(), batch["attention_mask"].sum(dim=1).tolist(), strict=True):
                rows[tuple(row[:length])] += 1
        return rows


def open_ours(folder: Path, epochs: int) -> Ours:
    """Return our arm with its epochs planned.

    Args:
        folder: holds shards/ and tokenizer/; plans are written into plans/.
        epochs: how many to plan.
    """
    reader = PairReader(
        manifest=load_manifest(folder / "shards"),
        split=TRAIN_SPLIT,
        pairing=PairingSettings(seed=SEED, seq_len=SEQ_LEN, short_seq_prob=0.1, nsp=True),
        mlm_probability=MLM_PROBABILITY,
        vocabulary=load_tokenizer_info(folder / "tokenizer").vocabulary,
        cache_dir=folder / "plans",
    )
    for epoch in range(epochs):
        reader.num_pairs(epoch)
    return Ours(reader)


def planned_rows(reader: PairReader, epoch: int) -> list[list[list[int]]]:
    """Return segments A and B of every pair of an epoch's plan, sliced from the shards' plain arrays."""
    manifest = reader.manifest
    shards = manifest.splits[TRAIN_SPLIT].shards
    text = np.concatenate([IndexedReader(manifest.directory / shard.name).tokens for shard in shards])
    columns = reader.plan(epoch).columns
    spans = zip(columns.a_start, columns.a_length, columns.b_start, columns.b_length, strict=True)
    return [[text[a : a + int(m)].tolist(), text[b : b + int(n)].tolist()] for a, m, b, n in spans]


def write_rows(ours: Ours, folder: Path, epoch: int) -> None:
    """Write the pairs of an epoch into an Arrow data set, as those who use `datasets` keep them."""
    import datasets  # noqa: PLC0415 - takes seconds

    vocabulary = ours.reader.vocabulary
    cls_id, sep_id = vocabulary.cls_id, vocabulary.sep_id
    columns: dict[str, list[Any]] = {"input_ids": [], "token_type_ids": [], "special_tokens_mask": []}
    for a, b in planned_rows(ours.reader, epoch):
        columns["input_ids"].append([cls_id, *a, sep_id, *b, sep_id])
        columns["token_type_ids"].append([0] * (len(a) + 2) + [1] * (len(b) + 1))
        columns["special_tokens_mask"].append([1, *[0] * len(a), 1, *[0] * len(b), 1])
    columns["next_sentence_label"] = ours.reader.plan(epoch).columns.next_sentence_label.tolist()
    datasets.Dataset.from_dict(columns).save_to_disk(str(folder))


def open_peer(folder: Path, tokenizer_dir: Path, epochs: int) -> Peer:
    """Return the other arm.

    Args:
        folder: holds a data set for each epoch, 0, 1, ...
        tokenizer_dir: tokenizer folder.
        epochs: how many.
    """
    import datasets  # noqa: PLC0415 - takes seconds
    from torch.utils.data import DataLoader  # noqa: PLC0415
    from transformers import AutoTokenizer, DataCollatorForLanguageModeling  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_dir))
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=MLM_PROBABILITY)

    def open_epoch(epoch: int) -> Any:
        rows: Any = datasets.load_from_disk(str(folder / str(epoch)))
        return DataLoader(rows, batch_size=BATCH_PAIRS, shuffle=True, drop_last=True, collate_fn=collator)

    return Peer([open_epoch(epoch) for epoch in range(epochs)])


def check_rows(ours: Ours, peer: Peer) -> None:
    """Check that both arms give the rows that the plan of epoch 0 says.

    Raises:
        UnequalError: one gives a row that is not planned, or gives one too often.
    """
    vocabulary = ours.reader.vocabulary
    planned = Counter(
        (vocabulary.cls_id, *a, vocabulary.sep_id, *b, vocabulary.sep_id) for a, b in planned_rows(ours.reader, 0)
    )
    for name, rows in (("zerobert", ours.rows(0)), ("the peer", peer.rows(0))):
        if rows - planned:
            raise harness.UnequalError(f"{name}: {(rows - planned).total()} rows are not those of the shards")
        if (planned - rows).total() >= BATCH_PAIRS:
            raise harness.UnequalError(f"{name}: {(planned - rows).total()} rows are missing")


def check_totals(ours: Totals, theirs: Totals) -> str:
    """Compare numbers of pairs and the share of masked tokens.

    Raises:
        UnequalError: they differ.
    """
    if ours.pairs != theirs.pairs:
        raise harness.UnequalError(f"{ours.pairs} pairs, the peer has {theirs.pairs}")
    shares = ours.masked / ours.tokens, theirs.masked / theirs.tokens
    if abs(shares[0] - shares[1]) > _SHARE_TOLERANCE:
        raise harness.UnequalError(f"{shares[0]:.4f} of the tokens masked, the peer has {shares[1]:.4f}")
    tokens = ours.tokens / ours.pairs
    return f"the rows of an epoch; {tokens:.1f} tokens a pair, {shares[0]:.1%} masked, {shares[1]:.1%} of the peer"


def compare(report: harness.Report, folder: Path, epochs: int) -> None:
    """Run the comparison.

    Args:
        report: where it goes.
        folder: holds shards/ and tokenizer/.
        epochs: epochs of a round.
    """
    ours = open_ours(folder, epochs)
    for epoch in range(epochs):
        write_rows(ours, folder / "rows" / str(epoch), epoch)
    peer = open_peer(folder / "rows", folder / "tokenizer", epochs)

    def check(own: Totals, theirs: Totals) -> str:
        check_rows(ours, peer)
        return check_totals(own, theirs)

    report.compare(
        f"batches of {BATCH_PAIRS} pairs, seq_len {SEQ_LEN}",
        harness.Arm("zerobert PairStream", lambda _: ours.run(epochs)),
        harness.Arm(f"datasets {version('datasets')}, collator of transformers", lambda _: peer.run(epochs)),
        check,
        amount=sum(ours.reader.num_pairs(epoch) // BATCH_PAIRS * BATCH_PAIRS for epoch in range(epochs)),
        unit="pairs",
        goal=GOAL,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 where the goal is met."""
    parser = harness.parser("load", __doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--megabytes", type=float, metavar="N", help="take no more of the text (default: all, 11 MB)")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # of the arms, among the figures
    os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
    report = harness.Report("load", options)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(read_text(fetch.anarchism(), options.megabytes), folder / "text.txt")
        tokenizer_dir = write_tokenizer(fetch.bert_vocabulary(), folder / "tokenizer")
        make_shards(folder / "text.txt", tokenizer_dir, folder / "shards")
        compare(report, folder, EPOCHS)
    return report.finish()


if __name__ == "__main__":
    harness.start(main)
