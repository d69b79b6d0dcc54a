"""Partitioned streams of records for Python.

>>> import penstock
>>> hub = penstock.open("memory:")
>>> orders = hub.create_stream("shop/orders", shards=4, codec="json")
>>> record_id = orders.append({"id": 1}, key="ann")
>>> [record.value for record in orders.read(record_id.shard)]
[{'id': 1}]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.core.errors import (
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
    HubBusy,
    Invalid,
    LaneLost,
    NetworkFilesystem,
    NewerFormat,
    NoHub,
    NoRetry,
    NotDurable,
    OffsetOutOfRange,
    PenstockError,
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
from penstock.core.model import Bounds, Flag, Record, RecordId, Shard, ShardId, Slice, StreamInfo
from penstock.core.watermark import Watermark

if TYPE_CHECKING:  # what below is loaded when first asked for, told to type checkers
    from penstock.codec.registry import register_codec
    from penstock.core.assign import Allocator, capped, kiel
    from penstock.core.computation import Computation, computation
    from penstock.core.policy import Policy
    from penstock.core.schema import SCHEMA
    from penstock.core.topology import Topology
    from penstock.runtime.appender import Appender, Pending
    from penstock.runtime.consumer import Consumer
    from penstock.runtime.context import Context
    from penstock.runtime.groups import Groups
    from penstock.runtime.hub import Hub
    from penstock.runtime.opening import open
    from penstock.runtime.outputs import Outputs
    from penstock.runtime.running import Running, run, start
    from penstock.runtime.settings import RunSettings
    from penstock.runtime.state import State
    from penstock.runtime.stream import Stream

__version__ = "0.1.0"

# Arrow and LMDB take their time to load: whoever only wants a name does not wait for them.
_LATER = {
    "SCHEMA": "penstock.core.schema",
    "Allocator": "penstock.core.assign",
    "Appender": "penstock.runtime.appender",
    "Computation": "penstock.core.computation",
    "Consumer": "penstock.runtime.consumer",
    "Context": "penstock.runtime.context",
    "Groups": "penstock.runtime.groups",
    "Hub": "penstock.runtime.hub",
    "Outputs": "penstock.runtime.outputs",
    "Pending": "penstock.runtime.appender",
    "Policy": "penstock.core.policy",
    "RunSettings": "penstock.runtime.settings",
    "Running": "penstock.runtime.running",
    "State": "penstock.runtime.state",
    "Stream": "penstock.runtime.stream",
    "Topology": "penstock.core.topology",
    "capped": "penstock.core.assign",
    "computation": "penstock.core.computation",
    "kiel": "penstock.core.assign",
    "open": "penstock.runtime.opening",
    "register_codec": "penstock.codec.registry",
    "run": "penstock.runtime.running",
    "start": "penstock.runtime.running",
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
    "PenstockError",
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
            raise AttributeError(f"module 'penstock' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_LATER[name]), name)
        return found


def __dir__() -> list[str]:
    return __all__
