"""Which shard a key goes to: three rules, each the same as in the system that it comes from."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Sequence

from headrace.core.errors import BadSetting
from headrace.core.model import ROUTINGS, Shard
from headrace.core.nearest import did_you_mean

Router = Callable[[bytes], int]
"""A function from a key to the index of an open shard."""

KEYS_REMEMBERED = 16_384
KEY_BYTES_REMEMBERED = 64

_MASK32 = 0xFFFFFFFF


def router(routing: str, shards: Sequence[Shard]) -> Router:
    """The rule called ``routing``, over those of the shards that are open."""
    opened = [shard for shard in shards if shard.open]
    if routing == "md5-range":
        by_range = sorted(opened, key=lambda shard: shard.begin)
        return _remembering(_range_router([s.begin for s in by_range], [s.index for s in by_range]))
    indexes = [shard.index for shard in opened]
    if routing == "java-hash":
        return _remembering(lambda key: indexes[(java_hash(key) & 0x7FFFFFFF) % len(indexes)])
    if routing == "murmur2":
        return _remembering(lambda key: indexes[(murmur2(key) & 0x7FFFFFFF) % len(indexes)])
    raise BadSetting(
        f"bad routing {routing!r}: one of {', '.join(ROUTINGS)}{did_you_mean(routing, ROUTINGS)}"
    )


def md5_hash(key: bytes) -> int:
    """LogHub's 128-bit hash of a key."""
    return int.from_bytes(hashlib.md5(key, usedforsecurity=False).digest(), "big")


def java_hash(key: bytes) -> int:
    """``String.hashCode`` of the key's text, over UTF-16 code units, as a signed 32-bit number."""
    units = key.decode("utf-8", "surrogateescape").encode("utf-16-le", "surrogatepass")
    value = 0
    for low, high in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & _MASK32
    return _signed32(value)


def murmur2(key: bytes) -> int:
    """The 32-bit murmur2 of Kafka's Java client, as a signed number."""
    m = 0x5BD1E995
    value = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & _MASK32
        k = (k ^ k >> 24) * m & _MASK32
        value = value * m & _MASK32 ^ k
    if tail := key[whole:]:
        value = (value ^ int.from_bytes(tail, "little")) * m & _MASK32
    value = (value ^ value >> 13) * m & _MASK32
    return _signed32(value ^ value >> 15)


def _remembering(route: Router) -> Router:
    return _Known(route).__getitem__


class _Known(dict[bytes, int]):
    """The shards of keys that were routed before: most keys come again. Long keys are not kept."""

    def __init__(self, route: Router) -> None:
        super().__init__()
        self._route = route

    def __missing__(self, key: bytes) -> int:
        shard = self._route(key)
        if len(key) <= KEY_BYTES_REMEMBERED:
            if len(self) >= KEYS_REMEMBERED:
                self.clear()
            self[key] = shard
        return shard


def _range_router(begins: list[int], indexes: list[int]) -> Router:
    # Digests have one length, so they compare as bytes just as they do as numbers.
    edges = [begin.to_bytes(16, "big") for begin in begins]

    def route(key: bytes) -> int:
        digest = hashlib.md5(key, usedforsecurity=False).digest()
        return indexes[bisect_right(edges, digest) - 1]

    return route


def _signed32(value: int) -> int:
    return value - 2**32 if value & 0x80000000 else value
