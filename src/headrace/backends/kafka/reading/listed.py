"""Fetched records as lists of their fields."""

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
    """Records of one partition, in order, as one list for each field."""

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
        """The headers of each record; None: no record has any."""
        self.nbytes = _bytes_of(values) + _bytes_of(keys) + ROW_OVERHEAD * len(keys)
        if self.headers is not None:
            self.nbytes += sum(map(_headers_bytes, filter(None, headers)))

    @classmethod
    def of(
        cls, messages: Sequence[Message], times: list[int], headers: list[list[Header] | None]
    ) -> ListedRecords:
        """The records in messages of the client."""
        # Mapping methods of a type over a list needs no Python frame for each message. It also lets
        # go of the messages at once, while they are near in memory.
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
        """How many records, from the first on, fit into that many bytes."""
        sums = accumulate(size + ROW_OVERHEAD for size in self.sizes())
        return bisect_right(list(sums), nbytes)

    def sizes(self) -> list[int]:
        """The bytes of each record: those of its key, value and headers."""
        headers = self.headers or [None] * len(self)
        return [
            len(key or b"") + len(value or b"") + (_headers_bytes(own) if own else 0)
            for key, value, own in zip(self.keys, self.values, headers, strict=True)
        ]


def sorted_out(messages: list[Message]) -> tuple[list[Message], list[int], list[Message]]:
    """The messages that hold a record, their timestamps, and the messages that report an error."""
    times = _timestamps(messages)
    if min(times) >= 0:
        return messages, times, []
    # An error has no timestamp; a record may have none either.
    errors = [message for message in messages if message.error() is not None]
    if errors:
        messages = [message for message in messages if message.error() is None]
        times = _timestamps(messages)
    return messages, [max(at, 0) for at in times], errors


def headers_of(messages: Sequence[Message]) -> list[list[Header] | None]:
    """The headers of each message, up to one that the client cannot decode. That one must not be
    asked twice: it would seem to have no headers."""
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
        return sum(map(len, fields))  # type: ignore[arg-type]  # most lists hold no None
    except TypeError:
        return sum(map(len, filter(None, fields)))


def _headers_bytes(headers: Sequence[Header]) -> int:
    return sum(len(name.encode()) + len(value or b"") for name, value in headers)


class JoinedRecords:
    """Records of several takes, as one list for each column of a batch."""

    def __init__(self, parts: Sequence[ListedRecords]) -> None:
        self._parts = parts
        self._len = sum(map(len, parts))
        self._split: list[tuple[tuple[Header, ...], Extra]] | None = None

    def __len__(self) -> int:
        return self._len

    def offsets(self) -> Sequence[int]:
        first, last = self._parts[0].offsets[0], self._parts[-1].offsets[-1]
        if last - first == self._len - 1:
            return range(first, last + 1)
        return list(chain.from_iterable(part.offsets for part in self._parts))

    def column(self, index: int) -> list[Any] | None:
        match index:
            case 0:
                return list(chain.from_iterable(part.keys for part in self._parts))
            case 1:
                return list(chain.from_iterable(part.values for part in self._parts))
            case 2:
                return self._timestamps()
            case _:
                return self._from_headers(index)

    def _from_headers(self, index: int) -> list[Any] | None:
        split = self._split_headers
        if split is None:
            return None
        match index:
            case 3:
                return [extra.sequence for _, extra in split]
            case 4:
                return [extra.flags for _, extra in split]
            case 5:
                return [headers for headers, _ in split]
            case _:
                return [extra.trace for _, extra in split]

    def _timestamps(self) -> list[int]:
        times = list(chain.from_iterable(part.times for part in self._parts))
        if max(times) > TIMESTAMP_MS_MAX:  # Kafka takes any number
            times = [min(at, TIMESTAMP_MS_MAX) for at in times]
        split = self._split_headers
        if split is not None:
            times = [
                0 if extra.at_zero else at for at, (_, extra) in zip(times, split, strict=True)
            ]
        return times

    @property
    def _split_headers(self) -> list[tuple[tuple[Header, ...], Extra]] | None:
        """The own headers and the other fields of each record; None: no record has headers."""
        if self._split is None and any(part.headers is not None for part in self._parts):
            self._split = [
                split_headers(own) if own else ((), NO_EXTRA)
                for part in self._parts
                for own in part.headers or [None] * len(part)
            ]
        return self._split
