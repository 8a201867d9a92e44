"""What a training step does on one large GPU, in nine minutes, imports included, without a network.

    python -m benchmarks.gpu_check [--scale full|tiny] [--seconds 510] [--json FILE] [--stage NAME ...]

The most valuable stages come first. Each is a process of its own with a deadline; what it had found when it was cut is
kept. After each stage its line is printed and the JSON file is whole. The weights are random, the samples made-up ids
with the lengths of real pairs. `--scale tiny` rehearses all of it on a CPU.

Exit code: 0 if every stage ran, 1 if one failed or did not fit into the time; the JSON says why.
"""

from __future__ import annotations

import argparse
import datetime
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_check.driver import Stage, run_stages
from benchmarks.gpu_check.workload import SCALES
from runtime.command import ConfigError, run_command

_PACKAGE = "benchmarks.gpu_check"
STAGES = (
    Stage("attention", f"{_PACKAGE}.basics:attention", 45),
    Stage("large Wikipedia-512", f"{_PACKAGE}.ours:large_wikipedia", 75),
    Stage("no waiting", f"{_PACKAGE}.ours:no_waiting", 40),
    Stage("against Wikipedia-512", f"{_PACKAGE}.peer:against_wikipedia", 60),
    Stage("large 128", f"{_PACKAGE}.ours:large_128", 50),
    Stage("large 512", f"{_PACKAGE}.ours:large_512", 50),
    Stage("ceilings", f"{_PACKAGE}.basics:ceilings", 30),
    Stage("engine", f"{_PACKAGE}.engine:engine", 100),
    Stage("ladder", f"{_PACKAGE}.peer:ladder", 100),
    Stage("falling loss", f"{_PACKAGE}.ours:falling_loss", 50),
    Stage("fp16", f"{_PACKAGE}.ours:fp16", 30),
    Stage("loader", f"{_PACKAGE}.loader:loader", 40),
    Stage("base", f"{_PACKAGE}.ours:base", 60),
    Stage("against 128", f"{_PACKAGE}.peer:against_128", 60),
    Stage("against 512", f"{_PACKAGE}.peer:against_512", 60),
)
"""The most valuable first; the deadlines together are more than the time, for few stages use theirs up."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stages; return the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {_PACKAGE}", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--scale", choices=sorted(SCALES), default="full")
    parser.add_argument("--seconds", type=float, default=510.0, help="for all stages together; default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file, too")
    parser.add_argument("--stage", action="append", metavar="NAME", help="only this one; may be given several times")
    options = parser.parse_args(arguments)
    known = {stage.name: stage for stage in STAGES}
    unknown = [name for name in options.stage or () if name not in known]
    if unknown:
        raise ConfigError(f"--stage {unknown[0]}: no such stage; there are {', '.join(known)}")
    chosen = [known[name] for name in options.stage] if options.stage else list(STAGES)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
    # Asking whether there is a GPU must not touch it in a process that others are forked from.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    facts = {
        "scale": options.scale,
        "seconds_allowed": options.seconds,
        "date": datetime.datetime.now(tz=datetime.timezone.utc).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
    }
    return run_stages(chosen, options.scale, seconds=options.seconds, facts=facts, json_path=options.json)


if __name__ == "__main__":
    run_command(main, "gpu_check")
