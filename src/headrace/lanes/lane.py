"""A lane: asks for a slice, works on it, reports, asks again."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from headrace.core.computations.dispatch import Duty
from headrace.core.errors import UnknownStream
from headrace.core.model import ShardId
from headrace.core.ports import Backend, Grant
from headrace.lanes.bound import BoundComputation, targets_of
from headrace.lanes.handler import Loop
from headrace.lanes.protocol import LaneDispatcher, Report, Work
from headrace.lanes.shard_at_work import ShardAtWork
from headrace.lanes.slice_in_hand import SliceInHand
from headrace.lanes.state import Budget
from headrace.process.failpoints import failpoint

log = logging.getLogger("headrace")

POSTS_KEPT = 1_024
STATE_BYTES_MAX = 32 * 1024 * 1024
"""What a lane remembers of the state of all its shards."""
ORIGINS = "HEADRACE_ORIGINS"
"""Set in the environment, outputs tell in a header from which record they come."""


class Lane:
    """Runs in a thread, a process or a task of its own; `cut` and `hand` are for others."""

    def __init__(
        self,
        number: int,
        desk: LaneDispatcher,
        backend: Backend,
        kits: Mapping[str, BoundComputation],
        replica: str,
    ) -> None:
        self.number = number
        self.hand: SliceInHand | None = None
        self._desk = desk
        self._backend = backend
        self._kits = kits
        self._replica = replica
        self._posts: OrderedDict[Duty, ShardAtWork] = OrderedDict()
        self._loop = Loop()
        self._budget = Budget(STATE_BYTES_MAX)
        self._tells_origins = bool(os.environ.get(ORIGINS))

    def run(self) -> None:
        """Until there is no more work."""
        try:
            while (work := self._desk.ask(self.number)) is not None:
                report = self._worked(work)
                failpoint("lane.before-report")
                self._desk.report(self.number, report)
                failpoint("lane.after-report")
        finally:
            for post in self._posts.values():
                post.close()
            self._loop.close()

    def cut(self, number: int) -> None:
        """End that slice behind the record in hand."""
        hand = self.hand
        if hand is not None and hand.number == number:
            hand.cut()

    def _worked(self, work: Work) -> Report:
        hand = self.hand = SliceInHand(work.number, work.start)
        duty = Duty(work.computation, ShardId(work.stream, work.shard))
        if work.closing and not self._has(duty, work.token):
            return Report(number=work.number, next=work.start, outcome="done")
        try:
            post = self._post(work, duty)
        except UnknownStream as gone:
            if gone.name in self._kits[work.computation].computation.outputs:
                reason = str(gone)
                return Report(number=work.number, next=work.start, outcome="stopped", reason=reason)
            # An input: the group will hear of it.
            return Report(number=work.number, next=work.start, outcome="fenced")
        ask = partial(self._desk.failed, self.number)
        report = post.work(work, hand, ask)
        self.hand = None
        if not post.is_sound or work.closing:
            del self._posts[duty]
            post.close()
        return report

    def _has(self, duty: Duty, token: bytes) -> bool:
        known = self._posts.get(duty)
        return known is not None and known.grant.token == token

    def _post(self, work: Work, duty: Duty) -> ShardAtWork:
        known = self._posts.get(duty)
        if known is not None:
            if work.warm and known.grant.token == work.token:
                self._posts.move_to_end(duty)
                return known
            del self._posts[duty]
            known.close()
        info = self._backend.stream(work.stream)
        if info.id != work.stream_id:
            raise UnknownStream(work.stream)
        while len(self._posts) >= POSTS_KEPT:
            self._posts.popitem(last=False)[1].close()
        kit = self._kits[work.computation]
        # Looked up anew: a stream of the same name may be another one by now.
        kit = replace(kit, targets=targets_of(self._backend, kit.computation))
        post = self._posts[duty] = ShardAtWork(
            self._backend,
            kit,
            Grant(work.computation, info, work.shard, work.token),
            replica=self._replica,
            lane=self.number,
            loop=self._loop,
            budget=self._budget,
            tells_origins=self._tells_origins,
        )
        return post
