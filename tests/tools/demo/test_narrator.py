"""The narrator tells what happens to replicas, from who holds which shards."""

from __future__ import annotations

from headrace.core.computations.dispatch import Duty
from headrace.core.model import ShardId
from headrace.tools.demo.narrator import SETTLED_S, Narrator
from headrace.tools.demo.script import REPLICAS, order, script
from headrace.tools.proof.engine_choice import SPARK
from headrace.tools.proof.proof import DoneDeed


def held(**shards: str) -> dict[str, frozenset[Duty]]:
    return {
        name: frozenset(Duty("price", ShardId("orders", int(index))) for index in indexes)
        for name, indexes in shards.items()
    }


def told(story: Narrator) -> list[str]:
    return [event.text for event in story.events]


def begun(**shards: str) -> Narrator:
    """A narrator that has told the first shares."""
    story = Narrator()
    story.look(0.0, held(**shards))
    story.look(SETTLED_S, held(**shards))
    story.events.clear()
    return story


def test_a_new_replica_is_told_once_its_share_is_settled() -> None:
    story = Narrator()
    story.look(0.0, held(r1=""))
    story.look(3.0, held(r1="0123"))
    story.look(3.5, held(r1="01"))
    story.look(4.0, held(r1="01"))
    assert told(story) == []
    story.look(3.5 + SETTLED_S, held(r1="01"))
    assert told(story) == ["r1 has 2 shards, 3.5 s after its start"]


def test_after_a_kill_the_new_holders_are_told() -> None:
    story = begun(r1="012", r2="345", r3="678")
    did = [DoneDeed(10.0, "kill", "r2", 0.0)]
    story.look(10.0, held(r1="012", r2="345", r3="678"), did=did)
    assert told(story) == ["kill -9 r2: it held 3 shards"]
    story.look(10.2, held(r1="0123", r3="678"), did=did)
    assert len(told(story)) == 1
    story.look(10.5, held(r1="0123", r3="45678"), did=did)
    assert told(story)[1:] == ["r1 and r3 have what r2 held, 0.5 s later"]


def test_a_replica_stopped_for_too_long_has_lost_its_shards() -> None:
    story = begun(r1="01", r3="23")
    did = [DoneDeed(10.0, "stop", "r3", 7.5)]
    story.look(10.0, held(r1="01", r3="23"), ["r3"], did)
    story.look(13.1, held(r1="0123", r3=""), ["r3"], did)
    story.look(17.5, held(r1="0123", r3=""), [], did)
    story.look(18.0, held(r1="01", r3="23"), [], did)
    story.look(18.0 + SETTLED_S, held(r1="01", r3="23"), [], did)
    assert told(story) == [
        "SIGSTOP r3 for 7.5 s: it held 2 shards",
        "r1 has what r3 held, 3.1 s later",
        "r3 goes on, and cannot commit: others have its shards",
        "r3 has 2 shards, 0.5 s after it went on",
    ]


def test_a_replica_stopped_for_a_moment_keeps_its_shards() -> None:
    story = begun(r1="01", r3="23")
    did = [DoneDeed(10.0, "stop", "r3", 1.0)]
    story.look(10.0, held(r1="01", r3="23"), ["r3"], did)
    story.look(11.0, held(r1="01", r3="23"), [], did)
    assert told(story)[1:] == ["r3 goes on, and still has its shards"]


def test_a_stop_that_was_taken_back_is_not_told() -> None:
    story = begun(r1="01", r3="23")
    story.look(10.0, held(r1="01", r3="23"), ["r3"])
    story.look(11.0, held(r1="01", r3="23"), [])
    assert told(story) == []


def test_the_script_kills_one_stops_one_for_longer_than_its_session_and_adds_one() -> None:
    kill, stop, start = script(44.0, SPARK.session_s)
    assert [kill.kind, stop.kind, start.kind] == ["kill", "stop", "start"]
    assert stop.for_s > 2 * SPARK.session_s
    assert kill.slot != stop.slot
    assert start.slot == REPLICAS
    assert kill.at_s < stop.at_s < stop.at_s + stop.for_s < start.at_s < 44.0


def test_every_stream_of_the_demonstration_has_ten_shards() -> None:
    given = order(SPARK, seed="7", records=10, seconds=44.0, again="")
    topology = given.loaded.topology
    assert len(topology.computations) == 3
    assert {given.settings.stream(name, topology)["shards"] for name in topology.streams} == {10}
