"""The limits of events and groups, a group's attributes, and its end."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from headrace.core.errors import BadName, BadSetting
from headrace.core.groups import machine as group_module
from headrace.core.groups.allocators import balanced, round_robin
from headrace.core.groups.events import (
    Configure,
    Delete,
    Denied,
    Event,
    ForceCheckpoint,
    Join,
    Leave,
    Release,
    Settled,
    ShardFacts,
    ShardsChanged,
    StreamFacts,
    Swept,
)
from headrace.core.groups.group import Group, Member
from headrace.core.groups.group_bytes import decoded, encoded
from headrace.core.groups.machine import GROUP_SHARDS_MAX, step
from headrace.core.model import OFFSET_MAX
from tests.core.groups.building import (
    NAME,
    NEXT,
    STREAM,
    VERSION,
    answer,
    at,
    beat,
    built,
    facts,
    finished,
    held,
    join,
    member,
    owners,
    rows_of,
    stepped,
)

# Attributes, limits, the end of a group


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), 1.1e9, 10**400])
def test_an_event_with_an_impossible_capacity_or_timeout_is_refused(bad: float) -> None:
    with pytest.raises(
        BadSetting, match=re.escape(f"bad capacity {bad} of A: above 0, up to 1e+09")
    ):
        Join("A", 1, (), balanced, capacity=bad)
    for event in (partial(Join, "A", 1, (), balanced), partial(Configure, 0)):
        with pytest.raises(
            BadSetting, match=re.escape(f"bad timeout {bad}: seconds above 0, up to 1e+09")
        ):
            event(timeout_s=bad)


def _making(kind: Any, *args: Any, **more: Any) -> Callable[[], Event]:
    """Of whatever types: who is not checked by one may give anything."""
    return partial(kind, *args, **more)


_A = ("A", 1, (), balanced)
_MEMBER_NAME = "1 to 200 printable characters"
_INDEX = "0 to 4294967295"
_OFFSET = f"an offset is 0 to {OFFSET_MAX}"
_SECONDS = "seconds above 0, up to 1e+09"
_AMOUNT = "above 0, up to 1e+09"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_making(Join, "", 1, (), balanced), f"bad member name '': {_MEMBER_NAME}"),
        (
            _making(Join, "m" * 201, 1, (), balanced),
            f"bad member name '{'m' * 50}': {_MEMBER_NAME}",
        ),
        (_making(Join, "a\nb", 1, (), balanced), f"bad member name 'a\\nb': {_MEMBER_NAME}"),
        (_making(Join, "\ud800", 1, (), balanced), f"bad member name '\\ud800': {_MEMBER_NAME}"),
        (_making(Join, 7, 1, (), balanced), f"bad member name '7': {_MEMBER_NAME}"),
        (_making(Join, b"A", 1, (), balanced), f"bad member name \"b'A'\": {_MEMBER_NAME}"),
        (_making(Join, "A", -1, (), balanced), "bad incarnation -1 of A"),
        (_making(Join, "A", 2**63, (), balanced), f"bad incarnation {2**63} of A"),
        (_making(Join, "A", "1", (), balanced), "bad incarnation '1' of A"),
        (_making(Join, "A", None, (), balanced), "bad incarnation None of A"),
        (_making(Join, "A", 1.5, (), balanced), "bad incarnation 1.5 of A"),
        (_making(Configure, 0, order="no"), "bad order 'no': True or False"),
        (
            _making(StreamFacts, STREAM, 1, (ShardFacts(0, (-1,)),)),
            f"bad shard or id -1: {_INDEX}",
        ),
        (
            _making(StreamFacts, STREAM, 1, (ShardFacts(0, (1, 2**32)),)),
            f"bad shard or id {2**32}: {_INDEX}",
        ),
        (
            _making(ForceCheckpoint, at(0), 0, 0, False, (2**32,)),
            f"bad shard or id {2**32}: {_INDEX}",
        ),
        (_making(Join, *_A, capacity="2"), f"bad capacity '2' of A: {_AMOUNT}"),
        (_making(Join, *_A, capacity=None), f"bad capacity None of A: {_AMOUNT}"),
        (_making(Join, *_A, timeout_s="2"), f"bad timeout '2': {_SECONDS}"),
        (_making(Join, *_A, timeout_s=None), f"bad timeout None: {_SECONDS}"),
        (_making(Configure, 0, timeout_s="2"), f"bad timeout '2': {_SECONDS}"),
        (_making(StreamFacts, STREAM, -1, ()), f"bad shard or id -1: {_INDEX}"),
        (_making(StreamFacts, STREAM, 2**32, ()), f"bad shard or id {2**32}: {_INDEX}"),
        (_making(StreamFacts, STREAM, "1", ()), f"bad shard or id '1': {_INDEX}"),
        (_making(StreamFacts, STREAM, 1, (ShardFacts(-1),)), f"bad shard or id -1: {_INDEX}"),
        (
            _making(StreamFacts, STREAM, 1, (ShardFacts(2**32),)),
            f"bad shard or id {2**32}: {_INDEX}",
        ),
        (
            _making(StreamFacts, STREAM, 1, (ShardFacts(0), ShardFacts(1.0))),  # type: ignore[arg-type]
            f"bad shard or id 1.0: {_INDEX}",
        ),
        (_making(ForceCheckpoint, at(-1), 0, 0, False), f"bad shard or id -1: {_INDEX}"),
        (_making(ForceCheckpoint, at(2**32), 0, 0, False), f"bad shard or id {2**32}: {_INDEX}"),
        (_making(ForceCheckpoint, at(0), 0, -1, False), f"a checkpoint at -1: {_OFFSET}"),
        (
            _making(ForceCheckpoint, at(0), 0, OFFSET_MAX + 1, False),
            f"a checkpoint at {OFFSET_MAX + 1}: {_OFFSET}",
        ),
        (_making(ForceCheckpoint, at(0), 0, 1.5, False), f"a checkpoint at 1.5: {_OFFSET}"),
        (_making(ForceCheckpoint, at(0), 0, None, False), f"a checkpoint at None: {_OFFSET}"),
    ],
)
def test_an_event_outside_its_limits_is_refused(make: Callable[[], Event], why: str) -> None:
    with pytest.raises(BadSetting) as caught:
        make()
    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        ("a/b/c", "at most one slash, as in namespace/name"),
        ("no way", "only letters, digits, '.', '_' and '-', and one slash"),
        ("\ud800", "only letters, digits, '.', '_' and '-', and one slash"),
        (7, "a name is text"),
    ],
)
def test_facts_of_a_stream_that_has_no_name_are_refused(name: Any, why: str) -> None:
    with pytest.raises(BadName) as caught:
        StreamFacts(name, 1, ())
    assert str(caught.value) == f"bad name {name!r}: {why}"


def test_events_at_their_limits_are_taken_in_and_stored() -> None:
    last = 2**32 - 1
    name = "\U0001f40c" * 200
    stream = StreamFacts(STREAM, last, (ShardFacts(0), ShardFacts(last)))
    group = stepped(
        Group(NAME),
        Join(name, 2**63 - 1, (stream,), balanced, capacity=5e-324, timeout_s=1e9),
        ForceCheckpoint(at(last), 1, OFFSET_MAX, finished=False),
        Configure(1, timeout_s=1),
    )
    assert owners(group) == {0: name, last: name}
    assert decoded(encoded(group), lambda _name, _version: balanced) == group
    assert Join("A", 0, (), balanced, capacity=2).capacity == 2


def test_the_first_member_that_joins_creates_the_group() -> None:
    made, reply = step(
        Group(NAME), Join("A", 4, (rows_of(1),), round_robin, 2.0, order=True, timeout_s=3.0)
    )
    assert made == Group(
        NAME,
        version=1,
        exists=True,
        born=1,
        order=True,
        timeout_s=3.0,
        allocator=round_robin,
        members={"A": Member(4, frozenset({STREAM}), 2.0, 3.0)},
        streams={STREAM: 1},
        shards={at(0): held("A", 1, 1)},
        entered=1,
        configured=1,
    )
    assert reply == answer(1, {0: 1}, timeout_s=3.0)
    later = Join("B", 1, (rows_of(1),), round_robin, timeout_s=77.0)
    assert (stepped(made, later).order, stepped(made, later).timeout_s) == (True, 3.0)


def test_a_shorter_timeout_holds_for_a_member_when_it_has_seen_it() -> None:
    before = built({0: held("A"), 1: held("B")}, "A", "B")
    group = stepped(before, Configure(0, timeout_s=2.0))
    assert group == replace(before, version=NEXT, timeout_s=2.0, configured=NEXT)
    group, reply = step(group, beat(group, "A", seen=VERSION))
    assert reply == answer(NEXT, {0: 1}, beat=1, timeout_s=2.0)
    assert group.members == {"A": member(), "B": member()}
    group = stepped(group, beat(group, "A", seen=NEXT))
    assert group.members == {"A": member(timeout_s=2.0), "B": member()}
    assert stepped(group, beat(group, "A")) is group


def test_a_longer_timeout_is_a_members_own_when_the_group_knows_that_it_has_seen_it() -> None:
    before = built({0: held("A")}, "A")
    group = stepped(before, Configure(0, timeout_s=20.0))
    after, reply = step(group, beat(group, "A", seen=VERSION))
    assert after is group
    assert reply == answer(NEXT, {0: 1}, beat=1, timeout_s=10.0)
    after, reply = step(group, beat(group, "A", seen=NEXT))
    assert after.members == {"A": member(timeout_s=20.0)}
    assert reply == answer(NEXT + 1, {0: 1}, beat=1, timeout_s=20.0)


def test_a_timeout_that_is_the_same_already_changes_nothing() -> None:
    group = built({0: held("A")}, "A")
    assert stepped(group, Configure(0, order=False, timeout_s=10.0, allocator=balanced)) is group


def test_a_thousand_members_are_all_that_a_group_can_hold() -> None:
    before = built({}, *(f"m{n}" for n in range(1_000)))
    after, reply = step(before, join("A", facts()))
    assert after is before
    assert isinstance(reply, Denied)
    assert (reply, reply.text) == (
        Denied("full", ""),
        "group 'billing' has 1000 members already",
    )
    for event in (join("m7", facts(), 2), Leave("m8", 1)):
        before = stepped(before, event)
    assert len(stepped(before, join("A", facts())).members) == 1_000


@pytest.mark.parametrize("event", [ShardsChanged, lambda rows: join("B", rows)])
def test_a_group_takes_no_more_shards_than_it_can_hold(
    event: Callable[[StreamFacts], Event],
) -> None:
    before = built({0: held("A")}, "A")
    after, reply = step(before, event(rows_of(GROUP_SHARDS_MAX + 1)))
    assert after is before
    assert isinstance(reply, Denied)
    assert (reply, reply.text) == (
        Denied("full", ""),
        "group 'billing' would have 20001 shards, of at most 20000",
    )


def test_a_full_group_takes_in_a_merge_of_two_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "GROUP_SHARDS_MAX", 2)
    group = built({1: held("A", 3), 2: held("A", 3)}, "A")
    after, _ = step(group, ShardsChanged(facts(finished(1, 3), finished(2, 3), 5)))
    assert owners(after) == {5: "A"}


def test_a_checkpoint_forced_in_a_full_group_does_not_lock_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_module, "GROUP_SHARDS_MAX", 2)
    group = built({0: held("A", 3), 1: held("A", 3)}, "A")
    group, _ = step(group, ForceCheckpoint(at(7), 0, 0, finished=False))
    after, _ = step(group, ShardsChanged(facts(finished(0, 3), 1)))
    assert at(0) not in after.shards


def test_a_deleted_group_keeps_its_version_and_its_highest_epoch() -> None:
    before = built({0: held("A", 3), 1: held("A", 8)}, "A", order=True)
    before = replace(before, floor=4, gone={"B": 1}, entered=4, removed=5, born=2, configured=3)
    after, reply = step(before, Delete(2))
    assert after == Group(NAME, version=NEXT, gone={"B": 1, "A": 1}, streams={STREAM: 1}, floor=8)
    assert reply == Settled(NEXT)
    for event in (beat(before, "A"), Release("A", 1, {at(0): 3}), Delete(2)):
        still, refused = step(after, event)
        assert still is after
        assert refused == Denied("no group", "")


def test_a_group_begins_anew_only_when_the_old_one_was_swept() -> None:
    deleted = stepped(built({0: held("A", 3), 1: held("A", 8)}, "A"), Delete(0))
    after, reply = step(deleted, join("A", facts(0), 2))
    assert after is deleted
    assert reply == Denied("no group", "")
    swept, reply = step(deleted, Swept(NEXT))
    assert swept == Group(NAME, version=NEXT + 1, gone={"A": 1}, floor=8)
    assert reply == Settled(NEXT + 1)
    after, reply = step(swept, join("A", facts(0), 1))
    assert after is swept
    assert reply == Denied("fenced", "")
    anew = stepped(swept, join("A", facts(0), 2))
    assert (anew.version, anew.born) == (NEXT + 2, NEXT + 2)
    assert anew.shards == {at(0): held("A", 9, NEXT + 2)}


def test_a_group_that_was_made_anew_is_not_swept_by_the_sweep_of_the_old_one() -> None:
    deleted = stepped(built({0: held("A", 3)}, "A"), Delete(0))
    swept = stepped(deleted, Swept(NEXT))
    assert stepped(swept, Swept(NEXT)) is swept
    anew = stepped(swept, join("A", facts(0), 2))
    assert stepped(anew, Swept(anew.version)) is anew


@pytest.mark.parametrize(
    "streams", [(facts(0), facts(1)), tuple(StreamFacts(f"s{n}", n, ()) for n in range(1_001))]
)
def test_a_join_names_each_stream_once_and_not_too_many(streams: tuple[StreamFacts, ...]) -> None:
    with pytest.raises(BadSetting, match=f"A: {len(streams)} streams: each once, at most 1000"):
        Join("A", 1, streams, balanced)


def test_order_is_on_or_off() -> None:
    order: Any = 5
    for make in (
        lambda: Join("A", 1, (), balanced, order=order),
        lambda: Configure(0, order=order),
    ):
        with pytest.raises(BadSetting, match="bad order 5: True or False"):
            make()
