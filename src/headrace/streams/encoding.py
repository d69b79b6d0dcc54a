"""The row of a record that a user appends: its value is encoded, every field is checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.core.errors import BadRecord, BadValue, HeadraceError
from headrace.core.model import Header
from headrace.core.ports import Codec
from headrace.core.quantities import Instant, instant_ms
from headrace.core.records.row import Row
from headrace.process.clock import now_ms

Key = str | bytes | None
Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]


def key_bytes(key: Key) -> bytes | None:
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError:
            return _utf8("key", key, "surrogateescape")
    if key is None or isinstance(key, bytes):
        return key
    raise BadRecord(f"key {key!r}: text, bytes or None")


def row_of(
    codec: Codec,
    value: Any,
    key: Key,
    headers: Headers,
    timestamp: Instant | None,
    sequence: int,
    flags: int,
    trace: bytes | str | None,
) -> Row:
    """The one place where the fields of a record are checked, for every way to append one."""
    data = None if value is None else codec.encode(value)
    if not isinstance(data, bytes | None):
        raise BadValue(f"codec {codec.name!r} encoded to {type(data).__name__}, not to bytes")
    if not isinstance(trace, bytes | str | None):
        raise BadRecord(f"trace {trace!r}: bytes, text or None")
    return Row(
        key_bytes(key),
        data,
        now_ms() if timestamp is None else instant_ms(timestamp),
        sequence,
        int(flags) if isinstance(flags, int) else flags,
        _pairs(headers),
        _utf8("trace", trace) if isinstance(trace, str) else trace,
    ).checked()


def _pairs(headers: Headers) -> list[Header]:
    if not headers:
        return []
    listed = headers.items() if isinstance(headers, Mapping) else headers
    if not isinstance(listed, Iterable):
        raise BadRecord(f"headers {headers!r}: a mapping, or pairs of name and value")
    pairs: list[Header] = []
    for pair in listed:
        try:
            name, value = pair
        except (TypeError, ValueError):
            raise BadRecord(f"header {pair!r}: a pair of name and value") from None
        if not isinstance(name, str) or not isinstance(value, bytes | str | None):
            raise BadRecord(f"header {pair!r}: a text name, a value of bytes, text or None")
        _utf8("header name", name)
        pairs.append((name, _utf8("header", value) if isinstance(value, str) else value))
    return pairs


def _utf8(what: str, text: str, errors: str = "strict") -> bytes:
    try:
        return text.encode("utf-8", errors)
    except UnicodeEncodeError as why:
        raise BadRecord(f"{what} {text[:40]!r} is no text: {why}") from None


def encoded_pairs(
    codec: Codec, pairs: Iterable[tuple[Any, Key]]
) -> tuple[list[bytes | None], list[bytes | None]]:
    """The keys and the data of ``(value, key)`` pairs."""
    keys: list[bytes | None] = []
    values: list[Any] = []
    try:
        for value, key in pairs:
            values.append(value)
            keys.append(key.encode() if type(key) is str and key.isascii() else key_bytes(key))
        return keys, _encoded(codec, values)
    except HeadraceError:
        raise
    except (TypeError, ValueError) as why:
        raise BadRecord(f"append_many takes (value, key) pairs: {why}") from why


def _encoded(codec: Codec, values: list[Any]) -> list[bytes | None]:
    """The data of the values. If a value is bad, the codec's error names it."""
    encode_many = getattr(codec, "encode_many", None)
    if encode_many is not None:
        try:
            many: list[bytes | None] = encode_many(values)
            return many
        except BadValue:
            pass
    return [None if value is None else codec.encode(value) for value in values]
