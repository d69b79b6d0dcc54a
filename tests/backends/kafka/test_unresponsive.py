"""A call of the client that never returns holds up nobody for ever."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from headrace.backends.kafka.client.unresponsive import call_watched


class Enough(Exception):
    pass


def test_an_exception_of_a_watched_call_is_raised() -> None:
    def refuse() -> None:
        raise Enough

    with pytest.raises(Enough):
        call_watched(refuse, lambda: None)


def test_a_call_that_ends_is_waited_for() -> None:
    ended, looks = threading.Event(), 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            ended.set()

    call_watched(ended.wait, look)
    assert looks == 3


def test_a_call_that_never_returns_is_left_behind() -> None:
    never = threading.Event()

    def look() -> None:
        raise Enough

    with pytest.raises(Enough):
        call_watched(never.wait, look)
    never.set()


def test_signals_are_handled_during_a_watched_call() -> None:
    never = threading.Event()

    def handle(*_: object) -> None:
        raise Enough

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        began_s = time.monotonic()
        with pytest.raises(Enough):
            call_watched(never.wait, lambda: None)
        assert time.monotonic() - began_s < 5
    finally:
        signal.signal(signal.SIGALRM, before)
        never.set()
