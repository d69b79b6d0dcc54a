"""Promises about streams: created once, found by name, deleted for good."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import pytest

from headrace.core.capabilities import CAPABILITIES
from headrace.core.errors import (
    BadSetting,
    Closed,
    StreamExists,
    UnknownGroup,
    UnknownShard,
    UnknownStream,
    Unsupported,
)
from headrace.core.model import Bounds, StreamInfo, even_shards
from headrace.core.ports import Append, Backend, Log, StreamSpec
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.testing.contracts.backend_under_test import (
    WAIT_S,
    BackendUnderTest,
    Opening,
    appended,
    lacks,
    made,
    read_rows,
    some_rows,
)


class StreamsContract(BackendUnderTest):
    def test_a_missing_capability_is_a_known_one_and_has_a_reason(self, log: Log) -> None:
        missing = log.capabilities.missing
        assert set(missing) <= set(CAPABILITIES)
        assert all(missing.values())
        for capability in CAPABILITIES:
            require = partial(log.capabilities.require, capability)
            if not lacks(log, capability, require):
                require()

    def test_a_created_stream_is_what_was_asked_for(self, log: Log) -> None:
        spec = StreamSpec("shop/orders", 3, "json", "murmur2", 86_400.5, 2**40, 1_490_855_872_363)
        info = log.create_stream(spec)
        assert info == StreamInfo(
            name="shop/orders",
            id=info.id,
            codec="json",
            routing="murmur2",
            retention_s=86_400.5,
            retention_bytes=2**40,
            created_ms=1_490_855_872_363,
            shards=even_shards(3),
        )
        assert log.stream("shop/orders") == info
        assert [log.bounds(info, shard) for shard in range(3)] == [Bounds(0, 0)] * 3

    def test_streams_are_listed_by_name(self, log: Log) -> None:
        assert log.streams() == []
        infos = [made(log, name) for name in ("b", "a/b", "a-b", "a", "B")]
        assert log.streams() == sorted(infos, key=lambda info: info.name)

    def test_a_stream_name_can_be_used_once(self, log: Log) -> None:
        first = made(log, "a")
        with pytest.raises(StreamExists, match="'a'"):
            made(log, "a", shards=2)
        assert log.streams() == [first]

    def test_of_several_callers_exactly_one_creates_a_stream(self, log: Log) -> None:
        start = Barrier(4)

        def create(_: int) -> StreamInfo | None:
            start.wait(WAIT_S)
            try:
                return made(log, "a")
            except StreamExists:
                return None

        with ThreadPoolExecutor(4) as threads:
            created = [info for info in threads.map(create, range(4), timeout=WAIT_S) if info]
        assert created == log.streams()

    def test_the_error_names_an_unknown_stream(self, log: Log) -> None:
        for call in (log.stream, log.delete_stream):
            with pytest.raises(UnknownStream, match="'no/such'") as caught:
                call("no/such")
            assert caught.value.name == "no/such"

    def test_a_stream_created_again_is_another_stream(self, log: Log) -> None:
        before = made(log, "a")
        appended(log, before, Batch.of_rows(some_rows(20)))
        log.delete_stream("a")
        assert log.streams() == []
        after = made(log, "a")
        assert after.id != before.id
        assert read_rows(log, after) == {}
        row = Row(b"k", b"new", 5)
        offsets = appended(log, after, Batch.of_rows([row]))
        assert read_rows(log, after) == {offsets[0]: row}

    def test_a_handle_on_a_deleted_stream_is_refused_everywhere(self, log: Log) -> None:
        gone = made(log, "a")
        other = made(log, "b")
        batch = Batch.of_rows(some_rows(1))
        log.delete_stream("a")
        made(log, "a")
        for call in (
            lambda: log.bounds(gone, 0),
            lambda: log.read(gone, 0, 0, max_records=1, max_bytes=1),
            lambda: log.offset_at(gone, 0, 0),
            lambda: log.append([Append(other, 0, batch), Append(gone, 0, batch)]),
        ):
            with pytest.raises(UnknownStream, match="'a'"):
                call()
        assert read_rows(log, other) == {}

    @pytest.mark.parametrize("shard", [-1, 2, True])
    def test_the_error_names_a_missing_shard(self, log: Log, shard: int) -> None:
        stream = made(log, "a", shards=2)
        batch = Batch.of_rows(some_rows(1))
        for call in (
            lambda: log.bounds(stream, shard),
            lambda: log.read(stream, shard, 0, max_records=1, max_bytes=1),
            lambda: log.offset_at(stream, shard, 0),
            lambda: log.append([Append(stream, 0, batch), Append(stream, shard, batch)]),
        ):
            with pytest.raises(UnknownShard, match="it has 0 to 1") as caught:
                call()
            assert (caught.value.stream, caught.value.shard) == ("a", shard)
        assert read_rows(log, stream, 0) == {}

    @pytest.mark.parametrize("shards", [0, -1, 10_001])
    def test_a_stream_has_at_least_one_shard_and_not_too_many(self, log: Log, shards: int) -> None:
        with pytest.raises(BadSetting, match=f"bad number of shards {shards}: 1 to 10000"):
            made(log, "a", shards=shards)
        assert log.streams() == []

    def test_streams_and_records_survive_a_restart(self, opening: Opening) -> None:
        log = opening().log
        if lacks(log, "durable", lambda: log.capabilities.require("durable")):
            log.close()
            return
        kept, deleted = made(log, "kept", shards=2), made(log, "deleted")
        offsets = appended(log, kept, Batch.of_rows(some_rows(40)))
        appended(log, deleted, Batch.of_rows(some_rows(3)))
        log.delete_stream("deleted")
        log.close()
        again = opening().log
        assert again.streams() == [kept]
        assert read_rows(again, kept) == dict(zip(offsets, some_rows(40), strict=True))
        assert made(again, "deleted").id not in (kept.id, deleted.id)
        again.close()

    def test_a_closed_backend_refuses_everything(self, opening: Opening) -> None:
        backend = opening()
        log, store = backend.log, backend.store
        stream = made(log, "a")
        batch = Batch.of_rows(some_rows(1))
        backend.close()
        backend.close()
        calls: list[Callable[[], object]] = [
            lambda: made(log, "b"),
            lambda: log.stream("a"),
            log.streams,
            lambda: log.delete_stream("a"),
            lambda: log.append([Append(stream, 0, batch)]),
            lambda: log.read(stream, 0, 0, max_records=1, max_bytes=1),
            lambda: log.bounds(stream, 0),
            lambda: log.offset_at(stream, 0, 0),
            log.changes,
            lambda: log.wait(0, 0.0),
            log.describe,
        ]
        if store is not None:
            calls += [
                lambda: store.get(b"k"),
                lambda: list(store.scan(b"k")),
                lambda: store.transact({}, {b"k": b"v"}),
            ]
        for call in calls:
            with pytest.raises((Closed, Unsupported)):
                call()

    def test_a_closed_backend_refuses_while_another_is_open_on_the_same_place(
        self, opening: Opening
    ) -> None:
        closed, other = opening().log, opening().log
        closed.close()
        for call in (closed.streams, closed.changes, closed.describe, lambda: closed.wait(0, 0.0)):
            with pytest.raises(Closed):
                call()
        assert other.streams() == []
        other.close()

    def test_facts_for_people_name_the_backend(self, log: Log) -> None:
        assert log.describe()["backend"] == log.capabilities.backend

    def test_ordinary_streams_have_no_special_facts(self, log: Log) -> None:
        streams = [made(log, "a", shards=2), made(log, "b")]
        assert log.describe_streams(streams) == [{}, {}]
        assert log.describe_streams([]) == []

    def test_groups_live_in_the_store_or_are_kept_by_the_backend(self, backend: Backend) -> None:
        stream = made(backend.log, "a")
        kept = backend.kept_groups
        if "store" not in backend.capabilities.missing:
            assert kept is None
        elif kept is not None:
            mine = {info.name for at in kept.checkpoints().values() for info, _ in at}
            assert stream.name not in mine
            with pytest.raises(UnknownGroup, match="'no-such'"):
                kept.checkpoints("no-such")
