"""Partitioned streams of records for Python.

>>> import headrace
>>> hub = headrace.open("memory:")
>>> orders = hub.create_stream("shop/orders", shards=4, codec="json")
>>> record_id = orders.append({"id": 1}, key="ann")
>>> [record.value for record in orders.read(record_id.shard)]
[{'id': 1}]
"""

TYPE_CHECKING = False
"""True for type checkers. Not from ``typing``, which takes longer to load than this module."""

if TYPE_CHECKING:
    from headrace.codec.registry import register_codec
    from headrace.consumers.consumer import Consumer
    from headrace.core.computations.computation import Computation, computation
    from headrace.core.computations.policy import Policy
    from headrace.core.computations.settings import RunSettings
    from headrace.core.computations.topology import Topology
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
    from headrace.core.groups.allocators import Allocator, capped, kiel
    from headrace.core.model import (
        Bounds,
        Flag,
        Record,
        RecordId,
        Shard,
        ShardId,
        Slice,
        StreamInfo,
    )
    from headrace.core.records.schema import SCHEMA
    from headrace.core.records.watermark import Watermark
    from headrace.groups.admin import Groups
    from headrace.hub.hub import Hub
    from headrace.hub.opening import open
    from headrace.hub.run import Running, run, start
    from headrace.hub.settings_file import read_settings
    from headrace.lanes.context import Context
    from headrace.lanes.outputs import Outputs
    from headrace.lanes.state import State
    from headrace.streams.appender import Appender, Pending
    from headrace.streams.stream import Stream

__version__ = "0.1.0"

# Nothing is loaded before a program uses a name: Arrow and LMDB take their time, and Ctrl-C while
# they are loaded is handled by `headrace.__main__`, but only after this module is there.
_ERRORS = "headrace.core.errors"
_LATER = {
    "SCHEMA": "headrace.core.records.schema",
    "Allocator": "headrace.core.groups.allocators",
    "Appender": "headrace.streams.appender",
    "Bounds": "headrace.core.model",
    "Computation": "headrace.core.computations.computation",
    "Consumer": "headrace.consumers.consumer",
    "Context": "headrace.lanes.context",
    "Flag": "headrace.core.model",
    "Groups": "headrace.groups.admin",
    "Hub": "headrace.hub.hub",
    "Outputs": "headrace.lanes.outputs",
    "Pending": "headrace.streams.appender",
    "Policy": "headrace.core.computations.policy",
    "Record": "headrace.core.model",
    "RecordId": "headrace.core.model",
    "RunSettings": "headrace.core.computations.settings",
    "Running": "headrace.hub.run",
    "Shard": "headrace.core.model",
    "ShardId": "headrace.core.model",
    "Slice": "headrace.core.model",
    "State": "headrace.lanes.state",
    "Stream": "headrace.streams.stream",
    "StreamInfo": "headrace.core.model",
    "Topology": "headrace.core.computations.topology",
    "Watermark": "headrace.core.records.watermark",
    "capped": "headrace.core.groups.allocators",
    "computation": "headrace.core.computations.computation",
    "kiel": "headrace.core.groups.allocators",
    "open": "headrace.hub.opening",
    "read_settings": "headrace.hub.settings_file",
    "register_codec": "headrace.codec.registry",
    "run": "headrace.hub.run",
    "start": "headrace.hub.run",
}
"""The modules of the public names; those that are not listed are errors."""

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
    "read_settings",
    "register_codec",
    "run",
    "start",
]


if not TYPE_CHECKING:  # a type checker would take any misspelt name for one of these

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'headrace' has no attribute {name!r}")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(_LATER.get(name, _ERRORS)), name)
        return found


def __dir__() -> list[str]:
    return __all__
