"""The hub: an opened handle on streams."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from headrace.codec.registry import find_codec
from headrace.consumers.consumer import Consumer, GrantCallback
from headrace.consumers.settings import made_consumer
from headrace.core.errors import BadSetting, StreamExists
from headrace.core.groups.allocators import Allocator
from headrace.core.model import ROUTINGS, SHARDS_MAX, StreamInfo
from headrace.core.names import checked_name
from headrace.core.nearest import did_you_mean
from headrace.core.ports import Backend, Capabilities, StreamSpec
from headrace.core.quantities import Duration, Size, seconds, size_bytes
from headrace.groups.admin import Groups
from headrace.process.clock import now_ms
from headrace.streams.start import Start
from headrace.streams.stream import Stream

log = logging.getLogger("headrace")

SHARDS_DEFAULT = 4


class Hub:
    """Made by `headrace.open`; close it, or use it in a ``with`` block."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        """What the backend cannot do, with the reasons."""
        return self._backend.capabilities

    @property
    def backend(self) -> Backend:
        """What it stands on."""
        return self._backend

    @property
    def groups(self) -> Groups:
        """What groups there are, how far they have come; and moving their checkpoints."""
        return Groups(self._backend)

    def create_stream(
        self,
        name: str,
        *,
        shards: int = SHARDS_DEFAULT,
        codec: str = "bytes",
        routing: str = "md5-range",
        retention: Duration | None = None,
        retention_bytes: Size | None = None,
        exist_ok: bool = False,
    ) -> Stream:
        """A new stream; with ``exist_ok`` the one that is there, with the shards it has.

        ``retention`` and ``retention_bytes`` (per shard) say how long records are kept: for ever by
        default."""
        found = find_codec(codec)
        if routing not in ROUTINGS:
            raise BadSetting(
                f"bad routing {routing!r}: one of {', '.join(ROUTINGS)}"
                f"{did_you_mean(routing, ROUTINGS)}"
            )
        if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= SHARDS_MAX:
            raise BadSetting(f"bad number of shards {shards!r}: 1 to {SHARDS_MAX}")
        spec = StreamSpec(
            name=checked_name(name),
            shards=shards,
            codec=codec,
            routing=routing,
            retention_s=_positive(retention),
            retention_bytes=_positive_bytes(retention_bytes),
            created_ms=now_ms(),
        )
        try:
            info = self._backend.create_stream(spec)
        except StreamExists:
            if not exist_ok:
                raise
            info = self._backend.stream(name)
            _check_same(info, spec)
        return Stream(self._backend, info, found)

    def stream(self, name: str) -> Stream:
        """The stream of that name, or `UnknownStream`."""
        info = self._backend.stream(checked_name(name))
        return Stream(self._backend, info, find_codec(info.codec))

    def streams(self) -> list[StreamInfo]:
        """What streams there are, sorted by name."""
        return self._backend.streams()

    def delete_stream(self, name: str) -> None:
        """Delete a stream with all its records, for good."""
        self._backend.delete_stream(checked_name(name))

    def consumer(
        self,
        streams: str | Sequence[str],
        *,
        group: str | None = None,
        name: str | None = None,
        start: Start = "earliest",
        shards: Sequence[int] | None = None,
        allocator: str | Allocator = "balanced",
        decode: Callable[[bytes], Any] | None = None,
        prefetch: int = 1024,
        max_records: int | None = None,
        max_bytes: Size = "16MiB",
        min_bytes: Size = 1,
        max_wait: Duration = "500ms",
        max_wait_handler: Duration = "5s",
        commit_every: Duration = "1s",
        auto_mark: bool = True,
        session: Duration = "10s",
        heartbeat: Duration = "3s",
        on_grant: GrantCallback | None = None,
        on_revoke: GrantCallback | None = None,
        capacity: float = 1.0,
        order: bool = False,
        create: bool = True,
    ) -> Consumer:
        """A member of a group that reads these streams: it joins at once, and takes its fair share.

        ``streams`` are names, or patterns like ``shop/*``. ``start`` says where a shard begins that
        the group has no checkpoint of. With ``shards`` instead of a group it reads just those of
        one stream, and remembers nothing. docs/consumers.md tells what each setting does.

        >>> import headrace
        >>> hub = headrace.open("memory:")
        >>> orders = hub.create_stream("shop/orders", shards=1, codec="json")
        >>> with hub.consumer("shop/orders", group="billing") as consumer:
        ...     consumer.granted
        [ShardId(stream='shop/orders', index=0)]
        """
        consumer = made_consumer(
            self._backend,
            streams,
            group=group,
            name=name,
            start=start,
            shards=shards,
            allocator=allocator,
            decode=decode,
            prefetch=prefetch,
            max_records=max_records,
            max_bytes=max_bytes,
            min_bytes=min_bytes,
            max_wait=max_wait,
            max_wait_handler=max_wait_handler,
            commit_every=commit_every,
            auto_mark=auto_mark,
            session=session,
            heartbeat=heartbeat,
            on_grant=on_grant,
            on_revoke=on_revoke,
            capacity=capacity,
            order=order,
            create=create,
        )
        self._consumers.add(consumer)
        return consumer

    def describe(self) -> dict[str, Any]:
        """Facts for people and for `headrace doctor`."""
        return self._backend.describe()

    def close(self) -> None:
        """Let go of everything; once is enough, twice does no harm."""
        if not self._closed:
            self._closed = True
            for consumer in list(self._consumers):
                consumer.close()
            self._backend.close()

    def __enter__(self) -> Hub:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Hub {self._backend.capabilities.backend}>"


def _positive(retention: Duration | None) -> float | None:
    if retention is None:
        return None
    kept_s = seconds(retention, what="retention")
    if kept_s == 0:
        raise BadSetting("retention 0: leave it out to keep records for ever")
    return kept_s


def _positive_bytes(retention_bytes: Size | None) -> int | None:
    if retention_bytes is None:
        return None
    kept = size_bytes(retention_bytes, what="retention_bytes")
    if kept == 0:
        raise BadSetting("retention_bytes 0: leave it out to keep records for ever")
    return kept


def _check_same(info: StreamInfo, spec: StreamSpec) -> None:
    """The shards of a stream that is there stay; with another codec or routing it could not be
    used."""
    if (info.codec, info.routing) != (spec.codec, spec.routing):
        raise StreamExists(
            f"stream {info.name!r} exists with codec {info.codec!r} and routing {info.routing!r}, "
            f"not {spec.codec!r} and {spec.routing!r}: use another name, or what it has"
        )
    for what, has, wanted in (
        ("shards", len(info.shards), spec.shards),
        ("retention in seconds", info.retention_s, spec.retention_s),
        ("retention in bytes", info.retention_bytes, spec.retention_bytes),
    ):
        if has != wanted:
            log.warning(
                "stream=%s: exists with %s %s and keeps them; %s were asked for",
                info.name,
                has,
                what,
                wanted,
            )
