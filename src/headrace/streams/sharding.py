"""How the records of one call are divided: to shards by their keys, to commits by their size."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.core.errors import ShardClosed
from headrace.core.model import StreamInfo
from headrace.core.ports import Append, Codec, Producer
from headrace.core.records.batch import Batch
from headrace.core.records.limits import check_shard
from headrace.core.records.routing import router
from headrace.core.records.row import COMMIT_BYTES_MAX

SPREAD_RECORDS = 1_000
"""How many records without a key go to one shard before the next shard gets its turn."""


class CommitPart(NamedTuple):
    """What one commit appends."""

    appends: list[Append]
    targets: Sequence[int]
    """The shard of each record, in the order in which they were given."""


class Sharding:
    """Divides the records that are appended to one stream."""

    def __init__(self, info: StreamInfo) -> None:
        self._info = info
        self._route = router(info.routing, info.shards)
        self._open = [shard.index for shard in info.shards if shard.open]
        # Each process begins at another shard: many short ones must not all fill the first shard.
        self._turns = itertools.count(random.randrange(len(self._open)))

    def shard_for(
        self, key: bytes | None, shard: int | None = None, producer: Producer | None = None
    ) -> int:
        """The shard that was asked for, else the key's, else the next shard in turn."""
        if shard is not None:
            check_shard(self._info, shard)
            if not self._info.shards[shard].open:
                raise ShardClosed(self._info.name, shard)
            return shard
        if key is not None:
            return self._route(key)
        # A repeated append must go to the same shard as the first time.
        turn = producer.seq if producer else next(self._turns)
        return self._open[turn % len(self._open)]

    def parts(
        self,
        batch: Batch,
        keys: Sequence[bytes | None] | None = None,
        shard: int | None = None,
        producer: Producer | None = None,
        *,
        each: bool = False,
    ) -> Iterator[CommitPart]:
        """The batch, halved and halved again until each part fits one commit.

        A producer's append stays whole, because one number stands for all of it. The records
        refuses it if it is too large."""
        if not len(batch):
            return
        whole = producer is not None
        if shard is not None:
            target = self.shard_for(None, shard)
            yield from self._divided(batch, [target] * len(batch), {target}, whole, each)
            return
        targets = self._targets(keys or batch.keys, producer)
        yield from self._divided(batch, targets, set(targets), whole, each)

    def _divided(
        self, batch: Batch, targets: Sequence[int], shards: set[int], whole: bool, each: bool
    ) -> Iterator[CommitPart]:
        half = len(targets) // 2
        if whole or not half or batch.nbytes <= COMMIT_BYTES_MAX:
            pieces = {targets[0]: batch} if len(shards) == 1 else batch.shared_out(targets)
            yield CommitPart(
                [Append(self._info, *piece, each) for piece in pieces.items()], targets
            )
            return
        yield from self._divided(batch.part(0, half), targets[:half], shards, False, each)
        yield from self._divided(batch.part(half, len(batch)), targets[half:], shards, False, each)

    def _targets(self, keys: Sequence[bytes | None], producer: Producer | None) -> list[int]:
        route = self._route
        if None not in keys:
            return list(map(route, keys))  # type: ignore[arg-type]
        targets: list[int] = []
        keyless = turn = 0
        for key in keys:
            if key is None:
                if keyless % SPREAD_RECORDS == 0:
                    turn = self.shard_for(None, None, producer)
                keyless += 1
                targets.append(turn)
            else:
                targets.append(route(key))
        return targets


class Target(NamedTuple):
    """A stream that a computation may append to."""

    info: StreamInfo
    codec: Codec
    sharding: Sharding
