from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import BadStored, NewerFormat, UnknownAllocator
from headrace.core.groups.allocators import Allocator, balanced, named
from headrace.core.groups.group import Group, Member, ShardStanding, State
from headrace.core.groups.group_bytes import VERSION, decoded, encoded, title
from headrace.core.groups.machine import GROUP_SHARDS_MAX
from headrace.core.model import ShardId
from tests.core.groups.building import OPS, Op, reached

SIZE_MAX = 512 * 1024
U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
TEXT = st.text(max_size=12)
SECONDS = st.floats(allow_nan=False)
STATES: list[State] = ["waiting", "free", "held", "moving", "done"]

SMALL = Group(
    "billing",
    version=7,
    exists=True,
    born=2,
    order=True,
    timeout_s=2.5,
    configured=5,
    allocator=Allocator("mine", "2"),
    members={
        "A": Member(3, frozenset({"orders", "bills"}), 2.0, 10.0),
        "é": Member(4, frozenset({"later"}), 1.0, 2.5),
    },
    gone={"C": 6, "B": 7},
    streams={"bills": 9, "orders": 1},
    shards={
        ShardId("orders", 0): ShardStanding("held", 5, "A", None, 6),
        ShardId("orders", 1): ShardStanding("moving", 2, "A", "é", 3, (0,)),
        ShardId("orders", 5): ShardStanding("waiting", 1, parents=(0, 1)),
        ShardId("bills", 0): ShardStanding("free", 4, stopped=True),
    },
    floor=3,
    entered=4,
    removed=6,
    forgotten=8,
    pending=True,
    fault="why",
)

GOLDEN = bytes.fromhex(
    # version byte, flags, version, born, floor, entered, removed, forgotten, timeout,
    # configured
    "01 07 0000000000000007 0000000000000002 0000000000000003 0000000000000004 0000000000000006"
    "0000000000000008 4004000000000000 0000000000000005"
    # name, allocator, its version, fault
    "0007 62696c6c696e67  0004 6d696e65  0001 32  0003 776879"
    # streams, those that are only subscribed to too: bills, later, orders
    "0003  0005 62696c6c73  0005 6c61746572  0006 6f7264657273"
    # gone
    "0002  0001 43 0000000000000006  0001 42 0000000000000007"
    # members: incarnation, capacity, timeout, subscriptions
    "0002"
    "0001 41 0000000000000003 4000000000000000 4024000000000000 0002 0000 0002"
    "0002 c3a9 0000000000000004 3ff0000000000000 4004000000000000 0001 0001"
    # streams: id, shards (state, owner, next, epoch, granted), parents
    "0002"
    "0000 00000009 00000001"
    "00000000 81 ffff ffff 0000000000000004 0000000000000000"
    "00000000"
    "0002 00000001 00000003"
    "00000000 02 0000 ffff 0000000000000005 0000000000000006"
    "00000001 03 0000 0001 0000000000000002 0000000000000003"
    "00000005 00 ffff ffff 0000000000000001 0000000000000000"
    "00000003  00000001 00000000  00000005 00000000  00000005 00000001"
)


def _by_name(name: str, version: str) -> Allocator:
    return Allocator(name, version)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    """Any group whose shards speak of its own members and streams."""
    members = draw(
        st.dictionaries(
            TEXT,
            st.builds(Member, U64, st.frozensets(TEXT, max_size=3), SECONDS, SECONDS),
            max_size=4,
        )
    )
    streams = draw(st.dictionaries(TEXT, U32, max_size=3))
    somebody = st.sampled_from([None, *members])
    ids = st.builds(ShardId, st.sampled_from(list(streams)), U32) if streams else st.nothing()
    standings = st.builds(
        ShardStanding,
        st.sampled_from(STATES),
        U64,
        somebody,
        somebody,
        U64,
        st.lists(U32, max_size=3).map(tuple),
        st.booleans(),
    )
    return Group(
        draw(TEXT),
        version=draw(U64),
        exists=draw(st.booleans()),
        born=draw(U64),
        order=draw(st.booleans()),
        timeout_s=draw(SECONDS),
        configured=draw(U64),
        allocator=draw(st.sampled_from([balanced, Allocator("own", "7"), Allocator("ö")])),
        members=members,
        gone=draw(st.dictionaries(TEXT, U64, max_size=3)),
        streams=streams,
        shards=draw(st.dictionaries(ids, standings, max_size=8)) if streams else {},
        floor=draw(U64),
        entered=draw(U64),
        removed=draw(U64),
        forgotten=draw(U64),
        pending=draw(st.booleans()),
        fault=draw(st.text(max_size=300)),
    )


@settings(max_examples=50)
@given(groups())
def test_any_group_reads_back(group: Group) -> None:
    assert decoded(encoded(group), _by_name) == group


@settings(max_examples=60)
@given(st.lists(OPS, max_size=25))
def test_any_group_that_steps_reach_reads_back(ops: list[Op]) -> None:
    group = reached(ops)
    again = decoded(encoded(group), _by_name)
    assert again == group
    assert encoded(again) == encoded(group)


def test_the_bytes_are_those_of_version_1() -> None:
    assert encoded(SMALL) == GOLDEN
    assert decoded(GOLDEN, _by_name) == SMALL


def test_the_same_group_has_the_same_bytes_in_whatever_order_it_was_filled() -> None:
    turned = replace(
        SMALL,
        members={name: SMALL.members[name] for name in reversed(list(SMALL.members))},
        streams={name: SMALL.streams[name] for name in reversed(list(SMALL.streams))},
        shards={shard: SMALL.shards[shard] for shard in reversed(list(SMALL.shards))},
    )
    assert encoded(turned) == GOLDEN


def test_members_that_left_read_back_in_order() -> None:
    assert list(decoded(GOLDEN, _by_name).gone) == ["C", "B"]


def test_the_name_of_a_stream_is_stored_once_however_many_subscribe_to_it() -> None:
    members = {f"m{n}": Member(1, frozenset({"shop/orders", "shop/later"})) for n in range(9)}
    shards = {ShardId("shop/orders", n): ShardStanding("free") for n in range(9)}
    group = Group("g", members=members, streams={"shop/orders": 1}, shards=shards)
    data = encoded(group)
    assert (data.count(b"shop/orders"), data.count(b"shop/later")) == (1, 1)
    assert decoded(data, _by_name) == group


def test_the_moves_of_the_last_step_are_not_stored() -> None:
    group = reached([Op(0, 1, 8, 2)])
    assert group.moves
    assert decoded(encoded(group), _by_name).moves == ()


def test_the_allocator_is_found_by_name_and_version() -> None:
    own = Allocator("mine", "2", deal=lambda m, s, c: {})
    asked = []

    def found(name: str, version: str) -> Allocator:
        asked.append((name, version))
        return own

    assert decoded(GOLDEN, found).allocator is own
    assert asked == [("mine", "2")]


def test_ten_thousand_shards_stay_below_512_kb() -> None:
    names = [f"worker-{n:04}.shop.example.com:{40_000 + n}" for n in range(100)]
    shards = {
        ShardId("shop/orders", n): ShardStanding(
            "moving", 2**40, names[n % 100], names[n % 99], 2**40, (n // 2,) if n % 2 else ()
        )
        for n in range(10_000)
    }
    members = {name: Member(2**60, frozenset({"shop/orders"})) for name in names}
    group = Group("g" * 249, 2**40, members=members, streams={"shop/orders": 1}, shards=shards)
    data = encoded(group)
    assert len(data) < SIZE_MAX
    assert decoded(data, _by_name) == group


def test_as_many_shards_as_a_group_can_hold_read_back() -> None:
    shards = {ShardId("s", n): ShardStanding("free") for n in range(GROUP_SHARDS_MAX)}
    group = Group("g", streams={"s": 1}, shards=shards)
    assert decoded(encoded(group), _by_name) == group


@pytest.mark.parametrize("version", [VERSION + 1, 255])
def test_a_newer_version_is_refused(version: int) -> None:
    for rest in (GOLDEN[1:], b"", b"unheard of"):
        with pytest.raises(NewerFormat, match=rf"\(version {version}, this one reads up to 1\)"):
            decoded(bytes([version]) + rest, _by_name)


def test_a_version_before_the_first_is_damage() -> None:
    with pytest.raises(BadStored, match="damaged group: version 0"):
        decoded(b"\0" + GOLDEN[1:], _by_name)


def test_the_title_of_a_group_is_read_without_the_rest() -> None:
    assert title(GOLDEN) == ("billing", True)
    assert title(encoded(replace(SMALL, exists=False))) == ("billing", False)
    for end in range(75):
        with pytest.raises(BadStored, match="damaged group: "):
            title(GOLDEN[:end])
    with pytest.raises(NewerFormat):
        title(bytes([VERSION + 1]) + GOLDEN[1:])


def test_a_group_that_was_cut_short_is_damaged() -> None:
    for end in range(len(GOLDEN)):
        with pytest.raises(BadStored, match="damaged group: "):
            decoded(GOLDEN[:end], _by_name)


def test_bytes_too_many_are_damage() -> None:
    with pytest.raises(BadStored, match="damaged group: 1 bytes too many"):
        decoded(GOLDEN + b"\0", _by_name)


def test_parents_of_unknown_shards_are_damage() -> None:
    at = GOLDEN.rindex(b"\0\0\0\1\0\0\0\0")
    turned = GOLDEN[:at] + b"\0\0\0\7" + GOLDEN[at + 4 :]
    with pytest.raises(BadStored, match=r"parents of unknown shards: \[7\]"):
        decoded(turned, _by_name)


def _reads_or_is_damaged(data: bytes) -> None:
    try:
        group = decoded(data, _as_found)
    except (BadStored, NewerFormat):
        return
    assert decoded(encoded(group), _as_found) == group or "nan" in repr(group)


def _as_found(name: str, version: str) -> Allocator:
    """As a coordinator finds them."""
    try:
        shipped = named(name)
    except UnknownAllocator:
        return Allocator(name, version)
    return shipped if shipped.version == version else Allocator(name, version)


def test_any_flipped_bit_is_damage_or_another_group() -> None:
    for bit in range(len(GOLDEN) * 8):
        turned = bytearray(GOLDEN)
        turned[bit // 8] ^= 1 << bit % 8
        _reads_or_is_damaged(bytes(turned))


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=4)), max_size=4))
def test_bytes_written_over_are_damage_or_another_group(strikes: list[tuple[int, bytes]]) -> None:
    data = GOLDEN
    for place, new in strikes:
        at = place % len(data)
        data = data[:at] + new + data[at + len(new) :]
    _reads_or_is_damaged(data)


@settings(max_examples=100)
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(b"\1".__add__)))
def test_garbage_is_damage(data: bytes) -> None:
    _reads_or_is_damaged(data)
