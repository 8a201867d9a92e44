"""What a second worker gains, and what a corpus four times as large costs in memory.

    python -m benchmarks.scale

Both arms run `zerobert shard` as a user would, in processes of its own, and are timed by the wall clock, starts
included: on two workers, and on one. Equal means: the two wrote the same bytes. The corpus is Debian's `anarchism` over
and over, each time with another twentieth of its vocabulary changed to made-up words: like a real corpus it holds new
words to its end. Memory is the highest resident size of any process of the command (`ru_maxrss`). It takes a machine
with nothing else to do.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import fetch, harness
from benchmarks.prepare import write_tokenizer
from runtime.files import read_json
from tokenization.manifest import MANIFEST_NAME

SPEEDUP_GOAL = 1.85
MOST_GROWTH = 1.2
_MEGABYTES = 288.0
_CHANGED_SHARE = 0.05
_SYLLABLES = ("ba", "de", "fi", "go", "lu", "ma", "ne", "po", "ri", "sa", "ti", "vu", "xe", "za")
_TIME_LIMIT_SECONDS = 900
# A small process in between: the peak of a child begins with the size of the process that starts it.
_MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[2:]).returncode
with open(sys.argv[1], "w") as stream:
    stream.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""


@dataclass
class Command:
    """Runs `zerobert shard` on a text.

    Args:
        text: documents parted by blank lines.
        tokenizer_dir: tokenizer folder.
        folder: where shards go, a new folder each time.
        peaks: highest resident MB of each run so far.
    """

    text: Path
    tokenizer_dir: Path
    folder: Path
    peaks: list[float] = field(default_factory=list)

    def run(self, workers: int) -> Path:
        """Run it once.

        Args:
            workers: processes at work.

        Returns:
            The folder of shards.
        """
        output = Path(tempfile.mkdtemp(dir=self.folder)) / "shards"
        command = [sys.executable, "-m", "tokenization.shard", "--input", str(self.text), "--txt-layout", "blank"]
        command += ["--tokenizer", str(self.tokenizer_dir), "--output", str(output), "--workers", str(workers)]
        peak = run_with_peak(command, output.with_name("log.txt"))
        self.peaks.append(peak / 1e6)
        return output


def run_with_peak(command: Sequence[str], log: Path) -> int:
    """Run a command to its end.

    Args:
        command: its words.
        log: where its output goes.

    Returns:
        The highest resident size in bytes of its process or of any that this one waited for.

    Raises:
        RuntimeError: it failed.
        TimeoutExpired: it took 15 minutes.
    """
    peak = log.with_suffix(".peak")
    with open(log, "wb") as stream:
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED, str(peak), *command],
            stdout=stream,
            stderr=subprocess.STDOUT,
            timeout=_TIME_LIMIT_SECONDS,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {done.returncode}: {log.read_text()[-2000:]}")
    return int(peak.read_text()) * (1 if sys.platform == "darwin" else 1024)


def vary(text: str, seed: int) -> str:
    """Return a text with a twentieth of its different words changed to words that no other seed has."""
    draw = random.Random(seed)
    lines = text.split("\n")
    vocabulary = sorted({word for line in lines for word in line.split()})
    changed = draw.sample(vocabulary, round(_CHANGED_SHARE * len(vocabulary)))
    made_up = {word: "".join(draw.choices(_SYLLABLES, k=4)) + word[-1] for word in changed}
    return "\n".join(" ".join([made_up.get(word, word) for word in line.split()]) for line in lines)


def copies(text: str, megabytes: float) -> Iterator[str]:
    """Yield varied copies of a text, as many MB in all, the last one cut at the end of a document."""
    left = round(megabytes * 1e6)
    seed = 0
    while left > 0:
        copy = vary(text, seed).strip() + "\n\n"
        size = len(copy.encode())
        if size > left:
            cut = copy.rfind("\n\n", 0, left)  # characters, not bytes: close enough
            copy = copy[: cut + 2] if cut > 0 else copy
        yield copy
        left -= size
        seed += 1


def write_corpus(text: str, megabytes: float, path: Path) -> None:
    """Write varied copies of a text, so many MB in all."""
    with path.open("w", encoding="utf-8") as stream:
        stream.writelines(copies(text, megabytes))


def check_same(ours: Path, theirs: Path) -> str:
    """Compare what two runs wrote by the hashes in their manifests.

    Raises:
        UnequalError: they differ.
    """
    one, other = (read_json(folder / MANIFEST_NAME) for folder in (ours, theirs))
    if one != other:
        raise harness.UnequalError(f"{ours} and {theirs}: the manifests differ")
    shards = [shard for split in one["splits"].values() for shard in split["shards"]]
    return f"the bytes of {len(shards)} shards, {sum(shard['tokens'] for shard in shards):,} tokens"


def compare(report: harness.Report, text: str, vocabulary: Path, folder: Path, megabytes: float) -> None:
    """Run both measurements.

    Args:
        report: where they go.
        text: what the corpora are made of.
        vocabulary: vocab.txt.
        folder: an empty one.
        megabytes: size of the larger corpus.
    """
    tokenizer_dir = write_tokenizer(vocabulary, folder / "tokenizer")
    large, small = folder / "large.txt", folder / "small.txt"
    write_corpus(text, megabytes, large)
    write_corpus(text, megabytes / 4, small)
    command = Command(large, tokenizer_dir, folder)
    report.compare(
        "zerobert shard, wall time",
        harness.Arm("2 workers", lambda _: command.run(2)),
        harness.Arm("1 worker", lambda _: command.run(1)),
        check_same,
        amount=large.stat().st_size / 1e6,
        unit="MB",
        goal=SPEEDUP_GOAL,
        timer=time.perf_counter,
    )
    quarter = Command(small, tokenizer_dir, folder)
    for _ in range(report.rounds):
        quarter.run(2)
    most, least = max(command.peaks), max(quarter.peaks)
    name = (
        f"peak memory of a process, {most:.0f} MB for {megabytes:g} MB of text, {least:.0f} MB for {megabytes / 4:g} MB"
    )
    report.figure(name, most / least, "times", most=MOST_GROWTH)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 where both goals are met."""
    parser = harness.parser("scale", __doc__)
    parser.add_argument("--megabytes", type=float, default=_MEGABYTES, help="size of the corpus (default: %(default)s)")
    options = parser.parse_args(arguments)
    report = harness.Report("scale", options)
    with tempfile.TemporaryDirectory() as folder:
        text = fetch.anarchism().read_text(encoding="utf-8")
        compare(report, text, fetch.bert_vocabulary(), Path(folder), options.megabytes)
    return report.finish()


if __name__ == "__main__":
    harness.start(main)
