"""The findings of `headrace doctor`: versions, the hub, and what is missing for which part."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from headrace.core.errors import (
    BadBatch,
    HeadraceError,
    OffsetOutOfRange,
    RecordTooLarge,
    UnknownStream,
)
from headrace.core.model import StreamInfo
from headrace.hub.hub import Hub
from headrace.ops.findings import hub_finding, stream_finding
from headrace.process.java import ADVICE, find_java
from headrace.streams.stream import Stream

_PARTS = {
    "pyarrow": "needed",
    "lmdb": "needed",
    "msgspec": "needed",
    "pyspark": "for topologies on Spark: pip install 'headrace[spark]'",
    "confluent-kafka": "for Kafka: pip install 'headrace[kafka]'",
    "kazoo": "for ZooKeeper: pip install 'headrace[zookeeper]'",
    "starlette": "for headrace serve: pip install 'headrace[server]'",
}

FindingRow = dict[str, Any]
"""``what``, ``found``, ``ok`` (None: neither good nor bad) and ``advice``."""


def examine_machine() -> list[FindingRow]:
    """Findings about this machine, whatever the hub."""
    findings = [
        _row("python", platform.python_version()),
        _row("headrace", _version("headrace")),
    ]
    for name, role in _PARTS.items():
        found = _version(name)
        ok = True if found else (False if role == "needed" else None)
        findings.append(_row(name, found or "not installed", ok=ok, advice="" if found else role))
    findings.append(_java())
    return findings


def examine_hub(hub: Hub) -> list[FindingRow]:
    """Findings about an opened hub."""
    findings = {what: hub_finding(what, fact) for what, fact in hub.describe().items()}
    return [
        _row(what, found.shown, ok=found.ok, advice=found.advice)
        for what, found in findings.items()
    ]


def examine_streams(hub: Hub, streams: Sequence[StreamInfo]) -> list[FindingRow]:
    """How many streams there are, and what is unusual about each."""
    findings = [_row("streams", len(streams))]
    for info, facts in zip(streams, hub.log.describe_streams(streams), strict=True):
        for what, fact in facts.items():
            found = stream_finding(what, fact)
            findings.append(_row(info.name, found.shown, ok=found.ok, advice=found.advice))
    return findings


def find_damage(hub: Hub, name: str) -> list[FindingRow]:
    """Read and check every record of a stream."""
    try:
        stream = hub.stream(name)
        return [row for shard in range(stream.shards) for row in _damage(stream, shard)]
    except UnknownStream:
        return [_row(name, "deleted meanwhile")]
    except HeadraceError as why:
        return [_row(name, str(why), ok=False)]


def _damage(stream: Stream, shard: int) -> list[FindingRow]:
    what = f"{stream.name}:{shard}"
    findings = []
    records = 0
    at, end = stream.bounds(shard)
    while at < end:
        try:
            for batch in stream.read_arrow(shard, at, end):
                records += batch.num_rows
                at = batch.column("offset")[-1].as_py() + 1
            break
        except UnknownStream:
            raise
        except HeadraceError as why:
            if not _is_trimmed(why):
                findings.append(_row(what, str(why), ok=False))
            at = max(_behind(why, end), at + 1)
    return [*findings, _row(what, f"{records} records are whole", ok=True)]


def _is_trimmed(why: HeadraceError) -> bool:
    """Whether the records were dropped meanwhile: retention does not wait for a reader."""
    return isinstance(why, OffsetOutOfRange) and why.offset < why.start


def _behind(why: HeadraceError, end: int) -> int:
    """The offset at which to read on."""
    match why:
        case BadBatch():
            return why.end
        case RecordTooLarge():
            return why.offset + 1
        case OffsetOutOfRange() if _is_trimmed(why):
            return why.start
    return end


def _java() -> FindingRow:
    java = find_java()
    ok = java.is_new_enough or None
    return _row("java", str(java), ok=ok, advice="" if ok else f"for Spark: {ADVICE}")


def _row(what: str, found: Any, *, ok: bool | None = None, advice: str = "") -> FindingRow:
    return {"what": what, "found": found, "ok": ok, "advice": advice}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
