"""A consumer inside one process: what goes wrong below it, who closes it, and how fast it is."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.backends.memory import MemoryBackend
from headrace.backends.opening import in_one_place
from headrace.consumers.consumer import Consumer
from headrace.consumers.reader import Limits
from headrace.consumers.settings import ConsumerSettings
from headrace.core.groups.allocators import named
from headrace.core.groups.member_settings import MemberSettings
from headrace.core.groups.subscription import Subscription
from headrace.core.model import Record, ShardId, Slice
from headrace.core.ports import Begin, Commit, End, Grant, GrantNews, Lease, Log, Lost
from headrace.core.store_keys import epoch_token
from headrace.hub.hub import Hub
from headrace.testing.children import until
from headrace.testing.contracts.consumer_tools import (
    ReadingThread,
    checkpoints,
    filled,
    offsets,
    taken,
)

STREAM = "orders"
FAST: dict[str, Any] = {"group": "billing", "session": "3s", "heartbeat": "200ms"}


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def hub(backend: MemoryBackend) -> Iterator[Hub]:
    with Hub(in_one_place(backend)) as hub:
        yield hub


class Scripted:
    """A membership that says what it is told to say."""

    def __init__(self, *said: Sequence[GrantNews]) -> None:
        self.lease = Lease(inf)
        self.released: list[Grant] = []
        self.commits: list[Commit] = []
        self.turns = 0
        """How often its keeper has asked for news."""
        self._said = list(said)

    def join(self) -> None:
        pass

    def changes(self) -> list[GrantNews]:
        self.turns += 1
        return list(self._said.pop(0)) if self._said else []

    def release(self, grants: Sequence[Grant]) -> None:
        self.released += grants

    def commit(self, commits: Sequence[Commit]) -> list[headrace.HeadraceError | None]:
        self.commits += commits
        return [None] * len(commits)

    def move(self, grant: Grant, to: int) -> None:
        raise NotImplementedError

    def fence(self, grant: Grant) -> None:
        raise NotImplementedError

    def stop(self, grant: Grant) -> None:
        raise NotImplementedError

    def finished(self, grant: Grant) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        pass


def consuming(
    backend: Log, membership: Scripted, clock: Callable[[], float] = time.monotonic
) -> Consumer:
    settings = ConsumerSettings(
        subscription=Subscription(STREAM),
        name="ann",
        member=MemberSettings(
            group="billing", name="ann", allocator=named("balanced"), session_s=3, heartbeat_s=1
        ),
        shards=None,
        limits=Limits(256, 256, 2**20, 1, 0.5),
        start="earliest",
        decode=None,
        commit_every_s=1.0,
        handler_s_max=1.0,
        auto_mark=True,
        on_grant=None,
        on_revoke=None,
    )
    return Consumer(backend, membership, settings, clock=clock)


def test_what_begins_and_ends_at_once_is_let_go(hub: Hub, backend: MemoryBackend) -> None:
    info = filled(hub, STREAM, shards=3, each=5).info
    grants = [Grant("billing", info, shard, epoch_token(1)) for shard in range(3)]
    first = [Begin(grant, None) for grant in grants]
    membership = Scripted([*first, End(grants[0]), Lost(grants[1])])
    with consuming(backend, membership) as consumer:
        until(lambda: membership.released == [grants[0]], "it is released", 5)
        assert consumer.granted == [ShardId(STREAM, 2)]
        assert {record.shard for record in taken(consumer, 5)} == {2}


def test_what_comes_back_under_a_new_grant_goes_on_under_that(
    hub: Hub, backend: MemoryBackend
) -> None:
    info = filled(hub, STREAM, shards=1, each=5).info
    old, new = (Grant("billing", info, 0, epoch_token(epoch)) for epoch in (1, 2))
    membership = Scripted([Begin(old, None), Lost(old), Begin(new, 2)], [End(old)])
    with consuming(backend, membership) as consumer:
        assert offsets(taken(consumer, 3)) == [2, 3, 4]
        assert consumer.granted == [ShardId(STREAM, 0)]
        assert membership.released == []


def test_a_consumer_commits_by_the_clock_it_was_given(hub: Hub, backend: MemoryBackend) -> None:
    info = filled(hub, STREAM, shards=1, each=5).info
    membership = Scripted([Begin(Grant("billing", info, 0, epoch_token(1)), 0)])
    now_s = 100.0
    with consuming(backend, membership, lambda: now_s) as consumer:
        taken(consumer, 3)
        turns = membership.turns
        until(lambda: membership.turns > turns + 3, "the keeper has looked", 5)
        assert membership.commits == [], "no time has passed on its clock"
        now_s += 1.0
        until(lambda: membership.commits, "it is due after a second", 5)
        assert membership.commits[0].done == Slice(STREAM, 0, 0, 2)


def test_a_hub_closes_its_consumers(tmp_path: Path) -> None:
    hub = headrace.open(tmp_path / "hub")
    filled(hub, STREAM, shards=2, each=5)
    one, other = hub.consumer(STREAM, **FAST), hub.consumer(STREAM, **FAST)
    until(lambda: len(one.granted) == len(other.granted) == 1, "1 each", 10)
    taken(one, 3)
    hub.close()
    for consumer in (one, other):
        with pytest.raises(headrace.Closed):
            consumer.read(timeout="1s")
    with headrace.open(tmp_path / "hub") as again:
        assert again.groups.load("billing").members == {}
        assert sum(filter(None, checkpoints(again).values())) == 2


def test_a_consumer_that_was_dropped_leaves(hub: Hub) -> None:
    filled(hub, STREAM, shards=1, each=5)
    consumer = hub.consumer(STREAM, **FAST, max_wait_handler="100ms")
    taken(consumer, 2)
    del consumer
    gc.collect()
    until(lambda: not hub.groups.load("billing").members, "it has left", 10)


def test_a_worker_that_has_ended_is_not_waited_for(hub: Hub) -> None:
    filled(hub, STREAM, shards=1, each=5)
    consumer = hub.consumer(STREAM, **FAST)
    worker = threading.Thread(target=taken, args=(consumer, 3))
    worker.start()
    worker.join()
    began_s = time.monotonic()
    consumer.close()
    assert time.monotonic() - began_s < 2
    assert checkpoints(hub) == {0: 2}


def test_who_is_closed_by_another_thread_is_told_in_its_own(hub: Hub) -> None:
    filled(hub, STREAM, shards=1, each=5)
    told: list[tuple[int, bool]] = []
    busy = threading.Event()
    handling = False
    worker_thread: list[int] = []

    def handle(record: Record) -> None:
        nonlocal handling
        handling = True
        worker_thread.append(threading.get_ident())
        if record.offset == 2:
            busy.set()
            time.sleep(0.2)
        handling = False

    worker = ReadingThread(
        hub.consumer(
            STREAM, **FAST, on_revoke=lambda _: told.append((threading.get_ident(), handling))
        ),
        handle,
    )
    assert busy.wait(10)
    worker.close()
    assert told == [(worker_thread[0], False)]
    assert checkpoints(hub) == {0: 3}


def test_marks_and_commits_may_come_from_other_threads(hub: Hub) -> None:
    filled(hub, STREAM, shards=2, each=200)
    with hub.consumer(STREAM, **FAST, auto_mark=False, prefetch=50) as consumer:
        given: list[Record] = []
        marked = 0
        done = threading.Event()

        def mark() -> None:
            nonlocal marked
            while marked < 400:
                while marked < len(given):
                    consumer.mark(given[marked])
                    marked += 1
                    if marked % 37 == 0:
                        consumer.commit()
            done.set()

        marking = threading.Thread(target=mark)
        marking.start()
        for _ in range(400):
            given += taken(consumer, 1)
        assert done.wait(20)
        marking.join()
        consumer.commit()
        assert checkpoints(hub) == {0: 200, 1: 200}


class Failing:
    """Lets the next calls of a method fail, before or after they have happened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, target: object, name: str) -> None:
        self.left = 0
        self.failed = 0
        self._real = getattr(target, name)
        self._error: Callable[[], Exception] = RuntimeError
        self._happens = False
        monkeypatch.setattr(target, name, self._call)

    def next(self, times: int, error: Callable[[], Exception], *, happens: bool = False) -> None:
        self.left, self._error, self._happens = times, error, happens

    def _call(self, *arguments: Any) -> Any:
        if self.left <= 0:
            return self._real(*arguments)
        self.left -= 1
        self.failed += 1
        if self._happens:
            self._real(*arguments)
        raise self._error()


def full() -> headrace.DiskFull:
    return headrace.DiskFull("no space left")


def in_doubt() -> headrace.UnknownOutcome:
    return headrace.UnknownOutcome("it may still happen", withdrawn=False)


def test_a_commit_that_failed_is_tried_again(
    hub: Hub, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(hub, STREAM, shards=1, each=10)
    failing = Failing(monkeypatch, backend, "commit_each")
    with hub.consumer(STREAM, **FAST, commit_every="50ms") as consumer:
        failing.next(2, full)
        taken(consumer, 5)
        until(lambda: checkpoints(hub) == {0: 4}, "it is stored in the end", 10)
        assert failing.failed == 2
        failing.next(1, full)
        with pytest.raises(headrace.DiskFull):
            consumer.commit()
        consumer.commit()
        assert checkpoints(hub) == {0: 5}
        assert offsets(taken(consumer, 1)) == [5]


def test_a_commit_that_happened_unheard_is_found(
    hub: Hub, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(hub, STREAM, shards=1, each=10)
    failing = Failing(monkeypatch, backend, "commit_each")
    with hub.consumer(STREAM, **FAST, commit_every="1h") as consumer:
        taken(consumer, 5)
        failing.next(1, in_doubt, happens=True)
        consumer.commit()
        assert checkpoints(hub) == {0: 5}
        assert offsets(taken(consumer, 2)) == [5, 6]
        consumer.commit()
        assert checkpoints(hub) == {0: 7}


def test_a_store_that_fails_for_a_while_costs_nobody_its_place(
    hub: Hub, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(hub, STREAM, shards=2, each=10)
    with hub.consumer(STREAM, **{**FAST, "session": "600ms"}, name="a") as consumer:
        before = hub.groups.load("billing").members
        failing = Failing(monkeypatch, backend, "transact")
        failing.next(10**9, full)
        began_s = time.monotonic()
        records = []
        while time.monotonic() < began_s + 1.2:
            record = consumer.read(timeout="10ms")
            if record is not None:
                records.append(record)
        assert len(records) == 20
        failing.next(0, full)
        assert hub.groups.load("billing").members == before
        with hub.consumer(STREAM, **FAST, name="b") as other:
            until(lambda: len(other.granted) == len(consumer.granted) == 1, "1 each", 10)


def test_a_mistake_of_a_decoder_is_the_users_to_see(hub: Hub) -> None:
    filled(hub, STREAM, shards=1, each=2)

    def decode(data: bytes) -> Any:
        raise ValueError("not mine")

    with hub.consumer(STREAM, **FAST, decode=decode) as consumer:
        (record,) = taken(consumer, 1)
        with pytest.raises(ValueError, match="not mine"):
            record.value  # noqa: B018
        assert offsets(taken(consumer, 1)) == [1], "and the shard goes on"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["memory", "lmdb"])
def test_a_worker_does_not_wait_for_reads(where: str, tmp_path: Path) -> None:
    count = 400

    def handle() -> None:
        time.sleep(0.001)

    def rates(hub: Hub, group: str) -> float:
        began_s = time.perf_counter()
        for _ in range(count):
            handle()
        alone_s = time.perf_counter() - began_s
        with hub.consumer(STREAM, group=group) as consumer:
            began_s = time.perf_counter()
            for number, _ in enumerate(consumer, 1):
                handle()
                if number == count:
                    break
            return alone_s / (time.perf_counter() - began_s)

    with headrace.open("memory:" if where == "memory" else tmp_path / "hub") as hub:
        filled(hub, STREAM, shards=4, each=count // 4)
        tried = []
        for again in range(3):
            tried.append(rates(hub, f"g{again}"))
            if tried[-1] >= 0.9:
                break
        assert max(tried) >= 0.9
