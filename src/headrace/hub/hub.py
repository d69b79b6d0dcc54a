"""The hub: an open handle on streams, groups and consumers."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from headrace.codec.registry import find_codec
from headrace.consumers.consumer import Consumer
from headrace.consumers.memberships import membership_of
from headrace.consumers.settings import ConsumerSettings, GrantCallback
from headrace.core.capabilities import Capabilities
from headrace.core.errors import BadSetting, StreamExists
from headrace.core.groups.allocators import Allocator
from headrace.core.model import ROUTINGS, SHARDS_MAX, RecordId, StreamInfo
from headrace.core.names import checked_name
from headrace.core.nearest import did_you_mean
from headrace.core.ports import Backend, GroupHome, Log, StreamSpec
from headrace.core.quantities import Duration, Size, seconds, size_bytes
from headrace.groups.admin import Groups
from headrace.groups.home import home_of
from headrace.hub.story.reader import DEPTH_DEFAULT, story_of
from headrace.hub.story.record_story import RecordStory
from headrace.process.clock import now_ms
from headrace.streams.start import Start
from headrace.streams.stream import Stream

log = logging.getLogger("headrace")

SHARDS_DEFAULT = 4


class Hub:
    """A handle on streams, groups and consumers, made by `headrace.open`. Close it, or use it in a
    ``with`` block."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._records = backend.log
        self._consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the backend: what it lacks, with the reasons."""
        return self._backend.capabilities

    @property
    def backend(self) -> Backend:
        """The backend of the hub: the log of its records, and the home of its groups."""
        return self._backend

    @property
    def log(self) -> Log:
        """The log that holds the records of the hub."""
        return self._records

    @property
    def home(self) -> GroupHome:
        """The home of the groups of the hub; `Unsupported` with the reason if the hub has no
        groups."""
        return home_of(self._backend)

    @property
    def groups(self) -> Groups:
        """The groups of the hub: to list them, to see their positions, to move their
        checkpoints."""
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
        """Create a stream. With ``exist_ok`` return an existing one, with the shards it has.

        ``retention`` and ``retention_bytes`` (per shard) limit how long records are kept. Without
        them records are kept for ever."""
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
            info = self._records.create_stream(spec)
        except StreamExists:
            if not exist_ok:
                raise
            info = self._records.stream(name)
            _check_same(info, spec)
        return Stream(self._records, info, found)

    def stream(self, name: str) -> Stream:
        """The stream of this name; `UnknownStream` if there is none."""
        info = self._records.stream(checked_name(name))
        return Stream(self._records, info, find_codec(info.codec))

    def streams(self) -> list[StreamInfo]:
        """All streams, sorted by name."""
        return self._records.streams()

    def delete_stream(self, name: str) -> None:
        """Delete a stream with all its records, for good."""
        self._records.delete_stream(checked_name(name))

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
        """Open a consumer: a member of a group that joins at once and reads its fair share of
        shards.

        ``streams`` are names, or patterns like ``shop/*``. ``start`` says where the group begins to
        read a shard for which it has no checkpoint. With ``shards`` instead of a group the consumer
        reads these shards of one stream, and stores nothing. docs/consumers.md explains every
        setting.

        >>> import headrace
        >>> hub = headrace.open("memory:")
        >>> orders = hub.create_stream("shop/orders", shards=1, codec="json")
        >>> with hub.consumer("shop/orders", group="billing") as consumer:
        ...     consumer.granted
        [ShardId(stream='shop/orders', index=0)]
        """
        keywords = dict(locals())  # all that was given: the settings know what to do with it
        del keywords["self"]
        settings = ConsumerSettings.parsed(**keywords)
        membership = membership_of(self._backend, settings)
        consumer = Consumer(self._records, membership, settings)
        self._consumers.add(consumer)
        return consumer

    def story(self, record_id: RecordId | str, *, depth: int = DEPTH_DEFAULT) -> RecordStory:
        """Where a record comes from and what became of it, by the stories of commits: which group
        read which slice, in which replica and lane, after how many attempts; and where the outputs
        went. Both ways, at most ``depth`` commits far. docs/story.md tells how exact that is."""
        return story_of(self._backend, record_id, depth)

    def describe(self) -> dict[str, Any]:
        """Facts about the backend, for people and for `headrace doctor`."""
        return self._records.describe()

    def close(self) -> None:
        """Close the consumers and the backend of the hub. A second call does nothing."""
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
        return f"<Hub {self.capabilities.backend}>"


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
    """Refuse an existing stream with another codec or routing, because it could not be used as
    asked. Other shards or another retention are logged, and the stream keeps its own."""
    if (info.codec, info.routing) != (spec.codec, spec.routing):
        raise StreamExists(
            f"stream {info.name!r} exists with codec {info.codec!r} and routing {info.routing!r}, "
            f"not {spec.codec!r} and {spec.routing!r}: use another name, or its codec and routing"
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
