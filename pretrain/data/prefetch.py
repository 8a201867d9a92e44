"""A thread that prepares the next items while the last one is used."""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_SECONDS = 0.1
_JOIN_SECONDS = 30.0


class Prefetcher(Iterator[T], Generic[T]):
    """Iterates over items that a background thread takes from another iterator, in its order.

    An error of the inner iterator is raised where its item would have come. Close it, or use it in a `with`
    block.
    """

    def __init__(self, items: Iterator[T], depth: int) -> None:
        """Start the thread.

        Args:
            items: The inner iterator; nothing else may use it meanwhile.
            depth: Most items kept ready, 1 or more.

        Raises:
            ValueError: `depth` is below 1.
        """
        if depth < 1:
            raise ValueError(f"prefetch depth = {depth}: must be 1 or more")
        self._ready: queue.Queue[T | _End] = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        # the thread knows the queue and the event, but not this object: so that it ends when nobody holds it
        # any more
        self._thread = threading.Thread(
            target=_fill, args=(items, self._ready, self._stop), name="prefetch", daemon=True
        )
        weakref.finalize(self, self._stop.set)
        self._thread.start()

    def __next__(self) -> T:
        """Return the next item.

        Raises:
            StopIteration: The inner iterator is at its end, or this one is closed.
            BaseException: What the inner iterator raised.
        """
        if self._stop.is_set():
            raise StopIteration
        item = self._ready.get()
        if not isinstance(item, _End):
            return item
        self.close()
        if item.error is not None:
            raise item.error
        raise StopIteration

    def close(self) -> None:
        """Stop and join the thread; items that are ready are dropped."""
        self._stop.set()
        self._thread.join(_JOIN_SECONDS)
        if self._thread.is_alive():
            logger.warning("the prefetch thread is still busy after %.0f s and is left behind", _JOIN_SECONDS)

    def __enter__(self) -> Prefetcher[T]:
        """Return the iterator itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


class _End:
    """Stands in the queue behind the last item."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def _fill(items: Iterator[T], ready: queue.Queue[T | _End], stop: threading.Event) -> None:
    """Move items into the queue until they or the consumer end (body of the thread)."""
    end = _End(None)
    try:
        for item in items:
            _offer(item, ready, stop)
            if stop.is_set():
                return
    except BaseException as error:  # noqa: BLE001 - not swallowed: the consumer raises it
        end = _End(error)
    _offer(end, ready, stop)


def _offer(item: T | _End, ready: queue.Queue[T | _End], stop: threading.Event) -> None:
    """Put an item into the queue, waiting for room, unless the consumer has stopped."""
    while not stop.is_set():
        try:
            ready.put(item, timeout=_RETRY_SECONDS)
        except queue.Full:
            continue
        return
