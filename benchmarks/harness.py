"""How a benchmark is run and reported: both arms in one process, in turns, by CPU time, on one thread.

A benchmark is a module with

    def main(arguments: Sequence[str] | None = None) -> int:
        options = harness.parser("tokenize", __doc__).parse_args(arguments)
        report = harness.Report("tokenize", options)
        report.compare("anarchism, cold", ours, peer, check, amount=11.3, unit="MB", goal=4.0)
        return report.finish()

    if __name__ == "__main__":
        harness.start(main)
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from runtime.command import run_command
from runtime.files import write_json

ONE_THREAD = {
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    # Both arms have huge pages, as training has; see `pretrain/__init__.py`.
    "THP_MEM_ALLOC_ENABLE": "1",
}
FEWEST_ROUNDS = 3


class UnequalError(AssertionError):
    """The arms did not do the same work: no ratio is to be printed."""


@dataclass(frozen=True)
class Arm:
    """One of the two sides of a comparison.

    Args:
        name: what it is, with the peer's version: "tokenizers 0.22.1 encode_batch_fast".
        run: the work that is timed; takes what `prepare` gave, returns what `check` looks at.
        prepare: called before each round, not timed; None where every round may start from the same state.
    """

    name: str
    run: Callable[[Any], Any]
    prepare: Callable[[], Any] = lambda: None


@dataclass(frozen=True)
class Comparison:
    """What came of a comparison; seconds are CPU seconds of each round, a ratio is peer / ours of one round."""

    name: str
    amount: float
    unit: str
    equality: str
    seconds: dict[str, list[float]]
    ratio_min: float
    ratio_median: float
    goal: float
    is_met: bool


@dataclass(frozen=True)
class Figure:
    """A measured number that has a limit of its own."""

    name: str
    value: float
    unit: str
    rule: str
    is_met: bool


def start(main: Callable[[Sequence[str] | None], int]) -> None:
    """Run a benchmark's main; start the process anew where threads are not limited to one.

    Libraries read these variables when they are imported, so setting them later would not do.
    """
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **ONE_THREAD})
    run_command(main, "benchmark")


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the flags that every benchmark has."""
    made = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    made.add_argument("--goal", type=float, help="least median ratio, instead of each comparison's own")
    made.add_argument("--rounds", type=int, default=FEWEST_ROUNDS, help="rounds after the warm-up, 3 or more")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file, too")
    return made


def measure(arms: Sequence[Arm], rounds: int, timer: Callable[[], float] = time.process_time) -> list[list[float]]:
    """Time arms in turns, A B A B.

    Args:
        arms: what is timed.
        rounds: how many times each.
        timer: seconds; CPU time of this process, unless the work is done by others.

    Returns:
        Seconds of each round, by arm.
    """
    seconds: list[list[float]] = [[] for _ in arms]
    for _ in range(rounds):
        for arm, times in zip(arms, seconds, strict=True):
            prepared = arm.prepare()
            begin = timer()
            arm.run(prepared)
            times.append(timer() - begin)
    return seconds


class Report:
    """Runs a benchmark's comparisons, prints each when it is done, and says at the end whether the goals are met.

    Args:
        name: of the benchmark.
        options: what `parser` gave.
    """

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        """Print what machine this is."""
        self.name = name
        self.options = options
        self.rounds = max(options.rounds, FEWEST_ROUNDS)
        self.machine = describe_machine()
        self.comparisons: list[Comparison] = []
        self.figures: list[Figure] = []
        _say(
            f"{name}: {self.machine['cpu']}, {self.machine['cores']} cores, {self.machine['date']}, "
            f"Python {self.machine['python']}, RAYON_NUM_THREADS={os.environ.get('RAYON_NUM_THREADS', 'unset')}"
        )

    def compare(
        self,
        name: str,
        ours: Arm,
        peer: Arm,
        check: Callable[[Any, Any], str],
        *,
        amount: float,
        unit: str,
        goal: float,
        timer: Callable[[], float] = time.process_time,
    ) -> Comparison:
        """Check that both arms give the same, then time them.

        Args:
            name: what is compared.
            ours: our arm.
            peer: the other.
            check: takes both results of the warm-up, returns a line that says what was equal.
            amount: work of one round, in `unit`.
            unit: "MB", "pairs" ...
            goal: least median of the rounds' ratios.
            timer: see `measure`.

        Raises:
            UnequalError: `check` says so; nothing is timed or printed.
        """
        results = [arm.run(arm.prepare()) for arm in (ours, peer)]
        equality = check(*results)
        del results
        times = measure((ours, peer), self.rounds, timer)
        ratios = [theirs / own for own, theirs in zip(*times, strict=True)]
        goal = goal if self.options.goal is None else self.options.goal
        median = statistics.median(ratios)
        seconds = {arm.name: arm_times for arm, arm_times in zip((ours, peer), times, strict=True)}
        done = Comparison(name, amount, unit, equality, seconds, min(ratios), median, goal, median >= goal)
        self.comparisons.append(done)
        _say(_comparison_text(done))
        return done

    def figure(
        self, name: str, value: float, unit: str, *, least: float | None = None, most: float | None = None
    ) -> None:
        """Report a number that has a limit of its own: a time, a memory size, a rate.

        Args:
            name: what was measured.
            value: the number.
            unit: its unit.
            least: it may not be smaller.
            most: it may not be larger.
        """
        limits = ((">=", least), ("<=", most))
        rule = " and ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None)
        is_met = (least is None or value >= least) and (most is None or value <= most)
        self.figures.append(Figure(name, value, unit, rule, is_met))
        _say(f"\n{name}: {value:.4g} {unit}{_verdict(rule, is_met)}")

    def finish(self) -> int:
        """Write the JSON file, if asked for; return 0 if every goal is met, else 1."""
        if self.options.json is not None:
            value = {
                "benchmark": self.name,
                **self.machine,
                "comparisons": [asdict(comparison) for comparison in self.comparisons],
                "figures": [asdict(figure) for figure in self.figures],
            }
            write_json(self.options.json, value)
        met = [done.is_met for done in self.comparisons] + [done.is_met for done in self.figures]
        return 0 if all(met) else 1


def describe_machine() -> dict[str, Any]:
    """Return CPU model, cores, date and versions."""
    models = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "date": datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
        "python": platform.python_version(),
        "zerobert": version("zerobert"),
    }


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def _comparison_text(done: Comparison) -> str:
    lines = [f"\n{done.name} ({done.amount:.4g} {done.unit}); equal: {done.equality}"]
    for name, seconds in done.seconds.items():
        least, median = min(seconds), statistics.median(seconds)
        rate = f"{done.amount / median:10.4g} {done.unit}/s"
        lines.append(f"  {name:44s} min {least:8.3f} s  median {median:8.3f} s  {rate}")
    verdict = _verdict(f">= {done.goal:g}", done.is_met)
    lines.append(f"  {'ratio':44s} min {done.ratio_min:8.2f}    median {done.ratio_median:8.2f}{verdict}")
    return "\n".join(lines)


def _verdict(rule: str, is_met: bool) -> str:
    return f"  (goal {rule}: {'met' if is_met else 'NOT MET'})" if rule else ""


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
