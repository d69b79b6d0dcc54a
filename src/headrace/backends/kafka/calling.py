"""Calls of the client that may never return, made so that whoever waits for them does."""

from __future__ import annotations

import threading
from collections.abc import Callable

LOOK_S = 0.2


def called(call: Callable[[], object], while_waiting: Callable[[], None]) -> None:
    """Make a call in a thread of its own, and wait for it here, where signals are answered;
    ``while_waiting`` is called now and then, and may raise: then the call is left behind."""
    raised: list[BaseException] = []

    def make() -> None:
        try:
            call()
        except BaseException as why:  # told to the one who waits
            raised.append(why)

    calling = threading.Thread(target=make, name="headrace-kafka-call", daemon=True)
    calling.start()
    calling.join(LOOK_S)
    while calling.is_alive():
        while_waiting()
        calling.join(LOOK_S)
    if raised:
        raise raised.pop()
