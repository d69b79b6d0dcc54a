"""The records of a live run: each one names its producer and append, and is unique."""

from __future__ import annotations

STREAM = "live/numbers"
GROUP = "live"
SHARDS = 8

_FILLERS = (0, 10, 90, 400, 1_500)


def rows_of(producer: str, seq: int) -> list[tuple[bytes, str]]:
    """The values and keys of one append: one to three records, of several shards."""
    return [
        (data_of(producer, seq, row), f"{producer} {seq % 29} {row}") for row in range(1 + seq % 3)
    ]


def data_of(producer: str, seq: int, row: int) -> bytes:
    return f"{producer} {seq} {row} ".encode() + b"." * _FILLERS[seq % len(_FILLERS)]


def name_of(data: bytes | None) -> str:
    """The name of a record in the evidence: its producer, its append, and its row in that
    append."""
    words = (data or b"").split(b" ")
    try:
        producer, seq, row = words[0].decode(), int(words[1]), int(words[2])
    except (ValueError, IndexError):
        return f"damaged {data!r:.40}"
    whole = data == data_of(producer, seq, row)
    return f"{producer} {seq} {row}" if whole else f"damaged {data!r:.40}"


def skips(seq: int) -> bool:
    """Whether the producer gives up this append if it fails; others are tried again."""
    return seq % 3 == 0
