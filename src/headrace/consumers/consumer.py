"""A consumer: the records of the shards that its group gives it, in order inside each shard."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from math import inf
from types import TracebackType
from typing import Any

import pyarrow as pa

from headrace.consumers.handing_out import REST_S, HandingOut, OwnProcess
from headrace.consumers.held_shards import HeldShards
from headrace.consumers.keeper import Keeper
from headrace.consumers.reader import Reader
from headrace.consumers.settings import ConsumerSettings
from headrace.core.errors import BadSetting, Closed
from headrace.core.model import Record, ShardId
from headrace.core.ports import Grant, Log, Membership
from headrace.core.quantities import Duration, seconds
from headrace.process.shutdown import on_exit, on_sigterm
from headrace.process.wakeup import Wakeup
from headrace.streams.start import StartPolicy, Where, offset_of

log = logging.getLogger("headrace")

ShardRef = int | ShardId

LEFT_S = 0.02
LEAVE_S_MAX = 35.0
"""How long leaving may take beyond the handler: a write may wait for a lock."""


class Consumer:
    """Made by `Hub.consumer`: use it in a ``with`` block, from one thread; `mark`, `commit`,
    `pause`, `resume` and `close` from any.

    >>> import headrace
    >>> hub = headrace.open("memory:")
    >>> orders = hub.create_stream("shop/orders", shards=1, codec="json")
    >>> ids = orders.append_many([({"id": 1}, "ann"), ({"id": 2}, "bob")])
    >>> with hub.consumer("shop/orders", group="billing") as consumer:
    ...     while record := consumer.read(timeout="100ms"):
    ...         print(record.id, record.value)
    shop/orders:0+0 {'id': 1}
    shop/orders:0+1 {'id': 2}
    """

    def __init__(
        self,
        records: Log,
        membership: Membership,
        settings: ConsumerSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = settings.name
        self.group = settings.group
        self._records = records
        self._membership = membership
        self._lease = membership.lease
        self._named = frozenset(settings.subscription.names)
        self._handler_s_max = settings.handler_s_max
        self._clock = clock
        self._process = OwnProcess(settings.name)
        keeper_wakeup = Wakeup()
        self._shards = HeldShards(
            auto_mark=settings.auto_mark,
            tells_ends=settings.on_revoke is not None,
            wake_keeper=keeper_wakeup.ring,
        )
        start = StartPolicy(records, settings.start)
        self._keeper = Keeper(
            records,
            membership,
            self._shards,
            wakeup=keeper_wakeup,
            start=start,
            commit_every_s=settings.commit_every_s,
            handler_s_max=settings.handler_s_max,
            clock=clock,
        )
        self._handing_out = HandingOut(
            self._shards,
            self._keeper,
            Reader(records, settings.limits, settings.decode, start.after_trim),
            membership.lease,
            self._process,
            named=self._named,
            on_grant=settings.on_grant,
            on_revoke=settings.on_revoke,
            clock=clock,
        )
        self._closed = False
        self._has_left = False
        self._keeper.start()
        on_exit(self)
        self._forget_sigterm = on_sigterm(self._keeper.end)
        # A consumer that is dropped without being closed does not keep its shards from the others.
        # Nothing that lives longer may refer to it: neither the keeper nor the records handed out.
        self._dropped = weakref.finalize(self, self._keeper.abandon)

    # Records

    def __iter__(self) -> Iterator[Record]:
        """Record by record, for ever. The loop ends when the consumer is closed or told to end. A
        loop that was left begins again with the record it was left at, unless that was marked."""
        self._begin_loop()
        return (record for stride in self._strides() for record in stride)

    def _strides(self) -> Iterator[Iterator[Record]]:
        """A few records each: between two strides the lease is looked at.

        Here, not in `HandingOut`: the loop keeps the consumer alive, also where the user has no
        other reference to it."""
        clock, lease = self._clock, self._lease
        while (handout := self._handing_out.next()) is not None:
            stride, handout.is_looped = handout.holding.stride, True
            while clock() < lease.until_s and not (handout.is_cut or handout.given >= handout.end):
                self._process.check()
                yield islice(handout.left, stride)

    def read(self, timeout: Duration | None = None) -> Record | None:
        """The next record; None if none comes within the time. The record before is marked as done.
        `Closed` once the consumer has ended."""
        self._check_open()
        until_s = self._until(timeout)
        while (handout := self._handing_out.next(until_s)) is not None:
            handout.is_looped = False
            for record in handout.left:
                return record
        return None

    def batches(self, timeout: Duration | None = None) -> Iterator[list[Record]]:
        """Lists of records of one shard each; asking for the next one marks the last as done.

        With a timeout the loop ends when nothing has come for that long. A loop that was left
        begins again with the list it was left at, unless that was marked."""
        self._begin_loop()
        while records := self._list(self._until(timeout), looped=True):
            yield records

    def read_batch(self, timeout: Duration | None = None) -> list[Record]:
        """The next list of records, an empty one if none come within the time. The list before is
        marked as done. `Closed` once the consumer has ended."""
        self._check_open()
        return self._list(self._until(timeout), looped=False)

    def arrow_batches(self, timeout: Duration | None = None) -> Iterator[pa.RecordBatch]:
        """As `batches`, but Arrow batches, with stream and shard in the metadata of the schema."""
        self._begin_loop()
        while True:
            handout, begin, end = self._handing_out.next_whole(self._until(timeout), looped=True)
            if handout is None:
                return
            yield handout.batch.part(begin, end).arrow

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Record by record, for an event loop, which waiting does not block."""
        self._begin_loop()
        handing_out = self._handing_out
        while True:
            handout = handing_out.current()
            if handout is None:
                handout = await asyncio.to_thread(handing_out.next, self._clock() + REST_S)
                handing_out.worker = threading.current_thread()
            if handout is not None:
                handout.is_looped = True
                for record in islice(handout.left, 1):
                    yield record
            elif self._shards.is_ending:
                return

    # Marks and checkpoints

    def mark(self, record: Record | Iterable[Record]) -> None:
        """The record is done, or all of these are. The next commit stores it."""
        now_s = self._clock()
        several = isinstance(record, Iterable) and not isinstance(record, str | bytes)
        records: list[Any] = list(record) if several else [record]  # type: ignore[arg-type]
        for one in records:
            if not isinstance(one, Record):
                raise BadSetting(
                    f"mark takes a record that was handed out, or several: not {one!r}"
                )
        for one in records:
            self._shards.mark(one, now_s)
        self._keeper.wake()
        self._shards.wake_worker()  # there may be room for more

    def commit(self) -> None:
        """Store what is done, and return when it is stored. With automatic marks that includes the
        record in hand: commit when the work on it is done.

        `Fenced` if something that was handed out since the last commit is another member's now: the
        error says which records were not stored. All others are."""
        self._check_group("commit")
        self._process.check()
        if self._has_left:
            raise Closed(f"the consumer {self.name} was closed")
        if self._shards.failure is not None:
            raise self._shards.failure
        self._shards.mark_handed_out(self._clock())
        self._keeper.commit()
        fenced = self._shards.fenced()
        if fenced is not None:
            raise fenced

    def seek(self, shard: ShardRef, where: Where) -> None:
        """Move the checkpoint of a shard that is held: "earliest", "latest", an offset or a time.
        Stored on return; the next records of that shard come from there."""
        self._check_open()

        def move(grant: Grant) -> None:
            to = offset_of(self._records, grant.stream, grant.shard, where, "where")
            self._membership.move(grant, to)

        self._shards.move(self._shard(shard), move)

    # Shards

    @property
    def granted(self) -> list[ShardId]:
        """The shards that are held now."""
        return self._shards.granted()

    @property
    def ended(self) -> bool:
        """Whether no more records will come: the consumer was closed, or told to end by SIGTERM."""
        return self._closed or self._shards.is_ending

    def pause(self, shard: ShardRef) -> None:
        """Have no more records of this shard until `resume`. The shard stays held."""
        self._shards.pause(self._shard(shard))

    def resume(self, shard: ShardRef) -> None:
        self._shards.resume(self._shard(shard))

    # The end

    def close(self) -> None:
        """Commit what is done, let go of all shards and leave. A record that another thread has in
        hand is waited for, up to ``max_wait_handler``."""
        if self._closed or not self._process.is_this:
            return
        self._closed = True
        self._dropped.detach()
        self._forget_sigterm()
        self._keeper.end()
        try:
            worker = self._handing_out.worker
            if worker in (None, threading.current_thread()) or not worker.is_alive():
                self._handing_out.end()
        finally:
            until_s = self._clock() + self._handler_s_max + LEAVE_S_MAX
            while not self._keeper.left(LEFT_S):
                if self._clock() > until_s:
                    log.warning("group=%s member=%s: still leaving", self.group, self.name)
                    break
            self._has_left = True

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Consumer {self.name} group={self.group} shards={len(self.granted)}>"

    # Below

    def _begin_loop(self) -> None:
        self._check_open()
        self._shards.hand_out_again(self._clock())

    def _list(self, until_s: float, *, looped: bool) -> list[Record]:
        handout, begin, end = self._handing_out.next_whole(until_s, looped=looped)
        return [] if handout is None else [Record(handout.batch, row) for row in range(begin, end)]

    def _until(self, timeout: Duration | None) -> float:
        return inf if timeout is None else self._clock() + seconds(timeout, what="timeout")

    def _check_open(self) -> None:
        self._process.check()
        if self._closed:
            raise Closed(f"the consumer {self.name} was closed")
        if self.ended and self._shards.failure is None:
            raise Closed(f"the consumer {self.name} has ended: by SIGTERM, or with its hub")

    def _check_group(self, what: str) -> None:
        if self.group is None:
            raise BadSetting(f"{what} needs a group: a consumer of fixed shards has no checkpoints")

    def _shard(self, shard: ShardRef) -> ShardId:
        if isinstance(shard, tuple):
            return ShardId(*shard)
        streams = self._shards.streams() | self._named
        if isinstance(shard, bool) or not isinstance(shard, int) or len(streams) != 1:
            raise BadSetting(f"shard {shard!r}: name the stream too, ShardId(stream, index)")
        return ShardId(streams.pop(), shard)
