"""One shard worked on by one lane for one computation: what lives as long as the grant."""

from __future__ import annotations

import logging

from headrace.codec.registry import find_codec
from headrace.core.ports import Grant, GroupHome, Log, ReadResult
from headrace.lanes.bound import BoundComputation
from headrace.lanes.effects import SliceEffects
from headrace.lanes.handler import EventLoop, Handler
from headrace.lanes.outputs import Overflow
from headrace.lanes.state import Budget
from headrace.process.failpoints import failpoint

log = logging.getLogger("headrace")

READ_BYTES = 1024 * 1024


class ShardAtWork:
    """Serves one `SliceRun` after the other."""

    def __init__(
        self,
        records: Log,
        home: GroupHome,
        bound: BoundComputation,
        grant: Grant,
        *,
        replica: str,
        lane: int,
        loop: EventLoop,
        budget: Budget,
        tells_origins: bool,
    ) -> None:
        self.grant = grant
        self.bound = bound
        self.tells_origins = tells_origins
        """Outputs name the record they come from."""
        self.effects = SliceEffects(home, bound, grant, replica, lane, budget)
        self.handler = Handler(
            bound.computation, self.effects.out, self.effects.ctx, loop, bound.policy.timeout_s
        )
        self.is_open = False
        """The handler's ``init`` went well."""
        self._is_closed = False
        self._records = records
        codec = find_codec(grant.stream.codec)
        self._decode = codec.decode, getattr(codec, "decode_many", None)

    @property
    def is_sound(self) -> bool:
        """Whether what the handler remembers is what is stored."""
        return self.is_open and self.effects.is_sound

    def read(self, start: int, end: int) -> ReadResult:
        """Records from ``start`` on, decoded: as many as one read gives."""
        grant = self.grant
        failpoint("lane.before-read")
        result = self._records.read(
            grant.stream, grant.shard, start, end, max_records=end - start, max_bytes=READ_BYTES
        )
        failpoint("lane.after-read")
        batches = [batch.decoded_by(*self._decode) for batch in result.batches]
        return ReadResult(batches, result.next)

    def can_go_back(self, to: int, offset: int) -> bool:
        """Whether the record at ``offset`` may rewind the shard to the offset ``to``."""
        first = self._records.bounds(self.grant.stream, self.grant.shard).start
        return first <= to <= offset

    def close(self) -> None:
        """The shard leaves this lane: the handler's ``close`` is called, once."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.handler.close()
        except (Exception, Overflow):
            self.effects.take_back(0)
            log.exception("close of %s failed", self.bound.computation.name)
