"""What the headers of a record tell about the record it was made from.

Dead letters always name it. Other outputs do where lanes run with ``HEADRACE_ORIGINS=1``: their
*lineage* is the record of a source, followed by ``/n`` for each step, where n counts the outputs
that the step made from one record.
"""

from __future__ import annotations

import re

from headrace.core.errors import HeadraceError
from headrace.core.model import Record, RecordId
from headrace.lanes import dead_letter
from headrace.lanes.provenance import ORIGIN

_LINEAGE = re.compile(r"(?P<source>.+:[0-9]+\+[0-9]+)(?P<steps>(?:/[0-9]+)*)", re.ASCII)


def _header(record: Record, name: str) -> str | None:
    value = dict(record.headers).get(name)
    return None if value is None else value.decode("utf-8", "replace")


def lineage_of(record: Record) -> str | None:
    """What the header says: the record of a source, then which of its outputs this is, step by
    step."""
    found = _header(record, ORIGIN)
    return found if found is not None and _LINEAGE.fullmatch(found) else None


def lineage_on(record: Record) -> str:
    """What the lineage of outputs made from this record begins with."""
    return _header(record, ORIGIN) or str(record.id)


def parent_of(lineage: str | None) -> str | None:
    """The lineage of the record that one was made from."""
    found = None if lineage is None else _LINEAGE.fullmatch(lineage)
    if lineage is None or found is None or not found["steps"]:
        return None
    return lineage.rpartition("/")[0]


def parent_id(record: Record) -> RecordId | None:
    return parsed_id(parent_of(lineage_of(record)))


def source_of(record: Record | None) -> RecordId | None:
    found = None if record is None else _LINEAGE.fullmatch(lineage_of(record) or "")
    return None if found is None else parsed_id(found["source"])


def letter_origin(record: Record) -> RecordId | None:
    return parsed_id(_header(record, dead_letter.ORIGIN))


def parsed_id(text: str | None) -> RecordId | None:
    try:
        return None if text is None else RecordId.parse(text)
    except HeadraceError:  # a header is what anybody may have written
        return None
