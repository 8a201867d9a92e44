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
            {
                "amount": 10.0,
                "equality": "ids of 2 sentences; 20,000 pairs an epoch, 21,000 of the peer (-4.8%)",
                "seconds": {"ours": [2.0, 1.0, 4.0], "google": [20.0, 30.0, 20.0]},
                "ratio_median": 10.0,
            },
            {
                "amount": 10.0,
                "equality": "ids of 2 sentences; 20,000 pairs an epoch, 19,500 of the peer (+2.6%)",
                "seconds": {"ours": [2.5, 2.5, 2.5], "lddl": [10.0, 10.0, 10.0]},
                "ratio_median": 4.0,
            },
        ]
    },
    "scale": {"comparisons": [{"ratio_min": 1.9, "ratio_median": 2.1}]},
    "planning": {"figures": [{"value": 4.0}]},
}


def test_rates_are_medians_and_ours_is_the_slower():
    rates = {rate.name: rate.megabytes for rate in cost.read_costs(RESULTS, "r.json").rates}
    assert rates == {"ours": 4.0, "google": 0.5, "lddl": 1.0, "Megatron preprocess_data, tokenizing alone": 1.05}


def test_planning_is_ours_alone():
    # 2,000 pairs a MB, 20,000 MB, five epochs: 200 million pairs, at 4 million a second
    serial = [rate.serial_seconds for rate in cost.read_costs(RESULTS, "r.json").rates]
    assert serial == pytest.approx([50.0, 0, 0, 0])


def test_hours():
    # 20,000 MB at 1 MB/s on two cores of which the second counts 0.9: 20,000 / 1.9 / 3600
    assert cost.Rate("x", 1.0, "").hours(2, 0.9) == pytest.approx(2.924, abs=1e-3)
    assert cost.Rate("x", 1.0, "").hours(64, 1.0) == pytest.approx(20_000 / 64 / 3600)


def test_more_cores_do_not_shorten_what_is_serial():
    rate = cost.Rate("x", 1.0, "", serial_seconds=2_000)
    assert rate.hours(1, 0.9) == pytest.approx(20_000 / 3600)
    assert rate.hours(2, 1.0) == pytest.approx((2_000 + 18_000 / 2) / 3600)
    assert rate.hours(1_000_000, 1.0) == pytest.approx(2_000 / 3600, rel=1e-3)


def test_a_further_core_is_worth_what_the_second_was_in_the_worst_round():
    assert cost.read_costs(RESULTS, "r.json").gain == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0604, "0.060"), (0.0009, "0.00090"), (8.75, "8.8"), (9.96, "10"), (123.0, "120")]
)
def test_two_digits(value: float, text: str):
    assert cost.two_digits(value) == text


def test_the_command_prints_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_json(tmp_path / "results.json", RESULTS)
    assert cost.main([str(tmp_path / "results.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| 20 GB of text | MB/s a core | 2 cores, h | 16 cores, h | 64 cores, h | rate |"
    # (50 + 4,950 / 1.9) / 3600, / 14.5, / 57.7
    assert lines[2] == "| ours | 4.00 | 0.74 | 0.11 | 0.038 | measured |"
    assert lines[5].endswith("| published |")


@pytest.mark.parametrize("name", ["prepare", "planning", "scale"])
def test_missing_figures_are_named(name: str):
    with pytest.raises(ConfigError, match=rf"r\.json: no results of '{name}'"):
        cost.read_costs({key: value for key, value in RESULTS.items() if key != name}, "r.json")


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
