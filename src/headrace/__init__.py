"""Partitioned streams of records for Python.

>>> import headrace
>>> hub = headrace.open("memory:")
>>> orders = hub.create_stream("shop/orders", shards=4, codec="json")
>>> record_id = orders.append({"id": 1}, key="ann")
>>> [record.value for record in orders.read(record_id.shard)]
[{'id': 1}]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.core.errors import (
    AccessRefused,
    BadAllocation,
    BadBatch,
    BadHub,
    BadName,
    BadOutput,
    BadQuantity,
    BadRecord,
    BadRecordId,
    BadSetting,
    BadStored,
    BadTopology,
    BadValue,
    Closed,
    Contended,
    Damaged,
    DiskFull,
    Fenced,
    ForeignStore,
    ForkedHandle,
    GroupInUse,
    HeadraceError,
    HubBusy,
    Invalid,
    LaneLost,
    NetworkFilesystem,
    NewerFormat,
    NoHub,
    NoRetry,
    NotDurable,
    OffsetOutOfRange,
    RecordTooLarge,
    Refused,
    Replaced,
    Retryable,
    Rewind,
    SequenceForgotten,
    ShardClosed,
    StoreGone,
    StreamExists,
    TruncatedStore,
    UnknownAllocator,
    UnknownCodec,
    UnknownGroup,
    UnknownOutcome,
    UnknownShard,
    UnknownStream,
    Unreachable,
    Unsupported,
)
from headrace.core.model import Bounds, Flag, Record, RecordId, Shard, ShardId, Slice, StreamInfo
from headrace.core.watermark import Watermark

if TYPE_CHECKING:  # what below is loaded when first asked for, told to type checkers
    from headrace.codec.registry import register_codec
    from headrace.core.assign import Allocator, capped, kiel
    from headrace.core.computation import Computation, computation
    from headrace.core.policy import Policy
    from headrace.core.schema import SCHEMA
    from headrace.core.topology import Topology
    from headrace.runtime.appender import Appender, Pending
    from headrace.runtime.consumer import Consumer
    from headrace.runtime.context import Context
    from headrace.runtime.groups import Groups
    from headrace.runtime.hub import Hub
    from headrace.runtime.opening import open
    from headrace.runtime.outputs import Outputs
    from headrace.runtime.running import Running, run, start
    from headrace.runtime.settings import RunSettings
    from headrace.runtime.state import State
    from headrace.runtime.stream import Stream

__version__ = "0.1.0"

# Arrow and LMDB take their time to load: whoever only wants a name does not wait for them.
_LATER = {
    "SCHEMA": "headrace.core.schema",
    "Allocator": "headrace.core.assign",
    "Appender": "headrace.runtime.appender",
    "Computation": "headrace.core.computation",
    "Consumer": "headrace.runtime.consumer",
    "Context": "headrace.runtime.context",
    "Groups": "headrace.runtime.groups",
    "Hub": "headrace.runtime.hub",
    "Outputs": "headrace.runtime.outputs",
    "Pending": "headrace.runtime.appender",
    "Policy": "headrace.core.policy",
    "RunSettings": "headrace.runtime.settings",
    "Running": "headrace.runtime.running",
    "State": "headrace.runtime.state",
    "Stream": "headrace.runtime.stream",
    "Topology": "headrace.core.topology",
    "capped": "headrace.core.assign",
    "computation": "headrace.core.computation",
    "kiel": "headrace.core.assign",
    "open": "headrace.runtime.opening",
    "register_codec": "headrace.codec.registry",
    "run": "headrace.runtime.running",
    "start": "headrace.runtime.running",
}

__all__ = [
    "SCHEMA",
    "AccessRefused",
    "Allocator",
    "Appender",
    "BadAllocation",
    "BadBatch",
    "BadHub",
    "BadName",
    "BadOutput",
    "BadQuantity",
    "BadRecord",
    "BadRecordId",
    "BadSetting",
    "BadStored",
    "BadTopology",
    "BadValue",
    "Bounds",
    "Closed",
    "Computation",
    "Consumer",
    "Contended",
    "Context",
    "Damaged",
    "DiskFull",
    "Fenced",
    "Flag",
    "ForeignStore",
    "ForkedHandle",
    "GroupInUse",
    "Groups",
    "HeadraceError",
    "Hub",
    "HubBusy",
    "Invalid",
    "LaneLost",
    "NetworkFilesystem",
    "NewerFormat",
    "NoHub",
    "NoRetry",
    "NotDurable",
    "OffsetOutOfRange",
    "Outputs",
    "Pending",
    "Policy",
    "Record",
    "RecordId",
    "RecordTooLarge",
    "Refused",
    "Replaced",
    "Retryable",
    "Rewind",
    "RunSettings",
    "Running",
    "SequenceForgotten",
    "Shard",
    "ShardClosed",
    "ShardId",
    "Slice",
    "State",
    "StoreGone",
    "Stream",
    "StreamExists",
    "StreamInfo",
    "Topology",
    "TruncatedStore",
    "UnknownAllocator",
    "UnknownCodec",
    "UnknownGroup",
    "UnknownOutcome",
    "UnknownShard",
    "UnknownStream",
    "Unreachable",
    "Unsupported",
    "Watermark",
    "capped",
    "computation",
    "kiel",
    "open",
    "register_codec",
    "run",
    "start",
]


if not TYPE_CHECKING:  # which would take any misspelt name for one of these

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module 'headrace' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_LATER[name]), name)
        return found


def __dir__() -> list[str]:
    return __all__
