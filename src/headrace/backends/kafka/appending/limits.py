"""Records that a topic does not take are refused before anything is sent."""

from __future__ import annotations

import pyarrow.compute as pc

from headrace.backends.kafka.topics.topics import Topic
from headrace.core.errors import BadRecord
from headrace.core.quantities import shown_apart, shown_size
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.core.records.schema import TRACE, byte_lengths

FRAME_BYTES = 512
"""The most bytes that Kafka adds to a record that is alone in its batch."""
HEADER_BYTES = 10
"""The most bytes that Kafka adds for each header."""


def check_records(topic: Topic, batch: Batch, limit: int) -> None:
    """Refuse a batch with a record that the topic does not take; ``limit`` is in bytes."""
    if topic.compacted and None in batch.keys:
        raise BadRecord(
            f"a record without a key for {topic.info.name}: its topic is compacted, which keeps "
            "the last record of each key"
        )
    if not batch.has_no_headers:
        check_headers(batch)
        for row in batch.rows:
            if _framed(row) > limit:
                raise too_large(topic.info.name, row.nbytes, limit)
        return
    # Not ``batch.nbytes``: that may be its share of a larger batch.
    if batch.is_rows or batch.columns.nbytes > limit - FRAME_BYTES:
        nbytes = _largest(batch)
        if nbytes > limit - FRAME_BYTES:
            raise too_large(topic.info.name, nbytes, limit)


def check_headers(batch: Batch) -> None:
    """Refuse a header whose name holds a zero byte: the client would end the name there."""
    for row, headers in enumerate(batch.headers):
        for name, _ in headers:
            if "\0" in name:
                # A batch that is copied from another hub has a stream and offsets.
                at = f"{batch.stream}:{batch.shard}+{batch.offsets[row]}, " if batch.stream else ""
                raise BadRecord(f"{at}header {name!r}: on Kafka a name cannot hold a zero byte")


def too_large(where: str, nbytes: int | None, limit: int) -> BadRecord:
    size, most = ("", shown_size(limit)) if nbytes is None else shown_apart(nbytes, limit)
    return BadRecord(
        f"a record{size and f' of {size}'} for {where}: its topic takes at most {most} "
        "(max.message.bytes); raise that, or store the payload elsewhere and append a reference"
    )


def _largest(batch: Batch) -> int:
    """The bytes of the largest record; none of the batch has headers."""
    if batch.is_rows:
        return max(row.nbytes for row in batch.rows)
    key, data, trace = (batch.columns.column(i) for i in (0, 1, TRACE))
    found: int = pc.max(byte_lengths(key, data, trace)).as_py()
    return found


def _framed(row: Row) -> int:
    return row.nbytes + FRAME_BYTES + HEADER_BYTES * len(row.headers)
