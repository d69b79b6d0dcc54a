"""Ending a client without waiting for it for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable


def ended(close: Callable[[], None], within_s: float) -> bool:
    """Whether it ended in time. One that has met damaged data may never do: it is left behind, and
    ends with the process."""
    ending = threading.Thread(target=close, name="headrace-kafka-ending", daemon=True)
    ending.start()
    ending.join(within_s)
    return not ending.is_alive()
