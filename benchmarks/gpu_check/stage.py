"""What a stage is given, and the process that it runs in."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check.workload import SCALES, Scale, device_of_run
from runtime.files import write_json


@dataclass
class Results:
    """What a stage has found so far; in the file after every entry, so that a stage that is killed keeps it."""

    path: Path
    scale: Scale
    device: torch.device
    found: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def record(self, name: str, value: Any) -> None:
        """Keep a value that JSON can hold."""
        self.found[name] = value
        write_json(self.path, self.found)

    def headline(self, text: str) -> None:
        """Say what the table's line says."""
        self.record("headline", text)

    def absent(self, reason: str) -> None:
        """Say that there is nothing to measure here, which is no failure."""
        self.record("absent", reason)

    def attempt(self, name: str, measure: Callable[[], Any]) -> Any:
        """Record what a function returns; if it fails, why, and go on. The stage then counts as failed.

        Returns:
            The value, or None.
        """
        try:
            value = measure()
        except Exception as error:  # noqa: BLE001 - one technique that fails must not take the others' figures
            traceback.print_exc()
            self.faults.append(f"{name}: {type(error).__name__}: {error}")
            self.record(name, {"error": self.faults[-1]})
            return None
        finally:
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        self.record(name, value)
        return value


def run_in_process(function: str, scale: str, path: Path, log: Path) -> None:
    """Run one stage in this process, which is its own: what it prints goes to a file.

    Args:
        function: "module:function"; takes `Results`.
        scale: key of `SCALES`.
        path: JSON file of what it finds.
        log: where its output goes.
    """
    os.setsid()  # so that what the stage starts can be ended with it
    with open(log, "wb", buffering=0) as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
    module, _, name = function.partition(":")
    results = Results(path, SCALES[scale], device_of_run())
    if results.device.type == "cpu":
        # On tensors as small as a rehearsal's, threads wait for each other.
        os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)
    try:
        getattr(importlib.import_module(module), name)(results)
        if results.faults:
            raise SystemExit("; ".join(results.faults))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
