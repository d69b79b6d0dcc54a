"""Three processes share a stream: each takes a third of the shards, and every order is billed once.

Start another beside them, ``python 03_consumer_group.py work dora``, and it gets its share too.
"""

from __future__ import annotations

import subprocess
import sys
import time

import headrace

HUB = "./shop"


def work(name: str) -> None:
    """Bill orders until none has come for a second."""
    with (
        headrace.open(HUB) as hub,
        hub.consumer("shop/orders", group="billing", name=name) as consumer,
    ):
        billed = 0
        while record := consumer.read(timeout="1s"):
            assert record.value["amount"] > 0, record.id  # here goes what bills the order
            billed += 1
        print(f"{name}: billed {billed} orders", flush=True)


def main() -> None:
    with headrace.open(HUB) as hub:
        orders = hub.create_stream("shop/orders", shards=6, codec="json", exist_ok=True)
        workers = [
            subprocess.Popen([sys.executable, __file__, "work", name])
            for name in ("ann", "bob", "cleo")
        ]
        while "billing" not in hub.groups.names() or len(hub.groups.load("billing").members) < 3:
            time.sleep(0.05)
        for number in range(300):
            orders.append({"amount": number + 1}, key=f"customer-{number}")
        for worker in workers:
            worker.wait()
        group = hub.groups.load("billing")
        lag = sum(position.lag for position in hub.groups.positions(group).values())
        print(f"orders still to be billed: {lag}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(sys.argv[2])
    else:
        main()
