"""A codec of your own: values of a dataclass, stored as JSON."""

from dataclasses import dataclass
from typing import Any

import msgspec

import headrace


@dataclass(frozen=True)
class Order:
    id: int
    total: float


class OrderCodec:
    name = "order"

    def encode(self, value: Any) -> bytes:
        return msgspec.json.encode(value)

    def decode(self, data: bytes) -> Order:
        return msgspec.json.decode(data, type=Order)


headrace.register_codec(OrderCodec())
with headrace.open("memory:") as hub:
    orders = hub.create_stream("shop/orders", shards=1, codec="order")
    orders.append(Order(1, 12.5), key="ann")
    print(*(record.value for record in orders.read(0)))
