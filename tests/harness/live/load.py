"""What is appended in a live run: every record says who meant it, and is like no other."""

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
    """What the evidence calls a record: who meant it, in which append, and which of its rows."""
    words = (data or b"").split(b" ")
    try:
        producer, seq, row = words[0].decode(), int(words[1]), int(words[2])
    except (ValueError, IndexError):
        return f"damaged {data!r:.40}"
    whole = data == data_of(producer, seq, row)
    return f"{producer} {seq} {row}" if whole else f"damaged {data!r:.40}"


def skips(seq: int) -> bool:
    """Whether this append is given up if it fails; others are tried again."""
    return seq % 3 == 0
