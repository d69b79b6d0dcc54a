"""A record that kills its process is identified and given up. Otherwise it would kill every replica
in turn."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any, ClassVar

import pytest

from headrace.hub.hub import Hub
from headrace.testing.children import Child
from headrace.testing.contracts.engine.effects import EFFECTS, WAIT_POINTS, Effects, WaitPoints
from headrace.testing.contracts.engine.engine_under_test import (
    EngineUnderTest,
    fill,
    orders,
    origins,
    read,
    reference,
    stored_state,
)
from headrace.testing.contracts.engine.samples import ORDERS, shop

MODULE = "headrace.testing.contracts.engine.replica"
CHILDREN_MAX = 12


class DyingContract(EngineUnderTest):
    """Needs a hub in a directory, given by the fixture `place`."""

    ENGINE: ClassVar[dict[str, Any]] = {}
    """The keywords of `headrace.start` that choose the engine under test."""

    @pytest.fixture
    def place(self) -> Path:
        raise NotImplementedError("give a fixture `place`: the directory of the hub")

    @pytest.mark.slow
    @pytest.mark.parametrize("then", ["dead-letter", "skip", "stop"])
    def test_a_record_that_kills_its_process_is_quarantined(
        self, hub: Hub, place: Path, effects: Effects, wait_points: WaitPoints, then: str
    ) -> None:
        stream = orders(hub, shards=2, each=20)
        stream.append({"kills": True}, shard=0)
        fill(stream, 20)
        self._run_to_the_end(place, effects, wait_points, then)
        killed = effects.count("begin", shard=0, offset=20)
        assert 3 <= killed <= 3 + 2, (
            "three deaths of the policy, and up to two before the record is identified"
        )
        done = [n for n in range(41) if n != 20] if then != "stop" else list(range(20))
        assert origins(hub) == {0: done, 1: list(range(40))}
        assert stored_state(hub)["count"] == len(done)
        standing = hub.groups.load("serve").shards
        stopped = [shard.index for shard, known in standing.items() if known.stopped]
        assert stopped == ([0] if then == "stop" else [])
        if then == "dead-letter":
            (letter,) = read(hub, "serve.dead-letters")
            headers = dict(letter.headers)
            assert headers["dead-letter-origin"] == f"{ORDERS}:0+20".encode()
            assert b"killed its process" in (headers["dead-letter-reason"] or b"")

    @pytest.mark.slow
    def test_a_record_in_hand_beside_one_that_kills_is_not_blamed(
        self, hub: Hub, place: Path, effects: Effects, wait_points: WaitPoints
    ) -> None:
        stream = orders(hub, shards=2)
        stream.append({"sleep": 0.2, "kills": True}, shard=0)
        stream.append({"sleep": 0.6}, shard=1)
        fill(stream, 3)
        self._run_to_the_end(place, effects, wait_points, "skip")
        assert origins(hub) == {0: [1, 2, 3], 1: [0, 1, 2, 3]}

    def _run_to_the_end(
        self, place: Path, effects: Effects, wait_points: WaitPoints, then: str
    ) -> None:
        """Start one replica after the other until one ends well."""
        request = {
            "hub": str(place),
            "reference": reference(shop),
            "policy": {"deaths": 3, "then": then},
            "options": {EFFECTS: str(effects.path), WAIT_POINTS: str(wait_points.directory)},
            "engine": self.ENGINE,
        }
        ends: list[int] = []
        while len(ends) < CHILDREN_MAX and 0 not in ends:
            with Child(["-m", MODULE, json.dumps(request)]) as child:
                ends.append(child.ended(60))
        assert ends[-1] == 0, f"the last replica handles all records: {ends}"
        assert set(ends[:-1]) <= {-signal.SIGKILL}
