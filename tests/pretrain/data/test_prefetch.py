"""The background thread: order, errors, and its end."""

from __future__ import annotations

import gc
import itertools
import logging
import threading
import time
from collections.abc import Iterator

import pytest

from pretrain.data import prefetch
from pretrain.data.prefetch import Prefetcher

pytestmark = pytest.mark.timeout(60)


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_items_come_in_order_and_end(depth: int) -> None:
    with Prefetcher(iter(range(20)), depth) as items:
        assert list(items) == list(range(20))
    assert not prefetch_threads()
    with pytest.raises(StopIteration):
        next(items)


def test_errors_come_where_the_item_would_have() -> None:
    def failing() -> Iterator[int]:
        yield 1
        yield 2
        raise RuntimeError("shard gone")

    with Prefetcher(failing(), 5) as items:
        assert [next(items), next(items)] == [1, 2]
        with pytest.raises(RuntimeError, match="shard gone"):
            next(items)
        with pytest.raises(StopIteration):
            next(items)
    assert not prefetch_threads()


def test_no_more_than_depth_items_are_made_ahead() -> None:
    made = []

    def counted() -> Iterator[int]:
        for number in itertools.count():
            made.append(number)
            yield number

    with Prefetcher(counted(), 2) as items:
        next(items)
        time.sleep(0.3)
        # two ready, and one in the thread's hands
        assert len(made) <= 1 + 2 + 1


def test_close_stops_a_thread_that_waits_for_room() -> None:
    items = Prefetcher(itertools.count(), 1)
    next(items)
    items.close()
    assert not prefetch_threads()
    with pytest.raises(StopIteration):
        next(items)


def test_the_thread_ends_with_its_owner() -> None:
    items = Prefetcher(itertools.count(), 1)
    next(items)
    (thread,) = prefetch_threads()
    assert thread.daemon
    del items
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_a_busy_thread_is_left_behind(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(prefetch, "_JOIN_SECONDS", 0.1)
    release = threading.Event()

    def busy() -> Iterator[int]:
        release.wait(30)
        yield 1

    items = Prefetcher(busy(), 1)
    (thread,) = prefetch_threads()
    with caplog.at_level(logging.WARNING):
        items.close()
    assert "still busy" in caplog.text
    release.set()
    thread.join(10)


def test_depth_must_be_positive() -> None:
    with pytest.raises(ValueError, match="prefetch depth = 0: must be 1 or more"):
        Prefetcher(iter([1]), 0)
