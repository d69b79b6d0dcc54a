"""The coordinator on a store that others write too: races, and writes whose answer is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.backends.opening import LogAndStore
from headrace.core import store_keys
from headrace.core.errors import Contended, UnknownOutcome
from headrace.core.groups.events import (
    Configure,
    Delete,
    Denied,
    Event,
    Evict,
    Fence,
    ForceCheckpoint,
    Granted,
    Leave,
    Reply,
    Settled,
    ShardsChanged,
    Stop,
    StreamFacts,
)
from headrace.groups.coordinator import (
    ATTEMPTS_MAX,
    DELAY_S,
    DELAY_S_MAX,
    Coordinator,
)
from tests.core.groups.building import at
from tests.groups.coordinating import (
    GROUP,
    WAIT_S,
    Fate,
    Interrupted,
    LosingAnswers,
    beat_of,
    eager_coordinator,
    empty_stream,
    expected_epoch_keys,
    granted_epochs,
    join_of,
    stored_epoch_keys,
)


def test_a_lost_race_is_repeated_on_the_new_group() -> None:
    backend = Interrupted()
    stream = empty_stream(backend)
    ours, theirs = eager_coordinator(backend), eager_coordinator(backend)
    ours.apply(GROUP, join_of(stream, "A"))
    backend.tried.clear()
    backend.next.append(lambda: theirs.apply(GROUP, join_of(stream, "B")))
    ours.apply(GROUP, join_of(stream, "C"))
    assert backend.tried == [True, False, True]
    assert set(ours.load(GROUP).members) == {"A", "B", "C"}
    assert ours.load(GROUP).version == 3


def test_a_race_for_the_first_write_keeps_both_members() -> None:
    backend = Interrupted()
    stream = empty_stream(backend)
    backend.next.append(lambda: eager_coordinator(backend).apply(GROUP, join_of(stream, "B")))
    eager_coordinator(backend).apply(GROUP, join_of(stream, "A"))
    assert set(eager_coordinator(backend).load(GROUP).members) == {"A", "B"}


def test_all_members_that_join_at_once_are_kept(backend: LogAndStore) -> None:
    stream = empty_stream(backend)
    names = [f"m{n}" for n in range(8)]
    barrier = threading.Barrier(len(names))
    delays: dict[str, list[float]] = {name: [] for name in names}

    def enter(name: str) -> Reply:
        own = Coordinator(backend, dice=lambda: 1.0, sleep=delays[name].append)
        barrier.wait(WAIT_S)
        return own.apply(GROUP, join_of(stream, name))

    with ThreadPoolExecutor(len(names)) as pool:
        replies = list(pool.map(enter, names, timeout=WAIT_S))
    assert all(isinstance(reply, Granted) for reply in replies)
    group = eager_coordinator(backend).load(GROUP)
    assert set(group.members) == set(names)
    assert group.version == len(names)
    assert sum(standing.owner is not None for standing in group.shards.values()) == 4
    assert stored_epoch_keys(backend) == expected_epoch_keys(group)
    # A race is lost only to a member that won it.
    assert max(len(waited) for waited in delays.values()) < len(names)


@pytest.mark.parametrize("dice", [1.0, 0.5, 0.0])
def test_delays_are_random_and_grow_up_to_a_limit(dice: float) -> None:
    backend = LosingAnswers(["conflict"] * 12)
    delays: list[float] = []
    coordinator = Coordinator(backend, dice=lambda: dice, sleep=delays.append)
    coordinator.apply(GROUP, join_of(empty_stream(backend), "A"))
    assert delays == [dice * min(DELAY_S * 2**n, DELAY_S_MAX) for n in range(1, 13)]
    assert delays == sorted(delays)
    assert max(delays) <= DELAY_S_MAX


def test_too_many_lost_races_raise_contended() -> None:
    backend = LosingAnswers(["conflict"] * 1000)
    stream = empty_stream(backend)
    with pytest.raises(Contended, match=f"changed by others {ATTEMPTS_MAX} times") as caught:
        eager_coordinator(backend).apply(GROUP, join_of(stream, "A"))
    assert caught.value.group == GROUP
    assert backend.calls == ATTEMPTS_MAX
    assert backend.get(store_keys.group_key(GROUP)) is None


@pytest.mark.parametrize("fate", ["lost", "unheard"])
@pytest.mark.parametrize(
    "event",
    [
        Leave("A", 1),
        Evict("A", 1, "dead"),
        Stop(at(0), 1),
        ShardsChanged(StreamFacts("orders", 1, ())),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_event_with_a_lost_answer_is_applied_once(fate: Fate, event: Event) -> None:
    backend = LosingAnswers()
    stream = empty_stream(backend)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(stream, "A"))
    backend.fates = [fate]
    assert coordinator.apply(GROUP, event) == Settled(2)
    group = coordinator.load(GROUP)
    assert group.version == 2
    assert stored_epoch_keys(backend) == expected_epoch_keys(group)
    assert backend.calls == (2 if fate == "unheard" else 3)


@pytest.mark.parametrize("fate", ["lost", "unheard"])
def test_a_join_with_a_lost_answer_is_applied_once(fate: Fate) -> None:
    backend = LosingAnswers([fate])
    stream = empty_stream(backend)
    coordinator = eager_coordinator(backend)
    assert granted_epochs(coordinator.apply(GROUP, join_of(stream, "A"))) == dict.fromkeys(
        range(4), 1
    )
    assert coordinator.load(GROUP).version == 1


@pytest.mark.parametrize("fate", ["lost", "unheard"])
def test_a_heartbeat_with_a_lost_answer_releases_once(fate: Fate) -> None:
    backend = LosingAnswers()
    stream = empty_stream(backend, 2)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(stream, "A"))
    coordinator.apply(GROUP, join_of(stream, "B"))
    backend.fates = [fate]
    reply = coordinator.apply(GROUP, beat_of(coordinator.load(GROUP), "A"))
    assert granted_epochs(reply) == {0: 1}
    shards = coordinator.load(GROUP).shards
    assert {s.index: (own.owner, own.epoch) for s, own in shards.items()} == {
        0: ("A", 1),
        1: ("B", 2),
    }


@pytest.mark.parametrize(
    "event",
    [
        Fence(at(0), 1),
        ForceCheckpoint(at(0), 1, 3, finished=False),
        Configure(1, order=True, timeout_s=3.0),
        Delete(1),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_refusal_after_an_unknown_outcome_is_an_unknown_outcome(event: Event) -> None:
    backend = LosingAnswers()
    stream = empty_stream(backend)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(stream, "A"))
    backend.fates = ["unheard"]
    with pytest.raises(UnknownOutcome) as caught:
        coordinator.apply(GROUP, event)
    assert not caught.value.withdrawn
    assert stored_epoch_keys(backend) == expected_epoch_keys(coordinator.load(GROUP))


@pytest.mark.parametrize(
    "event",
    [Fence(at(0), 1), Configure(1, order=True, timeout_s=3.0), Delete(1)],
    ids=lambda event: type(event).__name__,
)
def test_an_event_whose_write_was_lost_is_applied(event: Event) -> None:
    backend = LosingAnswers()
    stream = empty_stream(backend)
    coordinator = eager_coordinator(backend)
    coordinator.apply(GROUP, join_of(stream, "A"))
    backend.fates = ["lost"]
    assert coordinator.apply(GROUP, event) == Settled(2)


def _meanwhile(backend: LogAndStore, happens: Callable[[], object]) -> Coordinator:
    """A coordinator during whose waits something else happens."""

    def sleep(_: float) -> None:
        happens()

    return Coordinator(backend, dice=lambda: 0.0, sleep=sleep)


def test_a_delete_with_a_lost_answer_spares_the_next_group() -> None:
    backend = LosingAnswers()
    stream = empty_stream(backend)
    theirs = eager_coordinator(backend)
    theirs.apply(GROUP, join_of(stream, "A"))
    ours = _meanwhile(backend, lambda: theirs.apply(GROUP, join_of(stream, "B")))
    backend.fates = ["unheard"]
    with pytest.raises(UnknownOutcome, match="is another one by now") as caught:
        ours.apply(GROUP, Delete(theirs.load(GROUP).born))
    assert not caught.value.withdrawn
    group = theirs.load(GROUP)
    assert (group.exists, set(group.members), group.version, group.born) == (True, {"B"}, 4, 4)
    assert stored_epoch_keys(backend) == expected_epoch_keys(group) != {}
    before = backend.changes()
    assert theirs.apply(GROUP, Delete(1)) == Denied("late", "")
    assert backend.changes() == before


def test_a_lost_delete_spares_the_next_group() -> None:
    backend = LosingAnswers()
    stream = empty_stream(backend)
    theirs = eager_coordinator(backend)
    theirs.apply(GROUP, join_of(stream, "A"))

    def anew() -> None:
        theirs.apply(GROUP, Delete(1))
        theirs.apply(GROUP, join_of(stream, "B"))

    backend.fates = ["lost"]
    with pytest.raises(UnknownOutcome):
        _meanwhile(backend, anew).apply(GROUP, Delete(1))
    assert set(theirs.load(GROUP).members) == {"B"}


def test_a_configuration_with_a_lost_answer_does_not_undo_a_newer_one() -> None:
    backend = LosingAnswers()
    theirs = eager_coordinator(backend)
    theirs.apply(GROUP, join_of(empty_stream(backend), "A"))
    ours = _meanwhile(backend, lambda: theirs.apply(GROUP, Configure(2, timeout_s=7.0)))
    backend.fates = ["unheard"]
    with pytest.raises(UnknownOutcome, match="was configured meanwhile"):
        ours.apply(GROUP, Configure(1, order=True, timeout_s=3.0))
    group = theirs.load(GROUP)
    assert (group.order, group.timeout_s, group.configured) == (True, 7.0, 3)
