"""What a proof has shown, stream by stream."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from headrace.tools.proof.judge import Compared, Judgement
from headrace.tools.proof.progress import Stopped
from headrace.tools.proof.replicas import Ended

StreamKind = Literal["source", "output", "dead letters"]


@dataclass(frozen=True, kw_only=True)
class StreamLine:
    """Of one stream. None: it cannot be told."""

    stream: str
    kind: StreamKind
    records_in: int
    """Appended to a source; or read by those who write the stream."""
    records_out: int
    """What the stream holds."""
    lost: int | None
    doubled: int | None
    out_of_order: int | None
    unexpected: int
    longest_gap_ms: int | None
    """Nothing came out for so long although there was something to do;"""
    longest_shard_gap_ms: int | None
    """and one shard of the input was not worked on for so long."""
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
    """What a computation remembers, against what it should."""

    computation: str
    entries: int
    equal: bool | None
    """None: it cannot be told."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Certificate:
    seed: str
    again: str
    """The command that makes the same proof once more."""
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
    """Replicas that ended although nobody had done anything to them."""
    failures: list[str]
    """Why something could not be compared that should have been."""
    notes: list[str]
    evidence: str | None = None
    """Where hub and logs are kept."""

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
        """Whether everything could be compared."""
        return all(
            None not in (each.lost, each.doubled, each.out_of_order) for each in self.streams
        ) and all(each.equal is not None for each in self.state)

    def view(self) -> dict[str, Any]:
        """For programs."""
        told = asdict(self)
        told["ended"] = [each._asdict() for each in self.ended]
        told["streams"] = [{**asdict(each), "clean": each.clean} for each in self.streams]
        return {"clean": self.clean, "complete": self.complete, **told}
