"""Shards as ranges: ``shop/orders:0-3,7``."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.core.model import ShardId


def shown_shards(shards: Iterable[ShardId]) -> str:
    """The shards of each stream as ranges, streams in order with a space between them."""
    by_stream: dict[str, list[int]] = {}
    for shard in sorted(shards):
        by_stream.setdefault(shard.stream, []).append(shard.index)
    return " ".join(f"{stream}:{_ranges(mine)}" for stream, mine in by_stream.items())


def _ranges(indexes: list[int]) -> str:
    runs: list[list[int]] = []
    for index in indexes:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
