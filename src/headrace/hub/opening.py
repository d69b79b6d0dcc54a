"""`headrace.open`: a hub by its address."""

from __future__ import annotations

import os
from collections.abc import Mapping

from headrace.backends.opening import open_backend
from headrace.core.quantities import Duration, Size
from headrace.hub.hub import Hub


def open(
    where: str | os.PathLike[str],
    *,
    create: bool = True,
    map_size: Size = "64GiB",
    write_timeout: Duration = "30s",
    any_filesystem: bool = False,
    settings: Mapping[str, object] | None = None,
) -> Hub:
    """Open a hub: a directory, ``kafka://host:9092``, ``memory:``, or ``memory:name`` for one that
    this process shares.

    ``create=False`` refuses a directory that holds no hub. ``map_size`` is address space, not disk:
    it grows by itself. ``write_timeout`` bounds how long a write waits for a lock that a stopped
    process holds, or for brokers that do not answer. ``settings`` are properties of the Kafka
    client, beside those in the URL: docs/kafka.md.

    >>> import headrace
    >>> with headrace.open("memory:") as hub:
    ...     orders = hub.create_stream("shop/orders", shards=2)
    ...     [stream.name for stream in hub.streams()]
    ['shop/orders']
    """
    return Hub(
        open_backend(
            where,
            create=create,
            map_size=map_size,
            write_timeout=write_timeout,
            any_filesystem=any_filesystem,
            settings=settings,
        )
    )
