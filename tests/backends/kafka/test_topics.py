"""Topics as streams: names, settings, descriptions, and topics that are created anew."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
)

import headrace
from headrace.backends.kafka.backend import KafkaBackend
from headrace.backends.kafka.reading.cursor import Cursor
from headrace.backends.kafka.topics import topics
from headrace.backends.kafka.topics.offsets import GONE
from headrace.backends.kafka.topics.stream_descriptions import Description, Descriptions
from headrace.core.ports import Log, ReadResult
from headrace.testing.children import until
from headrace.testing.contracts.backend_under_test import WAIT_S
from tests.backends.kafka.hubs import KafkaPlace, values_by_offset


def test_each_name_of_a_stream_has_one_topic(place: KafkaPlace, hub: headrace.Hub) -> None:
    made = ["shop/orders", "shop-orders", "a.b", "c_d", "A"]
    for name in made:
        hub.create_stream(name, shards=1)
    topics = AdminClient({"bootstrap.servers": place.bootstrap}).list_topics(timeout=10).topics
    mine = {topic.removeprefix(f"{place.prefix}.") for topic in topics if place.prefix in topic}
    assert mine == {"shop--orders", "shop-orders", "a.b", "c_d", "A"}
    for foreign in ("x--y--z", "--a"):
        place.make_topic(foreign)  # no stream has such a topic
    assert [info.name for info in hub.streams()] == sorted(made)
    with headrace.open(f"kafka://{place.bootstrap}") as whole:
        names = {info.name for info in whole.streams()}
        assert f"{place.prefix}.shop/orders" in names
        assert not any(name.startswith("__") for name in names)
        for hidden in ("__consumer_offsets", "__mine"):
            with pytest.raises(headrace.BadName, match="begin with '__'"):
                whole.create_stream(hidden)
            with pytest.raises(headrace.UnknownStream):
                whole.stream(hidden)


def test_names_that_differ_in_a_dot_and_an_underscore_are_refused(hub: headrace.Hub) -> None:
    hub.create_stream("a.b")
    with pytest.raises(headrace.BadName, match=r"'a_b': Kafka refuses it: .*collide"):
        hub.create_stream("a_b")


def test_settings_of_a_stream_are_those_of_its_topic(place: KafkaPlace, hub: headrace.Hub) -> None:
    hub.create_stream("a", retention="7d", retention_bytes="1GiB", codec="json")
    hub.create_stream("for-ever")
    assert place.config("a", "retention.ms") == str(7 * 86_400_000)
    assert place.config("a", "retention.bytes") == str(2**30)
    assert place.config("for-ever", "retention.ms") == "-1"
    place.set_config("a", "retention.ms", "1000")
    assert hub.stream("a").info.retention_s == 1.0


class _DiedError(Exception):
    """Instead of a kill: nothing is tidied up behind it."""


def _die(*_: object, **__: object) -> Any:
    raise _DiedError


def test_a_creator_that_dies_half_way_leaves_a_described_stream(
    place: KafkaPlace, hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:
        dying.setattr(topics.Topics, "_await_leaders", _die)
        with pytest.raises(_DiedError):
            hub.create_stream("a", shards=3, codec="json", routing="java-hash")
    with headrace.open(place.url) as other:
        until(lambda: other.streams(), "it is there", WAIT_S)
        info = other.stream("a").info
    assert (info.codec, info.routing, len(info.shards)) == ("json", "java-hash", 3)


def test_a_draft_without_a_topic_does_not_describe_another_programs_topic(
    place: KafkaPlace, hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.create_stream("other", shards=1)
    with monkeypatch.context() as dying:
        dying.setattr(AdminClient, "create_topics", _die)
        with pytest.raises(_DiedError):
            hub.create_stream("a", codec="json", routing="java-hash")
    place.make_topic("a")
    info = hub.stream("a").info
    assert (info.codec, info.routing) == ("bytes", "murmur2")


def test_of_two_creators_of_one_name_the_winner_describes_the_stream(
    place: KafkaPlace, hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to those who look before the winner has ended, and after the loser has."""
    real, calls = AdminClient.create_topics, iter(range(9))
    created: list[Any] = []
    seen: list[str] = []

    def look() -> None:
        with headrace.open(place.url) as third:
            until(lambda: "a" in {info.name for info in third.streams()}, "it is there", WAIT_S)
            seen.append(third.stream("a").info.codec)

    def one_after_the_other(self: AdminClient, new: list[NewTopic], **how: object) -> object:
        if next(calls) == 0:  # the winner's: first the loser comes as far
            created.append(lambda: real(self, new, **how))
            with headrace.open(place.url) as loser, pytest.raises(headrace.StreamExists):
                loser.create_stream("a", shards=1, codec="text")
            look()
            return created.pop()
        created.append(created.pop()())
        created[0][new[0].topic].result(WAIT_S)
        look()
        return real(self, new, **how)

    hub.create_stream("other", shards=1)
    monkeypatch.setattr(AdminClient, "create_topics", one_after_the_other)
    assert hub.create_stream("a", shards=1, codec="json").info.codec == "json"
    look()
    assert seen == ["json"] * 3


def test_a_stream_created_while_its_namesake_is_deleted_keeps_its_description(
    place: KafkaPlace, hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.create_stream("a", shards=1)
    real = AdminClient.delete_topics

    def overtaken(self: AdminClient, names: list[str], **how: object) -> object:
        deleted = real(self, names, **how)
        deleted[names[0]].result(WAIT_S)
        until(lambda: names[0] not in self.list_topics(timeout=10).topics, "it is gone", WAIT_S)
        with headrace.open(place.url) as other:
            other.create_stream("a", shards=1, codec="json")
        return deleted

    monkeypatch.setattr(AdminClient, "delete_topics", overtaken)
    hub.delete_stream("a")
    with headrace.open(place.url) as third:
        assert third.stream("a").info.codec == "json"


def test_a_deleted_stream_leaves_no_description(place: KafkaPlace, hub: headrace.Hub) -> None:
    stream = hub.create_stream("a", shards=1, codec="json")
    hub.delete_stream("a")
    with headrace.open(place.url) as other:
        backend = other.log
        assert isinstance(backend, KafkaBackend)
        backend._descriptions.refresh()
        found = backend._descriptions.of(place.topic("a"), stream.info.id, None)
    assert found == Description()


def test_a_creation_without_an_answer_leaves_a_described_stream_or_none(
    place: KafkaPlace, hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = AdminClient.create_topics

    def unheard(self: AdminClient, new: list[NewTopic], **settings: object) -> object:
        for created in real(self, new, **settings).values():
            created.result(WAIT_S)
        lost: Future[None] = Future()
        lost.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
        return {topic.topic: lost for topic in new}

    hub.create_stream("other", shards=1)
    with monkeypatch.context() as lossy:
        lossy.setattr(AdminClient, "create_topics", unheard)
        with pytest.raises(headrace.UnknownOutcome, match="look whether it is there"):
            hub.create_stream("a", shards=1, codec="json")
    until(lambda: "a" in {info.name for info in hub.streams()}, "it is there", WAIT_S)
    assert hub.stream("a").info.codec == "json"


def test_descriptions_that_could_not_be_read_are_read_again(
    place: KafkaPlace, hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.create_stream("a", shards=1, codec="json")
    with headrace.open(place.url) as other:
        with monkeypatch.context() as broken:
            broken.setattr(Descriptions, "_take", _unreachable)
            with pytest.raises(headrace.Unreachable):
                other.stream("a")
        assert other.stream("a").info.codec == "json"


def _unreachable(*_: object) -> list[int]:
    raise headrace.Unreachable("no broker answers")


def test_a_topic_created_anew_is_not_taken_for_the_old_one(
    place: KafkaPlace, hub: headrace.Hub
) -> None:
    old = hub.create_stream("a", shards=1, codec="json")
    admin = AdminClient({"bootstrap.servers": place.bootstrap})
    topic = place.topic("a")
    admin.delete_topics([topic])[topic].result(WAIT_S)
    until(lambda: topic not in admin.list_topics(timeout=10).topics, "it is gone", WAIT_S)
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(WAIT_S)
    until(lambda: [len(info.shards) for info in hub.log.streams()] == [2], "it is there", WAIT_S)
    new = hub.stream("a").info
    assert (new.codec, len(new.shards), new.id != old.info.id) == ("bytes", 2, True)
    with pytest.raises(headrace.UnknownStream):
        old.append({"for": "the old one"})
    with pytest.raises(headrace.UnknownStream):
        old.read(0)


def test_a_long_read_returns_nothing_of_a_stream_created_anew(
    place: KafkaPlace, hub: headrace.Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = hub.create_stream("a", shards=1)
    old.append_many([(b"old", None)] * 3)
    real = Cursor.read

    def slow(cursor: Cursor, *how: Any) -> ReadResult:
        _made_anew(place, "a")
        time.sleep(topics.IDENTITY_S)
        return real(cursor, *how)

    monkeypatch.setattr(Cursor, "read", slow)
    with pytest.raises(headrace.UnknownStream):
        hub.log.read(old.info, 0, 1, max_records=10, max_bytes=1000)


@pytest.mark.parametrize(
    "call",
    [
        lambda backend, old: backend.trim(old, 0, 2),
        lambda backend, old: backend.copying(old, 0, "elsewhere"),
        # Told that its records are gone, a reader would go on with those of the new one.
        lambda backend, old: backend.read(old, 0, 5, max_records=10, max_bytes=1000),
    ],
    ids=["trim", "copying", "read"],
)
def test_calls_with_an_old_stream_do_not_change_the_one_created_anew(
    place: KafkaPlace,
    hub: headrace.Hub,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[Log, headrace.StreamInfo], object],
) -> None:
    old = hub.create_stream("a", shards=1)
    old.append_many([(b"old", None)] * 9)
    old.bounds(0)
    monkeypatch.setattr(topics, "IDENTITY_S", 600.0)
    _made_anew(place, "a")
    with pytest.raises(headrace.UnknownStream, match="anew"):
        call(hub.log, old.info)
    assert list(values_by_offset(hub.stream("a")).values()) == [b"new"] * 3


def _made_anew(place: KafkaPlace, name: str) -> None:
    with headrace.open(place.url) as other:
        other.delete_stream(name)
        other.create_stream(name, shards=1).append_many([(b"new", None)] * 3)


class AllOrNothing:
    """A client that does not say which of several partitions it does not know, as it does once it
    has heard that a topic is gone."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def offsets_for_times(self, wanted: Any, timeout: float) -> Any:
        found = self._real.offsets_for_times(wanted, timeout=timeout)
        if any(partition.error is not None for partition in found):
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        return found


@pytest.mark.parametrize("as_a_whole", [True, False])
def test_a_missing_partition_does_not_hide_existing_ones(
    place: KafkaPlace, hub: headrace.Hub, as_a_whole: bool
) -> None:
    stream = hub.create_stream("a", shards=1)
    stream.append(b"x")
    there, gone = (place.topic("a"), 0), [(place.topic("a"), 7), (place.topic("none"), 0)]
    offsets = hub.log._offsets  # type: ignore[attr-defined]
    if as_a_whole:
        offsets._asker.client = AllOrNothing(offsets._asker.client)
    for asked in ([there, *gone], [*gone, there, there], [gone[0], there], [gone[1], there]):
        wanted = [1 if partition == there else GONE for partition in asked]
        assert offsets.ask_ends(asked, 0.0) == wanted
    assert offsets.ask_ends(gone, 0.0) == [GONE] * 2
