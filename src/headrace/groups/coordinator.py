"""The one way a group changes: load its value, step, write the new value; if another coordinator
wrote first, begin again.

`Coordinator.asking` holds all of it, as a generator that yields what it wants of the store. `apply`
answers with the real store and the real time, the simulator with its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.core import store_keys
from headrace.core.errors import Contended, UnknownAllocator, UnknownOutcome
from headrace.core.groups import journal
from headrace.core.groups.allocators import Allocator, named
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.groups.events import Denied, Event, ForceCheckpoint, Reply, Settled, Swept
from headrace.core.groups.group import Group
from headrace.core.groups.group_bytes import decoded, encoded
from headrace.core.groups.machine import step
from headrace.core.names import checked_name
from headrace.core.ports import ABSENT, Store, Versioned
from headrace.core.store_keys import epoch_key, epoch_token
from headrace.process.clock import now_ms as wall_ms

ATTEMPTS_MAX = 40
DELAY_S = 0.005
DELAY_S_MAX = 1.0

_SWEPT_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Get:
    key: bytes
    known: Versioned | None = None
    """The value that was read before: it serves if its version is still the same."""


@dataclass(frozen=True, slots=True)
class Scan:
    prefix: bytes


@dataclass(frozen=True, slots=True)
class Transact:
    checks: Mapping[bytes, int]
    puts: Mapping[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


Wish = Get | Scan | Transact | Pause


class Coordinator:
    """Applies events to groups. Any number of coordinators may work on one store at once."""

    def __init__(
        self,
        store: Store,
        allocators: Iterable[Allocator] = (),
        *,
        dice: Callable[[], float] = random.random,
        sleep: Callable[[float], None] = time.sleep,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """``now_ms`` is the clock on the wall: the journal shows it, no decision depends on it."""
        self._store = store
        self._own = {(own.name, own.version): own for own in allocators}
        self._dice = dice
        self._sleep = sleep
        self._now_ms = now_ms
        self._loaded: dict[str, tuple[Versioned, Group]] = {}

    def apply(self, name: str, event: Event, still: Callable[[], bool] | None = None) -> Reply:
        """The reply to the event, once the change is stored.

        ``still`` is asked right before writing; if it answers False, nothing is written.
        `Contended` if other coordinators wrote first too often, `UnknownOutcome` if the store
        cannot tell what happened."""
        return self._granting(self.asking(name, event, still))

    def load(self, name: str) -> Group:
        """The group as it is stored; a group that does not exist if none is."""
        known, _ = self._loaded.get(name, (None, None))
        return self.read(name, self._got(Get(store_keys.group_key(checked_name(name)), known)))

    def version(self, name: str) -> int:
        """The version of the group's stored value: it differs after every change."""
        return self._store.version(store_keys.group_key(name))

    def asking(
        self, name: str, event: Event, still: Callable[[], bool] | None = None
    ) -> Generator[Wish, Any, Reply]:
        key = store_keys.group_key(checked_name(name))
        in_doubt = False
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                yield Pause(self._dice() * min(DELAY_S * 2**attempt, DELAY_S_MAX))
            known, _ = self._loaded.get(name, (None, None))
            found: Versioned | None = yield Get(key, known)
            before = self.read(name, found)
            if not before.exists and before.streams:
                yield from self._sweep(before, found)
                continue
            after, reply = step(before, event)
            if after is before:
                if in_doubt and isinstance(reply, Denied):
                    raise UnknownOutcome(f"group {name!r}: {reply.text}", withdrawn=False)
                return reply
            if still is not None and not still():
                return Settled(before.version)
            puts = {**self._written(after, event), **_epochs(before, after)}
            checks = {key: ABSENT if found is None else found.version}
            if isinstance(event, ForceCheckpoint):
                yield from self._moved(after, event, checks, puts)
            try:
                happened: bool = yield Transact(checks, puts)
            except UnknownOutcome:
                in_doubt = True
                continue
            if happened:
                return reply
        raise Contended(name, ATTEMPTS_MAX)

    def _written(self, after: Group, event: Event) -> dict[bytes, bytes | None]:
        """The new value of the group, and the journal entry of the event."""
        value = encoded(after)
        told = journal.kept(after, event, self._now_ms(), value)
        return {store_keys.group_key(after.name): value, **told}

    def _moved(
        self,
        group: Group,
        event: ForceCheckpoint,
        checks: dict[bytes, int],
        puts: dict[bytes, bytes | None],
    ) -> Generator[Wish, Any, None]:
        shard = event.shard
        key = store_keys.checkpoint_key(group.name, group.streams[shard.stream], shard.index)
        found: Versioned | None = yield Get(key)
        stored = Checkpoint.decoded(found.value) if found else Checkpoint()
        checks[key] = found.version if found else ABSENT
        puts[key] = stored._replace(next=event.next).encoded()

    def _sweep(self, group: Group, found: Versioned | None) -> Generator[Wish, Any, None]:
        """Remove what a deleted group left, unless the group was made anew meanwhile."""
        assert found is not None
        key = store_keys.group_key(group.name)
        left: list[bytes] = []
        for stream_id in group.streams.values():
            for prefix in store_keys.shard_keys_of(stream_id):
                rows: Iterator[tuple[bytes, Versioned]] = yield Scan(prefix)
                left += [row for row, _ in rows if store_keys.is_of(row, group.name)]
        swept = Swept(group.version)
        after, _ = step(group, swept)
        for at in range(0, max(len(left), 1), _SWEPT_AT_ONCE):
            part = left[at : at + _SWEPT_AT_ONCE]
            puts: dict[bytes, bytes | None] = dict.fromkeys(part)
            if at + _SWEPT_AT_ONCE >= len(left):
                puts |= self._written(after, swept)
            try:
                happened: bool = yield Transact({key: found.version}, puts)
            except UnknownOutcome:
                return
            if not happened:
                return

    def read(self, name: str, found: Versioned | None) -> Group:
        """The group of a stored value; decoded once as long as the value stays the same."""
        if found is None:
            return Group(name)
        known, group = self._loaded.get(name, (None, None))
        if known is None or group is None or known.version != found.version:
            group = decoded(found.value, self.allocator)
            self._loaded[name] = found, group
        return group

    def _got(self, wish: Get) -> Versioned | None:
        if wish.known is not None and self._store.version(wish.key) == wish.known.version:
            return wish.known
        return self._store.get(wish.key)

    def allocator(self, name: str, version: str) -> Allocator:
        """The allocator of that name and version; one that cannot deal if this process lacks it."""
        own = self._own.get((name, version))
        if own is not None:
            return own
        try:
            shipped = named(name)
        except UnknownAllocator:
            return Allocator(name, version)
        return shipped if shipped.version == version else Allocator(name, version)

    def _granting(self, asking: Generator[Wish, Any, Reply]) -> Reply:
        """Answer the wishes of a generator until it returns its reply."""
        answer: Any = None
        error: UnknownOutcome | None = None
        while True:
            try:
                wish = asking.send(answer) if error is None else asking.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            answer, error = None, None
            match wish:
                case Get():
                    answer = self._got(wish)
                case Scan():
                    answer = self._store.scan(wish.prefix)
                case Pause():
                    self._sleep(wish.seconds)
                case Transact():
                    try:
                        answer = self._store.transact(wish.checks, wish.puts)
                    except UnknownOutcome as unknown:
                        error = unknown


def _epochs(before: Group, after: Group) -> dict[bytes, bytes | None]:
    """The epoch keys that change: a shard has one exactly while it has an owner."""
    old, new = _tokens(before, after), _tokens(after, before)
    puts: dict[bytes, bytes | None] = dict.fromkeys(old)
    return puts | new


def _tokens(group: Group, other: Group) -> dict[bytes, bytes]:
    """Keys and tokens of the shards owned in one group whose standing differs in the other."""
    return {
        epoch_key(group.name, group.streams[shard.stream], shard.index): epoch_token(standing.epoch)
        for shard, standing in group.shards.items()
        if standing.owner is not None and other.shards.get(shard) is not standing
    }
