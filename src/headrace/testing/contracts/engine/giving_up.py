"""A record has failed for good: it is skipped or becomes a dead letter, and its shard goes on."""

from __future__ import annotations

import logging

import pytest

from headrace.core.computations.settings import RunSettings
from headrace.hub.hub import Hub
from headrace.testing.children import until
from headrace.testing.contracts.engine.effects import Effects
from headrace.testing.contracts.engine.engine_under_test import (
    EngineUnderTest,
    Logged,
    Run,
    fill,
    orders,
    origins,
    read,
    stored_state,
    values,
    whole,
)
from headrace.testing.contracts.engine.samples import REFUNDS, many, shop, straying, two_shops

LETTERS = "serve.dead-letters"
BAD = {"fails": 100}


class GivingUpContract(EngineUnderTest):
    def test_a_skipped_record_is_logged_and_counted(
        self, hub: Hub, run: Run, logged: Logged
    ) -> None:
        stream = orders(hub, each=2)
        stream.append(BAD)
        fill(stream, 2)
        running = run(shop, policy={"retries": 1, "delay": "0s", "then": "skip"})
        assert running.wait("10s", until_caught_up=True)
        assert origins(hub) == {0: [0, 1, 3, 4]}
        assert stored_state(hub)["count"] == 4
        assert "serve: shop/orders:0+2 is skipped" in logged()
        counted = running.counters["serve"]
        assert (counted.processed, counted.skipped, counted.failures) == (5, 1, 2)

    def test_a_dead_letter_holds_record_and_reason_and_the_shard_goes_on(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, each=2)
        stream.append(
            {**BAD, "says": "no such thing"},
            key="ann",
            headers=[("from", b"the test")],
            timestamp=1_490_855_872_363,
            trace=b"any",
        )
        fill(stream, 2)
        running = run(shop, policy={"retries": 2, "delay": "0s", "then": "dead-letter"})
        assert running.wait("10s", until_caught_up=True)
        assert origins(hub) == {0: [0, 1, 3, 4]}
        assert stored_state(hub)["count"] == 4
        (letter,) = read(hub, LETTERS)
        assert letter.value == {**BAD, "says": "no such thing"}
        assert (letter.key, letter.timestamp_ms, letter.trace) == ("ann", 1_490_855_872_363, b"any")
        headers = {name: (value or b"").decode() for name, value in letter.headers}
        assert headers["from"] == "the test"
        assert headers["dead-letter-origin"] == "shop/orders:0+2"
        assert headers["dead-letter-computation"] == "serve"
        assert headers["dead-letter-reason"] == "ValueError: no such thing"
        assert headers["dead-letter-attempts"] == "3"
        assert "Traceback" in headers["dead-letter-stack"]
        assert "in _do_as_asked" in headers["dead-letter-stack"]
        assert running.counters["serve"].dead_letters == 1
        assert running.stopped() == {}

    def test_dead_letters_are_stored_once_with_the_commit(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, shards=2)
        for n in range(60):
            stream.append(BAD if n % 3 == 0 else None, shard=n % 2)
        policy = {"retries": 0, "then": "dead-letter"}
        running = run(shop, policy=policy, lanes=2)
        assert running.wait("20s", until_caught_up=True)
        letters = [dict(letter.headers)["dead-letter-origin"] for letter in read(hub, LETTERS)]
        assert len(letters) == len(set(letters)) == 20
        assert sum(map(len, origins(hub).values())) == 40
        assert running.counters["serve"].dead_letters == 20

    def test_too_many_dead_letters_stop_the_shard(
        self, hub: Hub, run: Run, caplog: pytest.LogCaptureFixture
    ) -> None:
        stream = orders(hub)
        for _ in range(10):
            stream.append(BAD)
        policy = {"retries": 0, "then": "dead-letter", "dead_letters_max": 3}
        with caplog.at_level(logging.ERROR, "headrace"):
            running = run(shop, policy=policy)
            until(running.stopped, "the shard stops", 10)
            reason = "3 of the last 1000 records went to the dead letters"
            until(lambda: reason in caplog.text, "the reason is stored", 10)
        assert len(read(hub, LETTERS)) == 3

    def test_dead_letters_of_long_ago_stop_no_shard(self, hub: Hub, run: Run) -> None:
        stream = orders(hub)
        for _ in range(2):
            stream.append(BAD)
            stream.append_many((None, None) for _ in range(1_000))
        policy = {"retries": 0, "then": "dead-letter", "dead_letters_max": 1}
        running = run(shop, policy=policy)
        assert running.wait("20s", until_caught_up=True)
        assert (len(read(hub, LETTERS)), running.stopped()) == (2, {})

    def test_a_dead_letter_that_cannot_be_stored_stops_the_shard(
        self, hub: Hub, run: Run, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A record is never dropped silently."""
        stream = orders(hub, each=1)
        stream.append(BAD, headers=[("large", b"x" * (60 * 1024))] * 16)
        fill(stream, 1)
        with caplog.at_level(logging.ERROR, "headrace"):
            running = run(shop, policy={"retries": 0, "then": "dead-letter"})
            until(
                lambda: running.stopped() or running.caught_up(),
                "the shard stops, or the dead letter is stored",
                10,
            )
        if running.stopped():
            assert origins(hub) == whole(1, 1)
            until(
                lambda: "its dead letter cannot be stored" in caplog.text,
                "the reason is stored",
                10,
            )
        else:
            assert len(read(hub, LETTERS)) == 1

    def test_dead_letters_of_a_batch_that_exceed_a_commit_do_not_hang(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        """The dead letters take several commits, or the shard stops."""
        stream = orders(hub, shards=2)
        for n in range(10):
            stream.append({**(BAD if n == 0 else {}), "fill": "x" * 900_000}, shard=0)
        fill(stream, 10, range(1, 2))
        running = run(many, policy={"retries": 0, "then": "dead-letter"})
        assert running.wait("10s", until_caught_up=True)
        letters = len(read(hub, "serve_many.dead-letters"))
        assert (letters, bool(running.stopped())) in ((10, False), (0, True))
        assert effects.count("begin", shard=0) == 1
        assert origins(hub) == {1: list(range(10))}

    def test_an_undeclared_output_is_not_tried_again(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        orders(hub, each=2)
        running = run(straying, policy={"retries": 5, "delay": "0s"})
        until(running.stopped, "the shard stops", 10)
        assert effects.count("begin") == 1
        assert values(hub) == []
        assert "'shop/totals', which is not among its outputs: shop/bills" in (
            running.counters["append_elsewhere"].last_failure
        )

    def test_the_first_failures_can_be_skipped(self, hub: Hub, run: Run, logged: Logged) -> None:
        """One failure of each computation is skipped; the second stops the shard."""
        stream = orders(hub)
        for bad in (False, True, False, True, False):
            stream.append(BAD if bad else None)
        running = run(two_shops, skip_first_failures=1, policy={"retries": 0})
        until(lambda: len(running.stopped()) == 2, "the second bad record stops the shard", 10)
        assert origins(hub) == {0: [0, 2]}
        assert origins(hub, REFUNDS) == {0: [0, 2]}
        log = logged()
        for name in ("serve", "refund"):
            assert running.counters[name].skipped == 1
            assert f"{name}: shop/orders:0+1 is skipped: --skip-first-failures, 0 left" in log

    def test_each_computation_has_its_own_policy(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, each=1)
        stream.append(BAD)
        fill(stream, 1)
        running = run(
            two_shops,
            policies={
                "serve": {"retries": 0, "then": "skip"},
                "refund": {"retries": 2, "delay": "0s", "then": "dead-letter"},
            },
        )
        assert running.wait("10s", until_caught_up=True)
        assert running.counters["serve"].skipped == 1
        assert len(read(hub, "refund.dead-letters")) == 1
        assert effects.count("begin", computation="serve", offset=1) == 1
        assert effects.count("begin", computation="refund", offset=1) == 3
        assert origins(hub) == origins(hub, REFUNDS) == {0: [0, 2]}

    def test_a_named_policy_wins_over_the_default_and_that_over_the_built_in(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        orders(hub).append(BAD)
        settings = RunSettings(
            policies={
                "default": {"retries": 1, "delay": "0s", "then": "skip"},
                "refund": {"retries": 3},
            },
            streams={"default": {"codec": "json"}},
        )
        assert run(two_shops, settings=settings).wait("10s", until_caught_up=True)
        assert effects.count("begin", computation="serve") == 2
        assert effects.count("begin", computation="refund") == 4, (
            "delay and then come from the default policy"
        )

    def test_a_failed_batch_is_given_up_as_a_whole(
        self, hub: Hub, run: Run, effects: Effects
    ) -> None:
        stream = orders(hub, each=9)
        stream.append(BAD)
        fill(stream, 10)
        running = run(many, policy={"retries": 1, "delay": "0s", "then": "dead-letter"})
        assert running.wait("10s", until_caught_up=True)
        assert origins(hub) == {0: list(range(10, 20))}
        letters = read(hub, "serve_many.dead-letters")
        assert [dict(letter.headers)["dead-letter-origin"] for letter in letters] == [
            b"shop/orders:0+%d" % offset for offset in range(10)
        ]
        assert stored_state(hub, "serve_many")["count"] == 10
        counted = running.counters["serve_many"]
        assert (counted.processed, counted.dead_letters, counted.failures) == (20, 10, 2)
