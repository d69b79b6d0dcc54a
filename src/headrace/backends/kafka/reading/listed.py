"""Messages that arrived, as lists of the fields of their records."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any

from confluent_kafka import Message

from headrace.backends.kafka.messages import NO_EXTRA, Extra, split_headers
from headrace.core.model import Header
from headrace.core.quantities import TIMESTAMP_MS_MAX
from headrace.core.records.row import ROW_OVERHEAD


class ListedRecords:
    """Records of one partition, in order, as lists of their fields."""

    __slots__ = ("headers", "keys", "nbytes", "offsets", "times", "values")

    def __init__(
        self,
        offsets: Sequence[int],
        keys: list[bytes | None],
        values: list[bytes | None],
        times: list[int],
        headers: list[list[Header] | None],
    ) -> None:
        self.offsets = offsets
        self.keys = keys
        self.values = values
        self.times = times
        self.headers = headers if any(headers) else None
        """None if no record has any."""
        self.nbytes = _bytes_of(values) + _bytes_of(keys) + ROW_OVERHEAD * len(keys)
        if self.headers is not None:
            self.nbytes += sum(map(_headers_bytes, filter(None, headers)))

    @classmethod
    def of(
        cls, messages: Sequence[Message], times: list[int], headers: list[list[Header] | None]
    ) -> ListedRecords:
        # Methods of a type mapped over a list run without a Python frame for each message; and
        # the messages are let go of at once, while they are near in memory.
        first, last = messages[0].offset(), messages[-1].offset()
        if last - first == len(messages) - 1:
            offsets: Sequence[int] = range(first, last + 1)
        else:
            offsets = list(map(Message.offset, messages))
        return cls(
            offsets,
            list(map(Message.key, messages)),
            list(map(Message.value, messages)),
            times,
            headers,
        )

    def __len__(self) -> int:
        return len(self.keys)

    def with_headers(self, headers: list[list[Header] | None]) -> ListedRecords:
        return ListedRecords(self.offsets, self.keys, self.values, self.times, headers)

    def part(self, start: int, end: int) -> ListedRecords:
        return ListedRecords(
            self.offsets[start:end],
            self.keys[start:end],
            self.values[start:end],
            self.times[start:end],
            [None] * (end - start) if self.headers is None else self.headers[start:end],
        )

    def fitting(self, nbytes: int) -> int:
        """How many records from the first on take no more than so many bytes."""
        sums = accumulate(size + ROW_OVERHEAD for size in self.sizes())
        return bisect_right(list(sums), nbytes)

    def sizes(self) -> list[int]:
        """Bytes of each record, in the log's terms."""
        headers = self.headers or [None] * len(self)
        return [
            len(key or b"") + len(value or b"") + (_headers_bytes(own) if own else 0)
            for key, value, own in zip(self.keys, self.values, headers, strict=True)
        ]


def sorted_out(messages: list[Message]) -> tuple[list[Message], list[int], list[Message]]:
    """Those that are records, their timestamps, and those that tell of a trouble instead."""
    times = _timestamps(messages)
    if min(times) >= 0:
        return messages, times, []
    # A trouble has no timestamp; a record may have none either.
    troubles = [message for message in messages if message.error() is not None]
    if troubles:
        messages = [message for message in messages if message.error() is None]
        times = _timestamps(messages)
    return messages, [max(at, 0) for at in times], troubles


def headers_of(messages: Sequence[Message]) -> list[list[Header] | None]:
    """The headers of each, up to one that the client cannot take apart: a second look at that one
    would find none."""
    headers: list[list[Header] | None] = []
    try:
        headers.extend(map(Message.headers, messages))
    except (SystemError, UnicodeDecodeError):
        return headers
    return headers


def _timestamps(messages: Sequence[Message]) -> list[int]:
    return list(map(itemgetter(1), map(Message.timestamp, messages)))


def _bytes_of(fields: Sequence[bytes | None]) -> int:
    try:
        return sum(map(len, fields))  # type: ignore[arg-type]  # mostly none is None
    except TypeError:
        return sum(map(len, filter(None, fields)))


def _headers_bytes(headers: Sequence[Header]) -> int:
    return sum(len(name.encode()) + len(value or b"") for name, value in headers)


class Chunks:
    """Several chunks as one list for each column."""

    def __init__(self, chunks: Sequence[ListedRecords]) -> None:
        self._chunks = chunks
        self._len = sum(map(len, chunks))
        self._split: list[tuple[tuple[Header, ...], Extra]] | None = None

    def __len__(self) -> int:
        return self._len

    def offsets(self) -> Sequence[int]:
        first, last = self._chunks[0].offsets[0], self._chunks[-1].offsets[-1]
        if last - first == self._len - 1:
            return range(first, last + 1)
        return list(chain.from_iterable(chunk.offsets for chunk in self._chunks))

    def column(self, index: int) -> list[Any] | None:
        match index:
            case 0:
                return list(chain.from_iterable(chunk.keys for chunk in self._chunks))
            case 1:
                return list(chain.from_iterable(chunk.values for chunk in self._chunks))
            case 2:
                return self._timestamps()
            case _:
                return self._from_headers(index)

    def _from_headers(self, index: int) -> list[Any] | None:
        parts = self._parts
        if parts is None:
            return None
        match index:
            case 3:
                return [extra.sequence for _, extra in parts]
            case 4:
                return [extra.flags for _, extra in parts]
            case 5:
                return [headers for headers, _ in parts]
            case _:
                return [extra.trace for _, extra in parts]

    def _timestamps(self) -> list[int]:
        times = list(chain.from_iterable(chunk.times for chunk in self._chunks))
        if max(times) > TIMESTAMP_MS_MAX:  # Kafka takes any number
            times = [min(at, TIMESTAMP_MS_MAX) for at in times]
        parts = self._parts
        if parts is not None:
            times = [
                0 if extra.at_zero else at for at, (_, extra) in zip(times, parts, strict=True)
            ]
        return times

    @property
    def _parts(self) -> list[tuple[tuple[Header, ...], Extra]] | None:
        """The headers of each record, None if there are none at all."""
        if self._split is None and any(chunk.headers is not None for chunk in self._chunks):
            self._split = [
                split_headers(own) if own else ((), NO_EXTRA)
                for chunk in self._chunks
                for own in chunk.headers or [None] * len(chunk)
            ]
        return self._split
