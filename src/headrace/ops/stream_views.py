"""Views of streams, shards and records: plain dicts for people and programs."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from headrace.core.errors import BadValue
from headrace.core.model import Bounds, Record, StreamInfo
from headrace.core.quantities import shown_duration, shown_size
from headrace.ops.times import utc


def stream_view(info: StreamInfo, bounds: Mapping[int, Bounds]) -> dict[str, Any]:
    """A stream in one line."""
    return {
        "stream": info.name,
        "shards": len(info.shards),
        "records": sum(kept.end - kept.start for kept in bounds.values()),
        "codec": info.codec,
        "routing": info.routing,
        "retention": _retention(info),
        "created": utc(info.created_ms) if info.created_ms else None,
    }


def shard_views(info: StreamInfo, bounds: Mapping[int, Bounds]) -> list[dict[str, Any]]:
    """A stream's shards, one line each."""
    views = []
    for shard in info.shards:
        # Other routings do not use hash ranges.
        begin, end = shard.hash_range if info.routing == "md5-range" else (None, None)
        kept = bounds[shard.index]
        views.append(
            {
                "shard": shard.index,
                "state": "open" if shard.open else "closed",
                "start": kept.start,
                "end": kept.end,
                "hash_begin": begin,
                "hash_end": end,
                "parents": list(shard.parents),
            }
        )
    return views


def record_view(record: Record) -> dict[str, Any]:
    """A record for a JSON line; bytes that are no UTF-8 are given as base64."""
    return {
        "id": str(record.id),
        "stream": record.stream,
        "shard": record.shard,
        "offset": record.offset,
        "timestamp": utc(record.timestamp_ms),
        **_bytes_view("key", record.key_bytes),
        **_value_view(record),
        "headers": [{"name": n, **_bytes_view("value", v)} for n, v in record.headers],
        "sequence": record.sequence,
        "flags": int(record.flags),
        **_bytes_view("trace", record.trace),
    }


def _value_view(record: Record) -> dict[str, Any]:
    try:
        value = record.value
    except BadValue as why:  # a dead letter may be just that
        return {**_bytes_view("data", record.data), "undecodable": str(why)}
    return _bytes_view("value", value) if isinstance(value, bytes) else {"value": value}


def _bytes_view(name: str, data: bytes | None) -> dict[str, Any]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _retention(info: StreamInfo) -> str:
    kept = []
    if info.retention_s is not None:
        kept.append(shown_duration(info.retention_s))
    if info.retention_bytes is not None:
        kept.append(f"{shown_size(info.retention_bytes)} per shard")
    return " or ".join(kept) or "for ever"
