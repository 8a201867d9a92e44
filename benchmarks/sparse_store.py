"""What it costs to open a 100 GB store: time and memory of one process, as every rank of a run does it.

    python -m benchmarks.sparse_store

The store is real to the program: a manifest, and shards whose .idx says where every sentence stands. Only the .bin
files are sparse: `truncate` makes them 100 GB long without a byte on the disk, so all tokens are 0 but for a few that
are written at known places and must be found again. A fresh process opens it (`load_manifest`, `TokenStore`), after the
imports are done, and then reads the tokens of 1,000 random pairs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from pretrain.data.store import TokenStore
from tokenization.indexed import IndexedWriter, bin_path
from tokenization.manifest import Contents, ShardInfo, SplitInfo, load_manifest, write_manifest

MOST_SECONDS = 1.0
MOST_MEGABYTES = 50.0
GIGABYTES = 100.0
_SHARDS = 64
_SENTENCE_TOKENS = 100_000  # long, so that the .idx files stay small
_SENTENCES_A_DOCUMENT = 100
_ITEM_BYTES = 2
_PAIRS = 1000
_SEGMENT_TOKENS = 62
_MARK = 1234
_TIME_LIMIT_SECONDS = 300


@dataclass(frozen=True)
class Opened:
    """What a process measured.

    Args:
        seconds: wall time of opening.
        megabytes: growth of resident memory by opening.
        read_seconds: wall time of reading the pairs.
        read_megabytes: growth of resident memory by that, pages of the files counted.
        tokens: tokens read.
        sum: of their ids.
    """

    seconds: float
    megabytes: float
    read_seconds: float
    read_megabytes: float
    tokens: int
    sum: int


def make_store(directory: Path, gigabytes: float, num_shards: int = _SHARDS) -> int:
    """Write a store with sparse token files.

    Args:
        directory: an empty folder.
        gigabytes: size of all .bin files.
        num_shards: shards.

    Returns:
        Its tokens. At the middle of each shard stands the id 1234, else 0.
    """
    document_tokens = _SENTENCE_TOKENS * _SENTENCES_A_DOCUMENT
    documents = max(1, round(gigabytes * 1e9 / _ITEM_BYTES / document_tokens / num_shards))
    shards = tuple(_make_shard(directory / f"train-{number:05d}", documents) for number in range(num_shards))
    contents: dict[str, Any] = {
        "tokenizer_fingerprint": "0" * 64,
        "vocab_size": 30522,
        "dtype": "int16",
        "splits": {"train": SplitInfo.of(shards), "validation": SplitInfo.of(())},
        "sources": [],
        "settings": {},
        "dropped": {},
        "repaired": {},
        "places": [],
        "text_bytes": 0,
    }
    write_manifest(directory, Contents(**contents))
    return sum(shard.tokens for shard in shards)


def _make_shard(prefix: Path, documents: int) -> ShardInfo:
    sentences = documents * _SENTENCES_A_DOCUMENT
    tokens = sentences * _SENTENCE_TOKENS
    with IndexedWriter(prefix, np.int16) as writer:
        # the index of so many sentences, without their tokens
        writer._sentence_lengths.extend([_SENTENCE_TOKENS] * sentences)
        writer._document_starts.extend(range(_SENTENCES_A_DOCUMENT, sentences + 1, _SENTENCES_A_DOCUMENT))
    os.truncate(bin_path(prefix), tokens * _ITEM_BYTES)
    with open(bin_path(prefix), "r+b") as stream:
        stream.seek(tokens // 2 * _ITEM_BYTES)
        stream.write(_MARK.to_bytes(_ITEM_BYTES, "little"))
    return ShardInfo(prefix.name, documents, sentences, tokens, tokens * _ITEM_BYTES, "0" * 64, "0" * 64)


def open_store(directory: Path, num_pairs: int = _PAIRS) -> Opened:
    """Open a store in this process and read pairs of it: both segments from random places, and each shard's mark."""
    before = resident_bytes()
    start = time.perf_counter()
    manifest = load_manifest(directory)
    store = TokenStore(manifest, "train")
    seconds = time.perf_counter() - start
    opened = resident_bytes()
    draw = np.random.default_rng(0)
    sizes = np.array([shard.tokens for shard in manifest.splits["train"].shards])
    starts = np.concatenate([[0], np.cumsum(sizes)])[:-1]
    shard = draw.integers(len(sizes), size=2 * num_pairs)
    places = starts[shard] + draw.integers(sizes[shard] // 2 - _SEGMENT_TOKENS, size=2 * num_pairs)  # before the marks
    places = np.concatenate([places, starts + sizes // 2]).astype(np.int64)
    begin = time.perf_counter()
    tokens = store.gather(places, np.full(len(places), _SEGMENT_TOKENS, dtype=np.int64))
    read_seconds = time.perf_counter() - begin
    return Opened(
        seconds,
        (opened - before) / 1e6,
        read_seconds,
        (resident_bytes() - opened) / 1e6,
        len(tokens),
        int(tokens.sum(dtype=np.int64)),
    )


def resident_bytes() -> int:
    """Return the memory of this process that is in RAM: its own and what it shares."""
    rollup = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    (kilobytes,) = (line.split()[1] for line in rollup.splitlines() if line.startswith("Rss:"))
    return int(kilobytes) * 1024


def open_in_fresh_process(directory: Path) -> Opened:
    """Open a store in a process of its own, which has imported everything and compiled what reads."""
    program = (
        "import json, sys, tempfile; from dataclasses import asdict; from pathlib import Path\n"
        "from benchmarks import sparse_store\n"
        "small = Path(tempfile.mkdtemp(dir=sys.argv[2])); sparse_store.make_store(small, 0.1, 2)\n"
        "sparse_store.open_store(small)\n"
        "print(json.dumps(asdict(sparse_store.open_store(Path(sys.argv[1])))))\n"
    )
    command = [sys.executable, "-c", program, str(directory), str(directory.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIME_LIMIT_SECONDS, check=True)
    return Opened(**json.loads(done.stdout))


def check(opened: Opened, num_shards: int, num_pairs: int = _PAIRS) -> str:
    """Check that every token asked for came, and every mark.

    Raises:
        UnequalError: not so.
    """
    wanted = ((2 * num_pairs + num_shards) * _SEGMENT_TOKENS, num_shards * _MARK)
    if (opened.tokens, opened.sum) != wanted:
        raise harness.UnequalError(f"tokens and their sum: {(opened.tokens, opened.sum)}, wanted {wanted}")
    return f"{opened.tokens:,} tokens of {num_pairs:,} pairs and the marks of {num_shards} shards are right"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 where both limits are kept."""
    options = harness.parser("sparse_store", __doc__).parse_args(arguments)
    report = harness.Report("sparse_store", options)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "shards"
        directory.mkdir()
        tokens = make_store(directory, GIGABYTES)
        index_bytes = sum(path.stat().st_size for path in directory.glob("*.idx"))
        size = sum(path.stat().st_size for path in directory.glob("*.bin"))
        opened = [open_in_fresh_process(directory) for _ in range(report.rounds)]
        checked = check(opened[0], _SHARDS)
        name = f"{size / 1e9:.1f} GB, {tokens:,} tokens, {_SHARDS} shards, {index_bytes / 1e6:.1f} MB of .idx"
        report.figure(f"opening {name}; {checked}", max(one.seconds for one in opened), "s", most=MOST_SECONDS)
        worst = max(one.megabytes for one in opened)
        report.figure("growth of resident memory by opening", worst, "MB", most=MOST_MEGABYTES)
        report.figure(f"reading {_PAIRS:,} random pairs", max(one.read_seconds for one in opened), "s")
        report.figure(
            "growth by reading them, pages of the files counted", max(one.read_megabytes for one in opened), "MB"
        )
    return report.finish()


if __name__ == "__main__":
    harness.start(main)
