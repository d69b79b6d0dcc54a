"""Append records to a stream in a directory and read them back: no broker, nothing to start."""

import tempfile

import headrace

with tempfile.TemporaryDirectory() as directory, headrace.open(directory) as hub:
    orders = hub.create_stream("shop/orders", shards=4, codec="json")

    first = orders.append({"id": 1, "total": 12.5}, key="ann")
    print("appended", first)

    with orders.appender(linger="5ms") as out:
        pending = [out.append({"id": i, "total": i * 2.5}, key=f"c-{i % 7}") for i in range(2, 100)]
    print("the last one is", pending[-1].result())

    for record in orders.read(first.shard, start=first.offset, end=first.offset + 3):
        print(record.id, record.key, record.value)

    table = orders.read_arrow(first.shard).read_all()
    print(f"shard {first.shard} as Arrow: {table.num_rows} rows, columns {table.column_names}")
