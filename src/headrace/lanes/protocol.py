"""The messages of a lane and its dispatcher: few, small, made of plain values.

Inside one process they are handed over as objects; between processes they travel as MessagePack.
"""

from __future__ import annotations

import queue
from typing import Literal, Protocol

import msgspec

from headrace.core.computations.verdict import Verdict

Outcome = Literal["done", "parked", "stopped", "fenced", "rewound"]


class Work(msgspec.Struct, tag="work", frozen=True):
    """A slice for a lane to work on."""

    number: int
    computation: str
    stream: str
    stream_id: int
    shard: int
    token: bytes
    epoch: int | None
    """The epoch of the grant, to be shown; None where its token holds none."""
    start: int
    end: int
    warm: bool
    """The lane had the last slice of this grant: what it remembers of the shard is true."""
    attempts: bytes = b""
    """What is stored about a record of the shard that made trouble."""
    step: int = 0
    """How many records form a step that is noted in the store before it is taken; 0: no step is
    noted."""
    closing: bool = False
    """The replica lets the shard go: the lane only calls the handler's ``close``."""
    timers: dict[str, float] = {}
    """The times of the timers by key, in seconds of the wall clock."""


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """A record has failed: the lane asks what to do."""

    number: int
    failed: int
    """How many attempts at the record have failed."""
    retries: bool
    """Whether another attempt could help."""
    handled: int = 0
    """How many records of the slice were handled before this one."""


class Judged(msgspec.Struct, tag="judged", frozen=True):
    """The answer to `Failed`."""

    verdict: Verdict


class Report(msgspec.Struct, tag="report", frozen=True, kw_only=True):
    """What became of a slice."""

    number: int
    next: int
    """Every record before this offset is committed."""
    outcome: Outcome
    wait_s: float = 0.0
    records: int = 0
    """How many records were handled, with the skipped and dead-lettered ones."""
    spent_s: float = 0.0
    outputs: int = 0
    failures: int = 0
    retries: int = 0
    skipped: int = 0
    dead_letters: int = 0
    attempts: bytes | None = None
    """What is stored about the record at ``next``; None: as before."""
    reason: str = ""
    at_ms: int = 0
    """The timestamp of the last record handled."""
    timers: dict[str, float] | None = None
    """The timers that are set now; None: as before."""
    rewind: int | None = None
    """The offset that the checkpoint is to be moved back to."""


class Progress(msgspec.Struct, tag="progress", frozen=True):
    """How far a lane is. A lane sends it now and then, so that a hung handler is found."""

    number: int
    """The number of the slice."""
    offset: int | None
    """The offset of the record in hand; None while the slice is read or stored."""


class Ask(msgspec.Struct, tag="ask", frozen=True):
    """The lane is free."""


class Cut(msgspec.Struct, tag="cut", frozen=True):
    """The lane shall end the slice behind the record in hand."""

    number: int


class Logged(msgspec.Struct, tag="logged", frozen=True):
    """A line for the replica's log."""

    level: int
    text: str


class CannotWork(msgspec.Struct, tag="cannot work", frozen=True):
    """The lane cannot begin to work. It is sent instead of the first `Ask`."""

    why: str


class Alive(msgspec.Struct, tag="alive", frozen=True):
    """The replica lives, and has no work yet."""


class Close(msgspec.Struct, tag="close", frozen=True):
    """There is no more work."""


class LaneDispatcher(Protocol):
    """What a lane sees of its dispatcher."""

    def ask(self, lane: int) -> Work | None:
        """Wait for the next slice of this lane; None: there will be none."""

    def failed(self, lane: int, failed: Failed) -> Verdict:
        """What to do about a record that failed. Does not wait."""

    def report(self, lane: int, report: Report) -> None:
        """Take note of what became of a slice. Does not wait."""


class DispatcherPort(LaneDispatcher, Protocol):
    """What an engine sees of the dispatcher of its replica. Any thread may call it."""

    def enter(self, lane: int) -> None:
        """Expect a lane of this number: it will ask."""

    def ask_soon(self, lane: int) -> queue.SimpleQueue[Work | None]:
        """Like `ask`, without waiting: the answer comes into the queue."""


class LaneAtWork(Protocol):
    """What others than its own thread see of a lane. Any thread may call it."""

    def cut(self, number: int) -> None:
        """End the slice of this number behind the record in hand."""

    def progress(self) -> Progress | None:
        """How far the lane is; None if it has no slice in hand."""
