"""What `penstock doctor` finds: versions, the hub's files, and what is missing for which part."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from penstock.core.errors import PenstockError
from penstock.core.quantities import shown_size
from penstock.runtime.hub import Hub
from penstock.runtime.stream import Stream
from penstock.spark.java import ADVICE, find_java

DISK_FREE_MIN = 1 << 30

_PARTS = {
    "pyarrow": "needed",
    "lmdb": "needed",
    "msgspec": "needed",
    "pyspark": "for topologies on Spark: pip install 'penstock[spark]'",
    "confluent-kafka": "for Kafka: pip install 'penstock[kafka]'",
    "kazoo": "for ZooKeeper: pip install 'penstock[zookeeper]'",
    "starlette": "for penstock serve: pip install 'penstock[server]'",
}

Finding = dict[str, Any]
"""``what``, ``found``, ``ok`` (None: neither good nor bad) and ``advice``."""


def machine_findings() -> list[Finding]:
    """About this machine, whatever the hub."""
    findings = [
        _finding("python", platform.python_version()),
        _finding("penstock", _version("penstock")),
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
    facts = hub.describe()
    findings = []
    for what, found in facts.items():
        ok, advice = None, ""
        shown: Any = found
        if what.startswith("bytes"):
            shown = shown_size(found)
        if what == "bytes_free_disk":
            ok = found >= DISK_FREE_MIN
            advice = "" if ok else "less than 1 GiB is free: make room before the disk is full"
        if what == "write_lock":
            shown = found or "nobody holds it"
            ok = True if not found else None
            advice = (
                "" if not found else "if this lasts, that process is stopped: kill or continue it"
            )
        if what == "stale_readers_cleared" and found:
            advice = "processes were killed while they read; their slots are free again"
        findings.append(_finding(what, shown, ok=ok, advice=advice))
    return findings


def damage_findings(stream: Stream) -> list[Finding]:
    """Every record of a stream read and checked."""
    findings = []
    for shard in range(stream.shards):
        at, end = stream.bounds(shard)
        records = 0
        while at < end:
            try:
                for batch in stream.read_arrow(shard, at, end):
                    records += batch.num_rows
                    at = batch.column("offset")[-1].as_py() + 1
                break
            except PenstockError as why:
                findings.append(_finding(f"{stream.name}:{shard}", str(why), ok=False))
                at = max(getattr(why, "end", end), at + 1)
        findings.append(_finding(f"{stream.name}:{shard}", f"{records} records are whole", ok=True))
    return findings


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
