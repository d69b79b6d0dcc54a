"""Open a backend by its address: the one place that picks a backend."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from headrace.core.errors import BadHub, BadSetting
from headrace.core.nearest import did_you_mean
from headrace.core.ports import Backend, GroupStore, Log
from headrace.core.quantities import Duration, Size, seconds, size_bytes
from headrace.core.redaction import shown_place

MAP_BYTES_MIN = 2**20
_SCHEMES = ("kafka", "memory")


def open_backend(
    where: str | os.PathLike[str],
    *,
    create: bool = True,
    map_size: Size = "64GiB",
    write_timeout: Duration = "30s",
    any_filesystem: bool = False,
    settings: Mapping[str, object] | None = None,
) -> Backend:
    """The backend at an address, as `headrace.open` takes it; or `BadHub`, `BadSetting`."""
    place = os.fspath(where) if isinstance(where, str | os.PathLike) else None
    if not isinstance(place, str) or not place:
        raise BadHub(f"bad hub {where!r}: name a directory, kafka://host:9092, or memory:")
    scheme, colon, rest = place.partition(":") if isinstance(where, str) else ("", "", "")
    timeout_s = seconds(write_timeout, what="write_timeout")
    if timeout_s == 0:
        raise BadSetting("write_timeout 0: a write takes some time, as in '30s'")
    if colon and scheme.lower() == "kafka":
        return _kafka(place, settings, timeout_s)
    if settings is not None:
        raise BadSetting("settings are those of a Kafka client: this hub has none")
    if colon and scheme == "memory":
        # Not at the top, as the others below: a hub needs no backend but its own.
        from headrace.backends.memory import open_memory

        return in_one_place(open_memory(rest))
    if colon and "/" not in scheme:
        shown = shown_place(place)
        raise BadHub(
            f"bad hub {shown!r}: no hubs of kind {scheme!r}; name a directory, kafka://host:9092, "
            f"or memory: (./{shown} if this is one){did_you_mean(scheme, _SCHEMES)}"
        )
    if shown_place(place) != place:
        raise BadHub(
            f"bad hub {shown_place(place)!r}: no directory is called like that; "
            "write kafka://host:9092 with two slashes"
        )
    map_bytes = size_bytes(map_size, what="map_size")
    if map_bytes < MAP_BYTES_MIN:
        raise BadSetting(f"map_size {map_size}: at least {MAP_BYTES_MIN} bytes")

    from headrace.backends.lmdb.backend import LmdbBackend

    return in_one_place(
        LmdbBackend(
            Path(place),
            create=create,
            map_bytes=map_bytes,
            write_timeout_s=timeout_s,
            any_filesystem=any_filesystem,
        )
    )


class LogAndStore(Log, GroupStore, Protocol):
    """One place for records and groups."""


def in_one_place(both: LogAndStore) -> Backend:
    """The backend of an object that is both: one commit holds records and checkpoints."""
    return Backend(both, both)


def _kafka(url: str, settings: Mapping[str, object] | None, timeout_s: float) -> Backend:
    if not url.lower().startswith("kafka://"):
        raise BadHub("bad hub: write kafka://host:9092, with two slashes")
    try:
        from headrace.backends.kafka.backend import KafkaBackend
        from headrace.backends.kafka.client.settings import KafkaSettings
    except ModuleNotFoundError as missing:
        if missing.name != "confluent_kafka":
            raise
        raise BadHub("Kafka needs its client: pip install 'headrace[kafka]'") from None

    kafka = KafkaBackend(KafkaSettings.of(url, settings), patience_s=timeout_s)
    return Backend(kafka, kept_groups=kafka.kept_groups)
