"""What 20 GB of text costs, from the figures of the other benchmarks.

    python -m benchmarks.cost [benchmarks/results.json]

Prints a Markdown table: hours on 2, 16 and 64 cores, by the rates that `prepare` measured for us, Google's program and
LDDL (raw text to five rounds of masked pairs), and by the rate that Megatron's users published for one pass of
tokenizing (bigscience/Megatron-DeepSpeed, 50.4 MB/s on 48 workers = 1.05 MB/s each; not measured here, and no pairs
or masks are in it). Cores count as the second one did in `scale` where it was measured, for all rows alike: the peers
get our scaling.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness
from runtime.command import ConfigError
from runtime.files import read_json

RESULTS = Path(__file__).with_name("results.json")
GIGABYTES = 20.0
CORES = (2, 16, 64)
MEGATRON_RATE = 1.05
_SECONDS_AN_HOUR = 3600


@dataclass(frozen=True)
class Rate:
    """How fast something turns text into what training reads.

    Args:
        name: what.
        megabytes: of text a second and core.
        source: "measured", or where it was published.
    """

    name: str
    megabytes: float
    source: str

    def hours(self, cores: int, efficiency: float) -> float:
        """Return hours for the 20 GB.

        Args:
            cores: that work.
            efficiency: what every core but the first is worth, 1 = as much as the first.
        """
        return GIGABYTES * 1000 / self.megabytes / (1 + (cores - 1) * efficiency) / _SECONDS_AN_HOUR


def read_rates(results: Mapping[str, Any], where: str) -> list[Rate]:
    """Return the rate of each program from the results of `prepare`; ours is the slowest of its comparisons'.

    Args:
        results: by benchmark, as `benchmarks.run` writes them.
        where: the file, for errors.

    Raises:
        ConfigError: `prepare` is not among them.
    """
    try:
        comparisons = results["prepare"]["comparisons"]
        ours, peers = [], []
        for comparison in comparisons:
            arms = {
                name: comparison["amount"] / statistics.median(seconds)
                for name, seconds in comparison["seconds"].items()
            }
            (own_name, own), (peer_name, peer) = arms.items()
            ours.append(Rate(own_name, own, "measured"))
            peers.append(Rate(peer_name, peer, "measured"))
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{where}: no results of `prepare` ({error}); run python -m benchmarks.run") from None
    slowest = min(ours, key=lambda rate: rate.megabytes)
    return [slowest, *peers, Rate("Megatron preprocess_data, tokenizing alone", MEGATRON_RATE, "published")]


def read_efficiency(results: Mapping[str, Any]) -> float:
    """Return what a second core was worth in `scale`, at most 1; 1 where it was not run."""
    if "scale" not in results:
        return 1.0
    return min(1.0, float(results["scale"]["comparisons"][0]["ratio_median"]) - 1)


def table(rates: Sequence[Rate], efficiency: float) -> str:
    """Return the table."""
    heads = " | ".join(f"{cores} cores, h" for cores in CORES)
    lines = [
        f"| {GIGABYTES:g} GB of text | MB/s a core | {heads} | rate |",
        "|---|---:|" + "---:|" * len(CORES) + "---|",
    ]
    for rate in rates:
        cells = " | ".join(f"{rate.hours(cores, efficiency):.2f}" for cores in CORES)
        lines.append(f"| {rate.name} | {rate.megabytes:.2f} | {cells} | {rate.source} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("results", nargs="?", type=Path, default=RESULTS, help="default: %(default)s")
    options = parser.parse_args(arguments)
    results = read_json(options.results)
    efficiency = read_efficiency(results)
    sys.stdout.write(table(read_rates(results, str(options.results)), efficiency))
    sys.stdout.write(f"\nEvery core but the first counts {efficiency:.2f}.\n")
    return 0


if __name__ == "__main__":
    harness.start(main)
