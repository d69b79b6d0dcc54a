"""The codecs without a schema: bytes as they are, text, JSON."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.core.errors import BadValue


class BytesCodec:
    """The value is the data."""

    name = "bytes"

    def encode(self, value: Any) -> bytes:
        if isinstance(value, bytes):
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise BadValue(
            f"codec 'bytes' takes bytes, not {_shown(value)}: encode it first, or create the "
            "stream with codec='json'"
        )

    def decode(self, data: bytes) -> bytes:
        return data

    def decode_many(self, data: Sequence[bytes | None]) -> list[bytes | None]:
        return list(data)


class TextCodec:
    """Text as strict UTF-8."""

    name = "text"

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise BadValue(f"codec 'text' takes str, not {_shown(value)}")
        try:
            return value.encode()
        except UnicodeEncodeError as why:
            raise BadValue(f"codec 'text' cannot encode {value[:40]!r}: {why}") from None

    def decode(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as why:
            raise BadValue(f"codec 'text' cannot decode {data[:40]!r}: {why}") from None


class JsonCodec:
    """JSON by msgspec. It encodes dataclasses, datetimes, UUIDs and the like, too; they are decoded
    as plain JSON."""

    name = "json"

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder().decode

    def encode(self, value: Any) -> bytes:
        try:
            return self._encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as why:
            raise BadValue(f"codec 'json' cannot encode {_shown(value)}: {why}") from None

    def encode_many(self, values: Sequence[Any]) -> list[bytes | None]:
        encode = self._encode
        try:
            return [None if value is None else encode(value) for value in values]
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as why:
            raise BadValue(f"codec 'json' cannot encode: {why}") from None

    def decode(self, data: bytes) -> Any:
        try:
            return self._decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
            raise BadValue(f"codec 'json' cannot decode {data[:40]!r}: {why}") from None

    def decode_many(self, data: Sequence[bytes | None]) -> list[Any]:
        decode = self._decode
        try:
            return [None if one is None else decode(one) for one in data]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
            raise BadValue(f"codec 'json' cannot decode: {why}") from None


def _shown(value: Any) -> str:
    text = reprlib.repr(value)  # a plain repr may be endless, or too deep
    return text if len(text) <= 60 else f"{text[:57]}... ({type(value).__name__})"
