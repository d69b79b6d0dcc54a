"""A member of a group: it loses its lease, joins again, and does not replace a newer
incarnation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import pytest

from headrace.backends.memory import MemoryBackend
from headrace.core.errors import DiskFull, Replaced
from headrace.core.groups.allocators import balanced
from headrace.core.groups.events import Event, Evict, Join, Reply
from headrace.core.groups.group import Group
from headrace.core.groups.member_settings import MemberSettings
from headrace.core.groups.subscription import Subscription
from headrace.core.model import StreamInfo
from headrace.core.ports import Begin, End, Lost, StreamSpec
from headrace.groups.coordinator import Coordinator
from headrace.groups.membership import GroupMembership
from headrace.groups.observer import Observer
from headrace.testing.children import until

GROUP = "billing"
SPEC = StreamSpec("orders", 2, "bytes", "md5-range", None, None, 0)


class Interrupted(MemoryBackend):
    """A store in which something else happens once, right before or after a group is written."""

    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None

    def transact(self, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None]) -> bool:
        before, self.before = self.before, None
        if before is not None:
            before()
        happened = super().transact(checks, puts)
        after, self.after = self.after, None
        if after is not None:
            after()
        return happened


@pytest.fixture
def backend() -> Iterator[Interrupted]:
    backend = Interrupted()
    backend.create_stream(SPEC)
    yield backend
    backend.close()


@pytest.fixture
def member(backend: Interrupted) -> Iterator[Callable[[str], GroupMembership]]:
    made: list[GroupMembership] = []

    def member(name: str) -> GroupMembership:
        settings = MemberSettings(
            group=GROUP, name=name, allocator=balanced, session_s=10.0, heartbeat_s=3.0
        )
        made.append(GroupMembership(backend, backend, Subscription("orders"), settings))
        return made[-1]

    yield member
    for one in made:
        one.leave()


def _lose_lease(member: GroupMembership) -> None:
    assert member._seat is not None
    member._seat.over = True


def test_a_member_that_lost_its_lease_loses_its_shards_and_rejoins(
    member: Callable[[str], GroupMembership],
) -> None:
    first = member("a")
    first.join()
    granted = {turn.grant.token for turn in first.changes() if isinstance(turn, Begin)}
    _lose_lease(first)
    lost = first.changes()
    assert {turn.grant.token for turn in lost if isinstance(turn, Lost)} == granted
    again: set[bytes] = set()

    def is_back() -> bool:
        again.update(t.grant.token for t in first.changes() if isinstance(t, Begin))
        return len(again) == 1

    until(is_back, "the member joins again and is granted its shards under new epochs")
    assert not again & granted


def test_a_rejoining_member_does_not_replace_a_newer_one(
    member: Callable[[str], GroupMembership],
) -> None:
    first, second = member("a"), member("a")
    first.join()
    _lose_lease(first)
    first.changes()
    second.join()
    with pytest.raises(Replaced):
        until(lambda: first.changes(), "the older member sees the newer one")
    second.changes()
    assert second._seat is not None


def test_a_rejoining_member_does_not_replace_one_that_joins_meanwhile(
    backend: Interrupted, member: Callable[[str], GroupMembership]
) -> None:
    first, second = member("a"), member("a")
    first.join()
    _lose_lease(first)
    first.changes()
    backend.before = second.join
    with pytest.raises(Replaced):
        until(lambda: first.changes(), "the older member sees the newer one")
    second.changes()
    assert second._seat is not None


def test_a_member_whose_join_had_no_answer_is_not_taken_for_another(
    backend: Interrupted, member: Callable[[str], GroupMembership]
) -> None:
    def fail() -> None:
        raise DiskFull("the disk is full, the outcome is unknown")

    first = member("a")
    first.join()
    _lose_lease(first)
    first.changes()
    backend.after = fail
    until(lambda: first.changes(), "the member joins again")
    assert first._seat is not None


def test_a_shard_granted_and_revoked_unseen_moves_on_at_once(
    backend: Interrupted, member: Callable[[str], GroupMembership]
) -> None:
    other, killed = member("b"), member("a")
    other.join()
    killed.join()
    _settle(other, killed)
    assert _held(backend) == {"a": 1, "b": 1}
    coordinator = Coordinator(backend)
    incarnation = coordinator.load(GROUP).members["a"].incarnation
    coordinator.apply(GROUP, Evict("a", incarnation, "dead"))
    successor = member("a")
    successor.join()
    # The other member was granted both shards, and one was promised away before the member saw it.
    assert _held(backend) == {"b": 1}
    _settle(other, successor)
    assert _held(backend) == {"a": 1, "b": 1}


class Slow:
    """A membership whose loads take time, on a clock that the test sets."""

    def __init__(self, real: GroupMembership) -> None:
        self.real = real
        self.now_s = 0.0
        self.takes_s = 0.0
        self.meanwhile: Callable[[], None] = lambda: None

    def load(self) -> Group:
        self.now_s += self.takes_s
        self.meanwhile()
        return self.real.load()

    def tried(self, event: Event, still: Callable[[], bool] | None = None) -> Reply | None:
        return self.real.tried(event, still)

    def joining(self, incarnation: int, infos: list[StreamInfo], group: Group) -> Join:
        return self.real.joining(incarnation, infos, group)


def test_a_beat_during_a_slow_load_starts_a_new_session(
    backend: Interrupted, member: Callable[[str], GroupMembership]
) -> None:
    first = member("a")
    first.join()
    home = Slow(first)
    silent = "b", 1 << 40
    backend.liveness.beat(GROUP, *silent, 0)
    Coordinator(backend).apply(GROUP, Join(*silent, (), balanced))
    assert first._seat is not None
    observer = Observer(
        backend, backend, Subscription("orders"), home, first._seat, 3.0, clock=lambda: home.now_s
    )
    home.takes_s = 4.0
    home.meanwhile = lambda: backend.liveness.beat(GROUP, *silent, 1)
    observer.look(home.now_s)
    home.takes_s, home.meanwhile = 0.0, lambda: None
    while "b" in first.load().members:
        home.now_s += 0.5
        observer.look(home.now_s)
    assert 4.0 + 10.0 < home.now_s <= 4.0 + 10.0 + 2.0


def _settle(*members: GroupMembership) -> None:
    """Let every member see all changes and release what it must, at once."""
    for _ in range(3):
        for one in members:
            one.release([turn.grant for turn in one.changes() if isinstance(turn, End)])


def _held(backend: Interrupted) -> Counter[str | None]:
    shards = Coordinator(backend).load(GROUP).shards.values()
    return Counter(standing.owner for standing in shards if standing.state == "held")
