"""Hours of 20 GB, worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import cost, run
from runtime.command import ConfigError
from runtime.files import write_json

RESULTS: dict[str, Any] = {
    "prepare": {
        "comparisons": [
            {"amount": 10.0, "seconds": {"ours": [2.0, 1.0, 4.0], "google": [20.0, 30.0, 20.0]}, "ratio_median": 10.0},
            {"amount": 10.0, "seconds": {"ours": [2.5, 2.5, 2.5], "lddl": [10.0, 10.0, 10.0]}, "ratio_median": 4.0},
        ]
    },
    "scale": {"comparisons": [{"ratio_median": 1.9}]},
}


def test_rates_are_medians_and_ours_is_the_slower():
    rates = {rate.name: rate.megabytes for rate in cost.read_rates(RESULTS, "r.json")}
    assert rates == {"ours": 4.0, "google": 0.5, "lddl": 1.0, "Megatron preprocess_data, tokenizing alone": 1.05}


def test_hours():
    # 20,000 MB at 1 MB/s on two cores of which the second counts 0.9: 20,000 / 1.9 / 3600
    assert cost.Rate("x", 1.0, "").hours(2, 0.9) == pytest.approx(2.924, abs=1e-3)
    assert cost.Rate("x", 1.0, "").hours(64, 1.0) == pytest.approx(20_000 / 64 / 3600)


def test_efficiency_is_that_of_the_second_worker():
    assert cost.read_efficiency(RESULTS) == pytest.approx(0.9)
    assert cost.read_efficiency({"scale": {"comparisons": [{"ratio_median": 2.1}]}}) == 1.0
    assert cost.read_efficiency({}) == 1.0


def test_the_command_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_json(tmp_path / "results.json", RESULTS)
    assert cost.main([str(tmp_path / "results.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| 20 GB of text | MB/s a core | 2 cores, h | 16 cores, h | 64 cores, h | rate |"
    assert lines[2] == "| ours | 4.00 | 0.73 | 0.10 | 0.02 | measured |"
    assert lines[5].endswith("| published |")


def test_missing_figures_are_named():
    with pytest.raises(ConfigError, match=r"r\.json: no results"):
        cost.read_rates({}, "r.json")


def test_figures_are_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Done:
        def __init__(self, code: int) -> None:
            self.returncode = code

    def fake(command: list[str], check: bool) -> Done:
        name = command[2].removeprefix("benchmarks.")
        write_json(command[command.index("--json") + 1], {"benchmark": name})
        return Done(int(name == "scale"))

    monkeypatch.setattr(run.subprocess, "run", fake)
    results = tmp_path / "results.json"
    write_json(results, {"tokenize": {"benchmark": "older"}, "planning": {"benchmark": "older"}})
    assert run.run(["planning", "scale"], results) == ["scale"]
    assert cost.read_json(results) == {
        "tokenize": {"benchmark": "older"},
        "planning": {"benchmark": "planning"},
        "scale": {"benchmark": "scale"},
    }


def test_an_unknown_benchmark_is_refused():
    with pytest.raises(ConfigError, match="speed: no such benchmark"):
        run.main(["speed"])
