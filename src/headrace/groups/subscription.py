"""Which streams are meant, and what there is to tell a group about them."""

from __future__ import annotations

import fnmatch
import logging
import re
from collections.abc import Sequence

from headrace.core.errors import BadSetting, UnknownStream
from headrace.core.groups.checkpoint import Checkpoint
from headrace.core.groups.events import ShardFacts, StreamFacts
from headrace.core.groups.group import Group
from headrace.core.model import ShardId, StreamInfo
from headrace.core.names import checked_name
from headrace.core.ports import Backend
from headrace.groups.commit_outcome import checkpoint_of

log = logging.getLogger("headrace")

_WILD = frozenset("*?[")
_PATTERN = re.compile(r"([A-Za-z0-9._*?/-]|\[!?[A-Za-z0-9._-]+\])+", re.ASCII)


class Subscription:
    """Names of streams, and patterns such as ``shop/*`` that new streams may match later."""

    def __init__(self, streams: str | Sequence[str]) -> None:
        wanted = [streams] if isinstance(streams, str) else streams
        if not (
            isinstance(wanted, Sequence) and wanted and all(isinstance(w, str) for w in wanted)
        ):
            raise BadSetting(f"streams {streams!r}: a name, a pattern like shop/*, or several")
        self.patterns = [one for one in wanted if not _WILD.isdisjoint(one)]
        for pattern in self.patterns:
            if not _PATTERN.fullmatch(pattern):
                raise BadSetting(
                    f"bad pattern {pattern!r}: letters, digits, '.', '_', '-', one slash, and *, ? "
                    "or [abc] for what may differ"
                )
        self.names = list(dict.fromkeys(checked_name(o) for o in wanted if o not in self.patterns))

    def found(self, backend: Backend) -> dict[str, StreamInfo]:
        """The streams that are there. One that was named and is not is `UnknownStream`."""
        found = {name: backend.stream(name) for name in self.names}
        if self.patterns:
            found |= {i.name: i for i in backend.streams() if self._matches(i.name)}
        if not found:
            log.warning("no stream matches %s yet", ", ".join(self.patterns))
        return found

    def current(self, backend: Backend) -> dict[str, StreamInfo]:
        """The same, without those that are gone by now."""
        found = {}
        for name in self.names:
            try:
                found[name] = backend.stream(name)
            except UnknownStream:
                continue
        if self.patterns:
            found |= {i.name: i for i in backend.streams() if self._matches(i.name)}
        return found

    def _matches(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)


def facts_of(backend: Backend, info: StreamInfo, group: Group) -> StreamFacts:
    """What there is to tell about a stream. The group was read before: its epochs say under which
    grant a closed shard was found read to its end."""
    shards = []
    for shard in info.shards:
        finished_at = None
        if not shard.open and _is_read(backend, info, shard.index, group.name):
            standing = group.shards.get(ShardId(info.name, shard.index))
            finished_at = 0 if standing is None else standing.epoch
        shards.append(ShardFacts(shard.index, shard.parents, finished_at))
    return StreamFacts(info.name, info.id, tuple(shards), group.version)


def gone(stream: str, group: Group) -> StreamFacts:
    """What there is to tell about a stream that is not there any more."""
    return StreamFacts(stream, group.streams[stream], ())


def _is_read(backend: Backend, info: StreamInfo, shard: int, group: str) -> bool:
    checkpoint = checkpoint_of(backend, group, info, shard) or Checkpoint()
    return checkpoint.lag(backend.bounds(info, shard)) == 0
