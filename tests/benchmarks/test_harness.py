from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import harness
from benchmarks.harness import Arm, Report, UnequalError, measure, parser

ROOT = Path(__file__).resolve().parents[2]


def clock_of(costs: dict[str, float], log: list[str]) -> tuple[Callable[[], float], Callable[[str], Arm]]:
    """A clock that only the arms' work moves, and a maker of arms of known cost."""
    now = [0.0]

    def arm(name: str) -> Arm:
        def run(prepared: Any) -> str:
            log.append(name)
            now[0] += costs[name]
            return f"result {prepared}"

        return Arm(name, run, prepare=lambda: log.append(f"prepare {name}") or "ready")

    return lambda: now[0], arm


def options(*arguments: str) -> Namespace:
    return parser("x", None).parse_args(arguments)


def equal(ours: str, peer: str) -> str:
    assert ours == peer == "result ready"
    return "1 result"


def test_arms_take_turns_and_are_prepared_each_round() -> None:
    log: list[str] = []
    timer, arm = clock_of({"a": 2.0, "b": 3.0}, log)
    assert measure([arm("a"), arm("b")], 3, timer) == [[2.0] * 3, [3.0] * 3]
    assert log == ["prepare a", "a", "prepare b", "b"] * 3


def test_a_comparison_prints_times_ratio_and_goal(capsys: pytest.CaptureFixture[str]) -> None:
    timer, arm = clock_of({"ours": 2.0, "peer 1.0": 9.0}, [])
    report = Report("x", options())
    done = report.compare("text", arm("ours"), arm("peer 1.0"), equal, amount=18.0, unit="MB", goal=4.0, timer=timer)
    assert (done.ratio_min, done.ratio_median, done.is_met) == (4.5, 4.5, True)
    assert report.finish() == 0
    printed = capsys.readouterr().out
    assert printed.startswith("x: ")
    lines = [line.split() for line in printed.splitlines()]
    assert "text (18 MB); equal: 1 result".split() in lines
    assert "ours min 2.000 s median 2.000 s 9 MB/s".split() in lines
    assert "peer 1.0 min 9.000 s median 9.000 s 2 MB/s".split() in lines
    assert "ratio min 4.50 median 4.50 (goal >= 4: met)".split() in lines


def test_the_first_call_is_a_warm_up_and_there_are_three_rounds_at_least() -> None:
    log: list[str] = []
    timer, arm = clock_of({"a": 1.0, "b": 1.0}, log)
    Report("x", options("--rounds", "1")).compare(
        "c", arm("a"), arm("b"), equal, amount=1, unit="", goal=1, timer=timer
    )
    assert log.count("a") == log.count("b") == 4


def test_ratios_are_those_of_each_round() -> None:
    costs = {"ours": iter([1.0, 1.0, 2.0, 4.0]), "peer": iter([1.0, 8.0, 8.0, 8.0])}
    now = [0.0]

    def arm(name: str) -> Arm:
        def run(_: Any) -> None:
            now[0] += next(costs[name])

        return Arm(name, run)

    done = Report("x", options()).compare(
        "c", arm("ours"), arm("peer"), lambda *_: "", amount=1, unit="", goal=5.0, timer=lambda: now[0]
    )
    assert (done.ratio_min, done.ratio_median, done.is_met) == (2.0, 4.0, False)


def test_nothing_is_timed_where_the_results_differ(capsys: pytest.CaptureFixture[str]) -> None:
    log: list[str] = []
    timer, arm = clock_of({"a": 1.0, "b": 1.0}, log)

    def differs(ours: str, peer: str) -> str:
        raise UnequalError("token 3 of line 7")

    report = Report("x", options())
    with pytest.raises(UnequalError, match="token 3 of line 7"):
        report.compare("c", arm("a"), arm("b"), differs, amount=1, unit="", goal=1, timer=timer)
    assert "ratio" not in capsys.readouterr().out
    assert log.count("a") == 1


@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("--goal", "4.6"), 1), (("--goal", "4.5"), 0)])
def test_the_goal_decides_the_exit_code(arguments: tuple[str, ...], code: int) -> None:
    timer, arm = clock_of({"ours": 2.0, "peer": 9.0}, [])
    report = Report("x", options(*arguments))
    report.compare("c", arm("ours"), arm("peer"), equal, amount=1, unit="MB", goal=4.0, timer=timer)
    assert report.finish() == code


@pytest.mark.parametrize(("limits", "code"), [({}, 0), ({"least": 3.1}, 1), ({"most": 3.0}, 0), ({"most": 2.9}, 1)])
def test_a_figure_has_its_own_limit(limits: dict[str, float], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("x", options())
    report.figure("opening", 3.0, "s", **limits)
    assert report.finish() == code
    assert "opening: 3 s" in capsys.readouterr().out


def test_figures_go_to_a_json_file(tmp_path: Path) -> None:
    timer, arm = clock_of({"ours": 2.0, "peer": 9.0}, [])
    report = Report("x", options("--json", str(tmp_path / "x.json")))
    report.compare("c", arm("ours"), arm("peer"), equal, amount=1, unit="MB", goal=4.0, timer=timer)
    report.figure("peak", 1.1, "times", most=1.2)
    report.finish()
    value = json.loads((tmp_path / "x.json").read_text())
    assert value["benchmark"] == "x"
    assert value["cores"] == os.cpu_count()
    assert value["comparisons"][0]["seconds"] == {"ours": [2.0] * 3, "peer": [9.0] * 3}
    assert value["comparisons"][0]["ratio_median"] == 4.5
    assert value["figures"] == [{"name": "peak", "value": 1.1, "unit": "times", "rule": "<= 1.2", "is_met": True}]


def test_start_limits_threads_before_the_benchmark_is_imported(tmp_path: Path) -> None:
    script = tmp_path / "bench.py"
    script.write_text(
        "import os, sys\n"
        "seen = os.environ.get('RAYON_NUM_THREADS'), os.environ.get('TOKENIZERS_PARALLELISM')\n"
        "from benchmarks import harness\n"
        "def main(arguments):\n"
        "    sys.stdout.write(repr((seen, sys.argv[1:])))\n"
        "    return 3\n"
        "harness.start(main)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in harness.ONE_THREAD}
    done = subprocess.run(
        [sys.executable, str(script), "--goal", "2"],
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "(('1', 'false'), ['--goal', '2'])")
