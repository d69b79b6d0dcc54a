"""The result of a proof, stream by stream."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from headrace.tools.proof.judge import Compared, Judgement
from headrace.tools.proof.progress import Stopped
from headrace.tools.proof.replicas import Ended

StreamKind = Literal["source", "output", "dead letters"]


@dataclass(frozen=True, kw_only=True)
class StreamLine:
    """The result for one stream. None means that it could not be determined."""

    stream: str
    kind: StreamKind
    records_in: int
    """Records appended to a source, or read by the writers of an output."""
    records_out: int
    """Records that the stream holds."""
    lost: int | None
    doubled: int | None
    out_of_order: int | None
    unexpected: int
    longest_gap_ms: int | None
    """The longest time without any output while there was work."""
    longest_shard_gap_ms: int | None
    """The longest time in which one shard of the input was not worked on while it had work."""
    compared: Compared
    notes: list[str] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.out_of_order or self.unexpected)


def stream_line(
    stream: str,
    kind: StreamKind,
    records_in: int,
    judgement: Judgement,
    gap_s: float | None = None,
    shard_gap_s: float | None = None,
) -> StreamLine:
    return StreamLine(
        stream=stream,
        kind=kind,
        records_in=records_in,
        records_out=judgement.found,
        lost=judgement.lost,
        doubled=judgement.doubled,
        out_of_order=judgement.out_of_order,
        unexpected=judgement.unexpected,
        longest_gap_ms=None if gap_s is None else round(gap_s * 1000),
        longest_shard_gap_ms=None if shard_gap_s is None else round(shard_gap_s * 1000),
        compared=judgement.compared,
        notes=judgement.notes,
        examples=judgement.examples,
    )


@dataclass(frozen=True, kw_only=True)
class StateLine:
    """The result for the state of one computation."""

    computation: str
    entries: int
    equal: bool | None
    """Whether it equals the state of the reference; None if that could not be determined."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Certificate:
    seed: str
    again: str
    """The command that repeats this proof."""
    records: int
    replicas: int
    kills: int
    stops: int
    seconds: float
    caught_up: bool
    streams: list[StreamLine]
    state: list[StateLine]
    stopped: list[Stopped]
    ended: list[Ended]
    """Replicas that ended by themselves."""
    failures: list[str]
    """Why a computation could not be compared with its reference."""
    notes: list[str]
    evidence: str | None = None
    """The directory in which hub and logs are kept."""

    @property
    def clean(self) -> bool:
        return (
            self.caught_up
            and not self.stopped
            and not self.ended
            and not self.failures
            and all(each.clean for each in self.streams)
            and all(each.equal is not False for each in self.state)
        )

    @property
    def complete(self) -> bool:
        """Whether all streams and all state could be compared."""
        return all(
            None not in (each.lost, each.doubled, each.out_of_order) for each in self.streams
        ) and all(each.equal is not None for each in self.state)

    def view(self) -> dict[str, Any]:
        """The certificate as JSON values."""
        shown = asdict(self)
        shown["ended"] = [each._asdict() for each in self.ended]
        shown["streams"] = [{**asdict(each), "clean": each.clean} for each in self.streams]
        return {"clean": self.clean, "complete": self.complete, **shown}
