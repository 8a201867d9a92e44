"""Progress: a bar on a terminal, few log lines elsewhere; the figures in both are those worked out by hand."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from runtime.progress import Progress, format_bytes, format_seconds


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture(autouse=True)
def _logs(caplog):
    caplog.set_level(logging.INFO, "runtime.progress")


def _file() -> Console:
    return Console(file=io.StringIO())


def test_a_log_line_has_share_total_rate_and_time_left(clock, caplog):
    with Progress("sharding", 1_200_000_000, console=_file(), clock=clock) as progress:
        clock.now += 50
        progress.advance(540_000_000)
        # 540 MB in 50 s are 10.8 MB/s; 660 MB more take 61.1 s
        assert caplog.messages == ["sharding  45 % of 1.2 GB, 10.8 MB/s, 0:01:01 left"]


def test_at_most_one_line_in_30_seconds(clock, caplog):
    with Progress("sharding", 1000, console=_file(), clock=clock) as progress:
        for _ in range(100):
            clock.now += 1
            progress.advance(1)
        assert len(caplog.messages) == 3  # at 30, 60 and 90 s


def test_work_of_less_than_30_seconds_logs_nothing(clock, caplog):
    with Progress("sharding", 10, console=_file(), clock=clock) as progress:
        for _ in range(10):
            clock.now += 2.9
            progress.advance(1)
    assert caplog.messages == []


def test_long_work_ends_with_a_line_that_sums_it_up(clock, caplog):
    with Progress("reading", 3000, "documents", console=_file(), clock=clock) as progress:
        clock.now += 40
        progress.update(1000)
        clock.now += 20
        progress.update(3000)
    assert caplog.messages == [
        "reading  33 % of 3,000 documents, 25 documents/s, 0:01:20 left",
        "reading  3,000 documents done in 0:01:00, 50 documents/s",
    ]


def test_work_that_fails_is_not_said_to_be_done(clock, caplog):
    with pytest.raises(RuntimeError), Progress("reading", 10, console=_file(), clock=clock) as progress:  # noqa: PT012
        clock.now += 40
        progress.advance(1)
        raise RuntimeError
    assert len(caplog.messages) == 1


def test_what_an_earlier_run_did_is_done_but_not_in_the_rate(clock, caplog):
    with Progress("sharding", 1000, console=_file(), clock=clock, start=500) as progress:
        clock.now += 100
        progress.advance(250)
    # 250 B in 100 s: the other 250 B take 100 s more
    assert caplog.messages[0] == "sharding  75 % of 1.0 KB, 2 B/s, 0:01:40 left"


def test_nothing_done_yet_has_no_rate_and_no_time_left(clock):
    progress = Progress("sharding", 1000, console=_file(), clock=clock)
    clock.now += 5
    assert progress.status() == "0 % of 1.0 KB"


def test_no_work_at_all_is_done(clock):
    assert Progress("sharding", 0, console=_file(), clock=clock).status() == "100 % of 0 B"


def test_a_terminal_has_a_bar_and_no_log_lines(clock, caplog):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with Progress("sharding", 1000, console=console, clock=clock) as progress:
        clock.now += 100
        progress.advance(500)
        progress._bar.refresh()
        assert "50 % of 1.0 KB, 5 B/s, 0:01:40 left" in screen.getvalue()
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1.0 KB"),
        (1000, "1.0 KB"),
        (999_949, "999.9 KB"),
        (999_950, "1.0 MB"),
        (1_250_000_000, "1.2 GB"),
        (5e12, "5.0 TB"),
        (2.5e18, "2,500.0 PB"),
    ],
)
def test_bytes_are_written_by_powers_of_1000(amount, text):
    assert format_bytes(amount) == text


@pytest.mark.parametrize(("seconds", "text"), [(-3, "0:00:00"), (129.6, "0:02:10"), (90061, "25:01:01")])
def test_durations(seconds, text):
    assert format_seconds(seconds) == text
