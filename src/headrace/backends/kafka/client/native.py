"""librdkafka through its public C interface: records move between it and columns without a Python
object for each.

The C half, ``columns.c``, is built with the package where there is a C compiler. Without it all
records go through the client's own messages: with the same outcome, and slower.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from confluent_kafka import cimpl

LIBRARY = Path(__file__).with_name("columns.so")
SOURCE = LIBRARY.with_suffix(".c")
_FEATURES_BYTES = 512

_FUNCTIONS = (
    "rd_kafka_consume_batch_queue",
    "rd_kafka_message_timestamp",
    "rd_kafka_message_headers",
    "rd_kafka_header_get_all",
    "rd_kafka_message_destroy",
    "rd_kafka_produceva",
    "rd_kafka_error_code",
    "rd_kafka_error_destroy",
    "rd_kafka_conf_interceptor_add_on_new",
    "rd_kafka_type",
    "rd_kafka_conf_set_error_cb",
)
"""Functions of librdkafka that ``columns.c`` calls, in its order."""


class Message(ctypes.Structure):
    """librdkafka's message. Only the fields of an error are read here."""

    _fields_ = (
        ("error", c_int),
        ("of", c_void_p),
        ("partition", c_int32),
        ("data", c_void_p),
        ("data_bytes", ctypes.c_size_t),
        ("key", c_void_p),
        ("key_bytes", ctypes.c_size_t),
        ("offset", c_int64),
        ("own", c_void_p),
    )


class Sizes(ctypes.Structure):
    """What one call of ``take`` took: counts, and the bytes that ``fill`` needs."""

    _fields_ = tuple(
        (name, c_int64)
        for name in (
            "records", "troubles", "key_bytes", "data_bytes", "headers", "name_bytes",
            "header_bytes", "unreadable",
        )
    )  # fmt: skip
    records: int
    troubles: int
    key_bytes: int
    data_bytes: int
    headers: int
    name_bytes: int
    header_bytes: int
    unreadable: int

    @property
    def nbytes(self) -> int:
        return self.key_bytes + self.data_bytes + self.name_bytes + self.header_bytes


class Column(ctypes.Structure):
    """An Arrow array of bytes: its three buffers, and the row of them where it begins."""

    _fields_ = (("valid", c_void_p), ("ends", c_void_p), ("bytes", c_void_p), ("first", c_int64))


class Columns(ctypes.Structure):
    """Where ``fill`` puts the fields of records."""

    _fields_ = (
        ("offsets", c_void_p),
        ("times_us", c_void_p),
        ("keys", Column),
        ("data", Column),
        ("header_ends", c_void_p),
        ("names", Column),
        ("headers", Column),
    )


class Native:
    """Functions of librdkafka and of ``columns.c``. A call lets other threads run."""

    def __init__(self, client: ctypes.CDLL, own: ctypes.CDLL) -> None:
        def function(library: ctypes.CDLL, name: str, result: Any, *takes: Any) -> Any:
            found = getattr(library, name)
            found.restype, found.argtypes = result, takes
            return found

        pointers = [ctypes.cast(getattr(client, name), c_void_p) for name in _FUNCTIONS]
        function(own, "headrace_use", None, c_void_p)((c_void_p * len(pointers))(*pointers))
        self._take_last_made = function(own, "headrace_made", c_void_p)
        self.take = function(
            own,
            "headrace_take",
            None,
            *(c_void_p, c_int, c_int64, c_int64, c_void_p, POINTER(Sizes)),
        )
        self.fill = function(
            own, "headrace_fill", None, c_void_p, POINTER(Sizes), c_int64, POINTER(Columns)
        )
        self.drop = function(own, "headrace_drop", None, c_void_p, POINTER(Sizes))
        self.send = function(
            own,
            "headrace_send",
            c_int64,
            *(c_void_p, c_void_p, c_int32, POINTER(Column), POINTER(Column)),
            *(c_void_p, c_int64, c_int64, POINTER(c_int)),
        )
        self.topic = function(client, "rd_kafka_topic_new", c_void_p, c_void_p, c_char_p, c_void_p)
        self.forget_topic = function(client, "rd_kafka_topic_destroy", None, c_void_p)
        self._queue = function(
            client, "rd_kafka_queue_get_partition", c_void_p, c_void_p, c_char_p, c_int32
        )
        self.forget_queue = function(client, "rd_kafka_queue_destroy", None, c_void_p)
        self._forward = function(client, "rd_kafka_queue_forward", None, c_void_p, c_void_p)
        self._add_brokers = function(client, "rd_kafka_brokers_add", c_int, c_void_p, c_char_p)
        self.why = function(client, "rd_kafka_message_errstr", c_char_p, c_void_p)

    def make_client(self, make: Callable[[dict[str, str]], Any]) -> tuple[Any, int]:
        """The client that ``make`` makes with the properties it is given, and its handle in C."""
        self._take_last_made()
        client = make({"plugin.library.paths": str(LIBRARY)})
        return client, checked_pointer(self._take_last_made(), "a new client")

    def revive(self, handle: int, bootstrap: str) -> None:
        """Give a client the addresses that it began with: see `patient` for how it loses them. A
        client that still has them, or knows others, goes on as it was."""
        self._add_brokers(handle, bootstrap.encode())

    def split_off(self, handle: int, topic: str, shard: int) -> int:
        """Make the queue of a partition; what is fetched from now on goes there."""
        queue = checked_pointer(self._queue(handle, topic.encode(), shard), "a partition's queue")
        self._forward(queue, None)
        return queue


def checked_pointer(pointer: int | None, what: str) -> int:
    """The pointer; `RuntimeError` if it is null. C code would crash on one: it checks none."""
    if not pointer:
        raise RuntimeError(f"librdkafka has given no pointer to {what}")
    return pointer


@cache
def load_native() -> Native | None:
    """The functions of both libraries. None if ``columns.so`` was not built from the source beside
    it, or if the client's library does not offer what it needs."""
    if ";" in str(LIBRARY):
        return None  # librdkafka would take the path for two
    try:
        client, own = ctypes.CDLL(cimpl.__file__), ctypes.CDLL(str(LIBRARY))
        built_from = ctypes.c_uint32.in_dll(own, "headrace_source").value
        if built_from != zlib.crc32(SOURCE.read_bytes()) or "plugins" not in _features(client):
            return None
        return Native(client, own)
    except (OSError, AttributeError, ValueError):
        return None


def _features(client: ctypes.CDLL) -> list[str]:
    """The features that librdkafka was built with."""
    client.rd_kafka_conf_new.restype = c_void_p
    conf = c_void_p(client.rd_kafka_conf_new())
    text = ctypes.create_string_buffer(_FEATURES_BYTES)
    size = ctypes.c_size_t(_FEATURES_BYTES)
    client.rd_kafka_conf_get(conf, b"builtin.features", text, ctypes.byref(size))
    client.rd_kafka_conf_destroy(conf)
    return text.value.decode().split(",")
