"""Waiting that ends when its time is over, whatever the machine does."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from headrace.process.queues import taken_within
from headrace.process.wakeup import Wakeup


def test_a_queued_item_is_taken_and_a_later_one_waited_for() -> None:
    queued: queue.SimpleQueue[int] = queue.SimpleQueue()
    queued.put(1)
    assert taken_within(queued, 0) == 1
    threading.Timer(0.05, queued.put, (2,)).start()
    assert taken_within(queued, 30) == 2
    threading.Timer(0.05, queued.put, (3,)).start()
    assert taken_within(queued, None) == 3


def _ends(wait: threading.Thread) -> bool:
    wait.start()
    wait.join(60)
    return not wait.is_alive()


def test_a_wait_for_a_queue_ends_although_its_time_is_over_at_once() -> None:
    """With ``get`` alone this stands still after some thousand times."""

    def wait() -> None:
        for _ in range(20_000):
            with pytest.raises(queue.Empty):
                taken_within(queue.SimpleQueue[int](), 1e-6)

    assert _ends(threading.Thread(target=wait, daemon=True))


def test_a_wait_for_a_wakeup_ends_although_its_time_is_over_at_once() -> None:
    bell = Wakeup()

    def wait() -> None:
        for _ in range(20_000):
            assert not bell.wait(1e-6)

    assert _ends(threading.Thread(target=wait, daemon=True))


def test_a_wakeup_rung_often_wakes_once() -> None:
    bell = Wakeup()
    bell.ring()
    bell.ring()
    assert bell.wait(0)
    assert not bell.wait(0)
    threading.Timer(0.05, bell.ring).start()
    began_s = time.monotonic()
    assert bell.wait(30)
    assert time.monotonic() - began_s < 20
