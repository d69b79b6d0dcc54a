from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.groups.events import Evict
from headrace.core.groups.silence import SilenceWatch
from headrace.core.ports import Sign

A = ("A", 1)
B = ("B", 1)
SESSION_S = 10.0
GAP_S = 5.0
DEAD = Evict(*A, "dead")
SILENT = Evict(*A, "silent", 11.0)


def _alive(beat: int) -> tuple[Sign, float]:
    return Sign(True, beat), SESSION_S


def _watch() -> SilenceWatch:
    return SilenceWatch(GAP_S)


def test_a_dead_process_is_gone_at_once() -> None:
    assert _watch().look({A: (Sign(False, 7), SESSION_S), B: _alive(1)}, 0.0) == [DEAD]


def test_a_member_is_silent_only_after_a_whole_session_of_looking() -> None:
    watch = _watch()
    for now in range(11):
        assert watch.look({A: _alive(7)}, float(now)) == []
    assert watch.look({A: _alive(7)}, 10.25) == [Evict(*A, "silent", 10.25)]


def test_a_beat_begins_the_session_anew() -> None:
    watch = _watch()
    for now in range(8):
        watch.look({A: _alive(7)}, float(now))
    for now in range(8, 19):
        assert watch.look({A: _alive(8)}, float(now)) == []
    assert watch.look({A: _alive(8)}, 18.25) == [Evict(*A, "silent", 10.25)]


def test_a_beat_that_goes_back_is_a_sign_of_life_too() -> None:
    watch = _watch()
    for now in range(8):
        watch.look({A: _alive(7)}, float(now))
    watch.look({A: _alive(1)}, 8.0)
    assert watch.look({A: _alive(1)}, 11.0) == []


def test_a_member_that_never_gave_a_sign_is_silent_after_a_session() -> None:
    watch = _watch()
    for now in range(11):
        assert watch.look({A: (None, SESSION_S)}, float(now)) == []
    assert watch.look({A: (None, SESSION_S)}, 11.0) == [SILENT]


def test_a_first_sign_begins_the_session_anew() -> None:
    watch = _watch()
    for now in range(10):
        watch.look({A: (None, SESSION_S)}, float(now))
    watch.look({A: _alive(0)}, 10.0)
    assert watch.look({A: _alive(0)}, 14.0) == []


def test_each_member_has_its_own_session() -> None:
    watch = _watch()
    signs = {A: (Sign(True, 1), 2.0), B: (Sign(True, 1), 4.0)}
    assert [watch.look(signs, float(now)) for now in range(6)] == [
        [],
        [],
        [],
        [Evict(*A, "silent", 3.0)],
        [Evict(*A, "silent", 4.0)],
        [Evict(*A, "silent", 5.0), Evict(*B, "silent", 5.0)],
    ]


def test_an_observer_that_slept_calls_no_member_gone() -> None:
    watch = _watch()
    for now in range(10):
        watch.look({A: _alive(7)}, float(now))
    assert watch.look({A: _alive(7)}, 9.0 + GAP_S + 0.5) == []
    for now in range(15, 25):
        assert watch.look({A: _alive(7)}, float(now)) == []
    assert watch.look({A: _alive(7)}, 25.5) == [SILENT]


def test_a_gap_as_long_as_allowed_is_no_sleep() -> None:
    watch = _watch()
    assert [watch.look({A: _alive(7)}, now) for now in (0.0, 5.0, 10.0)] == [[], [], []]
    assert watch.look({A: _alive(7)}, 15.0) == [Evict(*A, "silent", 15.0)]


def test_an_observer_that_slept_still_finds_dead_members() -> None:
    watch = _watch()
    watch.look({A: _alive(7)}, 0.0)
    assert watch.look({A: (Sign(False, 7), SESSION_S)}, 1_000.0) == [DEAD]


def test_a_new_observer_waits_a_whole_session() -> None:
    assert _watch().look({A: _alive(7)}, 1_000_000.0) == []


def test_a_new_incarnation_is_another_member() -> None:
    watch = _watch()
    for now in range(10):
        watch.look({A: _alive(7)}, float(now))
    again = ("A", 2)
    assert watch.look({again: _alive(7)}, 10.5) == []
    assert watch.look({again: _alive(7)}, 14.0) == []


def test_a_member_that_was_away_from_the_group_is_watched_anew() -> None:
    watch = _watch()
    for now in range(10):
        watch.look({A: _alive(7)}, float(now))
    watch.look({}, 10.0)
    assert watch.look({A: _alive(7)}, 11.0) == []


def test_a_silent_member_is_still_gone_while_it_gives_no_sign() -> None:
    watch = _watch()
    for now in range(12):
        watch.look({A: _alive(7)}, float(now))
    assert watch.still_gone(SILENT, Sign(True, 7))
    assert not watch.still_gone(SILENT, Sign(True, 8))


def test_a_member_without_a_sign_is_still_gone_until_it_gives_one() -> None:
    watch = _watch()
    for now in range(12):
        watch.look({A: (None, SESSION_S)}, float(now))
    assert watch.still_gone(SILENT, None)
    assert not watch.still_gone(SILENT, Sign(True, 0))


def test_a_silent_member_is_still_gone_after_another_look() -> None:
    watch = _watch()
    for now in range(14):
        watch.look({A: _alive(7)}, float(now))
    assert watch.still_gone(SILENT, Sign(True, 7))


@pytest.mark.parametrize("beat", [8, 7], ids=["once", "and stands where it stood"])
def test_a_member_that_came_back_is_not_gone_by_the_beat_it_came_back_with(beat: int) -> None:
    """The observer looked again before the eviction was written."""
    watch = _watch()
    for now in range(12):
        watch.look({A: _alive(7)}, float(now))
    watch.look({A: _alive(8)}, 11.5)
    watch.look({A: _alive(beat)}, 12.0)
    assert not watch.still_gone(SILENT, Sign(True, beat))


def test_an_observer_that_slept_and_looked_again_does_not_evict_by_what_it_saw_before() -> None:
    watch = _watch()
    for now in range(12):
        watch.look({A: _alive(7)}, float(now))
    watch.look({A: _alive(7)}, 11.0 + GAP_S + 0.5)
    assert not watch.still_gone(SILENT, Sign(True, 7))


@pytest.mark.parametrize("evict", [DEAD, SILENT], ids=["dead", "silent"])
def test_whose_process_is_dead_is_still_gone(evict: Evict) -> None:
    assert _watch().still_gone(evict, Sign(False, 8))


def test_a_dead_member_whose_sign_was_removed_is_still_gone() -> None:
    assert _watch().still_gone(DEAD, None)


def test_a_member_that_was_never_looked_at_is_not_gone() -> None:
    watch = _watch()
    assert not watch.still_gone(SILENT, Sign(True, 7))
    assert not watch.still_gone(SILENT, None)


def test_a_member_whose_sign_was_removed_is_not_gone_by_that() -> None:
    watch = _watch()
    watch.look({A: _alive(7)}, 0.0)
    assert not watch.still_gone(SILENT, None)


def test_a_dead_member_that_lives_again_is_not_gone() -> None:
    watch = _watch()
    watch.look({A: _alive(7)}, 0.0)
    assert watch.look({A: (Sign(False, 7), SESSION_S)}, 1.0) == [DEAD]
    assert not watch.still_gone(DEAD, Sign(True, 7))


@settings(max_examples=100)
@given(st.lists(st.tuples(st.floats(0.0, 8.0), st.booleans()), max_size=40))
def test_no_member_is_silent_without_a_session_of_looks_at_the_same_beat(
    looks: list[tuple[float, bool]],
) -> None:
    watch = _watch()
    now, beat = 0.0, 0
    seen: list[tuple[float, int]] = []
    for passed, beats in looks:
        now += passed
        beat += beats
        gone = watch.look({A: _alive(beat)}, now)
        if seen and now - seen[-1][0] > GAP_S:
            seen.clear()
        seen.append((now, beat))
        same = [at for at, b in seen if b == beat]
        silent_s = now - same[0]
        assert gone == ([Evict(*A, "silent", silent_s)] if silent_s > SESSION_S else [])
