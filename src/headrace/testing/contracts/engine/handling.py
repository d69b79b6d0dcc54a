"""What a handler is given, and what happens to its outputs."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from headrace.core.model import Flag
from headrace.hub.hub import Hub
from headrace.testing.children import until
from headrace.testing.contracts.engine.effects import Effects, WaitPoints
from headrace.testing.contracts.engine.engine_under_test import (
    EngineUnderTest,
    Run,
    checkpoints,
    fill,
    orders,
    origins,
    read,
    values,
    whole,
)
from headrace.testing.contracts.engine.samples import (
    BILLS,
    ORDERS,
    REFUNDS,
    RETURNS,
    awaiting,
    checkpointing,
    copying,
    doubling,
    gathering,
    latest,
    much,
    passing,
    several,
    shop,
    threading_out,
)

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class HandlingContract(EngineUnderTest):
    def test_every_input_record_leads_to_its_output(self, hub: Hub, run: Run) -> None:
        stream = orders(hub)
        running = run(passing)
        stream.append({"amount": 21}, key="ann")
        assert running.wait("10s", until_caught_up=True)
        (bill,) = read(hub)
        assert (bill.value, bill.key) == ({"amount": 21}, "ann")

    def test_a_computation_can_have_several_inputs_and_outputs(self, hub: Hub, run: Run) -> None:
        orders(hub, shards=2, each=10)
        orders(hub, shards=3, each=10, name=RETURNS)
        assert run(several).wait("10s", until_caught_up=True)
        for made, of, shards in ((BILLS, ORDERS, 2), (REFUNDS, RETURNS, 3)):
            assert {value["from"].partition(":")[0] for value in values(hub, made)} == {of}
            assert origins(hub, made) == whole(shards, 10)

    def test_every_field_of_a_record_can_be_read_and_written(self, hub: Hub, run: Run) -> None:
        stream = orders(hub, shards=2)
        hub.create_stream(BILLS, shards=2, codec="json")
        stream.append(
            {"deep": [1, None, "ä"]},
            key=b"\xff\x00",
            headers=[("a", b"1"), ("a", None), ("", b"\x00")],
            timestamp=datetime(2026, 1, 1, 12, 30, 15, 250_000, tzinfo=UTC),
            sequence=77,
            flags=0x83 & ~Flag.COMMIT,
            trace=b"as it is",
            shard=1,
        )
        stream.append(None, key="tombstone", shard=0)
        assert run(copying).wait("10s", until_caught_up=True)
        for shard in range(2):
            (given,), (got,) = stream.read(shard), hub.stream(BILLS).read(shard)
            for field in ("value", "key_bytes", "headers", "timestamp_ms", "sequence", "flags"):
                assert getattr(got, field) == getattr(given, field), field
            assert got.trace == given.trace

    def test_flags_of_one_byte_are_passed_on(self, hub: Hub, run: Run) -> None:
        stream = orders(hub)
        stream.append(None, flags=0x83)
        assert run(copying).wait("10s", until_caught_up=True)
        (bill,) = read(hub)
        assert bill.flags == 0x83 == Flag.DEFAULT | Flag.COMMIT | Flag.USER2

    @pytest.mark.parametrize("count", [1, 200])
    def test_an_output_inherits_the_time_of_its_record(
        self, hub: Hub, run: Run, count: int
    ) -> None:
        stream = orders(hub)
        for n in range(count):
            stream.append({"n": n}, timestamp=1_490_855_872_363 + n, sequence=n)
        assert run(doubling).wait("10s", until_caught_up=True)
        found = [(bill.timestamp_ms - 1_490_855_872_363, bill.sequence) for bill in read(hub)]
        assert found == [(n, n) for n in range(count) for _ in range(2)]

    @pytest.mark.parametrize("count", [1, 50])
    def test_an_output_continues_the_trace_with_a_new_span(
        self, hub: Hub, run: Run, count: int
    ) -> None:
        stream = orders(hub)
        for n in range(count):
            stream.append({"n": n}, trace=TRACE if n % 2 == 0 else None)
        stream.append({"n": count}, trace="no traceparent")
        assert run(passing).wait("10s", until_caught_up=True)
        *bills, last = read(hub)
        assert last.trace == b"no traceparent"
        spans = set()
        for n, bill in enumerate(bills):
            if n % 2:
                assert bill.trace is None
            else:
                version, trace, span, flags = (bill.trace or b"").decode().split("-")
                assert (version, trace, flags) == ("00", TRACE.split("-")[1], "01")
                assert len(span) == 16
                assert span != TRACE.split("-")[2]
                spans.add(span)
        assert len(spans) == (count + 1) // 2, "each record has its own span"

    def test_the_commit_flag_and_checkpoint_commit_at_once(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        """The commit does not wait for later records of the same slice."""
        stream = orders(hub, shards=2)
        for shard in range(2):
            fill(stream, 3, range(shard, shard + 1))
            if shard == 0:
                stream.append({"n": 3}, flags=Flag.COMMIT, shard=shard)
            else:
                stream.append({"checkpoint": True}, shard=shard)
            stream.append({"wait": "behind"}, shard=shard)
        run(checkpointing, lanes=2)
        until(lambda: effects.count("begin", offset=4) == 2, "later records are in hand", 10)
        assert checkpoints(hub, "checkpoint_when_asked") == {0: 4, 1: 4}
        assert origins(hub) == whole(2, 4)

    def test_without_commit_flag_or_checkpoint_a_slice_is_one_commit(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        stream = orders(hub, each=3)
        stream.append({"wait": "behind"})
        running = run(checkpointing)
        until(lambda: effects.count("begin", offset=3) == 1, "the last record is in hand", 10)
        assert values(hub) == []
        wait_points.release("behind")
        assert running.wait("10s", until_caught_up=True)
        assert origins(hub) == whole(1, 4)

    def test_a_poison_pill_stops_its_shard_after_itself(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, shards=2)
        stream.append(None, shard=0)
        stream.append(None, flags=Flag.POISON_PILL, shard=0)
        fill(stream, 3)
        running = run(shop)
        until(running.stopped, "the shard stops", 10)
        assert running.wait("10s", until_caught_up=True)
        assert origins(hub) == {0: [0, 1], 1: [0, 1, 2]}
        assert (running.counters["serve"].failures, running.counters["serve"].stopped) == (0, 0)
        hub.groups.resume("serve")
        until(lambda: len(origins(hub)[0]) == 5, "the resumed shard goes on", 10)
        assert effects.count("begin", shard=0) == 5

    def test_async_handlers_are_awaited(self, hub: Hub, run: Run) -> None:
        stream = orders(hub, shards=2)
        for n in range(20):
            stream.append({"sleep": 0.001}, shard=n % 2)
        assert run(awaiting).wait("10s", until_caught_up=True)
        assert origins(hub) == whole(2, 10)

    def test_tasks_left_by_an_async_handler_end_with_it(self, hub: Hub, run: Run) -> None:
        orders(hub, each=3)
        running = run(gathering, policy={"retries": 1, "delay": "50ms"})
        assert running.wait("20s", until_caught_up=True)
        assert origins(hub) == whole(1, 3)

    def test_another_thread_cannot_append(self, hub: Hub, run: Run, effects: Effects) -> None:
        """An output from another thread could not be attributed to a record."""
        orders(hub, each=3)
        assert run(threading_out).wait("10s", until_caught_up=True)
        assert effects.count("refused") == 3
        assert values(hub) == []

    def test_an_async_handler_over_its_timeout_has_failed(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, each=1)
        stream.append({"sleep": 30})
        fill(stream, 1)
        policy = {"timeout": "200ms", "retries": 1, "delay": "0s", "then": "skip"}
        running = run(awaiting, policy=policy)
        assert running.wait("10s", until_caught_up=True)
        assert origins(hub) == {0: [0, 2]}
        assert effects.count("begin", offset=1) == 2
        assert running.counters["await_each"].failures == 2

    def test_many_outputs_of_many_records_stay_in_order(self, hub: Hub, run: Run) -> None:
        """The outputs exceed one commit."""
        stream = orders(hub)
        for n in range(12):
            stream.append({"n": n, "parts": 800})
        running = run(much)
        assert running.wait("20s", until_caught_up=True)
        found = [(value["n"], value["part"]) for value in values(hub)]
        assert found == [(n, part) for n in range(12) for part in range(800)]
        assert running.counters["append_much"].outputs == 12 * 800

    def test_large_outputs_of_neighbouring_records_are_all_committed(
        self, hub: Hub, run: Run
    ) -> None:
        """The outputs of one record fit a commit, those of two do not: no record has failed."""
        stream = orders(hub)
        stream.append_many(({"n": n, "parts": 1_900}, None) for n in range(4))
        running = run(much, policy={"retries": 0, "then": "skip"})
        assert running.wait("20s", until_caught_up=True)
        found = [(value["n"], value["part"]) for value in values(hub)]
        assert found == [(n, part) for n in range(4) for part in range(1_900)]
        assert running.counters["append_much"].failures == 0

    def test_outputs_with_large_headers_are_all_committed(self, hub: Hub, run: Run) -> None:
        stream = orders(hub)
        for n in range(60):
            stream.append({"n": n}, headers=[("large", b"x" * 100_000)])
        running = run(copying, policy={"retries": 0, "then": "skip"})
        assert running.wait("20s", until_caught_up=True)
        assert [value["n"] for value in values(hub)] == list(range(60))

    def test_records_trimmed_before_they_were_read_are_passed_over(
        self, hub: Hub, run: Run, effects: Effects, wait_points: WaitPoints
    ) -> None:
        stream = orders(hub)
        stream.append({"wait": "first"})
        running = run(shop)
        until(lambda: effects.count("begin") == 1, "the record is in hand", 10)
        fill(stream, 10)
        stream.trim(0, 6)
        wait_points.release("first")
        assert running.wait("10s", until_caught_up=True)
        assert origins(hub) == {0: [0, 6, 7, 8, 9, 10]}

    def test_outputs_of_one_record_that_exceed_a_commit_are_a_failure(
        self, hub: Hub, run: Run
    ) -> None:
        stream = orders(hub)
        for parts in (1, 100_000, 1):
            stream.append({"n": parts, "parts": parts})
        running = run(much, policy={"retries": 3, "delay": "0s", "then": "skip"})
        assert running.wait("20s", until_caught_up=True)
        assert [value["part"] for value in values(hub)] == [0, 0]
        assert running.counters["append_much"].failures == 1, (
            "the record is not tried again: another attempt would not help"
        )
        assert "append references to large data" in running.counters["append_much"].last_failure

    def test_a_computation_can_start_at_the_latest_record(self, hub: Hub, run: Run) -> None:
        stream = orders(hub, shards=2, each=5)
        running = run(latest)
        until(
            lambda: checkpoints(hub, "from_now_on") == {0: 5, 1: 5},
            "the start position is stored",
            10,
        )
        stream.append({"n": 1}, shard=0)
        assert running.wait("10s", until_caught_up=True)
        assert values(hub) == [{"n": 1}]

    def test_the_tail_of_an_idle_stream_is_committed(self, hub: Hub, run: Run) -> None:
        orders(hub, shards=2, each=3)
        run(shop)
        until(
            lambda: checkpoints(hub) == {0: 3, 1: 3},
            "all records are committed without a further record",
            10,
        )
