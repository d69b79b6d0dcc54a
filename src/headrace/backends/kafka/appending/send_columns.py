"""Sends records as columns, if they consist of a key, data and a timestamp only."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_int
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.backends.kafka.client.clients import Clients
from headrace.backends.kafka.client.native import Column, Native, checked_pointer

_KEYS, _DATA, _TIMES = 0, 1, 2


class ColumnProducer:
    """Sends columns through the handle of a producer. It keeps the producer alive: the handle is
    valid for as long."""

    def __init__(self, native: Native, producer: Producer, handle: int, bootstrap: str) -> None:
        self._native = native
        self._producer = producer
        self._handle = handle
        self._bootstrap = bootstrap

    def revive(self) -> None:
        """Give the client its brokers' addresses again: see `patient`."""
        self._native.revive(self._handle, self._bootstrap)

    def send(
        self, topic: str, shard: int, records: pa.RecordBatch, await_room: Callable[[], None]
    ) -> None:
        """Give all records to the client; ``await_room`` is called while its queue is full."""
        keys, data = _column(records.column(_KEYS)), _column(records.column(_DATA))
        times = records.column(_TIMES)
        first_time = times.buffers()[1].address + 8 * times.offset
        of = checked_pointer(self._native.topic(self._handle, topic.encode(), None), "a topic")
        why, sent, count = c_int(), 0, records.num_rows
        try:
            while True:
                sent += self._native.send(
                    *(self._handle, of, shard, byref(keys), byref(data), first_time, sent, count),
                    byref(why),
                )
                if sent == count:
                    return
                if why.value != KafkaError._QUEUE_FULL:
                    raise KafkaException(KafkaError(why.value))
                await_room()
        finally:
            self._native.forget_topic(of)


def make_producer(
    clients: Clients, properties: dict[str, Any]
) -> tuple[Producer, ColumnProducer | None]:
    """A producer, and the one beside it that sends columns; None where ``columns.c`` was not
    built."""
    native = clients.native
    if native is None:
        return clients.producer(**properties), None
    producer, handle = clients.native_producer(native, **properties)
    return producer, ColumnProducer(native, producer, handle, clients.settings.bootstrap)


def _column(array: pa.Array) -> Column:
    valid, ends, data = array.buffers()
    return Column(
        None if valid is None else valid.address,
        ends.address,
        None if data is None else data.address,
        array.offset,
    )
