"""Several processes on one cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import headrace
from headrace.tools.kafka_node import Broker
from tests.backends.kafka.hubs import KafkaPlace

STREAMS = ("shop/orders", "shop/carts")
EACH = 500


def test_processes_that_share_a_cluster_handle_every_record_once(
    broker: Broker, tmp_path: Path
) -> None:
    place = KafkaPlace(broker)
    with headrace.open(place.url) as hub:
        for name in STREAMS:
            stream = hub.create_stream(name, shards=3)
            for i in range(EACH):
                stream.append(b"%d" % i, shard=i % 3)
        counts = [hub.stream(STREAMS[0]).bounds(shard).end for shard in range(3)]
    told = [tmp_path / f"told-{shard}" for shard in range(3)]
    node = [sys.executable, "-m", "tests.backends.kafka.node", place.url]
    nodes = [
        subprocess.Popen([*node, str(shard), str(counts[shard]), str(told[shard]), *STREAMS])
        for shard in range(3)
    ]
    assert [started.wait(60) for started in nodes] == [0, 0, 0]
    lines = [line for file in told for line in file.read_text().splitlines()]
    assert len(lines) == len(set(lines)) == len(STREAMS) * EACH
    values = sorted(int(line.split()[1]) for line in lines)
    assert values == sorted([*range(EACH)] * len(STREAMS))
    place.clear()
