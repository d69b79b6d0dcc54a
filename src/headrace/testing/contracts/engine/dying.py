"""A record that kills its process is found and given up, instead of killing every replica in
turn."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any, ClassVar

import pytest

from headrace.hub.hub import Hub
from headrace.testing.children import Child
from headrace.testing.contracts.engine.effects import EFFECTS, GATES, Effects, Gates
from headrace.testing.contracts.engine.engine_under_test import (
    AtWork,
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


class DyingContract(AtWork):
    """On a hub in files, whose directory is `place`."""

    ENGINE: ClassVar[dict[str, Any]] = {}
    """What `headrace.start` is given to use this engine."""

    @pytest.fixture
    def place(self) -> Path:
        raise NotImplementedError("give a fixture `place`: where the hub is")

    @pytest.mark.slow
    @pytest.mark.parametrize("then", ["dead-letter", "skip", "stop"])
    def test_a_record_that_kills_its_process_is_quarantined(
        self, hub: Hub, place: Path, effects: Effects, gates: Gates, then: str
    ) -> None:
        stream = orders(hub, shards=2, each=20)
        stream.append({"kills": True}, shard=0)
        fill(stream, 20)
        self._run_to_the_end(place, effects, gates, then)
        killed = effects.count("begin", shard=0, offset=20)
        assert 3 <= killed <= 3 + 2, "as often as it may, and twice before it is named"
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
        self, hub: Hub, place: Path, effects: Effects, gates: Gates
    ) -> None:
        stream = orders(hub, shards=2)
        stream.append({"sleep": 0.2, "kills": True}, shard=0)
        stream.append({"sleep": 0.6}, shard=1)
        fill(stream, 3)
        self._run_to_the_end(place, effects, gates, "skip")
        assert origins(hub) == {0: [1, 2, 3], 1: [0, 1, 2, 3]}

    def _run_to_the_end(self, place: Path, effects: Effects, gates: Gates, then: str) -> None:
        """One replica after the other, until one ends well."""
        told = {
            "hub": str(place),
            "reference": reference(shop),
            "policy": {"deaths": 3, "then": then},
            "options": {EFFECTS: str(effects.path), GATES: str(gates.directory)},
            "engine": self.ENGINE,
        }
        ends: list[int] = []
        while len(ends) < CHILDREN_MAX and 0 not in ends:
            with Child(["-m", MODULE, json.dumps(told)]) as child:
                ends.append(child.ended(60))
        assert ends[-1] == 0, f"at last all is handled: {ends}"
        assert set(ends[:-1]) <= {-signal.SIGKILL}
