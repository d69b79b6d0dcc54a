"""A topology on a Spark session of your own: lanes are tasks of that session."""

from __future__ import annotations

import os
import tempfile

from pyspark.sql import SparkSession

import headrace
from headrace import Topology, computation


@computation(inputs="shop/orders", outputs="shop/invoices")
def bill(record: headrace.Record, out: headrace.Outputs) -> None:
    total = 2 * record.value["amount"]
    out.append("shop/invoices", {"total": total, "worker": os.getpid()}, key=record.key)


made = {"shards": 4, "codec": "json"}
topology = Topology(bill, streams={"shop/orders": made, "shop/invoices": made})

if __name__ == "__main__":
    spark = (
        SparkSession.builder.master("local[4]")  # two lanes, and room for your own jobs
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")  # lanes are jobs that go on and on
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.python.daemon.module", "headrace.spark.lanes.daemon")  # lanes start faster
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as place, headrace.open(place) as hub:
        orders = hub.create_stream("shop/orders", shards=4, codec="json")
        orders.append_many([({"amount": n}, f"customer-{n % 7}") for n in range(1_000)])
        counters = headrace.run(topology, hub, spark=spark, lanes=2, until_caught_up=True)
        print(counters["bill"].processed, "orders billed")
        workers = {r.value["worker"] for s in range(4) for r in hub.stream("shop/invoices").read(s)}
        print("by", len(workers), "Python workers of Spark")
    print(spark.range(10).count(), "rows counted by the same session")
    spark.stop()
