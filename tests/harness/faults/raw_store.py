"""The raw LMDB store of a closed hub: tests change it past the backend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from headrace.backends.lmdb import stored_batch as batches


@contextmanager
def store(directory: Path) -> Iterator[Any]:
    """A write transaction on the raw LMDB store."""
    env = lmdb.open(str(directory), map_size=2**30, max_dbs=8)
    try:
        with env.begin(write=True) as txn:
            yield txn
    finally:
        env.close()


def batch_keys(txn: Any, stream: int, shard: int) -> list[bytes]:
    prefix = batches.shard_prefix(stream, shard)
    return [bytes(key) for key, _ in txn.cursor() if bytes(key).startswith(prefix)]
