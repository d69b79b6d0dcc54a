"""The topology with which Headrace proves itself: three stages with state, one output per record,
every key in one shard all the way.

Each stage folds the records of a key into count, sum and a chain of checksums. The chain differs if
a record is lost, doubled or out of order.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

from headrace.core.computations.computation import computation
from headrace.core.computations.topology import Topology

ORDERS, PRICED, INVOICES, TOTALS = "shop/orders", "shop/priced", "shop/invoices", "shop/totals"
STREAMS = (ORDERS, PRICED, INVOICES, TOTALS)

Fold = list[int]


def folded(before: Fold, amount: int, number: int) -> Fold:
    count, total, chain = before
    return [count + 1, total + amount, crc32(b"%d %d" % (amount, number), chain)]


def _step(record: Any, state: Any) -> dict[str, int]:
    value = record.value
    after = folded(state.get(record.key, [0, 0, 0]), value["amount"], value["id"])
    state[record.key] = after
    return {"id": value["id"], "amount": value["amount"], "chain": after[2]}


@computation(inputs=ORDERS, outputs=PRICED)
def price(record: Any, out: Any, state: Any) -> None:
    out.append(PRICED, _step(record, state), key=record.key)


@computation(inputs=PRICED, outputs=INVOICES)
def bill(record: Any, out: Any, state: Any) -> None:
    out.append(INVOICES, _step(record, state), key=record.key)


@computation(inputs=INVOICES, outputs=TOTALS)
def total(record: Any, out: Any, state: Any) -> None:
    out.append(TOTALS, _step(record, state), key=record.key)


topology = Topology(
    price,
    bill,
    total,
    streams={name: {"shards": 4, "codec": "json"} for name in STREAMS},
    name="stages",
)
