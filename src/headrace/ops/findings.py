"""Findings: what facts about a hub and its streams mean for people. They go by the name of a fact,
whichever backend it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.core.quantities import shown_duration, shown_size

DISK_FREE_MIN = 1 << 30


class Finding(NamedTuple):
    """A fact as it is shown, whether it is good, and what to do."""

    shown: Any
    ok: bool | None = None
    """None: neither good nor bad."""
    advice: str = ""


def hub_finding(fact: str, found: Any) -> Finding:
    """The finding for a fact about a hub; a fact that is not in the table is shown as it is."""
    judge = _OF_HUBS.get(fact)
    if judge is not None:
        return judge(found)
    return Finding(shown_size(found)) if fact.startswith("bytes") else Finding(found)


def stream_finding(fact: str, found: Any) -> Finding:
    """The finding for a fact about a stream."""
    judge = _OF_STREAMS.get(fact)
    return Finding(f"{fact}: {found}") if judge is None else judge(found)


# A hub in a directory


def _free_disk(found: int) -> Finding:
    ok = found >= DISK_FREE_MIN
    advice = "" if ok else "less than 1 GiB is free: make room before the disk is full"
    return Finding(shown_size(found), ok, advice)


def _write_lock(found: str | None) -> Finding:
    if not found:
        return Finding("not held", True)
    return Finding(found, None, "if this lasts, that process is stopped: kill or continue it")


def _stale_readers(found: int) -> Finding:
    advice = "processes were killed while they read; their slots are free again" if found else ""
    return Finding(found, None, advice)


# A hub on brokers


def _time(advice: str) -> Callable[[int], Finding]:
    """A fact in milliseconds; they are put into the advice as a duration."""

    def judge(found_ms: int) -> Finding:
        shown = "for ever" if found_ms < 0 else shown_duration(found_ms / 1000)
        return Finding(shown, None, advice.format(shown))

    return judge


def _groups_forget(found_minutes: int) -> Finding:
    kept = shown_duration(found_minutes * 60)
    return Finding(kept, None, f"idle groups forget their checkpoints after {kept}")


def _largest_record(found: int) -> Finding:
    advice = "streams that other programs made take no larger record: raise their max.message.bytes"
    return Finding(shown_size(found), None, advice)


def _at_least_2(advice: str) -> Callable[[int], Finding]:
    return lambda found: Finding(found, True) if found >= 2 else Finding(found, None, advice)


def _unclean(found: bool) -> Finding:
    advice = "a broker that was behind may lead, and acknowledged records are lost: set it to false"
    return Finding(found, False, advice) if found else Finding(found, True)


def _auto_create(found: bool) -> Finding:
    advice = "a misspelt stream is created by other programs" if found else ""
    return Finding(found, None, advice)


def _native(found: bool) -> Finding:
    if found:
        return Finding(found, True, "records go as columns, in C")
    slower = "records go one by one: a C compiler when headrace is installed makes that quicker"
    return Finding(found, None, slower)


def _unread(found: str) -> Finding:
    advice = "what they mean is not known: ask for the right to describe the cluster's settings"
    return Finding(found, None, advice)


_LOST_DISK = "a lost disk loses acknowledged records"

_OF_HUBS: Mapping[str, Callable[[Any], Finding]] = {
    "bytes_free_disk": _free_disk,
    "write_lock": _write_lock,
    "stale_readers_cleared": _stale_readers,
    "brokers": _at_least_2("no broker takes over while it is away"),
    "native": _native,
    "settings_unread": _unread,
    "group.min.session.timeout.ms": _time(
        "a killed consumer of a classic group is missed after {} at the earliest"
    ),
    "group.consumer.session.timeout.ms": _time(
        "a killed consumer's shards are silent for about {}"
    ),
    "group.consumer.min.session.timeout.ms": _time(
        "no group can ask for a shorter silence than {}"
    ),
    "group.consumer.heartbeat.interval.ms": _time("shards change hands within about {}"),
    "log.retention.ms": _time(
        "streams that other programs made are kept so long, unless they say otherwise"
    ),
    "offsets.retention.minutes": _groups_forget,
    "message.max.bytes": _largest_record,
    "default.replication.factor": _at_least_2(f"new streams have one copy: {_LOST_DISK}"),
    "min.insync.replicas": _at_least_2(f"one copy is enough for an append: {_LOST_DISK}"),
    "unclean.leader.election.enable": _unclean,
    "auto.create.topics.enable": _auto_create,
    "transaction.max.timeout.ms": _time(
        "a transaction that is left open holds back readers for up to {}"
    ),
    "transaction.state.log.replication.factor": _at_least_2(
        "transactions stand still while that one broker is away"
    ),
    "transaction.state.log.min.isr": _at_least_2(
        "one copy is enough for a transaction: a lost disk may undo one"
    ),
}


# Streams


def _leaderless(shards: Sequence[int]) -> Finding:
    advice = "bring back a broker that holds them: nothing can be appended or read there"
    return Finding(f"no broker serves {_shards(shards)}", False, advice)


def _under_replicated(shards: Sequence[int]) -> Finding:
    advice = "a broker is away or behind: bring it back before another one is lost"
    return Finding(f"copies are missing of {_shards(shards)}", False, advice)


def _held_back(offsets: Mapping[int, int]) -> Finding:
    count = sum(offsets.values())
    held = "1 offset is" if count == 1 else f"{count} offsets are"
    return Finding(
        f"{held} held back by an open transaction in {_shards(list(offsets))}",
        None,
        "readers wait for it; if this lasts, look for a writer that hangs",
    )


def _compacted(_: bool) -> Finding:
    return Finding("compacted", None, "trim is refused, earlier records of a key disappear")


def _shards(shards: Sequence[int]) -> str:
    return f"{'shard' if len(shards) == 1 else 'shards'} {', '.join(map(str, shards))}"


_OF_STREAMS: Mapping[str, Callable[[Any], Finding]] = {
    "leaderless": _leaderless,
    "under_replicated": _under_replicated,
    "held_back": _held_back,
    "compacted": _compacted,
}
