"""`headrace.open`: opens a hub by its address."""

from __future__ import annotations

import os
from collections.abc import Mapping

from headrace.backends.opening import open_backend
from headrace.core.ports import Backend
from headrace.core.quantities import Duration, Size
from headrace.groups.elsewhere import with_groups_in
from headrace.hub.hub import Hub


def open(
    where: str | os.PathLike[str],
    *,
    create: bool = True,
    map_size: Size = "64GiB",
    write_timeout: Duration = "30s",
    any_filesystem: bool = False,
    settings: Mapping[str, object] | None = None,
    groups: str | os.PathLike[str] | None = None,
) -> Hub:
    """Open a hub: a directory, ``kafka://host:9092``, ``memory:``, or ``memory:name`` for a hub in
    memory that all of this process shares.

    ``create=False`` refuses a directory that holds no hub. ``map_size`` is address space, not disk,
    and grows by itself. ``write_timeout`` bounds how long a write waits for a lock that a stopped
    process holds, or for brokers that do not answer. ``settings`` are properties of the Kafka
    client, beside those in the URL: docs/kafka.md. ``groups`` names another hub where the groups of
    this one live: records here, groups there. Consumers work with groups elsewhere.
    Computations do not, because no commit can hold outputs and checkpoint in two places.

    >>> import headrace
    >>> with headrace.open("memory:") as hub:
    ...     orders = hub.create_stream("shop/orders", shards=2)
    ...     [stream.name for stream in hub.streams()]
    ['shop/orders']
    """
    backend = open_backend(
        where,
        create=create,
        map_size=map_size,
        write_timeout=write_timeout,
        any_filesystem=any_filesystem,
        settings=settings,
    )
    if groups is None:
        return Hub(backend)
    try:
        return Hub(_with_groups(backend, groups, create, write_timeout))
    except BaseException:
        backend.close()
        raise


def _with_groups(
    backend: Backend,
    groups: str | os.PathLike[str],
    create: bool,
    write_timeout: Duration,
) -> Backend:
    other = open_backend(groups, create=create, write_timeout=write_timeout)
    try:
        return with_groups_in(backend, other)
    except BaseException:
        other.close()
        raise
