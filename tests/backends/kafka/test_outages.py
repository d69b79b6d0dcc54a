"""A broker that is killed, stopped, or gone: nothing is lost or doubled, and work goes on by
itself."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

import headrace
from headrace.backends.kafka.reading import cursors
from headrace.backends.kafka.topics import topics
from headrace.core.errors import Closed, Retryable, UnknownOutcome, UnknownStream, Unreachable
from headrace.hub.mirror import Mirrored, mirror
from headrace.streams.merged import followed
from headrace.testing.children import dice, until
from headrace.tools.kafka_node import Broker

pytestmark = pytest.mark.slow

ALL = bool(os.environ.get("HEADRACE_ALL_OUTAGES"))
"""With `make outages`: more moments, and each call while a broker is dead and while stopped."""
BOTH = [signal.SIGKILL, signal.SIGSTOP]
KILLED = BOTH if ALL else [signal.SIGKILL]
STOPPED = BOTH if ALL else [signal.SIGSTOP]

SOON_S = 20.0
"""Much less than a call waits that is not told."""
BACK_S = 60.0
"""So long a broker may take to come back, and clients to notice."""
PATIENT = "120s"
"""For those whose patience is not what is looked at."""
ARROW_ROWS = 50


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that is killed."""
    with Broker(tmp_path_factory.mktemp("outages") / "broker") as started:
        yield started


@pytest.fixture
def url(own: Broker) -> Iterator[str]:
    own.start()
    yield f"{own.url}/t{uuid.uuid4().hex[:12]}"
    own.start()


class Working(threading.Thread):
    """Does something again and again until it is told to end; what stops it is kept."""

    def __init__(self, step: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._step = step
        self._end = threading.Event()
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self._end.is_set():
                self._step()
        except BaseException as why:
            self.error = why

    def end(self, within_s: float = BACK_S) -> None:
        self._end.set()
        self.join(within_s)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error

    def failed(self, within_s: float) -> BaseException:
        self.join(within_s)
        assert self.error is not None, f"nothing happened within {within_s:g} s"
        return self.error


class Following(Working):
    def __init__(self, stream: headrace.Stream, shard: int) -> None:
        self.numbers: list[int] = []
        self._records = stream.read(shard, follow=True)
        super().__init__(lambda: self.numbers.append(int(next(self._records).value)))


@contextmanager
def struck(broker: Broker, number: signal.Signals) -> Iterator[None]:
    """The broker is in this state for a while, and then serves again."""
    pid = broker.pid
    assert pid is not None
    if number == signal.SIGKILL:
        broker.kill()
        try:
            yield
        finally:
            broker.start()
    else:
        os.kill(pid, number)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)
    serves(broker)


def serves(broker: Broker) -> None:
    """A broker that was silent has no leaders for a while, though it answers."""
    with headrace.open(f"{broker.url}/serving", write_timeout=PATIENT) as hub:
        hub.create_stream("serving", shards=1, exist_ok=True).append(b"it does")


def patient(url: str) -> headrace.Hub:
    return headrace.open(url, write_timeout=PATIENT)


def made(url: str) -> None:
    """The stream of those who have no patience for its creation."""
    with patient(url) as hub:
        hub.create_stream("shop/orders", shards=1)


class Load:
    """An appender, Arrow batches and followers of both, with numbers to find them again."""

    def __init__(self, writer: headrace.Hub, reader: headrace.Hub) -> None:
        self.stream = writer.create_stream("shop/orders", shards=2)
        self.seen = reader.stream("shop/orders")
        self.pending: list[headrace.Pending] = []
        self.arrow = 0
        self.slices: list[headrace.Slice] = []
        self._appender = self.stream.appender()
        self.followers = [Following(self.seen, shard) for shard in range(2)]
        self._workers = [Working(self._append), Working(self._append_arrow)]

    def _append(self) -> None:
        number = len(self.pending)
        self.pending.append(self._appender.append(b"%d" % number, shard=0))
        time.sleep(0.002)  # some hundreds a second

    def _append_arrow(self) -> None:
        numbers = range(self.arrow, self.arrow + ARROW_ROWS)
        values = pa.array([b"%d" % number for number in numbers], pa.binary())
        self.slices += self.stream.append_arrow(pa.record_batch({"data": values}), shard=1)
        self.arrow += ARROW_ROWS

    @property
    def landed(self) -> int:
        return sum(pending.done() for pending in self.pending)

    def goes_on(self) -> None:
        """All four, from now on."""
        landed, arrow = self.landed, self.arrow
        read = [len(follower.numbers) for follower in self.followers]

        def moved() -> bool:
            now = [len(follower.numbers) for follower in self.followers]
            return (
                self.landed > landed + 50
                and self.arrow > arrow
                and all(new > old for new, old in zip(now, read, strict=True))
            )

        until(moved, "everybody goes on", BACK_S, lambda: [w.error for w in self._threads])

    @property
    def _threads(self) -> list[Working]:
        return [*self._workers, *self.followers]

    def check(self) -> None:
        """End it: all that was acknowledged is there, once and in order, at its offset."""
        for worker in self._workers:
            worker.end()
        self._appender.close()
        counts = [len(self.pending), self.arrow]
        followers = self.followers
        for shard, count in enumerate(counts):
            wanted = list(range(count))
            stored = [(record.offset, int(record.value)) for record in self.stream.read(shard)]
            twice = [n for n, times in Counter(n for _, n in stored).items() if times > 1]
            assert twice == []
            assert sorted(set(wanted) - {n for _, n in stored}) == []
            assert [n for _, n in stored] == wanted
            until(lambda f=followers[shard], n=count: len(f.numbers) >= n or f.error, "all is read")  # type: ignore[misc]
            assert followers[shard].error is None
            assert followers[shard].numbers == wanted
            if shard == 0:
                told = [pending.result().offset for pending in self.pending]
            else:
                told = [at for found in self.slices for at in range(found.start, found.end)]
            assert told == [offset for offset, _ in stored]


@pytest.mark.parametrize("turn", [1, 2, 3] if ALL else [1])
def test_appends_survive_a_broker_killed_twice(own: Broker, url: str, turn: int) -> None:
    moments = dice(f"outages {turn}")
    with patient(url) as writer, patient(url) as reader:
        load = Load(writer, reader)
        load.goes_on()
        for _ in range(2):
            time.sleep(moments.uniform(0.0, 1.0))
            with struck(own, signal.SIGKILL):
                time.sleep(moments.choice([0.0, 0.5, 4.0]))
            load.goes_on()
        load.check()


@pytest.mark.parametrize("while_s", [3.0, 12.0] if ALL else [12.0])
def test_appends_survive_a_broker_that_is_stopped_for_a_while(
    own: Broker, url: str, while_s: float
) -> None:
    """Shorter and longer than the client waits for an answer before it sends again."""
    with patient(url) as writer, patient(url) as reader:
        load = Load(writer, reader)
        load.goes_on()
        with struck(own, signal.SIGSTOP):
            time.sleep(while_s)
        load.goes_on()
        load.check()


def test_a_follower_waits_longer_than_any_call(own: Broker, url: str) -> None:
    made(url)
    with headrace.open(url, write_timeout="2s") as hub, patient(url) as writer:
        stream = hub.stream("shop/orders")
        writer.stream("shop/orders").append(b"0")
        consumer = hub.consumer("shop/orders", shards=[0])
        sources = [stream.read(0, follow=True), followed(stream, {0: 0}), iter(consumer)]
        found: list[list[int]] = [[] for _ in sources]
        waiting = [
            Working(lambda source=source, own=own: own.append(int(next(source).value)))  # type: ignore[misc]
            for source, own in zip(sources, found, strict=True)
        ]
        until(lambda: found == [[0]] * 3, "all follow")
        with struck(own, signal.SIGSTOP):
            time.sleep(9.0)  # several times as long as a call waits
        writer.stream("shop/orders").append(b"1")
        until(
            lambda: found == [[0, 1]] * 3,
            "all go on",
            BACK_S,
            lambda: f"{found} {[each.error for each in waiting]}",
        )
        assert all(each.error is None for each in waiting)


def test_a_reader_that_catches_up_waits_longer_than_any_call_too(own: Broker, url: str) -> None:
    """It is stopped in the middle of a read that has taken some records already."""
    made(url)
    count = 20_000
    little = {"queued.max.messages.kbytes": 256, "fetch.message.max.bytes": 65536}
    with (
        headrace.open(url, write_timeout="2s", settings=little) as hub,
        patient(url) as writer,
    ):
        writer.stream("shop/orders").append_many([(b"%01000d" % n, None) for n in range(count)])
        follower = Following(hub.stream("shop/orders"), 0)
        until(lambda: follower.numbers, "it reads")
        with struck(own, signal.SIGSTOP):
            assert len(follower.numbers) < count
            time.sleep(7.0)  # several times as long as a call waits
        until(
            lambda: len(follower.numbers) == count or follower.error,
            "all is read",
            BACK_S,
            lambda: len(follower.numbers),
        )
        assert follower.error is None
        assert follower.numbers == list(range(count))


def test_a_mirror_survives_a_broker_killed_again_and_again(own: Broker, url: str) -> None:
    values = [b"%0100d" % number for number in range(150_000)]
    kills = 2
    with headrace.open("memory:") as here, patient(url) as there:
        source = here.create_stream("shop/orders", shards=1)
        for start in range(0, len(values), 10_000):
            part = pa.array(values[start : start + 10_000], pa.binary())
            source.append_arrow(pa.record_batch({"data": part}), shard=0)
        killed: list[int] = []

        def kill(found: Mirrored) -> None:
            if found.records and len(killed) < kills:
                killed.append(found.records)
                # In the middle of the next transaction, or of the one after it.
                threading.Timer(0.05 * len(killed), again).start()

        def again() -> None:
            own.kill()
            own.start()

        assert mirror(here, there, "shop/orders", progress=kill).records == len(values)
        assert len(killed) == kills
        own.start()
        assert [record.value for record in there.stream("shop/orders").read(0)] == values


# Patience


def took(call: Callable[[], object], *errors: type[BaseException]) -> tuple[float, BaseException]:
    began_s = time.monotonic()
    with pytest.raises(errors) as caught:
        call()
    return time.monotonic() - began_s, caught.value


def again(call: Callable[[], object]) -> bool:
    """Whether it works: clients find a broker that is back one after the other."""
    try:
        call()
    except Unreachable:
        return False
    return True


def numbers(stream: headrace.Stream) -> list[int]:
    return [int(record.value) for record in stream.read(0)]


@pytest.mark.parametrize("number", KILLED)
def test_a_write_gives_up_in_time_and_the_next_one_works(
    own: Broker, url: str, number: signal.Signals
) -> None:
    made(url)
    with headrace.open(url, write_timeout="3s") as hub:
        stream = hub.stream("shop/orders")
        stream.append(b"before")
        with struck(own, number):
            for _ in range(2):
                took_s, why = took(lambda: stream.append(b"lost?"), UnknownOutcome, Unreachable)
                assert 2.0 < took_s < 6.5, why
        until(lambda: again(lambda: stream.append(b"behind")), "it works again", BACK_S)
        found = [record.value for record in stream.read(0)]
    assert (found[0], found[-1]) == (b"before", b"behind")
    assert found.count(b"lost?") <= 2


@pytest.mark.parametrize("number", STOPPED)
def test_a_read_gives_up_in_time_and_the_next_one_works(
    own: Broker, url: str, number: signal.Signals
) -> None:
    made(url)
    with headrace.open(url, write_timeout="3s") as hub:
        stream = hub.stream("shop/orders")
        stream.append_many([(b"%d" % n, None) for n in range(10)])
        with struck(own, number):
            for call in (
                lambda: list(stream.read(0)),
                lambda: stream.bounds(0),
                lambda: hub.stream("shop/orders"),
                hub.streams,
                lambda: stream.read_arrow(0).read_all(),
            ):
                took_s, why = took(call, Unreachable)
                assert took_s < 6.5, why
                assert "\n" not in str(why)
        found: list[int] = []
        until(lambda: again(lambda: found.extend(numbers(stream))), "it works again", BACK_S)
        assert found == list(range(10))


@pytest.mark.parametrize("number", STOPPED)
def test_create_trim_and_delete_give_up_in_time(
    own: Broker, url: str, number: signal.Signals
) -> None:
    made(url)
    with headrace.open(url, write_timeout="3s") as hub:
        stream = hub.stream("shop/orders")
        stream.append(b"x")
        with struck(own, number):
            for call in (
                lambda: hub.create_stream("shop/other"),
                lambda: hub.delete_stream("shop/orders"),
                lambda: stream.trim(0, 1),
            ):
                took_s, why = took(call, Retryable)
                assert took_s < 15.0, why  # several calls, one after the other


# Closing


@pytest.mark.parametrize("number", BOTH)
def test_a_hub_closes_within_seconds_while_its_broker_is_gone(
    own: Broker, url: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else an append may wait for a look at its topic, and has sent nothing.
    monkeypatch.setattr(topics, "IDENTITY_S", 600.0)
    hub = headrace.open(url)
    stream = hub.create_stream("shop/orders", shards=2)
    stream.append(b"1", shard=0)
    stream.append(b"1", shard=1)
    follower = Following(stream, 0)
    until(lambda: follower.numbers, "it follows")
    appending = Working(lambda: stream.append(b"2", shard=0))
    waiting = [
        follower,
        Following(stream, 1),
        appending,
        Working(lambda: stream.bounds(1)),
        Working(lambda: hub.streams()),
        Working(lambda: hub.stream("shop/orders")),
        Working(lambda: stream.wait(stream.changes(), 5)),
        Working(lambda: list(stream.read(1))),
    ]
    appender = stream.appender()
    with struck(own, number):
        pending = appender.append(b"3", shard=1)
        time.sleep(1.5)  # all are in the middle of waiting
        began_s = time.monotonic()
        hub.close()
        assert time.monotonic() - began_s < 10.0
        for each in waiting:
            wanted = UnknownOutcome if each is appending else Closed
            assert type(each.failed(SOON_S)) is wanted
        with pytest.raises(UnknownOutcome, match="closed meanwhile"):
            pending.result(SOON_S)
        with pytest.raises(UnknownOutcome):
            appender.close()


def test_a_hub_closes_while_it_is_used(own: Broker, url: str) -> None:
    """Again and again: a client that is taken away under a call takes the process with it."""
    with headrace.open(url) as first:
        first.create_stream("shop/orders", shards=1).append(b"1")
    for _ in range(5):
        hub = headrace.open(url)
        stream = hub.stream("shop/orders")
        waiting = [
            Following(stream, 0),
            Working(lambda s=stream: s.append(b"2")),  # type: ignore[misc]
            *(Working(lambda s=stream: s.bounds(0)) for _ in range(3)),  # type: ignore[misc]
            Working(lambda h=hub: h.streams()),  # type: ignore[misc]
            Working(lambda s=stream: s.wait(s.changes(), 5)),  # type: ignore[misc]
            Working(lambda s=stream: list(s.read(0))),  # type: ignore[misc]
        ]
        time.sleep(0.3)
        hub.close()
        for each in waiting:
            assert type(each.failed(SOON_S)) in (Closed, UnknownOutcome)


# Streams that others delete


def test_a_follower_of_a_deleted_stream_raises(own: Broker, url: str) -> None:
    with headrace.open(url) as hub, headrace.open(url) as other:
        stream = hub.create_stream("shop/orders", shards=1)
        stream.append(b"1")
        follower = Following(stream, 0)
        until(lambda: follower.numbers, "it follows")
        time.sleep(1.0)  # it waits for more
        other.delete_stream("shop/orders")
        assert type(follower.failed(SOON_S)) is UnknownStream


def test_a_stream_created_anew_is_not_taken_for_the_old_one(own: Broker, url: str) -> None:
    with headrace.open(url) as hub, headrace.open(url) as other:
        stream = hub.create_stream("shop/orders", shards=1)
        stream.append_many([(b"%d" % n, None) for n in range(10)])
        follower = Following(stream, 0)
        until(lambda: len(follower.numbers) == 10, "it follows")
        appender = stream.appender()
        appender.append(b"10").result(10)
        until(lambda: len(follower.numbers) == 11, "it is read")
        other.delete_stream("shop/orders")
        anew = other.create_stream("shop/orders", shards=1)
        time.sleep(topics.IDENTITY_S)  # so long one may be taken for the other
        anew.append_many([(b"-1", None) for _ in range(20)])
        for call in (
            lambda: stream.append(b"old"),
            lambda: list(stream.read(0)),
            lambda: stream.read_arrow(0),
            lambda: stream.bounds(0),
            lambda: stream.trim(0, 1),
            lambda: stream.append_many([(b"old", None)]),
            lambda: appender.append(b"old").result(10),
        ):
            took(call, UnknownStream)
        assert type(follower.failed(SOON_S)) is UnknownStream
        with pytest.raises(UnknownStream):
            appender.close()
        assert follower.numbers == list(range(11))
        assert {record.value for record in anew.read(0)} == {b"-1"}
        assert hub.stream("shop/orders").append(b"new").offset == 20


def test_appends_to_other_streams_go_on_when_one_is_deleted(own: Broker, url: str) -> None:
    """They share a producer, which is of no more use then."""
    with headrace.open(url) as hub, headrace.open(url) as other:
        deleted, kept = hub.create_stream("a", shards=1), hub.create_stream("b", shards=4)
        ids: list[headrace.RecordId] = []
        working = Working(lambda: deleted.append(b"1"))
        beside = [
            Working(lambda n=n: ids.extend(kept.append_many([(b"x", None)] * 50, shard=n)))  # type: ignore[misc]
            for n in range(4)
        ]
        until(lambda: deleted.bounds(0).end > 10, "it appends")
        other.delete_stream("a")
        assert type(working.failed(SOON_S)) is UnknownStream
        for each in beside:
            each.end()
        stored = [(shard, r.offset) for shard in range(4) for r in kept.read(shard)]
        assert sorted((id.shard, id.offset) for id in ids) == stored


# What is said


def test_an_outage_and_its_end_are_logged_once(
    own: Broker, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with patient(url) as hub:
        stream = hub.create_stream("shop/orders", shards=1)
        follower = Following(stream, 0)
        for number in range(2):
            caplog.clear()
            with struck(own, signal.SIGKILL):
                appending = threading.Thread(target=stream.append, args=[b"%d" % number])
                appending.start()
                until(lambda: "no broker answers" in caplog.text, "it is told")
                time.sleep(2.0)
            appending.join()
            until(lambda n=number: len(follower.numbers) > n, "it is read")  # type: ignore[misc]
            until(lambda: "answers again" in caplog.text, "its end is told")
            told = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
            mine = ["answers again" in message for message in told if url in message]
            # Clients find it again one after the other: it may be told of another one, and no more.
            assert mine in ([False, True], [False, True] * 2)


# What it costs to wait


def share_of_a_core() -> float:
    """That this process takes for three seconds."""
    before = time.process_time(), time.monotonic()
    time.sleep(3.0)
    return (time.process_time() - before[0]) / (time.monotonic() - before[1])


def test_waiting_readers_use_hardly_any_cpu(own: Broker, url: str) -> None:
    with headrace.open(url) as hub:
        stream = hub.create_stream("shop/orders", shards=1)
        stream.append(b"1")
        follower = Following(stream, 0)
        until(lambda: follower.numbers, "it follows")
        time.sleep(cursors.IDLE_S + 1.0)
        until(lambda: share_of_a_core() < 0.05, "it costs next to nothing")
        stream.append(b"2")
        until(lambda: len(follower.numbers) == 2, "it still follows")


@pytest.mark.parametrize("shards", [8])
def test_no_client_goes_on_fetching_when_reads_are_over(own: Broker, url: str, shards: int) -> None:
    with headrace.open(url) as hub:
        stream = hub.create_stream("shop/orders", shards=shards)
        for shard in range(shards):
            stream.append_many([(b"x" * 1000, None) for _ in range(3000)], shard=shard)
            next(iter(stream.read(shard, follow=True)))  # and the rest is fetched ahead
        idle = hub.log._cursors._idle  # type: ignore[attr-defined]
        assert any(cursor.stream is not None for cursor in idle)
        until(lambda: all(cursor.stream is None for cursor in idle), "all rest", 3 * cursors.IDLE_S)
        until(lambda: share_of_a_core() < 0.05, "it costs next to nothing")
