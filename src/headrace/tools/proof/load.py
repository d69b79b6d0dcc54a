"""The load of a proof: a thread appends generated records to the sources.

It is a thread because an append can wait: a stopped replica may hold the write lock."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from math import inf
from typing import Any

from headrace.core.errors import HeadraceError, Retryable
from headrace.streams.stream import Stream
from headrace.tools.proof.sample import Source

APPENDS_PER_S = 25
APPEND_RECORDS_MAX = 2_000
AGAIN_S = 0.2
LOOK_S = 0.02


class Load:
    def __init__(
        self,
        streams: Mapping[str, Stream],
        sources: Mapping[str, Source],
        records: int,
        for_s: float,
        producer: str = "headrace-prove",
    ) -> None:
        self.appended = dict.fromkeys(streams, 0)
        """How many records are acknowledged, by stream."""
        self.failure: HeadraceError | None = None
        self._streams = streams
        self._sources = sources
        self._producer = producer
        self._shares = _shares(records, list(streams))
        self._append_records = min(
            max(round(records / max(for_s * APPENDS_PER_S, 1)), 1), APPEND_RECORDS_MAX
        )
        self._pause_s = for_s / max(records / self._append_records, 1)
        self._allowed = inf
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prove load", daemon=True)

    @property
    def total(self) -> int:
        return sum(self.appended.values())

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def is_held(self) -> bool:
        """Whether the load has appended all that it may for now."""
        return self.total > self._allowed

    def start(self) -> None:
        self._thread.start()

    def allow(self, share: float) -> None:
        """Append no more than this share of all records for now, so that later deeds find records
        on their way."""
        self._allowed = share * sum(self._shares.values())

    def hurry(self) -> None:
        """Append all that is left, without pauses."""
        self._pause_s, self._allowed = 0.0, inf

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        seqs = dict.fromkeys(self._streams, 0)
        try:
            while not self._stop.is_set():
                due = [name for name, n in self._shares.items() if self.appended[name] < n]
                if not due:
                    return
                for name in due:
                    self._append(name, seqs[name])
                    seqs[name] += 1
                self._stop.wait(self._pause_s * len(due))
                while self.is_held and not self._stop.is_set():
                    self._stop.wait(LOOK_S)
        except HeadraceError as why:
            self.failure = why

    def _append(self, name: str, seq: int) -> None:
        first = self.appended[name]
        count = min(self._append_records, self._shares[name] - first)
        pairs: list[tuple[Any, str]] = [self._sources[name](first + n) for n in range(count)]
        while not self._stop.is_set():
            try:
                self._streams[name].append_many(pairs, producer=self._producer, producer_seq=seq)
            except Retryable:
                self._stop.wait(AGAIN_S)
            else:
                self.appended[name] += count
                return


def _shares(records: int, streams: list[str]) -> dict[str, int]:
    whole, rest = divmod(records, len(streams))
    return {name: whole + (at < rest) for at, name in enumerate(streams)}
