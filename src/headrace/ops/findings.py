"""What facts about a hub and its streams mean for people: by the name of the fact, whatever backend
tells it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.core.quantities import shown_duration, shown_size

DISK_FREE_MIN = 1 << 30


class Meaning(NamedTuple):
    shown: Any
    ok: bool | None = None
    """None: neither good nor bad."""
    advice: str = ""


def meaning(fact: str, found: Any) -> Meaning:
    """Of a fact about a hub; one that is not in the table means itself."""
    told = _OF_HUBS.get(fact)
    if told is not None:
        return told(found)
    return Meaning(shown_size(found)) if fact.startswith("bytes") else Meaning(found)


def stream_meaning(fact: str, found: Any) -> Meaning:
    """Of a fact about a stream."""
    told = _OF_STREAMS.get(fact)
    return Meaning(f"{fact}: {found}") if told is None else told(found)


# A hub in a directory


def _free_disk(found: int) -> Meaning:
    ok = found >= DISK_FREE_MIN
    advice = "" if ok else "less than 1 GiB is free: make room before the disk is full"
    return Meaning(shown_size(found), ok, advice)


def _write_lock(found: str | None) -> Meaning:
    if not found:
        return Meaning("nobody holds it", True)
    return Meaning(found, None, "if this lasts, that process is stopped: kill or continue it")


def _stale_readers(found: int) -> Meaning:
    advice = "processes were killed while they read; their slots are free again" if found else ""
    return Meaning(found, None, advice)


# A hub on brokers


def _time(advice: str) -> Callable[[int], Meaning]:
    """Milliseconds; the advice takes them as a duration."""

    def told(found_ms: int) -> Meaning:
        shown = "for ever" if found_ms < 0 else shown_duration(found_ms / 1000)
        return Meaning(shown, None, advice.format(shown))

    return told


def _groups_forget(found_minutes: int) -> Meaning:
    kept = shown_duration(found_minutes * 60)
    return Meaning(kept, None, f"idle groups forget their checkpoints after {kept}")


def _largest_record(found: int) -> Meaning:
    advice = "streams that others made take no larger record: raise their max.message.bytes"
    return Meaning(shown_size(found), None, advice)


def _at_least_2(advice: str) -> Callable[[int], Meaning]:
    return lambda found: Meaning(found, True) if found >= 2 else Meaning(found, None, advice)


def _unclean(found: bool) -> Meaning:
    advice = "a broker that was behind may lead, and acknowledged records are lost: set it to false"
    return Meaning(found, False, advice) if found else Meaning(found, True)


def _auto_create(found: bool) -> Meaning:
    advice = "a misspelt stream is created by clients of others" if found else ""
    return Meaning(found, None, advice)


def _native(found: bool) -> Meaning:
    if found:
        return Meaning(found, True, "records go as columns, in C")
    slower = "records go one by one: a C compiler when headrace is installed makes that quicker"
    return Meaning(found, None, slower)


def _unread(found: str) -> Meaning:
    advice = "what they mean cannot be told: ask for the right to describe the cluster's settings"
    return Meaning(found, None, advice)


_LOST_DISK = "a lost disk loses acknowledged records"

_OF_HUBS: Mapping[str, Callable[[Any], Meaning]] = {
    "bytes_free_disk": _free_disk,
    "write_lock": _write_lock,
    "stale_readers_cleared": _stale_readers,
    "brokers": _at_least_2("nobody takes over while it is away"),
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
    "log.retention.ms": _time("streams that others made are kept so, unless they say otherwise"),
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


def _leaderless(shards: Sequence[int]) -> Meaning:
    advice = "bring back a broker that holds them: nothing can be appended or read there"
    return Meaning(f"nobody serves {_shards(shards)}", False, advice)


def _under_replicated(shards: Sequence[int]) -> Meaning:
    advice = "a broker is away or behind: bring it back before another one is lost"
    return Meaning(f"copies are missing of {_shards(shards)}", False, advice)


def _held_back(offsets: Mapping[int, int]) -> Meaning:
    count = sum(offsets.values())
    held = "1 offset is" if count == 1 else f"{count} offsets are"
    return Meaning(
        f"{held} held back by an open transaction in {_shards(list(offsets))}",
        None,
        "readers wait for it; if this lasts, look for a writer that hangs",
    )


def _compacted(_: bool) -> Meaning:
    return Meaning("compacted", None, "trim is refused, earlier records of a key disappear")


def _shards(shards: Sequence[int]) -> str:
    return f"{'shard' if len(shards) == 1 else 'shards'} {', '.join(map(str, shards))}"


_OF_STREAMS: Mapping[str, Callable[[Any], Meaning]] = {
    "leaderless": _leaderless,
    "under_replicated": _under_replicated,
    "held_back": _held_back,
    "compacted": _compacted,
}
