"""What 20 GB of text costs, from the figures of the other benchmarks.

    python -m benchmarks.cost [benchmarks/results.json]

Prints a Markdown table: hours on 2, 16 and 64 cores, by the rates that `prepare` measured for us, Google's program and
LDDL (raw text to five rounds of masked pairs), and by the rate that Megatron's users published for one pass of
tokenizing (bigscience/Megatron-DeepSpeed, 50.4 MB/s on 48 workers = 1.05 MB/s each; not measured here, and no pairs
or masks are in it).

Every core but the first counts as the second one did in the worst round of `scale`, for all rows alike: the peers get
our scaling. One process plans our epochs, so that part of our time (five epochs of the pairs that `prepare` found in a
MB, at the rate of `planning`) stays what it is on any number of cores; no such part is charged to the peers.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.prepare import EPOCHS
from runtime.command import ConfigError
from runtime.files import read_json

RESULTS = Path(__file__).with_name("results.json")
MEGABYTES = 20_000.0
CORES = (2, 16, 64)
MEGATRON_RATE = 1.05
_SECONDS_AN_HOUR = 3600
_PAIRS = re.compile(r"([\d,]+) pairs an epoch")


@dataclass(frozen=True)
class Rate:
    """How fast something turns text into what training reads.

    Args:
        name: what.
        megabytes: of text a second on one core.
        source: "measured", or where it was published.
        serial_seconds: of the time for the 20 GB on one core, those that other cores don't shorten.
    """

    name: str
    megabytes: float
    source: str
    serial_seconds: float = 0.0

    def hours(self, cores: int, gain: float) -> float:
        """Return hours for the 20 GB.

        Args:
            cores: that work.
            gain: what every core but the first is worth, 1 = as much as the first.
        """
        parallel = MEGABYTES / self.megabytes - self.serial_seconds
        return (self.serial_seconds + parallel / (1 + (cores - 1) * gain)) / _SECONDS_AN_HOUR


@dataclass(frozen=True)
class Costs:
    """All that the table is made of.

    Args:
        rates: its rows.
        gain: see `Rate.hours`.
    """

    rates: Sequence[Rate]
    gain: float

    def table(self) -> str:
        """Return the table."""
        heads = " | ".join(f"{cores} cores, h" for cores in CORES)
        lines = [
            f"| {MEGABYTES / 1000:g} GB of text | MB/s a core | {heads} | rate |",
            "|---|---:|" + "---:|" * len(CORES) + "---|",
        ]
        for rate in self.rates:
            cells = " | ".join(two_digits(rate.hours(cores, self.gain)) for cores in CORES)
            lines.append(f"| {rate.name} | {rate.megabytes:.2f} | {cells} | {rate.source} |")
        return "\n".join(lines) + "\n"


def read_costs(results: Mapping[str, Any], where: str) -> Costs:
    """Gather what the other benchmarks measured; our rate is the slowest of the comparisons'.

    Args:
        results: by benchmark, as `benchmarks.run` writes them.
        where: the file, for errors.

    Raises:
        ConfigError: `prepare`, `planning` or `scale` is not among them.
    """
    try:
        ours, peers = [], []
        for comparison in results["prepare"]["comparisons"]:
            (own_name, own), (peer_name, peer) = (
                (name, comparison["amount"] / statistics.median(seconds))
                for name, seconds in comparison["seconds"].items()
            )
            ours.append(Rate(own_name, own, "measured", _planning_seconds(comparison, results)))
            peers.append(Rate(peer_name, peer, "measured"))
        gain = float(results["scale"]["comparisons"][0]["ratio_min"]) - 1
    except KeyError as error:
        raise ConfigError(f"{where}: no results of {error}; run python -m benchmarks.run") from None
    slowest = min(ours, key=lambda rate: rate.megabytes)
    published = Rate("Megatron preprocess_data, tokenizing alone", MEGATRON_RATE, "published")
    return Costs([slowest, *peers, published], gain)


def _planning_seconds(comparison: Mapping[str, Any], results: Mapping[str, Any]) -> float:
    """Return seconds that planning takes for the 20 GB, by the pairs an epoch that a comparison found in its text."""
    found = _PAIRS.search(comparison["equality"])
    if found is None:
        raise KeyError("pairs an epoch")
    pairs = int(found[1].replace(",", "")) / comparison["amount"] * MEGABYTES
    return float(EPOCHS * pairs / (results["planning"]["figures"][0]["value"] * 1e6))


def two_digits(value: float) -> str:
    """Return a number with two significant digits, never with an exponent."""
    return f"{Decimal(f'{value:.1e}'):f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS, help="default: %(default)s")
    options = parser.parse_args(arguments)
    costs = read_costs(read_json(options.results), str(options.results))
    sys.stdout.write(costs.table())
    planning = costs.rates[0].serial_seconds
    sys.stdout.write(
        f"\nEvery core but the first counts {costs.gain:.2f}; one process plans our epochs, {planning:.0f} s.\n"
    )
    return 0


if __name__ == "__main__":
    harness.start(main)
