"""The thread that looks for new records of the shards a replica holds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headrace.core.errors import HeadraceError, UnknownStream
from headrace.core.model import StreamInfo
from headrace.core.ports import Log
from headrace.replica.dispatcher import Dispatcher

WAIT_S = 0.5
REST_FACTOR = 2
"""The thread rests this many times as long as a look took: where much is written, one look sees
several appends."""
REST_S_MAX = 0.005


class NewRecords:
    """`look` may be called by any thread."""

    def __init__(
        self,
        records: Log,
        dispatcher: Dispatcher,
        on_failure: Callable[[HeadraceError], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._records = records
        self._dispatcher = dispatcher
        self._on_failure = on_failure
        self._clock = clock
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="headrace-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End soon: the thread never waits longer than `WAIT_S` for something to be written."""
        self._ended = True

    def look(self) -> None:
        """Tell the dispatcher how far the shards go by now, where it needs to know."""
        asked = self._dispatcher.asks_ends()
        shards = [(grant.stream, grant.shard) for _, grant in asked]
        try:
            ends = self._records.ends(shards)
        except UnknownStream:
            ends = [self._end(stream, shard) for stream, shard in shards]
        self._dispatcher.ends(dict(zip((duty for duty, _ in asked), ends, strict=True)))

    def _end(self, stream: StreamInfo, shard: int) -> int:
        try:
            return self._records.ends([(stream, shard)])[0]
        except UnknownStream:
            return 0  # deleted: the group hears of it, and what is granted changes

    def _run(self) -> None:
        seen = -1
        try:
            while not self._ended:
                changes = self._records.wait(seen, WAIT_S)
                if changes != seen:
                    seen = changes
                    began_s = self._clock()
                    self.look()
                    took_s = self._clock() - began_s
                    time.sleep(min(took_s * REST_FACTOR, REST_S_MAX))
        except HeadraceError as why:
            if not self._ended:
                self._on_failure(why)
