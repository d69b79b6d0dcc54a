from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from typing import get_args

import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from headrace.core.computations import dispatch as dispatch_module
from headrace.core.computations.dispatch import (
    SLICE_RECORDS_FIRST,
    Assigned,
    Dispatch,
    DutyState,
    LostSlice,
    Rules,
    State,
)
from headrace.core.computations.settings import Allocation
from tests.core.computations.dispatching import (
    NEXT,
    TOKEN,
    dealt,
    done,
    duty,
    machine,
    shards,
    state,
)

# A slice and its report


def test_a_free_lane_gets_a_slice_from_the_checkpoint_on() -> None:
    dispatch = Dispatch({"bill": Rules()}, 1)
    dispatch.begin(duty(), TOKEN, 7, 10, 0.0)
    assert dealt(dispatch, 0.0, 3) == {3: Assigned(3, 1, duty(), TOKEN, 7, 10, warm=False)}
    assert dispatch.in_hand[3].duty == duty()
    assert not dispatch.waiting


def test_a_duty_prints_as_computation_and_shard() -> None:
    assert str(duty(2)) == "bill orders:2"


def test_of_a_shard_one_slice_is_in_flight_however_many_lanes_are_free() -> None:
    dispatch = machine(1000)
    assert len(dealt(dispatch, 0.0, 0, 1, 2)) == 1
    assert list(dispatch.waiting) == [1, 2]


def test_slices_of_a_grant_follow_one_another() -> None:
    dispatch = machine(200)
    first = dealt(dispatch, 0.0, 0)[0]
    assert (first.start, first.end) == (0, SLICE_RECORDS_FIRST)
    hold = done(dispatch, first, 0.1, next=50)
    assert hold is dispatch.holds[duty()]
    second = dealt(dispatch, 0.1, 0)[0]
    assert (second.number, second.start) == (2, 50)


def test_a_report_may_move_the_checkpoint_back() -> None:
    dispatch = machine(10)
    done(dispatch, dealt(dispatch, 0.0, 0)[0], 0.1, next=10)
    dispatch.ends({duty(): 12}, 0.2)
    done(dispatch, dealt(dispatch, 0.2, 0)[0], 0.3, next=4)
    assert dealt(dispatch, 0.3, 0)[0].start == 4


def test_a_report_behind_the_known_end_moves_the_end() -> None:
    dispatch = machine(10)
    done(dispatch, dealt(dispatch, 0.0, 0)[0], 0.1, next=12)
    assert (dispatch.holds[duty()].at, dispatch.holds[duty()].end) == (12, 12)


def test_a_checkpoint_behind_the_known_end_makes_no_slice_that_ends_before_it_begins() -> None:
    dispatch = machine()
    dispatch.begin(duty(), TOKEN, 10, 4, 0.0, parked_s=0.0)
    given = dealt(dispatch, 0.0, 0)[0]
    assert (given.start, given.end) == (10, 10)


def test_one_grant_begins_once() -> None:
    with pytest.raises(AssertionError, match="bill orders:0 has begun already"):
        machine(10).begin(duty(), NEXT, 0, 10, 0.0)


def test_a_lane_that_asks_twice_keeps_its_turn_and_gets_one_slice() -> None:
    dispatch = machine(10)
    assert shards(dealt(dispatch, 0.0, 1, 0, 1)) == {1: 0}


def test_a_lane_with_a_slice_in_hand_does_not_ask() -> None:
    dispatch = machine(10)
    dealt(dispatch, 0.0, 0)
    with pytest.raises(AssertionError, match="lane 0 asks with a slice in hand"):
        dispatch.ask(0)


def test_a_lane_that_withdraws_gets_no_slice() -> None:
    dispatch = machine(10)
    dispatch.ask(0)
    dispatch.withdraw(0)
    dispatch.withdraw(1)
    assert dispatch.deal(0.0) == []


def test_late_and_repeated_reports_change_nothing() -> None:
    dispatch = machine(1000, 1000)
    first = dealt(dispatch, 0.0, 0)[0]
    done(dispatch, first, 0.1)
    _heeds_nothing(dispatch, first)
    second = dealt(dispatch, 0.2, 0)[0]
    _heeds_nothing(dispatch, first)
    assert dispatch.in_hand == {0: second}


def _heeds_nothing(dispatch: Dispatch, given: Assigned) -> None:
    before = [replace(hold) for hold in dispatch.holds.values()]
    assert done(dispatch, given, 0.2) is None
    assert dispatch.park(given.lane, given.number, 3, 9.0, 0.2) is None
    assert dispatch.stop_shard(given.lane, given.number, 3, 0.2) is None
    assert dispatch.doubt(given.lane, given.number, 0.2) is None
    assert list(dispatch.holds.values()) == before


# Parked


def test_a_parked_shard_holds_no_lane_and_comes_back_at_its_time() -> None:
    dispatch = machine(10, 10)
    given = dealt(dispatch, 0.0, 0)[0]
    hold = dispatch.park(0, given.number, 3, 8.0, 0.1)
    assert hold is dispatch.holds[duty(0)]
    assert not dispatch.in_hand
    other = dealt(dispatch, 0.1, 0)[0]
    assert other.duty == duty(1)
    done(dispatch, other, 0.2)
    assert (state(dispatch, 7.9), dispatch.wake_s()) == ("parked", 8.0)
    assert dealt(dispatch, 7.9, 0) == {}
    again = dealt(dispatch, 8.0)[0]
    assert (again.start, again.end) == (3, 10)
    assert dispatch.holds[duty(0)].parked_s is None


def test_a_shard_may_be_granted_as_parked() -> None:
    dispatch = machine()
    dispatch.begin(duty(), TOKEN, 0, 10, 0.0, parked_s=4.0)
    assert dealt(dispatch, 3.9, 0) == {}
    assert dispatch.wake_s() == 4.0
    assert len(dealt(dispatch, 4.0)) == 1


def test_a_batch_that_failed_is_tried_again_at_its_time_and_does_not_wait_to_be_full() -> None:
    dispatch = machine(3, rules=Rules(capacity=10, threshold_s=60.0))
    given = dealt(dispatch, 60.0, 0)[0]
    dispatch.park(0, given.number, 0, 61.0, 60.1)
    assert dealt(dispatch, 60.9, 0) == {}
    assert dealt(dispatch, 61.0)[0].end == 3


def test_a_call_that_failed_is_tried_again_though_there_is_no_record() -> None:
    dispatch = machine(0)
    dispatch.timer(duty(), 1.0)
    call = dealt(dispatch, 1.0, 0)[0]
    dispatch.park(0, call.number, 0, 3.0, 1.1)
    assert dispatch.wake_s() == 3.0
    again = dealt(dispatch, 3.0, 0)[0]
    done(dispatch, again, 3.1)
    assert state(dispatch, 99.0) == "idle"


# Revoked, lost, in doubt, stopped


def test_a_revoked_shard_is_not_given_out_and_has_ended_at_once() -> None:
    dispatch = machine(10)
    dispatch.revoke(duty(), TOKEN, 5.0)
    assert dealt(dispatch, 0.0, 0) == {}
    assert dispatch.wake_s() == inf
    assert [hold.duty for hold in dispatch.gone()] == [duty()]
    assert dispatch.holds == {}
    assert dispatch.gone() == []


def test_the_slice_in_flight_of_a_revoked_shard_is_waited_for() -> None:
    dispatch = machine(1000)
    given = dealt(dispatch, 0.0, 0)[0]
    dispatch.revoke(duty(), TOKEN, 5.0)
    assert (dispatch.gone(), dispatch.overdue(1.0), dispatch.wake_s()) == ([], [], 5.0)
    assert state(dispatch, 1.0) == "ending"
    done(dispatch, given, 4.0)
    assert dealt(dispatch, 4.0, 0) == {}
    (hold,) = dispatch.gone()
    assert (hold.at, hold.doubtful) == (given.end, False)


def test_the_lane_of_a_revoked_shard_is_lost_at_the_deadline_and_only_that() -> None:
    dispatch = machine(10, 10)
    given = dealt(dispatch, 0.0, 0, 1)
    dispatch.revoke(duty(0), TOKEN, 5.0)
    assert dispatch.overdue(4.9) == []
    assert dispatch.overdue(5.0) == [LostSlice(0, duty(0), TOKEN)]
    assert dispatch.in_hand == {1: given[1]}
    (hold,) = dispatch.gone()
    assert (hold.duty, hold.doubtful) == (duty(0), True)
    assert done(dispatch, given[0], 6.0) is None


def test_of_two_deadlines_the_earlier_stands() -> None:
    dispatch = machine(10)
    dealt(dispatch, 0.0, 0)
    for until_s, stands_s in ((5.0, 5.0), (9.0, 5.0), (3.0, 3.0)):
        dispatch.revoke(duty(), TOKEN, until_s)
        assert dispatch.holds[duty()].ending_s == stands_s


def test_a_grant_that_is_lost_while_it_ends_gets_no_more_time() -> None:
    dispatch = machine(10)
    dealt(dispatch, 0.0, 0)
    dispatch.revoke(duty(), TOKEN, 5.0)
    dispatch.lose(duty(), TOKEN, 9.0)
    assert dispatch.wake_s() == 5.0
    assert dispatch.overdue(5.0) == [LostSlice(0, duty(), TOKEN)]


def test_calls_about_another_grant_change_nothing() -> None:
    dispatch = machine(10)
    for known in (duty(0), duty(7)):
        dispatch.revoke(known, NEXT, 5.0)
        dispatch.lose(known, NEXT, 5.0)
    dispatch.ends({duty(7): 9}, 0.0)
    dispatch.limit(duty(7), 1)
    dispatch.timer(duty(7), 1.0)
    assert list(dispatch.holds) == [duty(0)]
    assert state(dispatch, 0.0) == "ready"


def test_a_lost_grant_without_a_slice_in_flight_is_forgotten() -> None:
    dispatch = machine(10)
    dispatch.lose(duty(), TOKEN, 5.0)
    assert (dispatch.holds, dispatch.leaving, dispatch.gone()) == ({}, {}, [])


def test_a_shard_granted_anew_waits_for_the_lane_that_works_under_the_old_grant() -> None:
    dispatch = machine(10)
    old = dealt(dispatch, 0.0, 0, 1)[0]
    dispatch.lose(duty(), TOKEN, 5.0)
    dispatch.begin(duty(), NEXT, 2, 10, 1.0)
    assert dispatch.deal(1.0) == []
    assert (state(dispatch, 1.0), dispatch.wake_s()) == ("held back", 5.0)
    assert done(dispatch, old, 2.0) is None
    given = dealt(dispatch, 2.0)[1]
    assert (given.token, given.start, given.warm) == (NEXT, 2, False)


def test_a_lane_under_a_lost_grant_is_given_up_at_the_deadline() -> None:
    dispatch = machine(10)
    dealt(dispatch, 0.0, 0, 1)
    dispatch.lose(duty(), TOKEN, 5.0)
    dispatch.begin(duty(), NEXT, 0, 10, 1.0)
    assert dispatch.overdue(4.9) == []
    assert dispatch.overdue(5.0) == [LostSlice(0, duty(), TOKEN)]
    assert state(dispatch, 5.0) == "ready"
    assert dealt(dispatch, 5.0)[1].token == NEXT


def test_the_duty_of_a_lost_lane_is_in_doubt_until_it_is_granted_anew() -> None:
    dispatch = machine(10)
    given = dealt(dispatch, 0.0, 0, 1)[0]
    assert dispatch.lane_lost(0) == LostSlice(0, duty(), TOKEN)
    assert state(dispatch, 9.0) == "doubtful"
    assert (dispatch.deal(9.0), dispatch.wake_s()) == ([], inf)
    assert done(dispatch, given, 9.0) is None
    dispatch.lose(duty(), TOKEN, 9.0)
    dispatch.begin(duty(), NEXT, 5, 10, 9.0)
    assert dealt(dispatch, 9.0)[1].start == 5


def test_a_free_lane_that_is_lost_leaves_nothing_in_doubt() -> None:
    dispatch = machine(10)
    dispatch.ask(0)
    assert dispatch.lane_lost(0) is None
    assert dispatch.deal(0.0) == []
    assert state(dispatch, 0.0) == "ready"


def test_a_new_lane_under_the_number_of_a_lost_one_remembers_nothing() -> None:
    dispatch = machine(500)
    done(dispatch, dealt(dispatch, 0.0, 0)[0], 0.1)
    dispatch.lane_lost(0)
    assert not dealt(dispatch, 0.2, 0)[0].warm


def test_a_slice_in_doubt_leaves_the_lane_free_and_the_shard_alone() -> None:
    dispatch = machine(10)
    given = dealt(dispatch, 0.0, 0)[0]
    hold = dispatch.doubt(0, given.number, 0.1)
    assert hold is dispatch.holds[duty()]
    assert (hold.at, state(dispatch, 1.0)) == (0, "doubtful")
    assert dealt(dispatch, 1.0, 0) == {}


def test_a_stopped_shard_gets_no_slice_until_it_is_granted_anew() -> None:
    dispatch = machine(10)
    given = dealt(dispatch, 0.0, 0)[0]
    hold = dispatch.stop_shard(0, given.number, 4, 0.1)
    assert hold is dispatch.holds[duty()]
    assert (hold.at, state(dispatch, 1.0)) == (4, "stopped")
    dispatch.ends({duty(): 20}, 1.0)
    dispatch.timer(duty(), 1.0)
    assert (dealt(dispatch, 2.0, 0), dispatch.wake_s()) == ({}, inf)
    dispatch.lose(duty(), TOKEN, 2.0)
    dispatch.begin(duty(), NEXT, 4, 20, 2.0)
    assert dealt(dispatch, 2.0)[0].start == 4


def test_a_stopped_computation_gets_no_slices_until_it_is_started() -> None:
    dispatch = machine(1000)
    given = dealt(dispatch, 0.0, 0)[0]
    dispatch.stop("bill")
    dispatch.stop("bill")
    assert done(dispatch, given, 0.1) is not None
    assert dealt(dispatch, 0.1, 0) == {}
    assert (state(dispatch, 0.1), dispatch.wake_s()) == ("held back", inf)
    dispatch.start("bill")
    dispatch.start("bill")
    assert len(dealt(dispatch, 0.2)) == 1


def test_a_retry_of_a_stopped_computation_wakes_no_lane() -> None:
    dispatch = machine()
    dispatch.begin(duty(), TOKEN, 0, 10, 0.0, parked_s=4.0)
    dispatch.stop("bill")
    assert dispatch.wake_s() == inf


# Waking


def test_a_duty_that_waits_for_a_lane_sets_no_wake_up() -> None:
    dispatch = machine(10, 10)
    dispatch.begin(duty(2), TOKEN, 0, 10, 0.0, parked_s=7.0)
    assert len(dealt(dispatch, 1.0, 0)) == 1
    assert dispatch.wake_s() == 7.0


def test_a_duty_that_became_ready_after_the_last_deal_sets_a_wake_up() -> None:
    dispatch = machine(0)
    dispatch.deal(1.0)
    dispatch.ends({duty(): 5}, 2.0)
    assert dispatch.wake_s() == 2.0
    dispatch.deal(2.0)
    assert dispatch.wake_s() == inf


# The whole


def test_the_states_are_those_of_the_docstring_in_their_order() -> None:
    listed = re.findall(r"^    ([a-z]+(?: [a-z]+)?)  +\S", dispatch_module.__doc__ or "", re.M)
    assert tuple(listed) == get_args(State)


def test_a_duty_is_in_the_first_state_that_is_true() -> None:
    dispatch = machine(10)
    given = dealt(dispatch, 0.0, 0)[0]
    hold = dispatch.holds[duty()]
    hold.ending_s, hold.doubtful, hold.stopped = 9.0, True, True
    dispatch.stop("bill")
    found = [state(dispatch, 1.0)]
    hold.ending_s = None
    found.append(state(dispatch, 1.0))
    hold.doubtful = False
    found.append(state(dispatch, 1.0))
    hold.stopped = False
    found.append(state(dispatch, 1.0))
    dispatch.park(0, given.number, 0, 5.0, 1.0)
    found.append(state(dispatch, 1.0))
    dispatch.start("bill")
    found += [state(dispatch, 1.0), state(dispatch, 5.0)]
    done(dispatch, dealt(dispatch, 5.0, 0)[0], 5.1)
    found.append(state(dispatch, 5.1))
    assert tuple(found) == get_args(State)


def test_among_a_thousand_ready_shards_only_the_one_that_is_given_is_looked_into(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that a lane that asks is served in a fraction of a millisecond."""
    dispatch = machine(*[10**9] * 1000, lanes=10)
    looked: list[DutyState] = []
    ready_s = Dispatch._ready_s

    def counted(self: Dispatch, hold: DutyState) -> float:
        looked.append(hold)
        return ready_s(self, hold)

    monkeypatch.setattr(Dispatch, "_ready_s", counted)
    given = dealt(dispatch, 1.0, 0)[0]
    done(dispatch, given, 1.0)
    dispatch.wake_s()
    assert [hold.duty for hold in looked] == [given.duty]


OPERATIONS = st.lists(
    st.tuples(st.integers(0, 13), st.integers(0, 3), st.sampled_from([0.0, 0.05, 0.3, 2.0])),
    max_size=60,
)


@each(OPERATIONS, st.sampled_from(["pool", "static"]), st.sampled_from([None, 1, 2]))
def test_after_any_calls_ready_times_match_the_states_and_a_duty_is_in_one_lane(
    operations: list[tuple[int, int, float]], allocation: Allocation, concurrency: int | None
) -> None:
    rules = Rules(concurrency=concurrency, capacity=3, threshold_s=1.0)
    dispatch = Dispatch({"bill": rules}, 2, allocation)
    now_s, tokens = 0.0, 0
    for what, which, passes_s in operations:
        now_s += passes_s
        own, hold = duty(which), dispatch.holds.get(duty(which))
        token = b"" if hold is None else hold.token
        given = dispatch.in_hand.get(which)
        number = 0 if given is None else given.number
        match what:
            case 0 if hold is None:
                tokens += 1
                dispatch.begin(own, b"%d" % tokens, which, which + 5, now_s)
            case 1:
                dispatch.revoke(own, token, now_s + 1)
            case 2:
                dispatch.lose(own, token, now_s + 1)
            case 3:
                dispatch.gone()
            case 4:
                dispatch.overdue(now_s)
            case 5:
                dispatch.ends({own: int(10 * now_s)}, now_s)
            case 6:
                dispatch.stop("bill") if which else dispatch.start("bill")
            case 7 if given is None:
                dispatch.ask(which)
            case 8:
                dispatch.lane_lost(which)
            case 9 if given is not None:
                dispatch.done(which, number, given.end, now_s, records=1, spent_s=0.1)
            case 10:
                dispatch.park(which, number, which, now_s + 1, now_s)
            case 11:
                dispatch.stop_shard(which, number, which, now_s)
            case 12:
                dispatch.doubt(which, number, now_s)
            case 13:
                dispatch.timer(own, now_s + 1)
            case _:
                pass
        dispatch.deal(now_s)
        in_hand = [each.duty for each in dispatch.in_hand.values()]
        assert len(in_hand) == len(set(in_hand)) <= (concurrency or inf)
        assert not dispatch.waiting.keys() & dispatch.in_hand.keys()
        assert dispatch.leaving.keys() <= dispatch.in_hand.keys()
        for own, hold in dispatch.holds.items():
            stands = dispatch.state(hold, now_s)
            out = hold.given is not None or stands in ("ending", "doubtful", "stopped")
            assert hold.ready_s == (inf if out else dispatch._ready_s(hold))
            assert (hold.given is None) or dispatch.in_hand[hold.given.lane] is hold.given
            free = [lane for lane in dispatch.waiting if allocation == "pool" or
                    lane % 2 == own.shard.index % 2]  # fmt: skip
            full = concurrency is not None and len(in_hand) >= concurrency
            assert not (stands == "ready" and free and not full)
