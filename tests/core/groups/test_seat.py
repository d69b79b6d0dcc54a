from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.core.groups.events import Denied, Heartbeat, Release, Settled
from headrace.core.groups.seat import LEASE_SHARE, Seat, SeatChange
from tests.core.groups.building import answer, at


def _seat(*, version: int = 5, **held: int) -> Seat:
    """A seat that holds shards under epochs: ``s0=1`` is shard 0 under epoch 1."""
    return Seat("A", 3, answer(version, {int(k[1:]): v for k, v in held.items()}), 100.0)


def _sent(seat: Seat) -> Heartbeat:
    sent = seat.heartbeat()
    assert sent is not None
    return sent


def _told(seat: Seat, version: int, shards: dict[int, int]) -> list[SeatChange]:
    """What changes by the answer to the next heartbeat."""
    return seat.answered(_sent(seat).beat, answer(version, shards))


def test_a_seat_begins_with_what_the_join_granted() -> None:
    seat = _seat(s0=1, s1=4)
    assert (seat.held, seat.leaving, seat.seen, seat.over) == ({at(0): 1, at(1): 4}, {}, 5, False)
    assert seat.streams == {"orders": 1}


def test_a_heartbeat_tells_what_is_held_and_the_last_version_seen() -> None:
    seat = _seat(s0=1, s1=4)
    assert seat.heartbeat() == Heartbeat("A", 3, 1, 5, {at(0): 1, at(1): 4})
    assert seat.beat == 1


def test_one_heartbeat_is_on_its_way_at_a_time() -> None:
    seat = _seat(s0=1)
    _sent(seat)
    assert seat.heartbeat() is None
    assert seat.beat == 1
    seat.answered(1, answer(5, {0: 1}))
    assert _sent(seat).beat == 2


def test_a_heartbeat_that_stays_unanswered_makes_room_for_the_next() -> None:
    seat = _seat(s0=1)
    _sent(seat)
    seat.unanswered(1)
    assert _sent(seat).beat == 2


def test_giving_up_an_older_heartbeat_makes_no_room() -> None:
    seat = _seat(s0=1)
    _sent(seat)
    seat.unanswered(1)
    _sent(seat)
    seat.unanswered(1)
    assert seat.heartbeat() is None


def test_only_the_answer_to_the_latest_heartbeat_changes_what_is_held() -> None:
    seat = _seat(s0=1)
    _sent(seat)
    seat.unanswered(1)
    _sent(seat)
    assert seat.answered(1, answer(6, {1: 1})) == []
    assert (seat.held, seat.seen) == ({at(0): 1}, 5)
    assert seat.answered(2, answer(6, {0: 1, 1: 1})) == [SeatChange(at(1), 1, begin=True)]


def test_an_answer_that_comes_twice_changes_nothing_the_second_time() -> None:
    seat = _seat(s0=1)
    assert _told(seat, 6, {}) == [SeatChange(at(0), 1, begin=False)]
    assert seat.answered(1, answer(7, {5: 5})) == []
    assert (seat.held, seat.seen) == ({}, 6)


def test_an_answer_that_is_not_awaited_is_ignored_even_if_it_refuses() -> None:
    seat = _seat(s0=1)
    assert seat.answered(0, Denied("fenced", "")) == []
    assert not seat.over


def test_an_older_version_is_ignored() -> None:
    seat = _seat(s0=1)
    assert _told(seat, 4, {1: 1}) == []
    assert (seat.held, seat.seen) == ({at(0): 1}, 5)
    assert _sent(seat).beat == 2


def test_an_answer_of_the_same_version_is_heeded() -> None:
    seat = _seat()
    assert _told(seat, 5, {0: 1}) == [SeatChange(at(0), 1, begin=True)]


def test_a_granted_shard_is_begun() -> None:
    seat = _seat(s0=1)
    assert _told(seat, 6, {0: 1, 2: 7}) == [SeatChange(at(2), 7, begin=True)]
    assert (seat.held, seat.seen) == ({at(0): 1, at(2): 7}, 6)


def test_a_shard_that_is_no_longer_granted_is_ended_and_reported_until_it_is_let_go() -> None:
    seat = _seat(s0=1, s1=4)
    assert _told(seat, 6, {0: 1}) == [SeatChange(at(1), 4, begin=False)]
    assert (seat.held, seat.leaving) == ({at(0): 1}, {at(1): 4})
    assert _sent(seat) == Heartbeat("A", 3, 2, 6, {at(0): 1, at(1): 4})
    assert seat.answered(2, answer(6, {0: 1})) == []
    assert seat.let_go(at(1), 4) == Release("A", 3, {at(1): 4})
    assert _sent(seat) == Heartbeat("A", 3, 3, 6, {at(0): 1})


def test_a_shard_let_go_unasked_is_released_and_no_longer_reported() -> None:
    seat = _seat(s0=1, s1=4)
    assert seat.let_go(at(1), 4) == Release("A", 3, {at(1): 4})
    assert (seat.held, seat.leaving) == ({at(0): 1}, {})
    assert _sent(seat).held == {at(0): 1}


def test_letting_go_twice_or_of_an_unknown_shard_releases_nothing() -> None:
    seat = _seat(s0=1)
    assert seat.let_go(at(0), 1) is not None
    assert seat.let_go(at(0), 1) is None
    assert seat.let_go(at(7), 1) is None


def test_letting_go_of_an_older_epoch_leaves_the_newer_one() -> None:
    seat = _seat(s0=4)
    assert seat.let_go(at(0), 3) is None
    assert seat.held == {at(0): 4}


def test_an_epoch_once_let_go_is_never_taken_up_again() -> None:
    seat = _seat(s0=1)
    seat.let_go(at(0), 1)
    assert _told(seat, 6, {0: 1}) == []
    assert seat.held == {}
    assert _told(seat, 7, {0: 2}) == [SeatChange(at(0), 2, begin=True)]


def test_an_older_epoch_than_one_let_go_is_not_taken_up_either() -> None:
    seat = _seat(s0=4)
    seat.let_go(at(0), 4)
    seat.let_go(at(0), 2)
    assert _told(seat, 6, {0: 3}) == []
    assert _told(seat, 6, {0: 4}) == []


def test_a_shard_being_let_go_is_not_taken_up_again_under_its_epoch() -> None:
    seat = _seat(s0=1)
    _told(seat, 6, {})
    assert _told(seat, 7, {0: 1}) == []
    assert (seat.held, seat.leaving) == ({}, {at(0): 1})
    assert seat.let_go(at(0), 1) == Release("A", 3, {at(0): 1})
    assert _told(seat, 8, {0: 1}) == []
    assert _told(seat, 9, {0: 2}) == [SeatChange(at(0), 2, begin=True)]


def test_under_a_risen_epoch_work_begins_only_when_that_under_the_old_one_has_ended() -> None:
    seat = _seat(s0=1)
    assert _told(seat, 6, {0: 2}) == [SeatChange(at(0), 1, begin=False)]
    assert (seat.held, seat.leaving) == ({at(0): 2}, {at(0): 1})
    assert _sent(seat).held == {at(0): 2}
    assert seat.let_go(at(0), 1) == Release("A", 3, {at(0): 1})
    assert (seat.held, seat.leaving) == ({at(0): 2}, {})


def test_a_shard_granted_again_while_it_is_being_let_go_is_held_and_not_begun() -> None:
    seat = _seat(s0=1)
    _told(seat, 6, {})
    assert _told(seat, 7, {0: 2}) == []
    assert (seat.held, seat.leaving) == ({at(0): 2}, {at(0): 1})


def test_a_shard_that_was_not_begun_is_not_ended_when_it_is_taken_away() -> None:
    seat = _seat(s0=1)
    _told(seat, 6, {0: 2})
    assert _told(seat, 7, {}) == []
    assert (seat.held, seat.leaving) == ({}, {at(0): 1})
    assert _sent(seat).held == {at(0): 1}
    assert seat.let_go(at(0), 1) == Release("A", 3, {at(0): 2})


def test_a_shard_taken_away_before_it_was_begun_is_not_taken_up_again_under_its_epoch() -> None:
    seat = _seat(s0=1)
    _told(seat, 6, {0: 2})
    _told(seat, 7, {})
    assert _told(seat, 8, {0: 2}) == []
    assert seat.held == {}
    seat.let_go(at(0), 1)
    assert _told(seat, 9, {0: 2}) == []
    assert _told(seat, 10, {0: 3}) == [SeatChange(at(0), 3, begin=True)]


def test_a_shard_that_was_not_begun_gets_a_new_epoch_without_a_change() -> None:
    seat = _seat(s0=1)
    _told(seat, 6, {0: 2})
    assert _told(seat, 7, {0: 3}) == []
    assert seat.let_go(at(0), 1) == Release("A", 3, {at(0): 2})
    assert (seat.held, seat.leaving) == ({at(0): 3}, {})


@pytest.mark.parametrize("why", ["fenced", "no group"])
def test_a_seat_that_is_denied_is_over(why: str) -> None:
    seat = _seat(s0=1)
    _sent(seat)
    assert seat.answered(1, Denied(why, "")) == []  # type: ignore[arg-type]
    assert seat.over
    assert seat.in_doubt(100.0)


def test_an_answer_of_another_kind_changes_nothing_and_makes_room() -> None:
    seat = _seat(s0=1)
    _sent(seat)
    assert seat.answered(1, Settled(9)) == []
    assert (seat.held, seat.seen, seat.over) == ({at(0): 1}, 5, False)
    assert _sent(seat).beat == 2


def test_a_lease_is_in_doubt_before_the_session_is_over() -> None:
    seat = _seat(s0=1)
    assert not seat.in_doubt(100.0 + 10.0 * LEASE_SHARE - 0.001)
    assert seat.in_doubt(100.0 + 10.0 * LEASE_SHARE)
    assert LEASE_SHARE < 1


def test_a_lease_counts_from_the_beginning_of_the_last_sign() -> None:
    seat = _seat(s0=1)
    seat.signed(105.0)
    assert not seat.in_doubt(113.9)
    assert seat.in_doubt(114.0)


def test_a_sign_that_is_noted_late_does_not_shorten_a_lease() -> None:
    seat = _seat(s0=1)
    seat.signed(105.0)
    seat.signed(101.0)
    assert not seat.in_doubt(113.9)


def test_an_answer_alone_is_no_sign_of_life() -> None:
    seat = _seat(s0=1)
    _told(seat, 6, {0: 1})
    assert seat.in_doubt(109.0)


def test_a_changed_timeout_holds_with_the_answer_that_tells_it() -> None:
    seat = _seat(s0=1)
    assert not seat.in_doubt(102.0)
    seat.answered(_sent(seat).beat, replace(answer(6, {0: 1}), timeout_s=2.0))
    assert seat.in_doubt(102.0)


def test_the_ids_of_streams_are_those_of_the_last_answer() -> None:
    seat = _seat(s0=1)
    seat.answered(_sent(seat).beat, replace(answer(6, {0: 1}), streams={"orders": 8}))
    assert seat.streams == {"orders": 8}
    seat.answered(_sent(seat).beat, replace(answer(5, {0: 1}), streams={"orders": 7}))
    assert seat.streams == {"orders": 8}
