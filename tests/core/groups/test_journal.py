"""What is told of a group: every event as bytes and back, in bounded room, and replayed."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core import store_keys
from headrace.core.errors import BadStored, NewerFormat, UnknownAllocator
from headrace.core.groups import group_bytes, journal
from headrace.core.groups.allocators import Allocator, balanced, capped, named
from headrace.core.groups.events import (
    Configure,
    Delete,
    Event,
    Evict,
    Fence,
    ForceCheckpoint,
    Heartbeat,
    Join,
    Leave,
    Release,
    Resume,
    ShardFacts,
    ShardsChanged,
    Stop,
    StreamFacts,
    Swept,
)
from headrace.core.groups.group import Group
from headrace.core.groups.journal import (
    ENTRIES_KEPT,
    ENTRY_BYTES_MAX,
    EVENT_BYTES_MAX,
    SNAPSHOT_EVERY,
    SNAPSHOTS_KEPT,
    VERSION,
    Entry,
    decoded,
    encoded,
    kept,
    replayed,
    whole,
)
from headrace.core.groups.machine import step
from headrace.core.model import OFFSET_MAX, ShardId
from tests.core.groups.building import NAME, OPS, Op, at, event_of, join, rows_of

U64 = st.integers(0, 2**64 - 1)
U63 = st.integers(0, 2**63 - 1)
S64 = st.integers(-(2**63), 2**63 - 1)
U32 = st.integers(0, 2**32 - 1)
NAMES = st.from_regex(r"[a-z]{1,8}(/[a-z]{1,4})?", fullmatch=True)
MEMBERS = st.text(min_size=1, max_size=9).filter(str.isprintable)
AMOUNTS = st.floats(1e-3, 1e9)
SHARDS = st.builds(ShardId, NAMES, U32)
EPOCHS = st.dictionaries(SHARDS, U64, max_size=5)
PARENTS = st.lists(U32, max_size=3).map(tuple)
FACTS = st.builds(
    StreamFacts,
    NAMES,
    U32,
    st.lists(st.builds(ShardFacts, U32, PARENTS, st.none() | S64), max_size=5).map(tuple),
    S64,
)
ALLOCATORS = st.sampled_from([balanced, capped(3), Allocator("own", "7"), Allocator("ö")])
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        Join,
        MEMBERS,
        U63,
        st.lists(FACTS, max_size=3, unique_by=lambda facts: facts.stream).map(tuple),
        ALLOCATORS,
        AMOUNTS,
        st.booleans(),
        AMOUNTS,
    ),
    st.builds(Heartbeat, MEMBERS, U63, S64, S64, EPOCHS),
    st.builds(Release, MEMBERS, U63, EPOCHS),
    st.builds(Leave, MEMBERS, U63),
    st.builds(Evict, MEMBERS, U63, st.sampled_from(["dead", "silent"]), AMOUNTS),
    st.builds(ShardsChanged, FACTS),
    st.builds(Fence, SHARDS, U64),
    st.builds(Stop, SHARDS, U64),
    st.builds(Resume, SHARDS, U64),
    st.builds(ForceCheckpoint, SHARDS, U64, st.integers(0, OFFSET_MAX), st.booleans(), PARENTS),
    st.builds(
        Configure,
        U64,
        st.none() | st.booleans(),
        st.none() | AMOUNTS,
        st.none() | ALLOCATORS,
    ),
    st.builds(Delete, U64),
    st.builds(Swept, U64),
)

FORCED = ForceCheckpoint(ShardId("a/b", 5), 6, 7, finished=True, parents=(1, 2))


def _as_found(name: str, version: str) -> Allocator:
    """As a coordinator finds them."""
    try:
        shipped = named(name)
    except UnknownAllocator:
        return Allocator(name, version)
    return shipped if shipped.version == version else Allocator(name, version)


def _told(event: Event | None) -> Entry:
    return decoded(encoded(Entry(7, 1_700_000_000_123, event)), _as_found)


# An entry as bytes


@settings(max_examples=300)
@given(EVENTS, U64, st.integers(-(2**62), 2**62), st.booleans())
def test_any_entry_reads_back(event: Event, version: int, at_ms: int, dealt: bool) -> None:
    entry = Entry(version, at_ms, event, dealt)
    assert decoded(encoded(entry), _as_found) == entry


@settings(max_examples=50)
@given(st.lists(OPS, max_size=25))
def test_every_event_reads_back_from_its_bytes(ops: list[Op]) -> None:
    group = Group(NAME)
    for op in ops:
        event = event_of(group, op)
        assert _told(event).event == event
        group, _ = step(group, event)


def test_an_allocator_comes_back_by_its_name_and_version() -> None:
    found = _told(join("A", rows_of(1))).event
    assert isinstance(found, Join)
    assert found.allocator is balanced
    asked = []

    def find(name: str, version: str) -> Allocator:
        asked.append((name, version))
        return Allocator(name, version)

    decoded(encoded(Entry(1, 0, Configure(1, allocator=Allocator("own", "3")))), find)
    assert asked == [("own", "3")]


def test_parents_come_back_in_their_order_also_of_shards_told_twice() -> None:
    rows = (ShardFacts(3, (2, 1)), ShardFacts(3, ()), ShardFacts(3, (9,), 0))
    event = ShardsChanged(StreamFacts("orders", 1, rows))
    assert _told(event).event == event


def test_an_event_too_large_to_tell_leaves_its_version_and_time() -> None:
    dice = random.Random(1)
    noise = {at(index): dice.getrandbits(64) for index in range(40_000)}
    event = Heartbeat("A", 1, 1, 1, noise)
    data = encoded(Entry(7, 5, event, dealt=False))
    assert len(data) < 100
    assert decoded(data, _as_found) == Entry(7, 5, None, dealt=False)
    few = Heartbeat("A", 1, 1, 1, dict(list(noise.items())[:10_000]))
    assert len(encoded(Entry(7, 5, few))) < ENTRY_BYTES_MAX
    assert _told(few).event == few


def test_an_event_that_is_too_large_uncompressed_is_not_kept() -> None:
    same = dict.fromkeys((at(index) for index in range(EVENT_BYTES_MAX // 12)), 1)
    assert _told(Release("A", 1, same)).event is None
    few = dict(list(same.items())[:9_000])
    assert _told(Release("A", 1, few)).event == Release("A", 1, few)


@pytest.mark.parametrize(
    "event",
    [
        Leave("A", -1),
        Heartbeat("A", 1, 1, 2**64, {}),
        Release("A", 1, {ShardId("\ud800", 0): 1}),
        Fence(ShardId("s" * 70_000, 0), 1),
    ],
    ids=["negative", "huge", "no text", "long"],
)
def test_an_event_that_cannot_be_encoded_is_not_kept_and_does_no_harm(event: Event) -> None:
    assert _told(event) == Entry(7, 1_700_000_000_123, None)


# Bytes that are not right


def test_an_entry_of_version_1_is_read_for_ever() -> None:
    body = zlib.decompress(encoded(Entry(0, 0, FORCED))[19:])
    assert body == bytes.fromhex(
        "0003 612f62 00000005 0000000000000006 0000000000000007 01 0002 00000001 00000002"
    )
    head = bytes.fromhex("01 0a 01 0000000000000009 0000019a8c5d2e7f")
    data = head + zlib.compress(body)
    assert decoded(data, _as_found) == Entry(9, 0x19A8C5D2E7F, FORCED)


@pytest.mark.parametrize("version", [VERSION + 1, 255])
def test_a_newer_entry_is_refused(version: int) -> None:
    for rest in (encoded(Entry(1, 1, FORCED))[1:], b""):
        with pytest.raises(NewerFormat, match=rf"\(version {version}, this one reads up to 1\)"):
            decoded(bytes([version]) + rest, _as_found)


def test_an_entry_that_was_cut_short_or_goes_on_is_damaged() -> None:
    data = encoded(Entry(1, 1, FORCED))
    for end in range(len(data)):
        with pytest.raises(BadStored, match="damaged journal entry: "):
            decoded(data[:end], _as_found)
    with pytest.raises(BadStored, match="followed by more"):
        decoded(data + b"\0", _as_found)


@pytest.mark.parametrize(
    ("place", "byte", "why"),
    [(0, 0, "version 0"), (2, 2, "bad flag 2"), (1, 99, "index out of range"), (1, 0, "too many")],
)
def test_a_head_with_impossible_values_is_damage(place: int, byte: int, why: str) -> None:
    data = bytearray(encoded(Entry(1, 1, FORCED)))
    data[place] = byte
    with pytest.raises(BadStored, match=why):
        decoded(bytes(data), _as_found)


def test_an_entry_that_decompresses_to_too_much_is_damage() -> None:
    bomb = encoded(Entry(1, 1, None))[:19] + zlib.compress(b"\0" * (EVENT_BYTES_MAX + 1))
    with pytest.raises(BadStored, match="too large"):
        decoded(bomb, _as_found)


def test_values_no_event_takes_are_damage() -> None:
    body = zlib.decompress(encoded(Entry(1, 1, FORCED))[19:])
    wrong = body.replace(b"\0\0\0\0\0\0\0\7", b"\xff" * 8)
    head = encoded(Entry(1, 1, FORCED))[:19]
    with pytest.raises(BadStored, match="a checkpoint at"):
        decoded(head + zlib.compress(wrong), _as_found)


@settings(max_examples=200)
@given(EVENTS, st.integers(0, 10_000), st.binary(min_size=1, max_size=4))
def test_bytes_written_over_are_damage_or_another_entry(
    event: Event, place: int, new: bytes
) -> None:
    data = encoded(Entry(3, 3, event))
    body = zlib.decompress(data[19:])
    spot = place % (len(body) + 1)
    struck = data[:19] + zlib.compress(body[:spot] + new + body[spot + len(new) :])
    try:
        found = decoded(struck, _as_found)
    except BadStored:
        return
    assert decoded(encoded(found), _as_found) == found or "nan" in repr(found)


# What is kept of it


class Told:
    """A group that changes, and the rows its journal leaves in a store."""

    def __init__(self, begin: Group | None = None) -> None:
        self.group = begin or Group(NAME)
        self.rows: dict[bytes, bytes] = {}
        self.groups = [self.group]

    def change(self, event: Event, at_ms: int = 0) -> None:
        after, _ = step(self.group, event)
        assert after is not self.group, event
        self.group = after
        self.groups.append(after)
        self.rows |= kept(after, event, at_ms, group_bytes.encoded(after))

    def many(self, changes: int) -> None:
        """As many changes as that, none like the one before."""
        for _ in range(changes):
            if self.group.members:
                self.change(Leave("A", self.group.members["A"].incarnation))
            else:
                self.change(join("A", rows_of(3), self.group.version + 1))

    @property
    def entries(self) -> list[Entry]:
        prefix = store_keys.journal_prefix(NAME)
        return [decoded(row, _as_found) for key, row in self.rows.items() if key.startswith(prefix)]

    @property
    def snapshots(self) -> list[Group]:
        prefix = store_keys.snapshot_prefix(NAME)
        rows = [row for key, row in self.rows.items() if key.startswith(prefix)]
        return [group_bytes.decoded(row, _as_found) for row in rows]

    def begin(self) -> Group | None:
        return whole(NAME, self.snapshots, self.entries)

    def replay(self) -> list[Group]:
        begin = self.begin()
        assert begin is not None
        return [after for _, _, after in replayed(begin, self.entries, _as_found)]


def test_every_change_leaves_one_entry_under_its_version() -> None:
    told = Told()
    told.change(join("A", rows_of(2)), 1_000)
    told.change(Leave("A", 1), 2_000)
    assert sorted(told.entries) == [
        Entry(1, 1_000, join("A", rows_of(2))),
        Entry(2, 2_000, Leave("A", 1)),
    ]
    assert told.snapshots == []


def test_the_journal_is_a_ring_and_so_are_its_snapshots() -> None:
    told = Told()
    told.many(6 * SNAPSHOT_EVERY + 5)
    last = told.group.version
    assert sorted(e.version for e in told.entries) == list(range(last - ENTRIES_KEPT + 1, last + 1))
    assert sorted(group.version for group in told.snapshots) == [
        SNAPSHOT_EVERY * turn for turn in (4, 5, 6)
    ]
    assert len(told.snapshots) == SNAPSHOTS_KEPT
    assert len(told.rows) == ENTRIES_KEPT + SNAPSHOTS_KEPT


def test_there_is_always_a_snapshot_with_128_changes_after_it() -> None:
    told = Told()
    edges = {turn * SNAPSHOT_EVERY + by for turn in range(6) for by in (-1, 0, 1, 64)}
    for version in range(1, max(edges) + 1):
        told.many(1)
        if version in edges:
            begin = told.begin()
            assert begin is not None
            assert min(version, SNAPSHOT_EVERY) <= version - begin.version <= ENTRIES_KEPT


def test_a_snapshot_is_the_groups_stored_value() -> None:
    told = Told()
    told.many(SNAPSHOT_EVERY)
    assert told.snapshots == [told.group]


def test_a_process_that_does_not_know_the_allocator_says_so() -> None:
    strange = replace(Group(NAME), allocator=Allocator("own"))
    told = Told(strange)
    own = Allocator("own")
    told.change(join("A", rows_of(2), allocator=own))
    told.change(Configure(1, allocator=balanced))
    assert [entry.dealt for entry in sorted(told.entries)] == [False, True]


# Replayed


@settings(max_examples=50)
@given(st.lists(OPS, max_size=40))
def test_a_replay_leads_through_the_same_groups(ops: list[Op]) -> None:
    told = Told()
    for op in ops:
        event = event_of(told.group, op)
        if step(told.group, event)[0] is not told.group:
            told.change(event)
    assert told.replay() == told.groups[1:]


def test_a_replay_begins_at_a_snapshot_and_ends_at_the_last_group() -> None:
    told = Told()
    told.many(ENTRIES_KEPT + SNAPSHOT_EVERY + 7)
    assert told.replay() == told.groups[2 * SNAPSHOT_EVERY + 1 :]


def test_after_an_event_that_was_not_kept_a_replay_begins_at_the_next_snapshot() -> None:
    told = Told()
    told.many(100)
    key = store_keys.journal_key(NAME, 100)
    told.rows[key] = encoded(decoded(told.rows[key], _as_found)._replace(event=None))
    told.many(20)
    assert told.begin() is None
    told.many(8)
    assert told.begin() == told.groups[SNAPSHOT_EVERY]
    assert told.replay() == []
    told.many(5)
    assert told.replay() == told.groups[SNAPSHOT_EVERY + 1 :]


def test_a_replay_ends_where_an_entry_is_missing_or_its_event_was_not_kept() -> None:
    told = Told()
    told.many(10)
    entries = told.entries
    for broken in (entries[:4] + entries[5:], [*entries[:4], entries[4]._replace(event=None)]):
        steps = list(replayed(Group(NAME), broken, _as_found))
        assert [after for _, _, after in steps] == told.groups[1:5]


def test_without_entries_a_replay_begins_at_the_last_snapshot() -> None:
    assert whole(NAME, [], []) == Group(NAME)
    assert whole(NAME, [], [Entry(9, 0, Delete(1))]) is None
    later = Group(NAME, version=9)
    assert whole(NAME, [later], [Entry(9, 0, None)]) == later


def test_a_replay_deals_only_where_it_was_dealt() -> None:
    """A tool that does not know the allocator leaves the dealing to the next heartbeat."""
    own = Allocator("own", "1", balanced.deal)
    begin = Group(NAME)
    first, _ = step(begin, join("A", rows_of(2), allocator=own))
    second, _ = step(first, join("B", rows_of(2), allocator=own))
    unknowing = replace(second, allocator=Allocator("own", "1"))
    event = Evict("A", 1, "dead")
    third, _ = step(unknowing, event)
    assert third.pending
    beat = Heartbeat("B", 1, 1, 3, {at(1): 2})
    fourth, _ = step(replace(third, allocator=own), beat)
    assert not fourth.pending
    entries = [
        Entry(1, 0, join("A", rows_of(2), allocator=own)),
        Entry(2, 0, join("B", rows_of(2), allocator=own)),
        Entry(3, 0, event, dealt=False),
        Entry(4, 0, beat),
    ]

    def known(name: str, version: str) -> Allocator:
        return own if name == "own" else _as_found(name, version)

    steps = list(replayed(begin, entries, known))
    assert [after for _, _, after in steps] == [first, second, third, fourth]
    assert list(replayed(begin, entries, _as_found)) == []


def test_a_replay_that_leads_elsewhere_ends() -> None:
    entries = [Entry(1, 0, join("A", rows_of(2))), Entry(2, 0, Leave("X", 1))]
    assert len(list(replayed(Group(NAME), entries, _as_found))) == 1


def test_the_journal_module_tells_all_kinds_of_events() -> None:
    kinds = {Join, Heartbeat, Release, Leave, Evict, ShardsChanged, Fence, Stop, Resume}
    assert set(journal._KINDS) == kinds | {ForceCheckpoint, Configure, Delete, Swept}
    assert journal._KINDS.index(Swept) == 12
