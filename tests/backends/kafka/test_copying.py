"""Copying into a partition of a real broker: killed, stopped, overtaken, and with errors put in."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.backends.kafka.appending import copying as module
from headrace.backends.kafka.appending.copying import KafkaCopying
from headrace.core.errors import BadRecord, Closed, Fenced, Refused, UnknownOutcome, UnknownStream
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.testing.children import Child, dice, until
from headrace.tools.kafka_node import Broker
from tests.backends.kafka.copier import copy_numbers, copying, numbers

COPIER = str(Path(__file__).with_name("copier.py"))
END = 400

POINTS = [
    ("before", "begin_transaction", 5),
    ("behind", "begin_transaction", 5),
    ("behind", "produce", 110),
    ("behind", "send_offsets_to_transaction", 5),
    ("before", "commit_transaction", 5),
    ("behind", "commit_transaction", 5),
]
EVERYWHERE = pytest.mark.parametrize(("when", "call", "turn"), POINTS)


@pytest.fixture
def make_topic(broker: Broker) -> Iterator[Callable[..., str]]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    made: list[str] = []

    def make(shards: int = 1, **config: str) -> str:
        name = f"copying-{uuid.uuid4().hex[:12]}"
        # Their timestamps are old: by default the broker drops them when it next looks.
        kept = {"retention.ms": "-1", **config}
        admin.create_topics([NewTopic(name, shards, 1, config=kept)])[name].result(30)
        until(lambda: len(admin.list_topics(name, 10).topics[name].partitions) == shards, name)
        made.append(name)
        return name

    yield make
    for found in admin.delete_topics(made).values() if made else ():
        found.result(30)


@pytest.fixture
def topic(make_topic: Callable[..., str]) -> str:
    return make_topic()


def _messages(bootstrap: str, topic: str, shard: int = 0) -> list[Message]:
    """All that a reader of what is committed sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, shard, 0)])
    found: list[Message] = []
    ends_s = time.monotonic() + 60
    try:
        while time.monotonic() < ends_s:
            for message in consumer.consume(500, 0.05):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
                else:
                    raise KafkaException(error)
        raise AssertionError(f"no end of {topic}:{shard} within 60 s")
    finally:
        consumer.close()


def _numbers(bootstrap: str, topic: str, shard: int = 0) -> list[int]:
    return [int(message.value() or b"-1") for message in _messages(bootstrap, topic, shard)]


def _child(bootstrap: str, topic: str, by: str, when: str, call: str, turn: int) -> Child:
    return Child([COPIER, bootstrap, topic, str(END), by, when, call, str(turn)])


def test_a_copy_goes_on_where_it_was_left(broker: Broker, make_topic: Callable[..., str]) -> None:
    topic = make_topic(2)
    for end in (60, 130):
        with closing(copying(broker.bootstrap, topic, 1, shards=2)) as into:
            assert into.at == (None if end == 60 else 60)
            copy_numbers(into, end)
    assert _numbers(broker.bootstrap, topic, 1) == list(range(130))
    assert _numbers(broker.bootstrap, topic, 0) == []
    with closing(copying(broker.bootstrap, topic, 0, shards=2)) as into:
        assert into.at is None


def test_all_fields_of_the_client_arrive(broker: Broker, topic: str) -> None:
    rows = [
        Row(b"\xff\0", b"", 5, headers=(("a", b"1"), ("a", None))),
        Row(None, None, 1_490_855_872_363),
    ]
    with closing(copying(broker.bootstrap, topic)) as into:
        into.append(Batch.of_rows(rows), 2)
    first, second = _messages(broker.bootstrap, topic)
    assert (first.key(), first.value(), first.timestamp()[1]) == (b"\xff\0", b"", 5)
    assert first.headers() == [("a", b"1"), ("a", None)]
    assert (second.key(), second.value(), second.headers()) == (None, None, None)
    assert second.timestamp()[1] == 1_490_855_872_363


def test_a_new_copy_fences_the_one_before(broker: Broker, topic: str) -> None:
    older = copying(broker.bootstrap, topic)
    copy_numbers(older, 50)
    with closing(copying(broker.bootstrap, topic)) as newer:
        for _ in range(2):
            with pytest.raises(Fenced, match=f"another copy into {topic}:0 has taken over"):
                older.append(numbers(50, 60), 60)
        older.close()
        copy_numbers(newer, 80)
    assert _numbers(broker.bootstrap, topic) == list(range(80))


@EVERYWHERE
def test_a_copy_killed_at_any_call_goes_on_without_doubles_or_loss(
    broker: Broker, topic: str, when: str, call: str, turn: int
) -> None:
    with _child(broker.bootstrap, topic, "SIGKILL", when, call, turn) as child:
        assert child.ended() == -signal.SIGKILL
    with closing(copying(broker.bootstrap, topic)) as into:
        assert into.at in (100, 125)
        copy_numbers(into, END, step=33)
    assert _numbers(broker.bootstrap, topic) == list(range(END))


@EVERYWHERE
def test_a_copy_stopped_at_any_call_and_overtaken_is_fenced(
    broker: Broker, topic: str, when: str, call: str, turn: int
) -> None:
    with _child(broker.bootstrap, topic, "SIGSTOP", when, call, turn) as child:
        until(child.stopped, "it has stopped itself")
        with closing(copying(broker.bootstrap, topic)) as into:
            copy_numbers(into, END // 2, step=33)
            os.kill(child.pid, signal.SIGCONT)
            assert child.line() == "begun"
            assert child.line().startswith("fenced: ")
            copy_numbers(into, END, step=33)
        assert child.ended() == 0
    assert _numbers(broker.bootstrap, topic) == list(range(END))


@pytest.mark.slow
def test_a_copy_killed_again_and_again_doubles_and_loses_nothing(
    broker: Broker, topic: str
) -> None:
    chance = dice("killed copies")
    struck = 0
    for _ in range(12):
        with _child(broker.bootstrap, topic, "SIGKILL", "never", "", 0) as child:
            assert child.line() == "begun"
            time.sleep(chance.uniform(0, 0.08))
            struck += child.process.poll() is None
            child.kill()
    with closing(copying(broker.bootstrap, topic)) as into:
        copy_numbers(into, END)
    assert struck
    assert _numbers(broker.bootstrap, topic) == list(range(END))


def test_a_record_larger_than_the_topic_takes_is_named(
    broker: Broker, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(**{"max.message.bytes": "20000"})
    rows = [Row(None, b"small", 1), Row(None, os.urandom(30_000), 2), Row(None, b"last", 3)]
    batch = Batch.of_rows(rows, stream="far/away", shard=3, offsets=[17, 19, 20])
    with closing(copying(broker.bootstrap, topic, message_bytes_max=20_000)) as into:
        with pytest.raises(BadRecord, match=rf"far/away:3\+19 has 29.3 KiB.*of the topic {topic}"):
            into.append(batch, 21)
        assert into.at is None
        into.append(batch.part(0, 1), 18)
        into.append(batch.part(2, 3), 21)
    assert [m.value() for m in _messages(broker.bootstrap, topic)] == [b"small", b"last"]


def test_a_record_larger_than_the_client_takes_is_named(broker: Broker, topic: str) -> None:
    batch = Batch.of_rows([Row(None, bytes(2**21), 1)], stream="far/away", shard=3, offsets=[17])
    with closing(copying(broker.bootstrap, topic)) as into:
        with pytest.raises(BadRecord, match=r"far/away:3\+17 has 2.0 MiB"):
            into.append(batch, 18)
        copy_numbers(into, 30)
    assert _numbers(broker.bootstrap, topic) == list(range(30))


def test_many_records_go_into_a_topic_of_small_messages(
    broker: Broker, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(**{"max.message.bytes": "2000"})
    with closing(copying(broker.bootstrap, topic, message_bytes_max=2_000)) as into:
        copy_numbers(into, 5_000, step=5_000)
    assert _numbers(broker.bootstrap, topic) == list(range(5_000))


def test_a_copy_into_a_missing_topic_raises_at_once(broker: Broker) -> None:
    with pytest.raises(UnknownStream, match="copying-nowhere"):
        copying(broker.bootstrap, "copying-nowhere")


def test_a_closed_copy_takes_nothing(broker: Broker, topic: str) -> None:
    into = copying(broker.bootstrap, topic)
    into.close()
    into.close()
    with pytest.raises(Closed, match=f"copying into {topic}:0"):
        into.append(numbers(0, 1), 1)


def test_a_copy_closed_in_the_middle_hides_no_later_records(broker: Broker, topic: str) -> None:
    class Interrupted(BaseException):
        pass

    def interrupted(producer: Producer, name: str) -> None:
        if name == "send_offsets_to_transaction":
            producer.flush(30)
            raise Interrupted

    into = copying(broker.bootstrap, topic, wrapped=lambda p: Faulty(p, before=interrupted))
    with pytest.raises(Interrupted):
        into.append(numbers(0, 10), 10)
    into.close()
    other = Producer({"bootstrap.servers": broker.bootstrap})
    other.produce(topic, b"77")
    other.flush(30)
    until(lambda: _numbers(broker.bootstrap, topic) == [77], "it is seen")


def test_copied_records_can_be_read_when_the_copy_is_closed(broker: Broker, topic: str) -> None:
    ends: list[int] = []
    reader = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "r",
            "isolation.level": "read_committed",
        }
    )
    for number in range(1, 21):
        with closing(copying(broker.bootstrap, topic)) as into:
            into.append(numbers(number - 1, number), number)
        ends.append(reader.get_watermark_offsets(TopicPartition(topic, 0), 10)[1])
    reader.close()
    assert ends == [2 * number for number in range(1, 21)], "a record and the mark behind it each"


# Errors put in


class Faulty:
    """A producer that complains before or behind some of its calls."""

    def __init__(
        self,
        producer: Producer,
        *,
        before: Callable[[Producer, str], None] = lambda producer, name: None,
        behind: Callable[[Producer, str], None] = lambda producer, name: None,
    ) -> None:
        self._producer = producer
        self._before = before
        self._behind = behind

    def __getattr__(self, name: str) -> Any:
        called = getattr(self._producer, name)

        def call(*arguments: Any, **named: Any) -> Any:
            self._before(self._producer, name)
            found = called(*arguments, **named)
            self._behind(self._producer, name)
            return found

        return call


class Errors:
    """So many of one kind at one call."""

    def __init__(self, name: str, count: int, error: KafkaError) -> None:
        self._name = name
        self.left = count
        self._error = error

    def __call__(self, producer: Producer, name: str) -> None:
        if name == self._name and self.left:
            self.left -= 1
            raise KafkaException(self._error)


AWAY = KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True)
ABORT = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "a hole", txn_requires_abort=True)
BROKEN = KafkaError(KafkaError._FATAL, "broken", fatal=True)


@pytest.mark.parametrize(
    "call", ["init_transactions", "send_offsets_to_transaction", "commit_transaction"]
)
def test_a_call_without_an_answer_is_made_again(broker: Broker, topic: str, call: str) -> None:
    errors = Errors(call, 3, AWAY)
    with closing(
        copying(broker.bootstrap, topic, wrapped=lambda p: Faulty(p, before=errors))
    ) as into:
        copy_numbers(into, 50)
    assert errors.left == 0
    assert _numbers(broker.bootstrap, topic) == list(range(50))


def test_a_commit_whose_answer_was_lost_is_not_made_twice(broker: Broker, topic: str) -> None:
    errors = Errors("commit_transaction", 2, AWAY)
    with closing(
        copying(broker.bootstrap, topic, wrapped=lambda p: Faulty(p, behind=errors))
    ) as into:
        copy_numbers(into, 50)
    assert errors.left == 0
    assert _numbers(broker.bootstrap, topic) == list(range(50))


@pytest.mark.parametrize("count", [1, 3])
def test_an_aborted_transaction_is_tried_again(broker: Broker, topic: str, count: int) -> None:
    errors = Errors("commit_transaction", count, ABORT)
    with closing(
        copying(broker.bootstrap, topic, wrapped=lambda p: Faulty(p, before=errors))
    ) as into:
        copy_numbers(into, 50)
    assert errors.left == 0
    assert _numbers(broker.bootstrap, topic) == list(range(50))


def test_a_transaction_that_is_aborted_each_time_is_an_error(broker: Broker, topic: str) -> None:
    errors = Errors("commit_transaction", 100, ABORT)
    into = copying(broker.bootstrap, topic, wrapped=lambda p: Faulty(p, before=errors))
    for _ in range(2):
        with pytest.raises(Refused, match=r"copying into .*OUT_OF_ORDER_SEQUENCE_NUMBER"):
            into.append(numbers(0, 25), 25)
    into.close()
    assert _numbers(broker.bootstrap, topic) == []


@pytest.mark.parametrize("side", ["before", "behind"])
@pytest.mark.parametrize("call", ["begin_transaction", "commit_transaction", "abort_transaction"])
def test_a_producer_that_breaks_is_replaced(
    broker: Broker, topic: str, side: str, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    errors = Errors(call, 1, BROKEN)
    aborting = Errors("send_offsets_to_transaction", int(call == "abort_transaction"), ABORT)

    def wrapped(producer: Producer) -> Any:
        return Faulty(Faulty(producer, **{side: errors}), before=aborting)

    with closing(copying(broker.bootstrap, topic, wrapped=wrapped)) as into:
        copy_numbers(into, 25)
    assert errors.left == 0
    assert "left to the broker" not in caplog.text
    with closing(copying(broker.bootstrap, topic)) as into:
        copy_numbers(into, 50)
    assert _numbers(broker.bootstrap, topic) == list(range(50))


def test_a_copy_whose_broker_stays_away_raises_unknown_outcome(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = Errors("commit_transaction", 100, AWAY)
    into = copying(broker.bootstrap, topic, wrapped=lambda p: Faulty(p, before=errors))
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    with pytest.raises(UnknownOutcome, match="may have happened"):
        into.append(numbers(0, 25), 25)
    into.close()
    monkeypatch.undo()
    with closing(copying(broker.bootstrap, topic)) as again:
        copy_numbers(again, 50)
    assert _numbers(broker.bootstrap, topic) == list(range(50))


# What is older than the broker lets it be


class Clock:
    """What is added passes at once."""

    added_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.added_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


class Once:
    """Something that happens before the first of such calls, when all is sent that was begun."""

    def __init__(self, name: str, happens: Callable[[], object]) -> None:
        self._name = name
        self._happens = happens
        self.left = 1

    def __call__(self, producer: Producer, name: str) -> None:
        if name == self._name and self.left:
            self.left = 0
            producer.flush(30)
            self._happens()


def _until_ended_by_the_broker(bootstrap: str, topic: str) -> None:
    reader = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "r", "isolation.level": "read_committed"}
    )
    place = TopicPartition(topic, 0)
    until(lambda: reader.get_watermark_offsets(place, 10)[1] > 0, "its mark is there")
    reader.close()


@pytest.mark.parametrize(
    "call", ["send_offsets_to_transaction", "commit_transaction", "abort_transaction"]
)
def test_a_transaction_that_the_broker_timed_out_is_copied_again(
    broker: Broker, topic: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRANSACTION_S", 2)
    aged = Once(call, lambda: _until_ended_by_the_broker(broker.bootstrap, topic))
    aborting = Errors("commit_transaction", int(call == "abort_transaction"), ABORT)

    def wrapped(producer: Producer) -> Any:
        return Faulty(Faulty(producer, before=aged), before=aborting)

    with closing(copying(broker.bootstrap, topic, wrapped=wrapped)) as into:
        copy_numbers(into, 100)
    assert (aged.left, aborting.left) == (0, 0)
    assert _numbers(broker.bootstrap, topic) == list(range(100))


@pytest.mark.parametrize("end", [25, 60])
def test_a_late_copy_that_was_overtaken_is_fenced(
    broker: Broker, topic: str, clock: Clock, end: int
) -> None:
    others: list[KafkaCopying] = []

    def overtaken() -> None:
        others.append(copying(broker.bootstrap, topic))
        copy_numbers(others[0], end)
        clock.added_s += module.TRANSACTION_S

    late = Once("commit_transaction", overtaken)
    older = copying(broker.bootstrap, topic, wrapped=lambda p: Faulty(p, before=late))
    with pytest.raises(Fenced, match=topic):
        older.append(numbers(0, 25), 25)
    with closing(others[0]) as newer:
        copy_numbers(newer, 80)
    assert _numbers(broker.bootstrap, topic) == list(range(80))


def test_a_late_copy_that_was_not_overtaken_goes_on_and_fences_the_other(
    broker: Broker, topic: str, clock: Clock
) -> None:
    others: list[KafkaCopying] = []

    def another_begins() -> None:
        others.append(copying(broker.bootstrap, topic))
        clock.added_s += module.TRANSACTION_S

    late = Once("commit_transaction", another_begins)
    with closing(
        copying(broker.bootstrap, topic, wrapped=lambda p: Faulty(p, before=late))
    ) as older:
        copy_numbers(older, 50)
        with pytest.raises(Fenced, match=topic):
            others[0].append(numbers(0, 25), 25)
        copy_numbers(older, 80)
    assert _numbers(broker.bootstrap, topic) == list(range(80))


def test_two_late_copies_do_not_fence_each_other_for_ever(
    broker: Broker, topic: str, clock: Clock
) -> None:
    begun = 0

    def another_begins(producer: Producer, name: str) -> None:
        nonlocal begun
        if name == "commit_transaction":
            begun += 1
            copying(broker.bootstrap, topic).close()
            clock.added_s += module.TRANSACTION_S

    into = copying(broker.bootstrap, topic, wrapped=lambda p: Faulty(p, before=another_begins))
    for _ in range(2):
        with pytest.raises(Fenced, match=topic):
            into.append(numbers(0, 25), 25)
    assert begun == module.ABORTS_MAX + 1
    assert _numbers(broker.bootstrap, topic) == []
