"""A hub whose groups live in another place than its records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import headrace
from headrace.backends.lmdb.backend import LmdbBackend
from headrace.backends.opening import in_one_place
from headrace.core.capabilities import Capabilities
from headrace.core.errors import Fenced, Unsupported
from headrace.core.groups.allocators import balanced
from headrace.core.groups.events import Fence, Join, ShardFacts, StreamFacts
from headrace.core.model import ShardId, Slice, StreamInfo
from headrace.core.ports import Append, Backend, Commit, Grant, GroupStore
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.groups.coordinator import Coordinator
from headrace.groups.elsewhere import with_groups_in
from headrace.groups.stored import checkpoint_of, granted

GROUP = "billing"
ORDERS = StreamInfo(
    name="orders",
    id=1,
    codec="bytes",
    routing="md5-range",
    retention_s=None,
    retention_bytes=None,
    created_ms=0,
    shards=headrace.open("memory:").create_stream("orders", shards=2).info.shards,
)


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    backend = with_groups_in(
        in_one_place(LmdbBackend(tmp_path / "records")),
        in_one_place(LmdbBackend(tmp_path / "groups")),
    )
    yield backend
    backend.close()


@pytest.fixture
def store(backend: Backend) -> GroupStore:
    assert backend.store is not None
    facts = StreamFacts(ORDERS.name, ORDERS.id, (ShardFacts(0), ShardFacts(1)))
    Coordinator(backend.store).apply(GROUP, Join("A", 1, (facts,), balanced))
    return backend.store


def _grant(store: GroupStore, shard: int) -> Grant:
    standing = Coordinator(store).load(GROUP).shards[ShardId(ORDERS.name, shard)]
    return granted(GROUP, ORDERS, shard, standing.epoch)


def _next(store: GroupStore, shard: int) -> int | None:
    found = checkpoint_of(store, GROUP, ORDERS.id, shard)
    return None if found is None else found.next


def _commit(grant: Grant, start: int, end: int) -> Commit:
    return Commit(grant=grant, done=Slice(ORDERS.name, grant.shard, start, end))


def test_a_grant_that_was_taken_back_commits_nothing(store: GroupStore) -> None:
    old = _grant(store, 0)
    store.commit(_commit(old, 0, 5))
    assert old.epoch_shown is not None
    Coordinator(store).apply(GROUP, Fence(ShardId(ORDERS.name, 0), old.epoch_shown))
    with pytest.raises(Fenced):
        store.commit(_commit(old, 5, 9))
    assert _next(store, 0) == 5
    store.commit(_commit(_grant(store, 0), 5, 9))
    assert _next(store, 0) == 9


def test_among_several_commits_only_the_fenced_are_refused(store: GroupStore) -> None:
    good, zombie = _grant(store, 0), replace(_grant(store, 1), token=b"old")
    errors = store.commit_each([_commit(good, 0, 3), _commit(zombie, 0, 3)])
    assert errors[0] is None
    assert isinstance(errors[1], Fenced)
    assert (_next(store, 0), _next(store, 1)) == (3, None)


def test_two_commits_of_one_shard_in_one_call_are_both_stored(store: GroupStore) -> None:
    grant = _grant(store, 0)
    assert store.commit_each([_commit(grant, 0, 3), _commit(grant, 3, 7)]) == [None, None]
    assert checkpoint_of(store, GROUP, ORDERS.id, 0) == (7, 2)


def test_outputs_are_refused_with_the_reason(backend: Backend, store: GroupStore) -> None:
    batch = Batch.of_rows([Row(None, b"x", 1)])
    commit = replace(_commit(_grant(store, 0), 0, 1), outputs=[Append(ORDERS, 0, batch)])
    with pytest.raises(Unsupported, match="records and groups live in two places"):
        store.commit(commit)
    assert _next(store, 0) is None


def test_groups_of_two_logs_share_a_store_and_not_their_names(tmp_path: Path) -> None:
    places = tmp_path / "a", tmp_path / "b"
    for place in places:
        with headrace.open(place, groups=tmp_path / "groups") as hub:
            orders = hub.create_stream("orders", shards=1)
            orders.append(str(place).encode())
    for place in places:
        with (
            headrace.open(place, groups=tmp_path / "groups") as hub,
            hub.consumer("orders", group=GROUP) as consumer,
        ):
            record = consumer.read(timeout="10s")
            assert record is not None
            assert record.value == str(place).encode()
            consumer.commit()
            assert hub.groups.names() == [GROUP]
    with headrace.open(tmp_path / "groups") as hub:
        assert hub.groups.names() == []


def test_a_topology_is_refused_with_the_reason(tmp_path: Path) -> None:
    @headrace.computation(inputs="orders", outputs="invoices")
    def bill(record: headrace.Record, out: headrace.Outputs) -> None:
        out.append("invoices", record.value)

    with headrace.open(tmp_path / "a", groups=tmp_path / "groups") as hub:
        hub.create_stream("orders", shards=1)
        with pytest.raises(Unsupported, match="no commit can hold outputs and checkpoint"):
            headrace.start(headrace.Topology(bill), hub)
        assert [info.name for info in hub.streams()] == ["orders"]


def test_a_hub_that_keeps_no_groups_is_refused_as_a_home_of_groups(tmp_path: Path) -> None:
    class NoStore(LmdbBackend):
        capabilities = Capabilities("records-only", {"store": "it keeps no small values"})

    records = in_one_place(LmdbBackend(tmp_path / "a"))
    other = Backend(NoStore(tmp_path / "b"))
    with pytest.raises(Unsupported, match="it keeps no small values"):
        with_groups_in(records, other)
    records.close()
    other.close()


@pytest.mark.parametrize("place", ["memory:shared", "directory"])
def test_the_same_address_for_records_and_groups_is_one_place(tmp_path: Path, place: str) -> None:
    where = str(tmp_path / place) if place == "directory" else place
    with headrace.open(where, groups=where) as hub:
        assert "commit" not in hub.capabilities.missing
        one_place: object = hub.log
        assert hub.backend.store is one_place


def test_the_hub_lacks_what_either_place_lacks(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "a", groups="memory:") as hub:
        missing = hub.capabilities.missing
        assert hub.capabilities.backend == "lmdb with groups in memory"
    assert missing["processes"] == (
        "groups live elsewhere: its records live in the memory of one process"
    )
    assert "store" not in missing
