"""Runs the benchmarks one after the other and gathers their figures in benchmarks/results.json.

    python -m benchmarks.run [NAME ...]

Each is a process of its own, prints as it goes, and takes less than five minutes on a machine with nothing else to do.
Those named replace their older figures, the others stay. The last line says which goals were not met; the exit code is
then 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import cost, harness
from runtime.command import ConfigError
from runtime.files import read_json, write_json

NAMES = (
    *("tokenize", "prepare", "scale", "planning", "sparse_store", "sentences", "load", "resume", "balance"),
    *("step", "step_memory", "engine", "lamb", "memory", "time_to_loss"),
)


def run(names: Sequence[str], results: Path) -> list[str]:
    """Run benchmarks; after each its figures are in the file.

    Args:
        names: of `NAMES`.
        results: the JSON file, by name of the benchmark.

    Returns:
        Those that failed or missed a goal.
    """
    gathered: dict[str, Any] = read_json(results) if results.exists() else {}
    failed = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            figures = Path(folder) / "figures.json"
            sys.stdout.write(f"\n== {name}\n")
            sys.stdout.flush()
            command = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(figures)]
            if subprocess.run(command, check=False).returncode:
                failed.append(name)
            if figures.exists():
                gathered[name] = read_json(figures)
                write_json(results, gathered)
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks; return 0 where every goal is met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(NAMES)}")
    parser.add_argument("--results", type=Path, default=cost.RESULTS, metavar="FILE", help="default: %(default)s")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        raise ConfigError(f"{unknown[0]}: no such benchmark; there are {', '.join(NAMES)}")
    failed = run(options.names or NAMES, options.results)
    if options.results.exists() and "prepare" in read_json(options.results):
        sys.stdout.write("\n== cost\n")
        cost.main([str(options.results)])
    sys.stdout.write(f"\n{'not met: ' + ', '.join(failed) if failed else 'all goals met'}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    harness.start(main)
