"""Raw text to five epochs of masked NSP pairs, against Google's program and NVIDIA's LDDL.

    python -m benchmarks.prepare

Ours: `zerobert shard` on one worker (read, part into sentences, encode, write shards and manifest), then what training
does: open the shards, plan five epochs, gather and mask every pair in its shuffled order, 256 at a time. Peers: the
same text, vocabulary and sequence length, the pairs made five times over. Neither is charged for writing its result.

Equal means: the ids of 2,000 sentences drawn from the text are the peer's, and an epoch holds as many pairs as one of
the peer's five rounds, within 5 %: all three draw them at random by the same procedure.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import logging
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import fetch, google_peer, harness, lddl_peer
from pretrain.data.order import Cursor, take_batch
from pretrain.data.pairing import PairingSettings
from pretrain.data.reader import TRAIN_SPLIT, PairReader
from pretrain.tokenizer import load_tokenizer_info
from tokenization import shard
from tokenization.indexed import IndexedReader
from tokenization.manifest import load_manifest
from tokenization.vocabulary.wordpiece import save_tokenizer
from tokenization.vocabulary.words import Casing

EPOCHS = 5
SEQ_LEN = 128
GOOGLE_GOAL = 12.0
LDDL_GOAL = 6.0
SEED = 12345
_BATCH_PAIRS = 256
_MOST_SENTENCES = 50
_CHECKED_SENTENCES = 2000
_MOST_CHECKED_TOKENS = 512  # LDDL cuts longer sentences
_PAIR_COUNT_TOLERANCE = 0.05

Documents = list[list[str]]


@dataclass
class Ours:
    """Our arm: each round gets an empty folder and a tokenizer that no cache knows.

    Args:
        text: one sentence a line, a blank line between documents.
        tokenizer_dir: tokenizer folder.
        folder: where the work is done; removed by whoever made it.
        epochs: epochs whose pairs are read.
    """

    text: Path
    tokenizer_dir: Path
    folder: Path
    epochs: int = EPOCHS
    _rounds: Iterator[int] = field(default_factory=itertools.count, init=False)

    def prepare(self) -> Path:
        """Return a folder with a copy of the tokenizer: shards made with it start with an empty cache of words."""
        number = next(self._rounds)
        shutil.rmtree(self.folder / f"round-{number - 1}", ignore_errors=True)
        folder = self.folder / f"round-{number}"
        shutil.copytree(self.tokenizer_dir, folder / "tokenizer")
        with (folder / "tokenizer" / "tokenizer.json").open("a") as stream:
            stream.write("\n" * (number + 1))  # another fingerprint
        return folder

    def run(self, folder: Path) -> OurPairs:
        """Do all the work, from the text file to the last masked pair."""
        make_shards(self.text, folder / "tokenizer", folder / "shards")
        return read_pairs(folder, self.epochs)


@dataclass(frozen=True)
class OurPairs:
    """What came of our arm.

    Args:
        shard_dir: the shards.
        pairs: pairs of all epochs.
        tokens: their tokens, specials counted.
        masked: predictions.
    """

    shard_dir: Path
    pairs: int
    tokens: int
    masked: int

    def sentences(self) -> list[list[int]]:
        """Return the stored ids of every sentence, in the order of the text."""
        manifest = load_manifest(self.shard_dir)
        readers = [IndexedReader(manifest.directory / shard.name) for shard in manifest.splits[TRAIN_SPLIT].shards]
        return [reader[number].tolist() for reader in readers for number in range(len(reader))]


def make_shards(text: Path, tokenizer_dir: Path, output: Path) -> None:
    """Run `zerobert shard` in this process on text that is parted into sentences already."""
    arguments = ["--input", str(text), "--tokenizer", str(tokenizer_dir), "--output", str(output), "--workers", "1"]
    arguments += ["--txt-layout", "blank", "--sentences", "line", "--validation-share", "0"]
    with contextlib.redirect_stdout(io.StringIO()):
        shard.main(arguments)


def read_pairs(folder: Path, epochs: int) -> OurPairs:
    """Plan some epochs and read every pair of them, masked, in the order in which training would.

    Args:
        folder: holds shards/ and tokenizer/; plans are written into plans/.
        epochs: how many.
    """
    reader = PairReader(
        manifest=load_manifest(folder / "shards"),
        split=TRAIN_SPLIT,
        pairing=PairingSettings(seed=SEED, seq_len=SEQ_LEN, short_seq_prob=0.1, nsp=True),
        mlm_probability=0.15,
        vocabulary=load_tokenizer_info(folder / "tokenizer").vocabulary,
        cache_dir=folder / "plans",
    )
    pairs = tokens = masked = 0
    cursor = Cursor()
    while cursor.epoch < epochs:
        left = reader.num_pairs(cursor.epoch) - cursor.consumed
        batch_epochs, batch_pairs, cursor = take_batch(cursor, min(_BATCH_PAIRS, left), reader.num_pairs, reader.seed)
        stream = reader.read(batch_epochs, batch_pairs)
        pairs += len(batch_pairs)
        tokens += len(stream.input_ids)
        masked += len(stream.labels)
    return OurPairs(folder / "shards", pairs, tokens, masked)


def check_sentences(ours: Sequence[list[int]], sentences: Sequence[str], encode: Callable[[str], list[int]]) -> str:
    """Compare ids of sentences drawn at random with a peer's.

    Args:
        ours: stored ids of every sentence.
        sentences: the sentences.
        encode: the peer's.

    Returns:
        What was equal.

    Raises:
        UnequalError: one differs, or a sentence was lost.
    """
    if len(ours) != len(sentences):
        raise harness.UnequalError(f"{len(sentences)} sentences in the text, {len(ours)} stored")
    chosen = random.Random(SEED).sample(range(len(ours)), min(_CHECKED_SENTENCES, len(ours)))
    chosen = [number for number in chosen if len(ours[number]) < _MOST_CHECKED_TOKENS]
    for number in chosen:
        theirs = encode(sentences[number])
        if ours[number] != theirs:
            raise harness.UnequalError(f"{sentences[number]!r}: {ours[number]} stored, the peer has {theirs}")
    return f"ids of {len(chosen):,} sentences"


def check_counts(ours: int, theirs: int, rounds: int) -> str:
    """Compare numbers of pairs.

    Args:
        ours: pairs of all epochs.
        theirs: pairs of all the peer's rounds.
        rounds: epochs, and the peer's rounds.

    Returns:
        Both, an epoch.

    Raises:
        UnequalError: they are more than 5 % apart.
    """
    if abs(ours / theirs - 1) > _PAIR_COUNT_TOLERANCE:
        raise harness.UnequalError(f"{ours} pairs, the peer has {theirs}")
    return f"{ours / rounds:,.0f} pairs an epoch, {theirs / rounds:,.0f} of the peer ({ours / theirs - 1:+.1%})"


def cpu_seconds() -> float:
    """Return CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def read_text(path: Path, megabytes: float | None = None) -> Documents:
    """Read documents of one sentence a line, parted by blank lines; at most so many MB of them.

    They are cut into documents of 50 sentences at most: one draw of a short target makes twice as many pairs of a
    whole document, and with a few long ones no two programs would agree on how many there are.
    """
    documents: Documents = []
    size = 0
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        sentences = [sentence.strip() for sentence in block.split("\n") if sentence.strip()]
        if sentences:
            cuts = range(0, len(sentences), _MOST_SENTENCES)
            documents += (sentences[first : first + _MOST_SENTENCES] for first in cuts)
            size += len(block.encode())
        if megabytes is not None and size >= megabytes * 1e6:
            break
    return documents


def write_text(documents: Documents, path: Path) -> None:
    """Write documents, a sentence a line, a blank line behind each."""
    path.write_text("".join("\n".join(document) + "\n\n" for document in documents), encoding="utf-8")


def write_tokenizer(vocabulary: Path, directory: Path) -> Path:
    """Make a tokenizer folder of an uncased vocab.txt and return it."""
    directory.mkdir()
    save_tokenizer(vocabulary.read_text(encoding="utf-8").split("\n")[:-1], Casing(), directory)
    return directory


def compare(report: harness.Report, documents: Documents, vocabulary: Path, folder: Path) -> None:
    """Run both comparisons.

    Args:
        report: where they go.
        documents: the text.
        vocabulary: vocab.txt.
        folder: an empty one.
    """
    text = folder / "text.txt"
    write_text(documents, text)
    ours = Ours(text, write_tokenizer(vocabulary, folder / "tokenizer"), folder)
    our_arm = harness.Arm("zerobert shard, plan, gather, mask", ours.run, ours.prepare)
    sentences = [sentence for document in documents for sentence in document]
    amount = text.stat().st_size / 1e6

    def check(encode: Callable[[str], list[int]]) -> Callable[[OurPairs, list[Any]], str]:
        return lambda own, theirs: "; ".join(
            [check_sentences(own.sentences(), sentences, encode), check_counts(own.pairs, len(theirs), EPOCHS)]
        )

    google = google_peer.open_peer(fetch.peer(google_peer.PACKAGE), vocabulary)
    google_arm = harness.Arm(
        f"{google_peer.PACKAGE} {google_peer.VERSION}, dupe_factor {EPOCHS}",
        lambda _: google.make_pairs(text, SEQ_LEN, EPOCHS),
    )
    report.compare(
        "against Google's create_training_instances",
        our_arm,
        google_arm,
        check(google.token_ids),
        amount=amount,
        unit="MB",
        goal=GOOGLE_GOAL,
        timer=cpu_seconds,
    )
    lddl_peer.write_source(documents, folder / "lddl")
    lddl = lddl_peer.open_peer(fetch.peer(lddl_peer.PACKAGE), vocabulary)
    lddl_arm = harness.Arm(
        f"{lddl_peer.PACKAGE} {lddl_peer.VERSION}, duplicate_factor {EPOCHS}",
        lambda _: lddl.make_pairs(folder / "lddl", SEQ_LEN, EPOCHS),
    )
    report.compare(
        "against LDDL's functions",
        our_arm,
        lddl_arm,
        check(lddl.token_ids),
        amount=amount,
        unit="MB",
        goal=LDDL_GOAL,
        timer=cpu_seconds,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 where both goals are met."""
    parser = harness.parser("prepare", __doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--megabytes", type=float, metavar="N", help="take no more of the text (default: all, 11 MB)")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # of the arms, among the figures
    documents = read_text(fetch.anarchism(), options.megabytes)
    report = harness.Report("prepare", options)
    with tempfile.TemporaryDirectory() as folder:
        compare(report, documents, fetch.bert_vocabulary(), Path(folder))
    return report.finish()


if __name__ == "__main__":
    harness.start(main)
