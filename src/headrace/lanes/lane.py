"""A lane: asks for a slice, works on it, reports, asks again."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from headrace.core.errors import UnknownStream
from headrace.core.ports import Grant, GroupHome, Log
from headrace.lanes.bound import BoundComputation, targets_of
from headrace.lanes.handler import EventLoop
from headrace.lanes.protocol import LaneDispatcher, Progress, Report, Work
from headrace.lanes.shard_at_work import ShardAtWork
from headrace.lanes.slice_in_hand import SliceInHand
from headrace.lanes.slice_run import SliceRun
from headrace.lanes.state import Budget
from headrace.process.failpoints import failpoint

log = logging.getLogger("headrace")

SHARDS_KEPT_MAX = 1_024
"""How many shards a lane keeps open; the one that was used longest ago is closed first."""
STATE_BYTES_MAX = 32 * 1024 * 1024
"""How much a lane remembers of the state of all its shards together."""
ORIGINS = "HEADRACE_ORIGINS"
"""If this variable is set, each output names in a header the record it comes from."""


class _Key(NamedTuple):
    """One shard for one computation."""

    computation: str
    stream: str
    shard: int


class Lane:
    """Runs in a thread, a process or a Spark task of its own. Other threads may call `cut` and
    `progress`."""

    def __init__(
        self,
        number: int,
        dispatcher: LaneDispatcher,
        records: Log,
        home: GroupHome,
        computations: Mapping[str, BoundComputation],
        replica: str,
    ) -> None:
        self.number = number
        self._dispatcher = dispatcher
        self._records = records
        self._home = home
        self._computations = computations
        self._replica = replica
        self._slice_in_hand: SliceInHand | None = None
        self._shards: OrderedDict[_Key, ShardAtWork] = OrderedDict()
        self._loop = EventLoop()
        self._budget = Budget(STATE_BYTES_MAX)
        self._tells_origins = bool(os.environ.get(ORIGINS))

    def run(self) -> None:
        """Work until there is no more work."""
        try:
            while (work := self._dispatcher.ask(self.number)) is not None:
                report = self._run_slice(work)
                failpoint("lane.before-report")
                self._dispatcher.report(self.number, report)
                failpoint("lane.after-report")
        finally:
            for shard in self._shards.values():
                shard.close()
            self._loop.close()

    def cut(self, number: int) -> None:
        """End the slice of this number behind the record in hand."""
        slice_in_hand = self._slice_in_hand
        if slice_in_hand is not None and slice_in_hand.number == number:
            slice_in_hand.cut()

    def progress(self) -> Progress | None:
        """How far the lane is; None if it has no slice in hand."""
        slice_in_hand = self._slice_in_hand
        if slice_in_hand is None:
            return None
        return Progress(slice_in_hand.number, slice_in_hand.offset)

    def _run_slice(self, work: Work) -> Report:
        slice_in_hand = self._slice_in_hand = SliceInHand(work.number, work.start)
        key = _Key(work.computation, work.stream, work.shard)
        if work.closing and not self._has(key, work.token):
            return Report(number=work.number, next=work.start, outcome="done")
        try:
            shard = self._shard_at_work(work, key)
        except UnknownStream as gone:
            if gone.name in self._computations[work.computation].computation.outputs:
                reason = str(gone)
                return Report(number=work.number, next=work.start, outcome="stopped", reason=reason)
            # An input stream is gone: the group learns that by itself.
            return Report(number=work.number, next=work.start, outcome="fenced")
        ask = partial(self._dispatcher.failed, self.number)
        report = SliceRun(shard, work, slice_in_hand, ask).run()
        self._slice_in_hand = None
        if not shard.is_sound or work.closing:
            del self._shards[key]
            shard.close()
        return report

    def _has(self, key: _Key, token: bytes) -> bool:
        known = self._shards.get(key)
        return known is not None and known.grant.token == token

    def _shard_at_work(self, work: Work, key: _Key) -> ShardAtWork:
        known = self._shards.get(key)
        if known is not None:
            if work.warm and known.grant.token == work.token:
                self._shards.move_to_end(key)
                return known
            del self._shards[key]
            known.close()
        info = self._records.stream(work.stream)
        if info.id != work.stream_id:
            raise UnknownStream(work.stream)
        while len(self._shards) >= SHARDS_KEPT_MAX:
            self._shards.popitem(last=False)[1].close()
        bound = self._computations[work.computation]
        # Looked up anew: a stream of the same name may be another one by now.
        bound = replace(bound, targets=targets_of(self._records, bound.computation))
        shard = self._shards[key] = ShardAtWork(
            self._records,
            self._home,
            bound,
            Grant(work.computation, info, work.shard, work.token, work.epoch),
            replica=self._replica,
            lane=self.number,
            loop=self._loop,
            budget=self._budget,
            tells_origins=self._tells_origins,
        )
        return shard
