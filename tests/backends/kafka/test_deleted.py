"""Streams that others delete and make anew, smaller than before, while they are followed."""

from __future__ import annotations

import time
from collections import Counter

import pytest

import headrace
from headrace.testing.children import Child
from tests.backends.kafka.hubs import KafkaPlace

FOLLOWING = """
import sys, threading
import headrace

hub = headrace.open(sys.argv[1])

def follow(name, shard):
    try:
        for record in hub.stream(name).read(shard, follow=True):
            print(name, shard, record.value.decode(), flush=True)
    except headrace.HeadraceError as why:
        print(name, shard, type(why).__name__, flush=True)

threads = [
    threading.Thread(target=follow, args=followed)
    for followed in [("kept", 0), ("gone", 0), ("gone", 1)][: int(sys.argv[2])]
]
for thread in threads:
    thread.start()
sys.stdin.readline()
hub.close()
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize("native", ["true", "false"])
@pytest.mark.parametrize("made_anew", [True, False], ids=["made anew", "gone"])
@pytest.mark.parametrize("followers", [3, 2])
def test_a_follower_of_another_stream_goes_on(
    place: KafkaPlace, followers: int, made_anew: bool, native: str
) -> None:
    """And the process: a client whose partition is gone calls back wherever it is asked."""
    with headrace.open(place.url) as hub:
        kept, gone = hub.create_stream("kept", shards=1), hub.create_stream("gone", shards=2)
        command = ["-c", FOLLOWING, f"{place.url}?native={native}", str(followers)]
        with Child(command) as child:
            kept.append(b"first")
            for shard in range(2):
                gone.append(b"first", shard=shard)
            wanted = ["kept 0 first", "gone 0 first", "gone 1 first"][:followers]
            assert Counter(child.line() for _ in wanted) == Counter(wanted)
            time.sleep(1.0)  # all wait for more, with all their clients
            hub.delete_stream("gone")
            if made_anew:
                hub.create_stream("gone", shards=1)
            told = [f"gone {shard} UnknownStream" for shard in range(followers - 1)]
            assert Counter(child.line() for _ in told) == Counter(told)
            for number in range(3):
                kept.append(b"%d" % number)
                assert child.line() == f"kept 0 {number}"
            child.tell()
            assert child.ended() == 0
