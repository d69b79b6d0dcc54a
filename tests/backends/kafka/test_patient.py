"""A client that answers nothing any more is replaced, and no other one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.backends.kafka.client import patient
from headrace.backends.kafka.client.patient import SILENT_S, PatientClient
from headrace.core.errors import Closed, Unreachable


class Client:
    """Answers, or does not, after so long."""

    def __init__(self, world: World) -> None:
        self._world = world

    def ask(self, took_s: float = 2.0) -> str:
        self._world.now_s += took_s
        code = self._world.codes.get(self, self._world.code)
        if code is not None:
            raise KafkaException(KafkaError(code))
        return "answer"


class World:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.code: int | None = None
        self.codes: dict[Client, int | None] = {}
        self.made: list[weakref.ref[Client]] = []
        self.is_open = True
        monkeypatch.setattr(patient, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        clients: Any = SimpleNamespace(
            note_answer=lambda: None,
            note_silence=lambda *_: None,
            settings=SimpleNamespace(without_secrets=str),
        )
        self.asked = PatientClient(
            self._make(), self._make, self._rest, clients, 60.0, self._check_open
        )

    def _make(self) -> Client:
        client = Client(self)
        self.made.append(weakref.ref(client))
        return client

    def _rest(self, _: Client) -> None:
        self.now_s += 0.1

    def _check_open(self) -> None:
        if not self.is_open:
            raise Closed("this hub was closed")

    def ask(self, patience_s: float = 0.0, took_s: float = 2.0) -> str:
        return self.asked.patiently(lambda client: client.ask(took_s), "asking", patience_s)

    def fails(self, patience_s: float = 0.0, took_s: float = 2.0) -> None:
        with pytest.raises(Unreachable):
            self.ask(patience_s, took_s)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_client_that_is_silent_for_long_is_replaced_and_ends(world: World) -> None:
    world.codes[world.asked.client] = KafkaError._TIMED_OUT
    began_s = world.now_s
    assert world.ask(patience_s=60.0) == "answer"
    assert SILENT_S < world.now_s - began_s < 3 * SILENT_S
    assert len(world.made) == 2
    world.codes.clear()
    assert world.made[0]() is None


def test_a_client_replaced_when_patience_is_over_ends_too(world: World) -> None:
    """Not only when the collector of garbage comes by: that may be in a thread of the client."""
    world.code = KafkaError._TIMED_OUT
    world.fails(patience_s=SILENT_S + 2.0)
    assert len(world.made) == 2
    assert world.made[0]() is None


def test_silent_calls_without_patience_add_up(world: World) -> None:
    world.code = KafkaError._TRANSPORT
    for _ in range(4):
        world.fails()
        world.now_s += 1.0
    assert len(world.made) == 2


def test_the_next_client_gets_twice_as_much_time(world: World) -> None:
    world.code = KafkaError._TIMED_OUT
    world.fails(patience_s=60.0)
    assert len(world.made) == 4  # after 5, 10 and 20 seconds, and 40 are not over
    world.code = None
    world.ask()
    world.code = KafkaError._TIMED_OUT
    world.fails(patience_s=SILENT_S + 2.0)
    assert len(world.made) == 5


def _others_are_answered(world: World) -> None:
    client, world.code = world.asked.client, None
    world.codes[client] = None
    world.ask(took_s=0.1)
    world.codes.clear()
    world.code = KafkaError._TIMED_OUT


@pytest.mark.parametrize(
    "between",
    [
        _others_are_answered,
        lambda world: setattr(world, "now_s", world.now_s + 3600.0),
    ],
    ids=["others are answered", "nothing is asked for an hour"],
)
def test_silence_before_an_answer_or_a_pause_does_not_count(
    world: World, between: Callable[[World], None]
) -> None:
    world.code = KafkaError._TIMED_OUT
    for _ in range(6):
        world.fails()
        world.fails()
        between(world)
    assert len(world.made) == 1


def test_one_long_call_alone_does_not_replace_a_client(world: World) -> None:
    world.code = KafkaError._TIMED_OUT
    world.fails(took_s=10.0)
    assert len(world.made) == 1
    world.fails(took_s=10.0)
    assert len(world.made) == 2


def test_the_answer_that_there_is_no_leader_is_no_silence(world: World) -> None:
    world.code = KafkaError.LEADER_NOT_AVAILABLE
    world.fails(patience_s=30.0)
    assert len(world.made) == 1


def test_a_call_begun_before_the_last_answer_does_not_count(world: World) -> None:
    def long_ago(client: Client) -> str:
        for _ in range(4):
            assert world.ask(took_s=0.1) == "answer"
            world.now_s += 2.0
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    for _ in range(3):
        with pytest.raises(Unreachable):
            world.asked.patiently(long_ago, "asking", 0.0)
    assert len(world.made) == 1


def test_a_hub_that_was_closed_meanwhile_makes_no_other_client(world: World) -> None:
    world.code = KafkaError._TIMED_OUT

    def closes(client: Client) -> str:
        world.is_open = world.now_s < 1000.0 + 2 * SILENT_S
        return client.ask(3.0)

    with pytest.raises(Closed):
        world.asked.patiently(closes, "asking", 60.0)
    assert world.is_open is False
    assert len(world.made) == 2
