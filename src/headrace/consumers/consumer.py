"""A consumer: the records of the shards that its group gives it, in order inside each shard."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import islice
from math import inf
from types import TracebackType
from typing import Any

import pyarrow as pa

from headrace.consumers.held_shard import Handout, HeldShard
from headrace.consumers.held_shards import HeldShards
from headrace.consumers.keeper import Keeper
from headrace.consumers.reader import Limits, Reader
from headrace.core.errors import BadSetting, Closed, ForkedHandle, UnknownStream
from headrace.core.model import Record, ShardId
from headrace.core.ports import Backend, Membership
from headrace.core.quantities import Duration, seconds
from headrace.process.shutdown import on_exit, on_sigterm
from headrace.streams.start import Start, StartPolicy, Where, offset_of

log = logging.getLogger("headrace")

ShardRef = int | ShardId
GrantCallback = Callable[[list[ShardId]], object]

POLL_S_MIN = 0.0005
POLL_S_MAX = 0.004
POLL_S_IDLE = 0.02
IDLE_S = 0.5
"""After so long without records it looks for them less often."""

REST_S = 0.5
TELL_S = 0.02
LEAVE_S_MAX = 35.0
"""What leaving may take beyond the handler: a write that waits for a lock."""

_ALL = 2**31


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
        backend: Backend,
        membership: Membership,
        *,
        name: str,
        group: str | None,
        named: Iterable[str],
        limits: Limits,
        start: Start,
        decode: Callable[[bytes], Any] | None,
        commit_every_s: float,
        handler_s_max: float,
        auto_mark: bool,
        on_grant: GrantCallback | None,
        on_revoke: GrantCallback | None,
    ) -> None:
        self.name = name
        self.group = group
        self._backend = backend
        self._membership = membership
        self._lease = membership.lease
        self._named = frozenset(named)
        self._on_grant = on_grant
        self._on_revoke = on_revoke
        self._hands = HeldShards(auto_mark=auto_mark, tells_ends=on_revoke is not None)
        positions = StartPolicy(backend, start)
        self._keeper = Keeper(
            backend,
            membership,
            self._hands,
            positions=positions,
            commit_every_s=commit_every_s,
            handler_s_max=handler_s_max,
            commits=group is not None,
        )
        self._reader = Reader(backend, limits, decode, positions.after_trim)
        self._handler_s_max = handler_s_max
        self._pid = os.getpid()
        self._closed = False
        self._has_left = False
        self._worker: threading.Thread | None = None
        """The thread that asked for a record last."""
        self._taken_s = 0.0
        self._keeper.begin()
        on_exit(self)
        self._forget_sigterm = on_sigterm(self._keeper.end)
        # Who drops a consumer without closing it does not keep its shards from the others.
        self._dropped = weakref.finalize(self, self._keeper.abandon)

    # Records

    def __iter__(self) -> Iterator[Record]:
        """Record by record, for ever; it ends when the consumer is closed or told to end. A loop
        that was left begins again with the record it was left at, unless that was marked."""
        self._begin_loop()
        return (record for stride in self._strides() for record in stride)

    def _strides(self) -> Iterator[Iterator[Record]]:
        """A few records each; between them it is seen whether they may still be worked on."""
        clock, lease = time.monotonic, self._lease
        while (piece := self._next_piece()) is not None:
            stride, piece.is_looped = piece.holding.stride, True
            while clock() < lease.until_s and not (piece.is_cut or piece.given >= piece.end):
                self._check_process()
                yield islice(piece.left, stride)

    def read(self, timeout: Duration | None = None) -> Record | None:
        """The next record; None if none comes within the time. It marks the last one as done.
        `Closed` once the consumer has ended."""
        self._check_open()
        until_s = _until(timeout)
        while (piece := self._next_piece(until_s)) is not None:
            piece.is_looped = False
            for record in piece.left:
                return record
        return None

    def batches(self, timeout: Duration | None = None) -> Iterator[list[Record]]:
        """Lists of records of one shard each; asking for the next one marks the last as done.

        With a timeout it ends when nothing has come for so long. A loop that was left begins again
        with the list it was left at, unless that was marked."""
        self._begin_loop()
        while records := self._list(_until(timeout), looped=True):
            yield records

    def read_batch(self, timeout: Duration | None = None) -> list[Record]:
        """The next list of records, an empty one if none come within the time. It marks the last
        one as done. `Closed` once the consumer has ended."""
        self._check_open()
        return self._list(_until(timeout), looped=False)

    def arrow_batches(self, timeout: Duration | None = None) -> Iterator[pa.RecordBatch]:
        """The same as Arrow batches, with stream and shard in the schema's metadata."""
        self._begin_loop()
        while True:
            piece, begin, end = self._whole_piece(_until(timeout), looped=True)
            if piece is None:
                return
            yield piece.batch.part(begin, end).arrow

    async def __aiter__(self) -> AsyncIterator[Record]:
        """The same for an event loop, which waiting does not block."""
        self._begin_loop()
        while True:
            piece = self._piece_at_hand()
            if piece is None:
                piece = await asyncio.to_thread(self._next_piece, time.monotonic() + REST_S)
                self._worker = threading.current_thread()
            if piece is not None:
                piece.is_looped = True
                for record in islice(piece.left, 1):
                    yield record
            elif self._hands.ending:
                return

    # Marks and checkpoints

    def mark(self, record: Record | Iterable[Record]) -> None:
        """The record is done, or all of these are; stored with the next commit."""
        now_s = time.monotonic()
        several = isinstance(record, Iterable) and not isinstance(record, str | bytes)
        records: list[Any] = list(record) if several else [record]  # type: ignore[arg-type]
        for one in records:
            if not isinstance(one, Record):
                raise BadSetting(
                    f"mark takes a record that was handed out, or several: not {one!r}"
                )
        for one in records:
            self._hands.mark(one, now_s)
        self._keeper.wake()
        self._keeper.news.ring()  # there may be room for more

    def commit(self) -> None:
        """Store what is done, and return when it is stored. With automatic marks that includes the
        record in hand: call it when its work is done.

        `Fenced` if something that was handed out since the last commit is another's now: it tells
        which records were not stored; all others are."""
        self._check_group("commit")
        self._check_process()
        if self._has_left:
            raise Closed(f"the consumer {self.name} was closed")
        if self._hands.failure is not None:
            raise self._hands.failure
        self._hands.mark_given(time.monotonic())
        self._keeper.commit()
        fenced = self._hands.fenced()
        if fenced is not None:
            raise fenced

    def seek(self, shard: ShardRef, where: Where) -> None:
        """Move the checkpoint of a shard that is held: "earliest", "latest", an offset or a time.
        Stored on return; the next records of that shard come from there."""
        self._check_open()
        with self._hands.lock:
            holding = self._holding(shard)
            info, index = holding.grant.stream, holding.grant.shard
            to = offset_of(self._backend, info, index, where, "where")
            self._membership.move(holding.grant, to)
            self._hands.forsake(holding)
        self._keeper.wake()

    # Shards

    @property
    def granted(self) -> list[ShardId]:
        """The shards that are held now."""
        with self._hands.lock:
            return sorted(h.shard for h in self._hands.holdings.values() if h.ending_s is None)

    @property
    def ended(self) -> bool:
        """Whether no more records will come: it was closed, or told to end by SIGTERM."""
        return self._closed or self._hands.ending

    def pause(self, shard: ShardRef) -> None:
        """No more records of this shard until `resume`; it stays held."""
        with self._hands.lock:
            self._hands.pause(self._holding(shard))

    def resume(self, shard: ShardRef) -> None:
        with self._hands.lock:
            self._hands.paused.discard(self._shard(shard))
        self._keeper.news.ring()

    # The end

    def close(self) -> None:
        """Commit what is done, let go of all shards and leave. A record in hand of another thread
        is waited for, up to ``max_wait_handler``."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._dropped.detach()
        self._forget_sigterm()
        self._keeper.end()
        try:
            worker = self._worker
            if worker in (None, threading.current_thread()) or not worker.is_alive():
                self._tell_the_end()
        finally:
            until_s = time.monotonic() + self._handler_s_max + LEAVE_S_MAX
            while not self._keeper.left(TELL_S):
                if time.monotonic() > until_s:
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

    # Handing out

    def _next_piece(self, until_s: float = inf, *, whole: bool = False) -> Handout | None:
        """What is to be handed out next; None at the end, or when the time is over."""
        self._check_process()
        self._worker = threading.current_thread()
        patience = _Patience(time.monotonic())
        while True:
            piece = self._piece_at_hand()
            if piece is not None:
                return piece
            self._tell()
            if self._hands.ending:
                return None
            now_s = time.monotonic()
            if now_s < self._lease.until_s:
                seen = self._reader.seen
                piece = self._piece_found(now_s, whole)
                if self._reader.seen != seen:
                    self._keeper.written()
                if piece is not None:
                    return piece
            if now_s >= until_s:
                return None
            self._rest(patience, min(until_s, self._reader.again_s))

    def _piece_at_hand(self) -> Handout | None:
        """What is left of what is being handed out. Asking for the next record, its user says that
        those before are done."""
        hands = self._hands
        if hands.failure is not None:
            raise hands.failure
        piece = hands.piece
        if piece is None:
            return None
        now_s = time.monotonic()
        with hands.lock:
            hands.settle(now_s, now_s - self._taken_s)
        if piece.holding.ending_s is not None:
            self._keeper.wake()
        return hands.piece if now_s < self._lease.until_s else None

    def _piece_found(self, now_s: float, whole: bool) -> Handout | None:
        hands = self._hands
        with hands.lock:
            turns = hands.in_turn()
            try:
                holding = self._reader.found(turns, now_s)
            except UnknownStream as gone:
                if gone.name in self._named:
                    raise
                return None
            if holding is None:
                return None
            self._taken_s = now_s
            alone = whole or len(turns) == 1
            return hands.take(holding, _ALL if alone else holding.turn)

    def _rest(self, patience: _Patience, until_s: float) -> None:
        """Until something may have changed."""
        keeper, reader = self._keeper, self._reader
        now_s = time.monotonic()
        until_s = min(until_s, now_s + REST_S)
        keeper.is_relieved = True
        try:
            while now_s < until_s:
                if keeper.news.wait(min(patience.pause_s, until_s - now_s)):
                    return
                if reader.has_news():
                    keeper.written()
                    return
                now_s = time.monotonic()
                idle = now_s - patience.began_s > IDLE_S
                patience.pause_s = min(patience.pause_s * 1.5, POLL_S_IDLE if idle else POLL_S_MAX)
        finally:
            keeper.is_relieved = False

    def _whole_piece(self, until_s: float, *, looped: bool) -> tuple[Handout | None, int, int]:
        """The next piece, all of it handed out, and the rows that were."""
        while (piece := self._next_piece(until_s, whole=True)) is not None:
            piece.whole, piece.is_looped = True, looped
            begin, end = piece.given, piece.give_all()
            if end > begin:
                return piece, begin, end
        return None, 0, 0

    def _list(self, until_s: float, *, looped: bool) -> list[Record]:
        piece, begin, end = self._whole_piece(until_s, looped=looped)
        return [] if piece is None else [Record(piece.batch, row) for row in range(begin, end)]

    def _begin_loop(self) -> None:
        self._check_open()
        self._hands.start_again(time.monotonic())

    def _tell_the_end(self) -> None:
        """Nobody will ask for more: tell the user, who may still mark and commit, then drop what
        is in hand."""
        try:
            while self._on_revoke is not None and not self._keeper.left(0.0):
                self._tell()
                if self._hands.ending and not self._hands.ends_to_tell():
                    return
                self._keeper.news.wait(TELL_S)
        finally:
            self._keeper.abandon()

    def _tell(self) -> None:
        """Tell the user, in its own thread, what was granted and what comes to its end."""
        hands = self._hands
        with hands.lock:
            begun, hands.begun = hands.begun, []
            lost, hands.lost = hands.lost, []
            ends = hands.ends_to_tell()
        try:
            if (lost or ends) and self._on_revoke is not None:
                self._on_revoke([*lost, *(holding.shard for holding in ends)])
            if begun and self._on_grant is not None:
                self._on_grant(begun)
        finally:
            with hands.lock:
                for holding in ends:
                    holding.told_end = True
            if ends:
                self._keeper.wake()

    # Below

    def _check_open(self) -> None:
        self._check_process()
        if self._closed:
            raise Closed(f"the consumer {self.name} was closed")
        if self.ended and self._hands.failure is None:
            raise Closed(f"the consumer {self.name} has ended: by SIGTERM, or with its hub")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle(
                f"the consumer {self.name} belongs to process {self._pid}, not to its child "
                f"{os.getpid()}: open the hub again here and make a new one"
            )

    def _check_group(self, what: str) -> None:
        if self.group is None:
            raise BadSetting(f"{what} needs a group: a consumer of fixed shards has no checkpoints")

    def _shard(self, shard: ShardRef) -> ShardId:
        if isinstance(shard, tuple):
            return ShardId(*shard)
        streams = {held.stream for held in self._hands.holdings} | self._named
        if isinstance(shard, bool) or not isinstance(shard, int) or len(streams) != 1:
            raise BadSetting(f"shard {shard!r}: name the stream too, ShardId(stream, index)")
        return ShardId(streams.pop(), shard)

    def _holding(self, shard: ShardRef) -> HeldShard:
        wanted = self._shard(shard)
        holding = self._hands.holdings.get(wanted)
        if holding is None or holding.ending_s is not None:
            held = ", ".join(map(str, self.granted)) or "none"
            raise BadSetting(f"{wanted} is not held by this consumer now: it holds {held}")
        return holding


class _Patience:
    """How long to wait between two looks: longer the longer nothing comes."""

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.pause_s = POLL_S_MIN


def _until(timeout: Duration | None) -> float:
    return inf if timeout is None else time.monotonic() + seconds(timeout, what="timeout")
