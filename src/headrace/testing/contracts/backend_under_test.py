"""The backend under test: fixtures that open it, and functions that fill and read its log."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import pytest

from headrace.core.capabilities import Capabilities, Capability
from headrace.core.errors import Unsupported
from headrace.core.model import StreamInfo
from headrace.core.ports import Append, Backend, GroupStore, Log, Producer, StreamSpec
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.core.records.to_arrow import arrow_of
from headrace.groups.home import home_of
from headrace.hub.hub import Hub

Opening = Callable[[], Backend]
BatchOf = Callable[[Sequence[Row]], Batch]

WAIT_S = 30.0
"""No operation takes this long. A test that has waited this long fails."""

AS_ROWS_AND_AS_ARROW = pytest.mark.parametrize(
    "made_of",
    [lambda rows: Batch.of_rows(rows), lambda rows: Batch.of_arrow(arrow_of(rows))],
    ids=["rows", "arrow"],
)


class BackendUnderTest:
    @pytest.fixture
    def opening(self) -> Opening:
        raise NotImplementedError("give a fixture `opening`: a function that opens your backend")

    @pytest.fixture
    def backend(self, opening: Opening) -> Iterator[Backend]:
        backend = opening()
        yield backend
        backend.close()

    @pytest.fixture
    def log(self, backend: Backend) -> Log:
        return backend.log

    @pytest.fixture
    def store(self, backend: Backend) -> GroupStore | None:
        """The store of the backend. For a backend without a store, check that groups are refused
        with the reason, and return None."""
        if lacks(backend, "store", lambda: home_of(backend)):
            return None
        return backend.store

    @pytest.fixture
    def hub(self, backend: Backend) -> Hub:
        return Hub(backend)


class HasCapabilities(Protocol):
    """A backend, a log, a store or a hub: each publishes capabilities."""

    @property
    def capabilities(self) -> Capabilities: ...


def lacks(one: HasCapabilities, capability: Capability, call: Callable[[], object]) -> bool:
    """Whether the capability is missing. If so, check that the call is refused with the reason."""
    reason = one.capabilities.missing.get(capability)
    if reason is None:
        return False
    with pytest.raises(Unsupported, match=re.escape(reason)):
        call()
    return True


def made(log: Log, name: str = "shop/orders", shards: int = 1) -> StreamInfo:
    spec = StreamSpec(
        name=name,
        shards=shards,
        codec="bytes",
        routing="md5-range",
        retention_s=None,
        retention_bytes=None,
        created_ms=1_490_855_872_363,
    )
    return log.create_stream(spec)


def some_rows(count: int, *, data: bytes = b"data") -> list[Row]:
    return [Row(b"key %d" % i, data, 1_000 + i) for i in range(count)]


def appended(log: Log, stream: StreamInfo, batch: Batch, producer: Producer | None = None) -> range:
    """Append a batch to shard 0, and return the offsets of its records."""
    (place,) = log.append([Append(stream, 0, batch)], producer)
    assert place.shard == 0
    return range(place.base, place.base + len(batch))


def read_rows(
    log: Log,
    stream: StreamInfo,
    shard: int = 0,
    *,
    start: int | None = None,
    end: int | None = None,
) -> dict[int, Row]:
    """All records of a shard by offset, checked to be in order."""
    bounds = log.bounds(stream, shard)
    at = bounds.start if start is None else start
    stop = bounds.end if end is None else min(end, bounds.end)
    found: dict[int, Row] = {}
    while at < stop:
        reading = log.read(stream, shard, at, stop, max_records=10_000, max_bytes=2**22)
        assert reading.next > at, f"a read at {at} of {bounds} did not advance"
        for batch in reading.batches:
            assert (batch.stream, batch.shard) == (stream.name, shard)
            found |= zip(batch.offsets, map(plain, batch.rows), strict=True)
        at = reading.next
    assert list(found) == sorted(found)
    return found


def plain(row: Row) -> Row:
    """The row with its headers as a tuple of pairs, so that two rows compare by content."""
    return Row(*row)._replace(headers=tuple((name, value) for name, value in row.headers))
