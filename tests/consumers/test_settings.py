"""What a user may say about a consumer, and what is answered to what cannot be."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

import headrace
from headrace.core.errors import Invalid
from headrace.core.groups.allocators import Allocator
from headrace.core.model import ShardId
from headrace.hub.hub import Hub
from headrace.testing.children import until


@pytest.fixture
def hub() -> Iterator[Hub]:
    with headrace.open("memory:") as hub:
        hub.create_stream("orders", shards=2)
        yield hub


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("name", "", "1 to 200 printable"),
        ("name", "x" * 201, "1 to 200 printable"),
        ("name", "a\nb", "1 to 200 printable"),
        ("start", "first", "'earliest', 'latest', 'error' or a datetime"),
        ("start", None, "'earliest', 'latest', 'error' or a datetime"),
        ("start", 5, "'earliest', 'latest', 'error' or a datetime"),
        ("start", datetime(2026, 1, 1), "start.*time zone"),  # noqa: DTZ001
        ("allocator", "fair", "shipped are balanced"),
        ("allocator", "capped(0)", "capped"),
        ("allocator", len, "'balanced', or an Allocator"),
        ("decode", "json", "decode 'json': a function"),
        ("on_grant", 1, "on_grant 1: a function"),
        ("on_revoke", [], "on_revoke .*: a function"),
        ("prefetch", 0, "prefetch 0: a whole number, 1 to 1000000000"),
        ("prefetch", True, "prefetch True: a whole number"),
        ("prefetch", 1.5, "prefetch 1.5: a whole number"),
        ("prefetch", "16", "prefetch '16': a whole number"),
        ("max_records", 0, "max_records 0: a whole number, 1 to 1000000000"),
        ("max_records", -1, "max_records -1: a whole number, 1 to 1000000000"),
        ("max_bytes", 0, "max_bytes 0: at least 1"),
        ("max_bytes", "much", "max_bytes"),
        ("min_bytes", 0, "min_bytes 0: at least 1"),
        ("min_bytes", "1GiB", "min_bytes 1GiB is more than max_bytes 16MiB"),
        ("max_wait", "soon", "max_wait.*write '200ms', '5s'"),
        ("max_wait", -1, "max_wait -1"),
        ("max_wait_handler", None, "max_wait_handler None: write '5s'"),
        ("commit_every", "1 second", "commit_every.*write '200ms', '5s'"),
        ("commit_every", True, "commit_every True: write '5s'"),
        ("session", "499ms", "session 499ms: at least 0.5 s"),
        ("session", "ten", "session.*write '200ms', '5s'"),
        ("heartbeat", "1ms", "heartbeat 1ms: at least 0.05 s"),
        ("heartbeat", "6s", "heartbeat 6 s is more than half of the session 10 s.*use a third"),
        ("capacity", 0, "capacity 0.*above 0"),
        ("capacity", "much", "capacity 'much'.*above 0"),
        ("order", "yes", "order 'yes': True or False"),
        ("create", "no", "create 'no': True or False"),
        ("auto_mark", "no", "auto_mark 'no': True or False"),
    ],
    ids=str,
)
def test_a_setting_that_cannot_be_says_what_to_write(
    hub: Hub, setting: str, value: Any, says: str
) -> None:
    with pytest.raises(Invalid, match=says):
        hub.consumer("orders", **{"group": "billing", setting: value})
    assert hub.groups.names() == [], "nothing was joined"


@pytest.mark.parametrize(
    ("streams", "says"),
    [
        ("", "bad name ''"),
        ("a b", "bad name 'a b'"),
        ([], "a name, a pattern like shop/"),
        ([1], "a name, a pattern like shop/"),
        (None, "a name, a pattern like shop/"),
        (7, "a name, a pattern like shop/"),
    ],
    ids=str,
)
def test_streams_that_cannot_be_named_are_refused(hub: Hub, streams: Any, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        hub.consumer(streams, group="billing")


@pytest.mark.parametrize("group", ["", "a b", 7], ids=str)
def test_a_group_needs_a_name(hub: Hub, group: Any) -> None:
    with pytest.raises(headrace.BadName):
        hub.consumer("orders", group=group)


def test_a_consumer_has_either_a_group_or_its_own_shards(hub: Hub) -> None:
    for settings in ({}, {"group": "billing", "shards": [0]}):
        with pytest.raises(headrace.BadSetting, match=r"group='billing'.*shards=\[0, 2\]"):
            hub.consumer("orders", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("shards", [[], "01", 0, {0}], ids=str)
def test_own_shards_are_a_list_of_numbers(hub: Hub, shards: Any) -> None:
    with pytest.raises(headrace.BadSetting, match=r"as in \[0, 2\]"):
        hub.consumer("orders", shards=shards)


@pytest.mark.parametrize("streams", [["orders", "others"], "ord*"], ids=str)
def test_own_shards_are_those_of_one_stream(hub: Hub, streams: Any) -> None:
    hub.create_stream("others")
    with pytest.raises(headrace.BadSetting, match="one stream"):
        hub.consumer(streams, shards=[0])


def test_an_unknown_stream_is_told_by_name(hub: Hub) -> None:
    with pytest.raises(headrace.UnknownStream, match="'nowhere'"):
        hub.consumer(["orders", "nowhere"], group="billing")
    assert hub.groups.names() == []


def test_a_heartbeat_above_a_third_of_the_session_is_warned_of(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "headrace"):
        hub.consumer("orders", group="a", session="9s", heartbeat="3s").close()
        assert caplog.messages == []
        hub.consumer("orders", group="b", session="8s", heartbeat="3s").close()
    assert caplog.messages == [
        "heartbeat 3s is more than a third of the session 8s: two late ones end it"
    ]


def test_a_session_that_differs_from_the_groups_is_warned_of_and_the_groups_holds(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    hub.consumer("orders", group="billing", session="10s").close()
    with caplog.at_level(logging.WARNING, "headrace"):
        hub.consumer("orders", group="billing", session="20s").close()
    assert caplog.messages == [
        "group=billing: has a session of 10 s and keeps it; 20 s were asked for"
    ]
    assert hub.groups.load("billing").timeout_s == 10.0


def test_durations_and_sizes_are_written_as_people_do(hub: Hub) -> None:
    for session, heartbeat in (
        ("2s", "500ms"),
        (2, 0.5),
        (timedelta(seconds=2), timedelta(0, 0.5)),
    ):
        with hub.consumer(
            "orders", group="billing", session=session, heartbeat=heartbeat, max_bytes="1MiB"
        ) as consumer:
            assert len(consumer.granted) == 2
    assert hub.groups.load("billing").timeout_s == 2.0


def test_defaults_are_what_the_group_gets(hub: Hub) -> None:
    with hub.consumer("orders", group="billing") as consumer:
        group = hub.groups.load("billing")
        assert (group.timeout_s, group.allocator.name, group.order) == (10.0, "balanced", False)
        assert list(group.members) == [consumer.name]
        assert group.members[consumer.name].capacity == 1.0


def test_every_consumer_without_a_name_has_one_of_its_own(hub: Hub) -> None:
    with (
        hub.consumer("orders", group="billing") as one,
        hub.consumer("orders", group="billing") as other,
    ):
        assert one.name != other.name
        assert f"<Consumer {one.name} group=billing shards=" in repr(one)


def test_capacity_weighs_what_a_member_gets(hub: Hub) -> None:
    hub.create_stream("wide", shards=8)
    with (
        hub.consumer("wide", group="g", allocator="weighted", capacity=3, name="a") as big,
        hub.consumer("wide", group="g", allocator="weighted", capacity=1, name="b") as small,
    ):
        until(lambda: (len(big.granted), len(small.granted)) == (6, 2), "three times as much", 10)


def test_an_allocator_that_fails_refuses_its_member(hub: Hub) -> None:
    def deal(*_: object) -> Any:
        raise RuntimeError("no idea")

    with pytest.raises(Invalid, match="no idea"):
        hub.consumer("orders", group="billing", allocator=Allocator("mine", deal=deal))


def test_a_shard_without_a_stream_is_ambiguous_among_several_streams(hub: Hub) -> None:
    hub.create_stream("others", shards=2)
    with hub.consumer(["orders", "others"], group="billing") as consumer:
        for call in (consumer.pause, consumer.resume, lambda shard: consumer.seek(shard, 0)):
            with pytest.raises(headrace.BadSetting, match=r"ShardId\(stream, index\)"):
                call(0)
        consumer.pause(ShardId("others", 0))
        consumer.resume(ShardId("others", 0))
        consumer.seek(ShardId("others", 1), 0)


def test_a_timeout_that_cannot_be_is_refused(hub: Hub) -> None:
    with hub.consumer("orders", group="billing") as consumer:
        for timeout in ("soon", -1, True):
            with pytest.raises(headrace.BadQuantity, match="timeout"):
                consumer.read(timeout=timeout)


@pytest.mark.parametrize("pattern", ["[", "a/[", "shop/*!", "a b*"])
def test_a_pattern_that_cannot_match_is_refused(hub: Hub, pattern: str) -> None:
    with pytest.raises(headrace.BadSetting, match="bad pattern"):
        hub.consumer(pattern, group="billing")


def test_a_pattern_that_matches_nothing_yet_is_told(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    hub.consumer("nowhere/*", group="billing").close()
    assert "no stream matches nowhere/* yet" in caplog.text


def test_an_order_that_differs_from_the_groups_is_told(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    with hub.consumer("orders", group="ordered", order=True):
        assert "has order" not in caplog.text
        hub.consumer("orders", group="ordered").close()
    assert "has order=True and keeps it" in caplog.text
