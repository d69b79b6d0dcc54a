"""Promises about streams: made once, found by name, gone for good."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import pytest

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
from headrace.core.ports import CAPABILITIES, Append, Backend, StreamSpec
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.testing.contracts.backend_under_test import (
    WAIT_S,
    Opening,
    Subject,
    appended,
    lacks,
    made,
    read_rows,
    some_rows,
)


class StreamsContract(Subject):
    def test_a_missing_capability_is_a_known_one_and_has_a_reason(self, backend: Backend) -> None:
        missing = backend.capabilities.missing
        assert set(missing) <= set(CAPABILITIES)
        assert all(missing.values())
        for capability in CAPABILITIES:
            require = partial(backend.capabilities.require, capability)
            if not lacks(backend, capability, require):
                require()

    def test_a_created_stream_is_what_was_asked_for(self, backend: Backend) -> None:
        spec = StreamSpec("shop/orders", 3, "json", "murmur2", 86_400.5, 2**40, 1_490_855_872_363)
        info = backend.create_stream(spec)
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
        assert backend.stream("shop/orders") == info
        assert [backend.bounds(info, shard) for shard in range(3)] == [Bounds(0, 0)] * 3

    def test_streams_are_listed_by_name(self, backend: Backend) -> None:
        assert backend.streams() == []
        infos = [made(backend, name) for name in ("b", "a/b", "a-b", "a", "B")]
        assert backend.streams() == sorted(infos, key=lambda info: info.name)

    def test_a_name_is_taken_once(self, backend: Backend) -> None:
        first = made(backend, "a")
        with pytest.raises(StreamExists, match="'a'"):
            made(backend, "a", shards=2)
        assert backend.streams() == [first]

    def test_of_several_callers_exactly_one_creates_a_stream(self, backend: Backend) -> None:
        start = Barrier(4)

        def create(_: int) -> StreamInfo | None:
            start.wait(WAIT_S)
            try:
                return made(backend, "a")
            except StreamExists:
                return None

        with ThreadPoolExecutor(4) as threads:
            created = [info for info in threads.map(create, range(4), timeout=WAIT_S) if info]
        assert created == backend.streams()

    def test_an_unknown_stream_is_named(self, backend: Backend) -> None:
        for call in (backend.stream, backend.delete_stream):
            with pytest.raises(UnknownStream, match="'no/such'") as caught:
                call("no/such")
            assert caught.value.name == "no/such"

    def test_a_stream_created_anew_is_another_stream(self, backend: Backend) -> None:
        before = made(backend, "a")
        appended(backend, before, Batch.of_rows(some_rows(20)))
        backend.delete_stream("a")
        assert backend.streams() == []
        after = made(backend, "a")
        assert after.id != before.id
        assert read_rows(backend, after) == {}
        row = Row(b"k", b"new", 5)
        offsets = appended(backend, after, Batch.of_rows([row]))
        assert read_rows(backend, after) == {offsets[0]: row}

    def test_a_handle_on_a_deleted_stream_is_refused_everywhere(self, backend: Backend) -> None:
        gone = made(backend, "a")
        other = made(backend, "b")
        batch = Batch.of_rows(some_rows(1))
        backend.delete_stream("a")
        made(backend, "a")
        for call in (
            lambda: backend.bounds(gone, 0),
            lambda: backend.read(gone, 0, 0, max_records=1, max_bytes=1),
            lambda: backend.offset_at(gone, 0, 0),
            lambda: backend.append([Append(other, 0, batch), Append(gone, 0, batch)]),
        ):
            with pytest.raises(UnknownStream, match="'a'"):
                call()
        assert read_rows(backend, other) == {}

    @pytest.mark.parametrize("shard", [-1, 2, True])
    def test_a_shard_that_is_not_there_is_named(self, backend: Backend, shard: int) -> None:
        stream = made(backend, "a", shards=2)
        batch = Batch.of_rows(some_rows(1))
        for call in (
            lambda: backend.bounds(stream, shard),
            lambda: backend.read(stream, shard, 0, max_records=1, max_bytes=1),
            lambda: backend.offset_at(stream, shard, 0),
            lambda: backend.append([Append(stream, 0, batch), Append(stream, shard, batch)]),
        ):
            with pytest.raises(UnknownShard, match="it has 0 to 1") as caught:
                call()
            assert (caught.value.stream, caught.value.shard) == ("a", shard)
        assert read_rows(backend, stream, 0) == {}

    @pytest.mark.parametrize("shards", [0, -1, 10_001])
    def test_a_stream_has_at_least_one_shard_and_not_too_many(
        self, backend: Backend, shards: int
    ) -> None:
        with pytest.raises(BadSetting, match=f"bad number of shards {shards}: 1 to 10000"):
            made(backend, "a", shards=shards)
        assert backend.streams() == []

    def test_everything_is_there_after_a_restart(self, opening: Opening) -> None:
        backend = opening()
        if lacks(backend, "durable", lambda: backend.capabilities.require("durable")):
            backend.close()
            return
        kept, deleted = made(backend, "kept", shards=2), made(backend, "deleted")
        offsets = appended(backend, kept, Batch.of_rows(some_rows(40)))
        appended(backend, deleted, Batch.of_rows(some_rows(3)))
        backend.delete_stream("deleted")
        backend.close()
        again = opening()
        assert again.streams() == [kept]
        assert read_rows(again, kept) == dict(zip(offsets, some_rows(40), strict=True))
        assert made(again, "deleted").id not in (kept.id, deleted.id)
        again.close()

    def test_a_closed_backend_refuses_everything(self, opening: Opening) -> None:
        backend = opening()
        stream = made(backend, "a")
        batch = Batch.of_rows(some_rows(1))
        backend.close()
        backend.close()
        for call in (
            lambda: made(backend, "b"),
            lambda: backend.stream("a"),
            backend.streams,
            lambda: backend.delete_stream("a"),
            lambda: backend.append([Append(stream, 0, batch)]),
            lambda: backend.read(stream, 0, 0, max_records=1, max_bytes=1),
            lambda: backend.bounds(stream, 0),
            lambda: backend.offset_at(stream, 0, 0),
            backend.changes,
            lambda: backend.wait(0, 0.0),
            lambda: backend.get(b"k"),
            lambda: list(backend.scan(b"k")),
            lambda: backend.transact({}, {b"k": b"v"}),
            backend.describe,
        ):
            with pytest.raises((Closed, Unsupported)):
                call()

    def test_a_closed_backend_refuses_though_another_is_open_on_the_same(
        self, opening: Opening
    ) -> None:
        closed, other = opening(), opening()
        closed.close()
        for call in (closed.streams, closed.changes, closed.describe, lambda: closed.wait(0, 0.0)):
            with pytest.raises(Closed):
                call()
        assert other.streams() == []
        other.close()

    def test_facts_for_people_name_the_backend(self, backend: Backend) -> None:
        assert backend.describe()["backend"] == backend.capabilities.backend

    def test_of_streams_that_are_as_usual_there_is_nothing_to_tell(self, backend: Backend) -> None:
        streams = [made(backend, "a", shards=2), made(backend, "b")]
        assert backend.describe_streams(streams) == [{}, {}]
        assert backend.describe_streams([]) == []

    def test_groups_live_in_the_store_or_are_kept_by_the_backend(self, backend: Backend) -> None:
        stream = made(backend, "a")
        kept = backend.kept_groups
        if "store" not in backend.capabilities.missing:
            assert kept is None
        elif kept is not None:
            mine = {info.name for at in kept.checkpoints().values() for info, _ in at}
            assert stream.name not in mine
            with pytest.raises(UnknownGroup, match="'no-such'"):
                kept.checkpoints("no-such")
