"""What facts mean, one by one."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.ops.findings import hub_finding, stream_finding


@pytest.mark.parametrize(
    ("fact", "found", "shown", "ok", "advice"),
    [
        ("backend", "kafka", "kafka", None, ""),
        ("bytes_used", 2048, "2.0 KiB", None, ""),
        ("bytes_free_disk", 2**31, "2.0 GiB", True, ""),
        ("bytes_free_disk", 1024, "1.0 KiB", False, "make room"),
        ("write_lock", None, "not held", True, ""),
        ("write_lock", "process 7", "process 7", None, "kill or continue it"),
        ("stale_readers_cleared", 0, 0, None, ""),
        ("stale_readers_cleared", 2, 2, None, "killed while they read"),
        ("brokers", 1, 1, None, "no broker takes over"),
        ("brokers", 3, 3, True, ""),
        ("group.consumer.session.timeout.ms", 45_000, "45s", None, "silent for about 45s"),
        ("group.min.session.timeout.ms", 6_000, "6s", None, "after 6s at the earliest"),
        ("offsets.retention.minutes", 10_080, "7d", None, "forget their checkpoints after 7d"),
        ("log.retention.ms", -1, "for ever", None, "unless they say otherwise"),
        ("message.max.bytes", 2**20, "1.0 MiB", None, "take no larger record"),
        ("min.insync.replicas", 1, 1, None, "a lost disk loses acknowledged records"),
        ("min.insync.replicas", 2, 2, True, ""),
        ("unclean.leader.election.enable", True, True, False, "set it to false"),
        ("unclean.leader.election.enable", False, False, True, ""),
        ("auto.create.topics.enable", True, True, None, "a misspelt stream is created"),
        ("auto.create.topics.enable", False, False, None, ""),
        ("transaction.max.timeout.ms", 900_000, "15m", None, "holds back readers for up to 15m"),
        ("settings_unread", "no right", "no right", None, "ask for the right"),
    ],
)
def test_a_fact_about_a_hub(
    fact: str, found: Any, shown: Any, ok: bool | None, advice: str
) -> None:
    finding = hub_finding(fact, found)
    assert (finding.shown, finding.ok) == (shown, ok)
    assert advice in finding.advice if advice else finding.advice == ""


@pytest.mark.parametrize(
    ("fact", "found", "shown", "ok"),
    [
        ("leaderless", [0], "no broker serves shard 0", False),
        ("under_replicated", [0, 3], "copies are missing of shards 0, 3", False),
        ("held_back", {0: 1}, "1 offset is held back by an open transaction in shard 0", None),
        ("held_back", {0: 2, 4: 1}, "3 offsets are held back by an open", None),
        ("compacted", True, "compacted", None),
        ("new", 5, "new: 5", None),
    ],
)
def test_a_fact_about_a_stream(fact: str, found: Any, shown: str, ok: bool | None) -> None:
    finding = stream_finding(fact, found)
    assert finding.shown.startswith(shown)
    assert finding.ok is ok
    assert bool(finding.advice) == (fact != "new")
