"""Rules of copying that every backend shares."""

from __future__ import annotations

from headrace.core.batch import Batch
from headrace.core.errors import BadRecord
from headrace.core.model import RecordId
from headrace.core.quantities import shown_size


def too_large(batch: Batch, most: str) -> BadRecord:
    """The refusal of a batch whose largest record is more than the target takes, by its place in
    the source."""
    sizes = [row.nbytes for row in batch.rows]
    row = sizes.index(max(sizes))
    place = RecordId(batch.stream, batch.shard, batch.offsets[row])
    return BadRecord(
        f"the record {place} has {shown_size(sizes[row])}: the target takes at most {most}; "
        "the copy of its shard does not get beyond it"
    )
