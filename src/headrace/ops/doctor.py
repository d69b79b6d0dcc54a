"""What `headrace doctor` finds: versions, the hub's files, and what is missing for which part."""

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
from headrace.ops.findings import meaning, stream_meaning
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

Finding = dict[str, Any]
"""``what``, ``found``, ``ok`` (None: neither good nor bad) and ``advice``."""


def machine_findings() -> list[Finding]:
    """About this machine, whatever the hub."""
    findings = [
        _finding("python", platform.python_version()),
        _finding("headrace", _version("headrace")),
    ]
    for name, role in _PARTS.items():
        found = _version(name)
        ok = True if found else (False if role == "needed" else None)
        findings.append(
            _finding(name, found or "not installed", ok=ok, advice="" if found else role)
        )
    findings.append(_java())
    return findings


def hub_findings(hub: Hub) -> list[Finding]:
    """About an opened hub."""
    meanings = {what: meaning(what, found) for what, found in hub.describe().items()}
    return [
        _finding(what, told.shown, ok=told.ok, advice=told.advice)
        for what, told in meanings.items()
    ]


def stream_findings(hub: Hub, streams: Sequence[StreamInfo]) -> list[Finding]:
    """How many streams there are, and what is unusual about each."""
    findings = [_finding("streams", len(streams))]
    for info, facts in zip(streams, hub.log.describe_streams(streams), strict=True):
        for what, found in facts.items():
            told = stream_meaning(what, found)
            findings.append(_finding(info.name, told.shown, ok=told.ok, advice=told.advice))
    return findings


def damage_findings(hub: Hub, name: str) -> list[Finding]:
    """Every record of a stream read and checked."""
    try:
        stream = hub.stream(name)
        return [finding for shard in range(stream.shards) for finding in _damage(stream, shard)]
    except UnknownStream:
        return [_finding(name, "deleted meanwhile")]
    except HeadraceError as why:
        return [_finding(name, str(why), ok=False)]


def _damage(stream: Stream, shard: int) -> list[Finding]:
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
                findings.append(_finding(what, str(why), ok=False))
            at = max(_behind(why, end), at + 1)
    return [*findings, _finding(what, f"{records} records are whole", ok=True)]


def _is_trimmed(why: HeadraceError) -> bool:
    """Retention does not wait for who looks."""
    return isinstance(why, OffsetOutOfRange) and why.offset < why.start


def _behind(why: HeadraceError, end: int) -> int:
    """Where to read on."""
    match why:
        case BadBatch():
            return why.end
        case RecordTooLarge():
            return why.offset + 1
        case OffsetOutOfRange() if _is_trimmed(why):
            return why.start
    return end


def _java() -> Finding:
    java = find_java()
    ok = java.is_new_enough or None
    return _finding("java", str(java), ok=ok, advice="" if ok else f"for Spark: {ADVICE}")


def _finding(what: str, found: Any, *, ok: bool | None = None, advice: str = "") -> Finding:
    return {"what": what, "found": found, "ok": ok, "advice": advice}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
