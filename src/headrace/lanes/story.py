"""What a commit tells about itself: small, and kept with it."""

from __future__ import annotations

import msgspec


class Story(msgspec.Struct, frozen=True, omit_defaults=True):
    """One commit: the backend adds where its outputs went."""

    start: int
    next: int
    epoch: int
    replica: str
    lane: int
    at_ms: int
    spent_ms: float
    failed: int = 0
    """Attempts at the record at `next` that have failed."""
    skipped: int = 0
    dead_letters: int = 0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Story)


def encoded(story: Story) -> bytes:
    return _encoder.encode(story)


def decoded(row: bytes) -> Story:
    return _decoder.decode(row)
