from __future__ import annotations

from typing import get_args

import pytest

from headrace.core.capabilities import CAPABILITIES, Capabilities, Capability
from headrace.core.errors import BadSetting, Unsupported
from headrace.core.model import Slice, StreamInfo, even_shards
from headrace.core.ports import Commit, Grant

ORDERS = StreamInfo(
    name="orders",
    id=1,
    codec="bytes",
    routing="md5-range",
    retention_s=None,
    retention_bytes=None,
    created_ms=0,
    shards=even_shards(2),
)


def test_every_capability_is_in_the_table() -> None:
    assert get_args(Capability) == CAPABILITIES


def test_a_missing_capability_is_refused_with_its_reason() -> None:
    capabilities = Capabilities("kafka", {"merge": "partitions only grow", "split": "not yet"})
    capabilities.require()
    capabilities.require("durable", "trim")
    with pytest.raises(Unsupported) as caught:
        capabilities.require("trim", "merge", "split")
    assert str(caught.value) == "the kafka backend does not offer 'merge': partitions only grow"
    assert caught.value.backend == "kafka"


@pytest.mark.parametrize(("stream", "shard"), [("orders", 1), ("invoices", 0)])
def test_a_commit_is_for_the_shard_of_its_grant(stream: str, shard: int) -> None:
    grant = Grant("billing", ORDERS, 0, b"epoch")
    assert Commit(grant=grant, done=Slice("orders", 0, 0, 5)).outputs == ()
    with pytest.raises(BadSetting, match="under a grant for orders:0"):
        Commit(grant=grant, done=Slice(stream, shard, 0, 5))
