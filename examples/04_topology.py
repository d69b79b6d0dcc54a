"""A topology of two computations with state: run it, and see the totals of each customer.

python examples/04_topology.py
"""

from __future__ import annotations

import tempfile

import headrace
from headrace import Outputs, Policy, Record, State, Topology, computation


@computation(inputs="shop/orders", outputs="shop/invoices", policy=Policy(then="dead-letter"))
def bill(record: Record, out: Outputs) -> None:
    """One record at a time, in order inside each shard."""
    order = record.value
    if order["amount"] < 0:
        raise headrace.NoRetry(f"order {order['id']} has a negative amount")
    due = order["amount"] * 1.2
    out.append("shop/invoices", {"order": order["id"], "due": due}, key=record.key)


@computation(inputs="shop/invoices", outputs="shop/totals")
def total(record: Record, out: Outputs, state: State) -> None:
    """What is in `state` is committed with the checkpoint, and moves with the shard."""
    customer = record.key or "nobody"
    state[customer] = round(state.get(customer, 0) + record.value["due"], 2)
    out.append("shop/totals", {"due": state[customer]}, key=customer)


JSON = {"shards": 2, "codec": "json"}
topology = Topology(
    bill, total, streams={"shop/orders": JSON, "shop/invoices": JSON, "shop/totals": JSON}
)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, headrace.open(folder) as hub:
        with headrace.start(topology, hub) as running:
            orders = hub.stream("shop/orders")
            for number in range(10):
                amount = -1 if number == 7 else 10 * number
                orders.append({"id": number, "amount": amount}, key=f"customer-{number % 2}")
            running.wait("30s", until_caught_up=True)
        totals = hub.stream("shop/totals")
        last = {r.key: r.value["due"] for shard in range(2) for r in totals.read(shard)}
        for customer, due in last.items():
            print(customer, due)
        for letter in hub.stream("bill.dead-letters").read(0):
            reason = (dict(letter.headers)["dead-letter-reason"] or b"").decode()
            print("dead letter", letter.value, reason)


if __name__ == "__main__":
    main()
