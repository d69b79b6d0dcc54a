"""The story of a record: real topologies on real hubs, then what is asked of `hub.story`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

import headrace
from headrace import Policy, RecordId, Rewind, Topology, computation
from headrace.backends.memory import MemoryBackend
from headrace.core import store_keys
from headrace.core.capabilities import Capabilities
from headrace.core.errors import (
    BadName,
    BadRecordId,
    BadSetting,
    BadStored,
    OffsetOutOfRange,
    UnknownShard,
    UnknownStream,
    Unsupported,
)
from headrace.core.model import Slice, StreamInfo
from headrace.core.ports import Append, Backend, Commit, Grant
from headrace.core.records.batch import Batch
from headrace.core.records.row import Row
from headrace.core.transaction import STORIES_KEPT
from headrace.groups import stored_stories
from headrace.hub.hub import Hub
from headrace.hub.story import walk
from headrace.hub.story.record_story import CommitStory
from headrace.lanes.lane import ORIGINS
from headrace.lanes.story import Story, encoded
from headrace.testing.children import until

Then = Literal["stop", "skip", "dead-letter"]
ONE: dict[str, Any] = {"shards": 1, "codec": "json"}
ORDERS, INVOICES, TOTALS = "shop/orders", "shop/invoices", "shop/totals"


@pytest.fixture(params=["memory", "lmdb"])
def hub(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hub]:
    place = "memory:" if request.param == "memory" else str(tmp_path / "hub")
    with headrace.open(place) as opened:
        yield opened


@pytest.fixture
def memory() -> Iterator[Hub]:
    with headrace.open("memory:") as opened:
        yield opened


@computation(inputs=ORDERS, outputs=INVOICES)
def bill(record: Any, out: Any) -> None:
    out.append(INVOICES, record.value, key=record.key)


@computation(inputs=INVOICES, outputs=TOTALS)
def total(record: Any, out: Any) -> None:
    out.append(TOTALS, record.value, key=record.key)


SHOP = Topology(bill, total, streams={ORDERS: ONE, INVOICES: ONE, TOTALS: ONE})


def ordered(hub: Hub, count: int, name: str = ORDERS) -> None:
    orders = hub.create_stream(name, **ONE, exist_ok=True)
    orders.append_many([({"n": n}, "ann") for n in range(count)])


def ran(hub: Hub, topology: Topology = SHOP, **settings: Any) -> None:
    """The topology, until nothing is left to do."""
    with headrace.start(topology, hub, lanes=1, name="till", **settings) as running:
        assert running.wait("30s", until_caught_up=True)


def only(commits: tuple[CommitStory, ...]) -> CommitStory:
    (commit,) = commits
    return commit


def flaky(failures: Mapping[int, int], then: Then) -> Topology:
    """Bills orders; those that are named fail so many times."""
    left = dict(failures)

    @computation(inputs=ORDERS, outputs=INVOICES, policy=Policy(retries=2, delay="5ms", then=then))
    def bill(record: Any, out: Any) -> None:
        if left.get(record.value["n"], 0) > 0:
            left[record.value["n"]] -= 1
            raise ValueError(f"order {record.value['n']} is bad")
        out.append(INVOICES, record.value)

    return Topology(bill, streams={ORDERS: ONE, INVOICES: ONE})


# One stage


def test_an_input_tells_who_read_it_and_where_the_outputs_went(hub: Hub) -> None:
    ordered(hub, 5)
    ran(hub, Topology(bill, streams={INVOICES: ONE}))
    story = hub.story(RecordId(ORDERS, 0, 3))
    commit = only(story.read_by)
    assert (commit.group, commit.read) == ("bill", Slice(ORDERS, 0, 0, 5))
    assert (commit.replica, commit.lane, commit.epoch, commit.attempts) == ("till", 0, 1, 1)
    assert (commit.inputs, commit.outcome) == ((RecordId(ORDERS, 0, 3),), "done")
    assert (commit.appended, commit.dead_letters) == ((Slice(INVOICES, 0, 0, 5),), ())
    assert commit.outputs is None
    assert commit.at_ms == pytest.approx(commit.at.timestamp() * 1000)
    assert commit.spent_ms >= 0
    assert (story.made_by, story.unread, story.untold) == ((), (), ())


def test_an_output_tells_which_commit_made_it_from_which_slice(hub: Hub) -> None:
    ordered(hub, 5)
    ran(hub, Topology(bill, streams={INVOICES: ONE}))
    story = hub.story(f"{INVOICES}:0+2")
    commit = only(story.made_by)
    assert (commit.group, commit.read) == ("bill", Slice(ORDERS, 0, 0, 5))
    assert (commit.inputs, commit.outputs) == (None, (RecordId(INVOICES, 0, 2),))
    assert (commit.replica, commit.lane, commit.epoch, commit.attempts) == ("till", 0, 1, 1)
    assert (story.read_by, story.origin) == ((), None)


def test_it_is_said_that_a_story_names_slices_where_it_does(hub: Hub) -> None:
    ordered(hub, 2)
    ran(hub, Topology(bill, streams={INVOICES: ONE}))
    assert any("HEADRACE_ORIGINS=1" in note for note in hub.story(f"{INVOICES}:0+1").notes)


def test_a_slice_of_one_record_needs_no_such_note(hub: Hub) -> None:
    ordered(hub, 1)
    ran(hub, Topology(bill, streams={INVOICES: ONE}))
    assert hub.story(f"{INVOICES}:0+0").notes == ()


def test_a_record_of_a_producer_has_no_story_of_how_it_was_made(hub: Hub) -> None:
    ordered(hub, 1)
    story = hub.story(f"{ORDERS}:0+0")
    assert (story.made_by, story.read_by) == ((), ())
    (note,) = story.notes
    assert note.startswith("no story kept of how it was made: a producer appended it, or ")


def test_of_many_commits_the_right_one_is_told(hub: Hub) -> None:
    topology = Topology(bill, streams={INVOICES: ONE})
    ordered(hub, 2)
    with headrace.start(topology, hub, lanes=1) as running:
        for _ in range(4):
            ordered(hub, 2)
            assert running.wait("30s", until_caught_up=True)
    for offset in range(10):
        commit = only(hub.story(f"{INVOICES}:0+{offset}").made_by)
        assert commit.read.start <= offset < commit.read.end
        assert only(hub.story(f"{ORDERS}:0+{offset}").read_by).read == commit.read


def test_outputs_in_several_shards_are_all_told(hub: Hub) -> None:
    @computation(inputs=ORDERS, outputs=INVOICES)
    def spread(record: Any, out: Any) -> None:
        for shard in range(3):
            out.append(INVOICES, None, shard=shard)

    ordered(hub, 2)
    ran(hub, Topology(spread, streams={INVOICES: {"shards": 3}}))
    commit = only(hub.story(f"{ORDERS}:0+0").read_by)
    assert sorted(map(str, commit.appended)) == [f"{INVOICES}:{shard}+0..2" for shard in range(3)]
    for shard in range(3):
        assert only(hub.story(f"{INVOICES}:{shard}+1").made_by).read == commit.read


# Several stages and groups


def test_a_chain_is_followed_back_to_the_source(hub: Hub) -> None:
    ordered(hub, 3)
    ran(hub)
    second = only(hub.story(f"{TOTALS}:0+1").made_by)
    assert (second.group, second.read.stream) == ("total", INVOICES)
    assert {first.group for first in second.further} == {"bill"}
    assert {first.read.stream for first in second.further} == {ORDERS}
    assert all(first.further == () for first in second.further)


def test_a_chain_is_followed_on_to_the_end(hub: Hub) -> None:
    ordered(hub, 3)
    ran(hub)
    first = only(hub.story(f"{ORDERS}:0+1").read_by)
    assert first.group == "bill"
    assert {second.group for second in first.further} == {"total"}
    assert {made.stream for second in first.further for made in second.appended} == {TOTALS}


def test_in_the_middle_both_ways_are_told(hub: Hub) -> None:
    ordered(hub, 3)
    ran(hub)
    story = hub.story(f"{INVOICES}:0+1")
    assert (only(story.made_by).group, only(story.read_by).group) == ("bill", "total")


def test_a_depth_bounds_both_ways_and_says_so(hub: Hub) -> None:
    ordered(hub, 3)
    ran(hub)
    for record, way in ((f"{ORDERS}:0+0", "read_by"), (f"{TOTALS}:0+0", "made_by")):
        story = hub.story(record, depth=1)
        assert only(getattr(story, way)).further == ()
        assert "commits may lie further away: 1 in a row are followed" in story.notes
        assert not any("further away" in note for note in hub.story(record, depth=3).notes)


def test_every_group_that_read_a_record_is_told(hub: Hub) -> None:
    @computation(inputs=ORDERS)
    def audit(record: Any) -> None: ...

    ordered(hub, 4)
    ran(hub, Topology(bill, audit, streams={INVOICES: ONE}))
    story = hub.story(f"{ORDERS}:0+2")
    assert [commit.group for commit in story.read_by] == ["audit", "bill"]
    audited = story.read_by[0]
    assert (audited.appended, audited.outputs, audited.further) == ((), (), ())


def test_too_many_commits_are_cut_and_it_is_said(
    memory: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered(memory, 3)
    ran(memory, SHOP)
    monkeypatch.setattr(walk, "COMMITS_MAX", 1)
    story = memory.story(f"{ORDERS}:0+0")
    assert only(story.read_by).further == ()
    assert "there are more commits: 1 are told of each way" in story.notes


def test_a_commit_that_is_reached_twice_is_followed_once(hub: Hub) -> None:
    @computation(inputs=ORDERS, outputs=INVOICES)
    def again(record: Any, out: Any) -> None:
        out.append(INVOICES, record.value)

    ordered(hub, 2)
    ran(hub, Topology(bill, again, streams={INVOICES: ONE}))
    ran(hub, Topology(total, streams={TOTALS: ONE}))
    ran(hub, Topology(_sink, streams={}))
    read = [only(commit.further) for commit in hub.story(f"{ORDERS}:0+0").read_by]
    assert [(commit.group, commit.repeated) for commit in read] == [
        ("total", False),
        ("total", True),
    ]
    assert [len(commit.further) for commit in read] == [1, 0]


@computation(inputs=TOTALS, name="sink")
def _sink(record: Any) -> None: ...


# Failures


def test_a_record_that_was_tried_again_tells_its_attempts(hub: Hub) -> None:
    ordered(hub, 5)
    ran(hub, flaky({2: 2}, "stop"))
    attempts = [only(hub.story(f"{ORDERS}:0+{n}").read_by).attempts for n in range(5)]
    assert attempts == [1, 1, 3, 1, 1]
    made = only(hub.story(f"{INVOICES}:0+2").made_by)
    assert (made.read.start, made.attempts) == (2, 3)


def test_a_dead_letter_is_told_both_ways_and_exactly(hub: Hub) -> None:
    ordered(hub, 5)
    ran(hub, flaky({3: 9}, "dead-letter"))
    letter, order = RecordId("bill.dead-letters", 0, 0), RecordId(ORDERS, 0, 3)
    given_up = only(hub.story(order).read_by)
    assert (given_up.outcome, given_up.attempts) == ("dead-letter", 3)
    assert given_up.dead_letters == (Slice("bill.dead-letters", 0, 0, 1),)
    assert given_up.outputs == (letter,)
    made = only(hub.story(letter).made_by)
    assert (made.inputs, made.outputs, made.outcome) == ((order,), (letter,), "dead-letter")
    assert (made.group, made.attempts) == ("bill", 3)
    beside = only(hub.story(f"{ORDERS}:0+4").read_by)
    assert (beside.outcome, beside.attempts) == ("done", 1)


def test_dead_letters_are_followed_for_those_records_only_that_became_one(hub: Hub) -> None:
    @computation(inputs="bill.dead-letters")
    def look(record: Any) -> None: ...

    ordered(hub, 5)
    ran(hub, flaky({3: 9}, "dead-letter"))
    ran(hub, Topology(look, streams={}))
    given_up, beside = (only(hub.story(f"{ORDERS}:0+{n}").read_by) for n in (3, 4))
    assert given_up.read == beside.read
    assert [commit.group for commit in given_up.further] == ["look"]
    assert beside.further == ()


def test_a_skipped_record_is_told_as_skipped(hub: Hub) -> None:
    ordered(hub, 4)
    ran(hub, flaky({1: 9}, "skip"))
    skipped = only(hub.story(f"{ORDERS}:0+1").read_by)
    assert (skipped.outcome, skipped.attempts) == ("skipped", 3)
    assert skipped.further == ()
    assert only(hub.story(f"{ORDERS}:0+2").read_by).outcome == "done"


def test_a_record_that_is_not_read_yet_tells_who_waits_for_it(hub: Hub) -> None:
    ordered(hub, 2)
    ran(hub, Topology(bill, streams={INVOICES: ONE}))
    ordered(hub, 1)
    story = hub.story(f"{ORDERS}:0+2")
    (unread,) = story.unread
    assert (unread.group, unread.checkpoint, unread.again) == ("bill", 2, False)
    assert (unread.failed, unread.reason, unread.stopped) == (0, "", False)
    assert story.read_by == ()


def test_a_record_that_stopped_its_shard_tells_why(hub: Hub) -> None:
    ordered(hub, 3)
    with headrace.start(flaky({1: 9}, "stop"), hub, lanes=1):
        until(lambda: _stopped(hub, f"{ORDERS}:0+1"), "the shard stops")
        (unread,) = hub.story(f"{ORDERS}:0+1").unread
        assert (unread.failed, unread.reason) == (3, "ValueError: order 1 is bad")
        (behind,) = hub.story(f"{ORDERS}:0+2").unread
        assert (behind.failed, behind.stopped) == (0, False)


def _stopped(hub: Hub, record: str) -> bool:
    return any(unread.stopped for unread in hub.story(record).unread)


# Read more than once, or without a story


def test_a_record_that_was_read_twice_is_told_twice_oldest_first(hub: Hub) -> None:
    ordered(hub, 3)
    topology = Topology(bill, streams={INVOICES: ONE})
    ran(hub, topology)
    hub.groups.seek("bill", 1, ORDERS)
    story = hub.story(f"{ORDERS}:0+1")
    assert [(unread.group, unread.again) for unread in story.unread] == [("bill", True)]
    ran(hub, topology)
    twice = hub.story(f"{ORDERS}:0+1").read_by
    assert [commit.read for commit in twice] == [Slice(ORDERS, 0, 0, 3), Slice(ORDERS, 0, 1, 3)]
    assert [commit.appended for commit in twice] == [
        (Slice(INVOICES, 0, 0, 3),),
        (Slice(INVOICES, 0, 3, 5),),
    ]
    assert only(hub.story(f"{INVOICES}:0+1").made_by).read == twice[0].read
    assert only(hub.story(f"{INVOICES}:0+4").made_by).read == twice[1].read


def test_a_rewind_is_told_as_a_second_reading(hub: Hub) -> None:
    rewound: list[int] = []

    @computation(inputs=ORDERS, outputs=INVOICES)
    def bill(record: Any, out: Any, ctx: Any) -> None:
        ctx.checkpoint()
        if record.value["n"] == 2 and not rewound:
            rewound.append(1)
            raise Rewind(0)
        out.append(INVOICES, record.value)

    ordered(hub, 3)
    ran(hub, Topology(bill, streams={INVOICES: ONE}))
    assert len(hub.story(f"{ORDERS}:0+0").read_by) == 2
    assert len(hub.story(f"{ORDERS}:0+2").read_by) == 1


def test_a_group_whose_checkpoint_was_moved_past_a_record_tells_no_story(hub: Hub) -> None:
    ordered(hub, 1)
    topology = Topology(bill, streams={INVOICES: ONE})
    ran(hub, topology)
    ordered(hub, 2)
    hub.groups.seek("bill", 2, ORDERS)
    ran(hub, topology)
    (untold,) = hub.story(f"{ORDERS}:0+1").untold
    assert untold.why == "no story kept: no commit passed it, its checkpoint was moved"


def test_a_consumer_leaves_no_stories_and_it_is_said(hub: Hub) -> None:
    ordered(hub, 2)
    with hub.consumer(ORDERS, group="billing") as consumer:
        consumer.mark(next(iter(consumer)))
        consumer.commit()
    (untold,) = hub.story(f"{ORDERS}:0+0").untold
    assert untold.group == "billing"
    assert untold.why == "no story kept: its commits carry none, as those of a consumer"


class Written:
    """Commits of a group, written past any lane: many, and quickly."""

    def __init__(self, hub: Hub) -> None:
        store = hub.backend.store
        assert store is not None
        self.log, self.store = hub.log, store
        self.orders = hub.create_stream(ORDERS, shards=2).info
        self.invoices = hub.create_stream(INVOICES, shards=1).info
        self.granted = self._grant(self.orders)
        self.next = 0

    def _grant(self, stream: StreamInfo) -> Grant:
        token = store_keys.epoch_token(1)
        self.store.transact({}, {store_keys.epoch_key("bill", stream.id, 0): token})
        return Grant("bill", stream, 0, token)

    def commit(self, *, outputs: int = 1, tells: bool = True) -> None:
        """One record is read, and so many outputs are made from it."""
        at, self.next = self.next, self.next + 1
        rows = [Row(None, b"v", 0)]
        self.log.append([Append(self.orders, 0, Batch.of_rows(rows))])
        made = [Append(self.invoices, 0, Batch.of_rows(rows * outputs))] if outputs else []
        story = encoded(Story(at, at + 1, 1, "till", 0, at, 0.0)) if tells else b""
        done = Slice(ORDERS, 0, at, at + 1)
        self.store.commit(Commit(grant=self.granted, done=done, outputs=made, story=story))


def test_dropped_stories_are_a_line_and_no_error(memory: Hub) -> None:
    written = Written(memory)
    for _ in range(STORIES_KEPT + 2):
        written.commit()
    dropped = memory.story(f"{ORDERS}:0+1")
    assert dropped.read_by == ()
    (untold,) = dropped.untold
    assert untold.why.startswith("no story kept: only the last 1,024 commits of a group and shard")
    assert "its commit is not among the last 1,024" in memory.story(f"{INVOICES}:0+1").notes[0]
    for offset in (2, STORIES_KEPT + 1):
        assert only(memory.story(f"{ORDERS}:0+{offset}").read_by).read.start == offset
        assert only(memory.story(f"{INVOICES}:0+{offset}").made_by).read.start == offset


def test_commits_without_a_story_do_not_hide_older_ones(memory: Hub) -> None:
    """Left in its slot, a story of the round before would seem new, and end the walk too early."""
    written = Written(memory)
    for _ in range(STORIES_KEPT):
        written.commit()
    for _ in range(20):
        written.commit(outputs=0, tells=False)
    written.commit()
    for offset in (30, STORIES_KEPT - 1):
        assert only(memory.story(f"{INVOICES}:0+{offset}").made_by).read.start == offset


def test_the_walk_back_ends_where_outputs_lie_before_the_record(
    memory: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(memory)
    for _ in range(STORIES_KEPT + 100):
        written.commit()
    scanned: list[bytes] = []
    scan = MemoryBackend.scan

    def noted(self: MemoryBackend, prefix: bytes) -> Any:
        scanned.append(prefix)
        return scan(self, prefix)

    monkeypatch.setattr(MemoryBackend, "scan", noted)
    for back, scans in ((1, 0), (2, 1), (100, 1), (101, 2), (500, 3)):
        scanned.clear()
        assert memory.story(f"{INVOICES}:0+{STORIES_KEPT + 100 - back}").made_by
        assert len([prefix for prefix in scanned if prefix.startswith(b"s")]) == scans, back


def test_shards_beyond_those_remembered_are_read_too(
    memory: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_stories, "SHARDS_REMEMBERED", 0)
    ordered(memory, 3)
    ran(memory, SHOP)
    assert only(memory.story(f"{TOTALS}:0+1").made_by).further


# Exact where records carry their origin


@pytest.fixture
def origins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ORIGINS, "1")


@pytest.mark.usefixtures("origins")
def test_with_origins_an_output_names_its_record_through_all_stages(hub: Hub) -> None:
    ordered(hub, 5)
    ran(hub)
    story = hub.story(f"{TOTALS}:0+3")
    assert story.origin == RecordId(ORDERS, 0, 3)
    second = only(story.made_by)
    first = only(second.further)
    assert second.inputs == (RecordId(INVOICES, 0, 3),)
    assert first.inputs == (RecordId(ORDERS, 0, 3),)
    assert story.notes == ()


@pytest.mark.usefixtures("origins")
def test_with_origins_a_record_names_its_own_outputs_through_all_stages(hub: Hub) -> None:
    ordered(hub, 5)
    ran(hub)
    first = only(hub.story(f"{ORDERS}:0+3").read_by)
    second = only(first.further)
    assert first.outputs == (RecordId(INVOICES, 0, 3),)
    assert second.inputs == (RecordId(INVOICES, 0, 3),)
    assert second.outputs == (RecordId(TOTALS, 0, 3),)


@pytest.mark.usefixtures("origins")
def test_with_origins_a_record_that_made_nothing_says_so(hub: Hub) -> None:
    @computation(inputs=ORDERS, outputs=INVOICES)
    def odd(record: Any, out: Any) -> None:
        if record.value["n"] % 2:
            out.append(INVOICES, record.value)

    ordered(hub, 4)
    ran(hub, Topology(odd, streams={INVOICES: ONE}))
    commit = only(hub.story(f"{ORDERS}:0+2").read_by)
    assert (commit.outputs, commit.further) == ((), ())
    assert only(hub.story(f"{ORDERS}:0+3").read_by).outputs == (RecordId(INVOICES, 0, 1),)


@pytest.mark.parametrize("carried", ["shop/orders:0+1", "shop/orders:0+1/0/0", "no lineage", ""])
def test_headers_that_a_handler_passes_on_are_not_taken_for_an_origin(
    hub: Hub, carried: str
) -> None:
    @computation(inputs=ORDERS, outputs=INVOICES)
    def passed_on(record: Any, out: Any) -> None:
        out.append(INVOICES, record.value, headers=record.headers)

    orders = hub.create_stream(ORDERS, **ONE)
    for n in range(3):
        orders.append({"n": n}, headers=[("headrace-origin", carried.encode())])
    ran(hub, Topology(passed_on, streams={INVOICES: ONE}))
    assert only(hub.story(f"{INVOICES}:0+2").made_by).inputs is None
    assert all(commit.outputs is None for commit in hub.story(f"{ORDERS}:0+2").read_by)


# Commits of other kinds


@pytest.mark.parametrize("told", [False, True])
def test_a_batch_computation_makes_outputs_from_all_records_together(
    hub: Hub, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if told:
        monkeypatch.setenv(ORIGINS, "1")

    @computation.batch(inputs=ORDERS, outputs=INVOICES, capacity=10, threshold="5ms")
    def bill(records: Any, out: Any) -> None:
        out.append(INVOICES, len(records))

    ordered(hub, 4)
    ran(hub, Topology(bill, streams={INVOICES: ONE}))
    story = hub.story(f"{INVOICES}:0+0")
    commit = only(story.made_by)
    assert (commit.together, commit.inputs, story.origin) == (True, None, None)
    assert story.notes == ()
    assert "all together" in str(story)


def test_a_batch_that_is_given_up_tells_so_of_each_record(hub: Hub) -> None:
    @computation.batch(
        inputs=ORDERS,
        capacity=10,
        threshold="5ms",
        policy=Policy(retries=1, delay="5ms", then="dead-letter"),
    )
    def bill(records: Any) -> None:
        raise ValueError("no")

    ordered(hub, 4)
    ran(hub, Topology(bill, streams={}))
    for offset in range(4):
        commit = only(hub.story(f"{ORDERS}:0+{offset}").read_by)
        assert (commit.outcome, commit.attempts) == ("dead-letter", 2)
        assert commit.outputs == (RecordId("bill.dead-letters", 0, offset),)


def test_outputs_of_a_call_without_a_record_say_so(hub: Hub) -> None:
    @computation(inputs=ORDERS, outputs=INVOICES)
    class Till:
        def process(self, record: Any) -> None: ...

        def close(self, out: Any) -> None:
            out.append(INVOICES, "closed")

    ordered(hub, 1)
    ran(hub, Topology(Till, streams={INVOICES: ONE}))
    commit = only(hub.story(f"{INVOICES}:0+0").made_by)
    assert (commit.group, commit.read, commit.further) == ("Till", Slice(ORDERS, 0, 1, 1), ())
    assert f"at {ORDERS}:0+1, in a call that is about no record" in str(commit)


# What is gone


def test_a_record_that_was_trimmed_still_has_its_story(hub: Hub) -> None:
    ordered(hub, 3)
    ran(hub)
    hub.log.trim(hub.stream(INVOICES).info, 0, 2)
    story = hub.story(f"{INVOICES}:0+0")
    assert only(story.made_by).outputs == (RecordId(INVOICES, 0, 0),)
    assert only(story.read_by).group == "total"
    assert "the record itself cannot be read any more: only stories tell of it" in story.notes


def test_outputs_in_a_deleted_stream_are_named_as_such(hub: Hub) -> None:
    ordered(hub, 2)
    ran(hub, Topology(bill, streams={INVOICES: ONE}))
    deleted = hub.stream(INVOICES).info.id
    hub.delete_stream(INVOICES)
    commit = only(hub.story(f"{ORDERS}:0+0").read_by)
    assert [made.stream for made in commit.appended] == [f"(deleted stream {deleted})"]
    assert commit.further == ()


def test_a_deleted_group_tells_nothing(hub: Hub) -> None:
    ordered(hub, 2)
    ran(hub, Topology(bill, streams={INVOICES: ONE}))
    hub.groups.delete("bill")
    assert hub.story(f"{ORDERS}:0+0").read_by == ()
    assert hub.story(f"{INVOICES}:0+0").made_by == ()


# Refusals


@pytest.mark.parametrize(
    "record", ["shop/orders", "shop/orders:0", "shop/orders:0+x", "", 17, None]
)
def test_what_names_no_record_is_refused(memory: Hub, record: Any) -> None:
    with pytest.raises(BadRecordId, match=r"shop/orders:2\+17"):
        memory.story(record)


def test_unknown_streams_shards_and_offsets_are_the_usual_errors(hub: Hub) -> None:
    ordered(hub, 2)
    with pytest.raises(UnknownStream):
        hub.story("shop/nothing:0+0")
    with pytest.raises(UnknownShard):
        hub.story(f"{ORDERS}:1+0")
    for offset in (2, 99, -1):
        with pytest.raises(OffsetOutOfRange):
            hub.story(RecordId(ORDERS, 0, offset))
    with pytest.raises(BadName):
        hub.story(RecordId("shop//orders", 0, 0))


@pytest.mark.parametrize("depth", [0, -1, True, 1.5, "2"])
def test_a_depth_is_a_whole_number_from_one(memory: Hub, depth: Any) -> None:
    with pytest.raises(BadSetting, match="depth"):
        memory.story(f"{ORDERS}:0+0", depth=depth)


def test_a_backend_without_a_store_refuses_with_the_reason() -> None:
    class Storeless(MemoryBackend):
        capabilities = Capabilities("plain", {"store": "it only has records"})

    with pytest.raises(Unsupported, match="does not offer 'store': it only has records"):
        Hub(Backend(Storeless())).story(f"{ORDERS}:0+0")


def test_a_story_that_cannot_be_read_is_an_error_that_says_so(memory: Hub) -> None:
    written = Written(memory)
    written.commit()
    key = store_keys.story_key("bill", written.orders.id, 0, 0)
    for damaged in (b"\0\0\0\0\xc1", b"\0\0\0\7"):
        written.store.transact({}, {key: damaged})
        with pytest.raises(BadStored, match="a story"):
            memory.story(f"{ORDERS}:0+0")


# How it prints


def test_a_story_prints_as_an_indented_text(hub: Hub) -> None:
    ordered(hub, 3)
    ran(hub, flaky({1: 2}, "stop"))
    ran(hub, Topology(total, streams={TOTALS: ONE}))
    text = str(hub.story(f"{ORDERS}:0+1")).splitlines()
    assert text[0] == f"{ORDERS}:0+1"
    assert text[1] == f"  read by bill from {ORDERS}:0+1 in {ORDERS}:0+1..3"
    assert text[2].startswith("    3 attempts; replica till, lane 0, epoch 1; 2")
    assert text[3] == f"    appended {INVOICES}:0+1..3"
    assert text[4] == f"    read by total from {INVOICES}:0+0..3"
    back = str(hub.story(f"{INVOICES}:0+2")).splitlines()
    assert back[1] == f"  made by bill from {ORDERS}:0+1..3"
    assert back[2].startswith("    up to 3 attempts; replica till")
