"""One record as plain Python values, its checks, and the limits of a record and a commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.core.errors import BadRecord
from headrace.core.model import Header
from headrace.core.quantities import TIMESTAMP_MS_MAX, shown_apart

COMMIT_BYTES_MAX = 4 * 1024 * 1024
"""The most bytes of one commit. A disk takes 13 ms for them; 16 MiB would take 69 ms."""

RECORD_BYTES_MAX = COMMIT_BYTES_MAX - 4096
ROW_OVERHEAD = 40
"""About how many bytes a record costs beside its own."""

FLAGS_MAX = 0x1FF
SEQUENCE_MAX = 2**31 - 1


class Row(NamedTuple):
    """One record's own fields in the order of `SCHEMA`; the timestamp is in milliseconds."""

    key: bytes | None
    data: bytes | None
    timestamp: int
    sequence: int = 0
    flags: int = 0
    headers: Sequence[Header] = ()
    trace: bytes | None = None

    def checked(self) -> Row:
        """The row itself, if every field is in range and the whole is not too large."""
        if not _whole(self.timestamp, TIMESTAMP_MS_MAX):
            raise BadRecord(f"timestamp {self.timestamp!r} ms: it must lie between 1970 and 9999")
        if not _whole(self.sequence, SEQUENCE_MAX):
            raise BadRecord(f"sequence {self.sequence!r}: a whole number, 0 to {SEQUENCE_MAX}")
        if not _whole(self.flags, FLAGS_MAX):
            raise BadRecord(f"flags {self.flags!r}: nine bits, 0 to {FLAGS_MAX:#x}")
        if self.nbytes > RECORD_BYTES_MAX:
            raise record_too_large("a record", self.nbytes)
        return self

    @property
    def nbytes(self) -> int:
        """The bytes of key, data, headers and trace."""
        own = len(self.key or b"") + len(self.data or b"") + len(self.trace or b"")
        if self.headers:
            own += sum(len(name.encode()) + len(value or b"") for name, value in self.headers)
        return own


def record_too_large(which: str, nbytes: int) -> BadRecord:
    """The refusal of a record above `RECORD_BYTES_MAX`; ``which`` names it to the user."""
    size, most = shown_apart(nbytes, RECORD_BYTES_MAX)
    return BadRecord(
        f"{which} of {size}: the most is {most}; store the payload elsewhere and append "
        "a reference to it"
    )


def _whole(value: object, most: int) -> bool:
    # True and 1.0 would be stored as they are, and refused when they are read back.
    return type(value) is int and 0 <= value <= most
