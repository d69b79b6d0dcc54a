"""A process that reads one shard of several streams and tells of each record it handled."""

from __future__ import annotations

import sys
from pathlib import Path

import headrace


def main(url: str, shard: str, count: str, told: str, *streams: str) -> None:
    with headrace.open(url) as hub, Path(told).open("w") as out:
        for stream in streams:
            with hub.consumer(stream, shards=[int(shard)]) as consumer:
                for _, record in zip(range(int(count)), consumer, strict=False):
                    out.write(f"{record.id} {record.value.decode()}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
