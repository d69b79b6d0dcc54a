"""The fields of stored bytes: texts, numbers and rows of numbers, read one after the other."""

from __future__ import annotations

import struct
from typing import Any

_LENGTH = struct.Struct(">H")


def text_field(text: str) -> bytes:
    """A text of up to 65,535 bytes, with its length before it."""
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


class Fields:
    """Reads fields from the first byte on. Raises `ValueError` or `struct.error` at the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def take(self, form: struct.Struct) -> tuple[Any, ...]:
        found = form.unpack_from(self._data, self.at)
        self.at += form.size
        return found

    def count(self) -> int:
        """A number of two bytes."""
        return int.from_bytes(self._bytes(2), "big")

    def number(self) -> int:
        """A number of four bytes."""
        return int.from_bytes(self._bytes(4), "big")

    def text(self) -> str:
        return self._bytes(self.count()).decode()

    def rows(self, form: struct.Struct, count: int) -> list[tuple[Any, ...]]:
        return list(form.iter_unpack(self._bytes(count * form.size)))

    def end(self) -> None:
        """Check that no byte is left."""
        if self.at != len(self._data):
            raise ValueError(f"{len(self._data) - self.at} bytes too many")

    def _bytes(self, size: int) -> bytes:
        found = self._data[self.at : self.at + size]
        if len(found) < size:
            raise ValueError(f"ends after {len(self._data)} bytes")
        self.at += size
        return found
