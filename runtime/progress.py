"""How far a long command is: a bar on a terminal, a log line now and then elsewhere; rate and time left in both."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

logger = logging.getLogger(__name__)

LOG_INTERVAL_SECONDS = 30.0
_THOUSAND = 1000


class Progress:
    """A context manager that tells how far the work in it is.

    Where standard error is a terminal it shows a bar, which is gone when the work is done. Elsewhere it logs a line
    when the work advances, but not within 30 s of the one before it, so that short work logs nothing:

        sharding  45 % of 1.2 GB, 12.3 MB/s, 0:02:10 left

    Args:
        what: the work.
        total: amount of it.
        unit: "B" for bytes, or a plural such as "documents".
        start: amount that an earlier run did: it is done, but does not count for the rate.
        console: where a bar goes, if it is a terminal; None: standard error.
        clock: seconds that pass.
    """

    def __init__(
        self,
        what: str,
        total: int,
        unit: str = "B",
        *,
        start: int = 0,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.what = what
        self.total = total
        self.unit = unit
        self.completed = start
        self._start = start
        self._clock = clock
        self._began = self._logged = clock()
        self._has_logged = False
        console = console or Console(stderr=True)
        self._bar: Bar | None = None
        if console.is_terminal:
            self._bar = Bar(
                TextColumn("{task.description}"), BarColumn(), _Status(self), console=console, transient=True
            )
            self._line = self._bar.add_task(what, total=total, completed=start)

    def __enter__(self) -> Progress:
        self._began = self._logged = self._clock()
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif error is None and self._has_logged:
            took = format_seconds(self._clock() - self._began)
            logger.info("%s  %s done in %s%s", self.what, self._amount(self.completed), took, self._rate_text())

    def advance(self, amount: int) -> None:
        """Add to the amount that is done."""
        self.update(self.completed + amount)

    def update(self, completed: int) -> None:
        """Set the amount that is done, what an earlier run did included."""
        self.completed = completed
        if self._bar is not None:
            self._bar.update(self._line, completed=completed)
            return
        now = self._clock()
        if now - self._logged >= LOG_INTERVAL_SECONDS:
            self._logged = now
            self._has_logged = True
            logger.info("%s  %s", self.what, self.status())

    def status(self) -> str:
        """Return share, total, rate and time left, as in "45 % of 1.2 GB, 12.3 MB/s, 0:02:10 left"."""
        share = min(100, 100 * self.completed // self.total) if self.total else 100
        rate = self._rate()
        left = f", {format_seconds((self.total - self.completed) / rate)} left" if rate else ""
        return f"{share} % of {self._amount(self.total)}{self._rate_text()}{left}"

    def _rate(self) -> float:
        """Return the amount a second of this run, 0 while nothing can be said."""
        seconds = self._clock() - self._began
        return (self.completed - self._start) / seconds if seconds > 0 else 0.0

    def _rate_text(self) -> str:
        rate = self._rate()
        return f", {self._amount(rate)}/s" if rate else ""

    def _amount(self, amount: float) -> str:
        return format_bytes(amount) if self.unit == "B" else f"{amount:,.0f} {self.unit}"


class _Status(ProgressColumn):
    """The column of a bar that says what a log line would; the rate falls while nothing advances."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def render(self, task: Task) -> Text:
        """Return the text of the moment."""
        return Text(self._progress.status())


def format_bytes(amount: float) -> str:
    """Return an amount of bytes as people write it, by powers of 1000: "812 B", "1.2 GB"."""
    if round(amount) < _THOUSAND:
        return f"{amount:.0f} B"
    for unit in ("KB", "MB", "GB", "TB"):
        amount /= _THOUSAND
        if round(amount, 1) < _THOUSAND:
            return f"{amount:.1f} {unit}"
    return f"{amount / _THOUSAND:,.1f} PB"


def format_seconds(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds: "0:02:10"."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
