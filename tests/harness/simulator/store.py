"""A simulated store: small values, counted records, commits, and all the faults of a real one.

A transaction runs the real code, `headrace.core.transaction`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from headrace.core import store_keys, transaction
from headrace.core.errors import Fenced, HeadraceError, UnknownOutcome, UnknownStream
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.model import HASH_END, Shard, ShardId, Slice, StreamInfo
from headrace.core.ports import ABSENT, Commit, Grant, Versioned
from headrace.core.transaction import Part
from headrace.groups.coordinator import Get, Scan, Transact, Wish
from tests.harness.simulator.swarm import Swarm
from tests.harness.simulator.world import Node, World

GROUP = "billing"
STREAMS = ("a", "b")
TIMEOUT_S = 4.0

Answer = Callable[[Any, HeadraceError | None], None]


class Watching(Protocol):
    """Is told what was written, before any process knows."""

    def wrote(
        self, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None], why: Any
    ) -> None: ...

    def committed(self, who: Any, shard: ShardId, grant: Grant, done: Slice, was: int) -> None: ...


class SimStore:
    """One store for many processes. Answers take time and can get lost."""

    def __init__(self, world: World, swarm: Swarm) -> None:
        self.world = world
        self.swarm = swarm
        self.faulty = True
        self.watching: list[Watching] = []
        self.streams: dict[str, StreamInfo] = {}
        self.ends: dict[tuple[int, int], int] = {}
        self.outputs: dict[tuple[int, int], list[int]] = {}
        self._values: dict[bytes, Versioned] = {}
        self._older: dict[bytes, Versioned | None] = {}
        self._version = 0
        self._next_id = 1

    # Wishes of processes; answers take time

    def ask(self, node: Node, wish: Wish | Callable[[], Any], answer: Answer, why: Any) -> None:
        """Carry out a wish some time later, and answer later still, or never."""
        life = node.life
        fate = self.world.dice.random() if self.faulty else 1.0
        lost = fate < self.swarm.unknown and not isinstance(wish, Get | Scan)

        # Some writes happen long after the process has given up on them.
        late_s = (
            TIMEOUT_S + self.world.about(2.0) if lost and fate > 0.8 * self.swarm.unknown else 0.0
        )

        def reached() -> None:
            if lost and fate < self.swarm.unknown / 2:
                self.world.counts["unknown, not applied"] += 1
                told(None, UnknownOutcome("no answer in time", withdrawn=False))
                return
            try:
                result, error = self._do(wish, why), None
            except HeadraceError as raised:
                result, error = None, raised
            if lost:
                if error is None and result is not False:
                    self.world.counts["sometimes: unknown but applied"] += 1
                if not late_s:
                    told(None, UnknownOutcome("no answer in time", withdrawn=False))
            else:
                told(result, error)

        def told(result: Any, error: HeadraceError | None) -> None:
            delay_s = TIMEOUT_S if lost else self._latency_s()
            node.later(delay_s, lambda: answer(result, error), life)

        if late_s:
            told(None, UnknownOutcome("no answer in time", withdrawn=False))
        self.world.after(self._latency_s() + late_s, reached)

    def _latency_s(self) -> float:
        if self.faulty and self.world.chance(self.swarm.spikes):
            return self.world.about(2.0)
        return self.world.about(self.swarm.latency_s if self.faulty else 0.005)

    def _do(self, wish: Wish | Callable[[], Any], why: Any) -> Any:
        match wish:
            case Get():
                if self.faulty and wish.key[:1] == b"g" and self.world.chance(self.swarm.stale):
                    self.world.counts["stale reads"] += 1
                    return self._older.get(wish.key)
                return self.get(wish.key)
            case Scan():
                return self.scan(wish.prefix)
            case Transact():
                return self._transact(wish, why)
            case _:
                assert callable(wish), wish
                return wish()

    def _transact(self, wish: Transact, why: Any) -> bool:
        if self.faulty and self.world.chance(self.swarm.conflict):
            self.world.counts["conflicts made up"] += 1
            return False
        if not self.transact(wish.checks, wish.puts):
            self.world.counts["conflicts"] += 1
            return False
        for watching in self.watching:
            watching.wrote(wish.checks, wish.puts, why)
        return True

    # The commit of a slice

    def commit(self, who: Any, grant: Grant, done: Slice, outputs: Sequence[int]) -> None:
        """Commit as a backend does; the outputs are the offsets they come from."""
        shard = ShardId(done.stream, done.shard)
        was = self.checkpoint(shard).next
        part = Part(grant.stream, done.shard, len(outputs), list(outputs))
        self._version += 1
        try:
            transaction.commit(self, Commit(grant=grant, done=done), [part])
        except Fenced:
            self.world.counts["sometimes: commit after the epoch moved"] += 1
            raise
        for watching in self.watching:
            watching.committed(who, shard, grant, done, was)

    def checkpoint(self, shard: ShardId) -> Checkpoint:
        info = self.streams.get(shard.stream)
        if info is None:
            return Checkpoint()
        found = self._values.get(store_keys.checkpoint_key(GROUP, info.id, shard.index))
        return Checkpoint.decoded(found.value) if found else Checkpoint()

    # The store's contract, without faults

    def version(self, key: bytes) -> int:
        found = self._values.get(key)
        return ABSENT if found is None else found.version

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, Versioned]]:
        return iter(sorted(item for item in self._values.items() if item[0].startswith(prefix)))

    def transact(self, checks: Mapping[bytes, int], puts: Mapping[bytes, bytes | None]) -> bool:
        self._version += 1
        return transaction.transact(self, checks, puts)

    # The transaction that `headrace.core.transaction` writes through

    def get(self, key: bytes) -> Versioned | None:
        return self._values.get(key)

    def put(self, key: bytes, value: bytes | None) -> None:
        self._older[key] = self._values.get(key)
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = Versioned(value, self._version)

    def end(self, stream: StreamInfo, shard: int) -> int:
        found = self.streams.get(stream.name)
        if found is None or found.id != stream.id:
            raise UnknownStream(stream.name)
        return len(self.outputs.get((stream.id, shard), ()))

    def add(self, part: Part, base: int) -> None:
        self.outputs.setdefault((part.stream.id, part.shard), []).extend(part.content)

    # The log: how many records each shard has

    def create_stream(self, name: str, shards: int) -> None:
        bounds = [HASH_END * i // shards for i in range(shards + 1)]
        parts = tuple(Shard(i, bounds[i], bounds[i + 1]) for i in range(shards))
        self.streams[name] = _info(name, self._next_id, parts)
        self.ends.update({(self._next_id, i): 0 for i in range(shards)})
        self._next_id += 1

    def delete_stream(self, name: str) -> None:
        info = self.streams.pop(name)
        gone = tuple(store_keys.stream_prefixes(info.id))
        for key in [key for key in self._values if key.startswith(gone)]:
            del self._values[key]

    def append(self, shard: ShardId, records: int) -> None:
        info = self.streams[shard.stream]
        self.ends[info.id, shard.index] += records

    def is_read(self, shard: ShardId) -> bool:
        return self.checkpoint(shard).next >= self.end_of(shard)

    def end_of(self, shard: ShardId) -> int:
        return self.ends[self.streams[shard.stream].id, shard.index]

    def split(self, name: str, index: int) -> None:
        info = self.streams[name]
        old = info.shards[index]
        middle = (old.begin + old.end) // 2
        new = [
            Shard(0, old.begin, middle, True, (index,)),
            Shard(0, middle, old.end, True, (index,)),
        ]
        self._replace_shards(info, [index], new)

    def merge(self, name: str, left: int, right: int) -> None:
        info = self.streams[name]
        begin, end = info.shards[left].begin, info.shards[right].end
        self._replace_shards(info, [left, right], [Shard(0, begin, end, True, (left, right))])

    def _replace_shards(self, info: StreamInfo, closed: list[int], new: list[Shard]) -> None:
        shards = list(info.shards)
        for index in closed:
            old = shards[index]
            shards[index] = Shard(index, old.begin, old.end, False, old.parents)
        for shard in new:
            index = len(shards)
            shards.append(Shard(index, shard.begin, shard.end, True, shard.parents))
            self.ends[info.id, index] = 0
        self.streams[info.name] = _info(info.name, info.id, tuple(shards))


def _info(name: str, stream_id: int, shards: tuple[Shard, ...]) -> StreamInfo:
    return StreamInfo(
        name=name,
        id=stream_id,
        codec="bytes",
        routing="md5-range",
        retention_s=None,
        retention_bytes=None,
        created_ms=0,
        shards=shards,
    )
