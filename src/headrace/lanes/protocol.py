"""What a lane and its dispatcher say to each other: few, small messages of plain values.

In one process they are handed over as they are; between processes as MessagePack.
"""

from __future__ import annotations

import queue
from typing import Literal, Protocol

import msgspec

Outcome = Literal["done", "parked", "stopped", "fenced", "rewound"]
Action = Literal["retry", "skip", "dead-letter", "stop"]


class Work(msgspec.Struct, tag="work", frozen=True):
    """A slice to be worked on."""

    number: int
    computation: str
    stream: str
    stream_id: int
    shard: int
    token: bytes
    start: int
    end: int
    warm: bool
    attempts: bytes = b""
    """What is stored about a record that made trouble."""
    step: int = 0
    """A step of so many records that is noted in the store before it is taken; 0: not so."""
    closing: bool = False
    """Its shard is let go: say goodbye."""
    timers: dict[str, float] = {}
    """By key, in seconds of the clock on the wall."""


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """A record has failed: what now?"""

    number: int
    failed: int
    """So many attempts by now."""
    retries: bool
    """Whether another one could help."""
    handled: int = 0
    """So many records of the slice were handled before it."""


class Judged(msgspec.Struct, tag="verdict", frozen=True):
    action: Action
    wait_s: float = 0.0
    why: str = ""


class Report(msgspec.Struct, tag="report", frozen=True, kw_only=True):
    """What became of a slice."""

    number: int
    next: int
    """Everything before this is committed."""
    outcome: Outcome
    wait_s: float = 0.0
    records: int = 0
    """How many were handled, skipped and dead-lettered ones too."""
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
    """Those that are set by now; None: as before."""
    rewind: int | None = None
    """The checkpoint is to be moved back there."""


class Progress(msgspec.Struct, tag="progress", frozen=True):
    """How far a lane is: said now and then, so that a hung one is found."""

    number: int
    offset: int | None


class Ask(msgspec.Struct, tag="ask", frozen=True):
    """The lane is free."""


class Cut(msgspec.Struct, tag="cut", frozen=True):
    """End the slice behind the record in hand."""

    number: int


class Logged(msgspec.Struct, tag="said", frozen=True):
    """What a lane logs: the replica's log has it."""

    level: int
    text: str


class Beat(msgspec.Struct, tag="beat", frozen=True):
    """The replica is there."""


class Close(msgspec.Struct, tag="close", frozen=True):
    """There is no more work."""


class LaneDispatcher(Protocol):
    """What one lane sees of its dispatcher."""

    def ask(self, lane: int) -> Work | None:
        """Wait for the next slice of this lane; None: there will be none."""

    def failed(self, lane: int, failed: Failed) -> Judged:
        """What to do about a record that failed. Does not wait."""

    def report(self, lane: int, report: Report) -> None:
        """Take note of what became of a slice. Does not wait."""


class DispatcherPort(LaneDispatcher, Protocol):
    """What an engine sees of the dispatcher of its replica. Called by any thread."""

    def enter(self, lane: int) -> None:
        """Expect a lane of this number: it will ask."""

    def ask_soon(self, lane: int) -> queue.SimpleQueue[Work | None]:
        """Like `ask`, without waiting: the answer comes into the queue."""
