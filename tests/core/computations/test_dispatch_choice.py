"""Which slice a lane gets, when, and how large it is."""

from __future__ import annotations

from math import inf

from headrace.core.computations.dispatch import (
    SLICE_RECORDS_FIRST,
    SLICE_RECORDS_MAX,
    SLICE_S,
    WARM_S,
    Dispatch,
    Pace,
    Rules,
)
from tests.core.computations.dispatching import TOKEN, dealt, done, duty, machine, shards, state

# Who gets what


def test_the_duty_that_waits_longest_goes_first_to_the_lane_that_asked_first() -> None:
    dispatch = Dispatch({"bill": Rules()}, 2)
    for index, since_s in enumerate((3.0, 1.0, 2.0)):
        dispatch.begin(duty(index), TOKEN, 0, 10, since_s)
    assert shards(dealt(dispatch, 5.0, 1, 0)) == {1: 1, 0: 2}


def test_a_shard_goes_back_to_the_lane_that_had_it() -> None:
    dispatch = machine(500, 500)
    given = dealt(dispatch, 0.0, 0, 1)
    assert shards(given) == {0: 0, 1: 1}
    done(dispatch, given[0], 0.10)
    done(dispatch, given[1], 0.12)
    given = dealt(dispatch, 0.12, 1, 0)
    assert shards(given) == {0: 0, 1: 1}
    assert all(each.warm for each in given.values())


def test_a_free_lane_takes_its_own_shard_before_one_that_waits_a_little_longer() -> None:
    dispatch = machine(500)
    first = dealt(dispatch, 0.0, 0)[0]
    dispatch.begin(duty(1), TOKEN, 0, 10, 0.1)
    done(dispatch, first, 0.1 + WARM_S / 2)
    given = dealt(dispatch, 0.2, 0)[0]
    assert (given.duty, given.warm) == (duty(0), True)


def test_a_free_lane_takes_another_shard_that_waits_much_longer() -> None:
    dispatch = machine(500)
    first = dealt(dispatch, 0.0, 0)[0]
    dispatch.begin(duty(1), TOKEN, 0, 10, 0.1)
    done(dispatch, first, 0.1 + WARM_S * 2)
    given = dealt(dispatch, 0.3, 0)[0]
    assert (given.duty, given.warm) == (duty(1), False)


def test_another_lane_takes_a_shard_whose_own_is_busy() -> None:
    dispatch = machine(500)
    done(dispatch, dealt(dispatch, 0.0, 0)[0], 0.5)
    dispatch.begin(duty(1), TOKEN, 0, 10, 0.0)
    assert shards(dealt(dispatch, 0.5, 0)) == {0: 1}
    assert shards(dealt(dispatch, 0.5, 1)) == {1: 0}


def test_no_duty_starves_in_one_lane() -> None:
    dispatch = machine(*[10**6] * 8)
    now_s, served = 0.0, []
    for _ in range(80):
        given = dealt(dispatch, now_s, 0)[0]
        served.append(given.duty.shard.index)
        now_s += 0.06
        done(dispatch, given, now_s)
    for begin in range(0, 60):
        assert set(served[begin : begin + 20]) == set(range(8))


def test_a_timer_in_the_past_does_not_go_before_a_duty_that_waits_longer() -> None:
    dispatch = machine(500, 500)
    given = dealt(dispatch, 0.0, 0)[0]
    done(dispatch, given, 5.0)
    dispatch.timer(given.duty, -100.0)
    assert dealt(dispatch, 5.0, 0)[0].duty == duty(1)


def test_a_parked_duty_waits_since_its_time_came() -> None:
    dispatch = machine(500)
    given = dealt(dispatch, 0.0, 0)[0]
    dispatch.park(0, given.number, 0, 60.0, 0.1)
    dispatch.begin(duty(1), TOKEN, 0, 10, 30.0)
    assert dealt(dispatch, 61.0, 0)[0].duty == duty(1)


def test_static_lanes_take_the_shards_whose_index_is_theirs_modulo_their_number() -> None:
    dispatch = machine(*[10] * 20, lanes=5, allocation="static")
    had: dict[int, set[int]] = {lane: set() for lane in range(5)}
    for turn in range(4):
        for lane, given in dealt(dispatch, float(turn), *range(5)).items():
            had[lane].add(given.duty.shard.index)
            done(dispatch, given, turn + 0.5)
    assert had == {lane: {lane, lane + 5, lane + 10, lane + 15} for lane in range(5)}


def test_the_shards_of_a_busy_static_lane_wait_though_others_are_free() -> None:
    dispatch = machine(10, 0, 10, lanes=2, allocation="static")
    assert shards(dealt(dispatch, 0.0, 0, 1)) == {0: 0}
    assert state(dispatch, 0.0, 2) == "ready"
    assert list(dispatch.waiting) == [1]


def test_a_static_lane_that_replaces_another_takes_its_place() -> None:
    dispatch = machine(10, 10, lanes=2, allocation="static")
    assert shards(dealt(dispatch, 0.0, 2, 7)) == {2: 0, 7: 1}


def test_no_more_lanes_than_its_concurrency_work_for_a_computation() -> None:
    dispatch = machine(10, 10, 10, rules=Rules(concurrency=2))
    dispatch.begin(duty(9, "send"), TOKEN, 0, 10, 1.0)
    given = dealt(dispatch, 1.0, 0, 1, 2, 3)
    assert shards(given) == {0: 0, 1: 1, 2: 9}
    done(dispatch, given[0], 1.1)
    assert shards(dealt(dispatch, 1.1)) == {3: 2}


def test_a_lane_under_a_grant_that_is_over_counts_as_long_as_it_works() -> None:
    dispatch = machine(10, 10, rules=Rules(concurrency=1))
    given = dealt(dispatch, 0.0, 0, 1)[0]
    dispatch.lose(duty(0), TOKEN, 5.0)
    assert dispatch.deal(1.0) == []
    done(dispatch, given, 2.0)
    assert shards(dealt(dispatch, 2.0)) == {1: 1}


def test_a_computation_without_any_lane_allowed_gets_none() -> None:
    assert dealt(machine(10, rules=Rules(concurrency=0)), 0.0, 0) == {}


# Ends, batches, timers


def test_an_idle_shard_waits_from_its_next_record_on() -> None:
    dispatch = machine(0, 0)
    assert (dealt(dispatch, 0.0, 0), state(dispatch, 0.0)) == ({}, "idle")
    dispatch.ends({duty(1): 5, duty(0): 0}, 3.0)
    dispatch.ends({duty(0): 5, duty(1): 6}, 4.0)
    assert [hold.since_s for hold in dispatch.holds.values()] == [4.0, 3.0]
    assert shards(dealt(dispatch, 4.0)) == {0: 1}


def test_an_end_never_goes_back() -> None:
    dispatch = machine(10)
    dispatch.ends({duty(): 5}, 1.0)
    assert dispatch.holds[duty()].end == 10


def test_records_that_come_during_a_slice_wait_from_its_report_on() -> None:
    dispatch = machine(5)
    given = dealt(dispatch, 0.0, 0)[0]
    dispatch.ends({duty(): 8}, 1.0)
    done(dispatch, given, 2.0)
    assert (dispatch.holds[duty()].since_s, state(dispatch, 2.0)) == (2.0, "ready")


def test_a_batch_is_given_when_it_is_full() -> None:
    dispatch = machine(9, rules=Rules(capacity=10, threshold_s=60.0))
    assert (dealt(dispatch, 1.0, 0), state(dispatch, 1.0)) == ({}, "idle")
    assert dispatch.wake_s() == 60.0
    dispatch.ends({duty(): 25}, 2.0)
    given = dealt(dispatch, 2.0)[0]
    assert (given.start, given.end) == (0, 10)


def test_a_batch_that_does_not_fill_up_is_given_after_its_threshold() -> None:
    dispatch = machine(0, rules=Rules(capacity=10, threshold_s=60.0))
    dispatch.ends({duty(): 3}, 5.0)
    dispatch.ends({duty(): 4}, 50.0)
    assert dealt(dispatch, 64.9, 0) == {}
    assert dispatch.wake_s() == 65.0
    assert dealt(dispatch, 65.0)[0].end == 4


def test_a_timer_calls_a_shard_without_records() -> None:
    dispatch = machine(4)
    done(dispatch, dealt(dispatch, 0.0, 0)[0], 0.1)
    dispatch.timer(duty(), 5.0)
    assert dealt(dispatch, 4.9, 0) == {}
    assert dispatch.wake_s() == 5.0
    call = dealt(dispatch, 5.0)[0]
    assert (call.start, call.end) == (4, 4)
    done(dispatch, call, 5.1)
    assert (dealt(dispatch, 9.0, 0), dispatch.wake_s()) == ({}, inf)


def test_a_timer_that_is_not_due_outlives_slices() -> None:
    dispatch = machine(4)
    dispatch.timer(duty(), 5.0)
    done(dispatch, dealt(dispatch, 0.0, 0)[0], 0.1)
    assert dispatch.wake_s() == 5.0


def test_a_slice_given_when_a_timer_is_due_is_its_call() -> None:
    dispatch = machine(4)
    dispatch.timer(duty(), 5.0)
    done(dispatch, dealt(dispatch, 6.0, 0)[0], 6.1)
    assert dispatch.wake_s() == inf


def test_a_timer_set_while_its_call_is_in_flight_is_another() -> None:
    dispatch = machine(4)
    dispatch.timer(duty(), 5.0)
    call = dealt(dispatch, 5.0, 0)[0]
    dispatch.timer(duty(), 5.0)
    done(dispatch, call, 5.1)
    assert len(dealt(dispatch, 5.1, 0)) == 1


def test_a_timer_may_be_taken_back() -> None:
    dispatch = machine(0)
    dispatch.timer(duty(), 5.0)
    dispatch.timer(duty(), inf)
    assert (dealt(dispatch, 9.0, 0), dispatch.wake_s()) == ({}, inf)


# How large a slice is


def test_a_slice_is_about_a_tenth_of_a_second_of_work() -> None:
    dispatch = machine(10**6)
    sizes = []
    for now in range(20):
        given = dealt(dispatch, float(now), 0)[0]
        sizes.append(given.end - given.start)
        done(dispatch, given, now + 0.5, spent_s=sizes[-1] * 0.001)
    assert sizes[0] == SLICE_RECORDS_FIRST
    assert set(sizes[1:]) == {round(SLICE_S / 0.001)}


def test_slices_grow_at_most_to_the_double_and_to_the_largest() -> None:
    pace, sizes = Pace(), []
    for _ in range(9):
        pace.took(pace.records, 1e-9)
        sizes.append(pace.records)
    assert sizes == [128, 256, 512, 1024, 2048, 4096, 8192, 8192, 8192]
    assert sizes[-1] == SLICE_RECORDS_MAX


def test_slices_shrink_at_once_but_not_below_one_record() -> None:
    pace = Pace(1000)
    pace.took(1000, 10.0)
    assert pace.records == 10
    pace.took(10, 50.0)
    assert pace.records == 1


def test_a_short_slice_changes_the_pace_only_if_it_took_long() -> None:
    pace = Pace(1000)
    pace.took(1, 0.05)
    assert pace.records == 1000
    pace.took(10, 0.2)
    assert pace.records == 5


def test_a_slice_without_records_does_not_change_the_pace() -> None:
    pace = Pace(1000)
    pace.took(0, 7.0)
    assert pace.records == 1000


def test_each_computation_has_its_own_pace() -> None:
    dispatch = machine(1000)
    dispatch.begin(duty(1, "send"), TOKEN, 0, 1000, 0.0)
    given = dealt(dispatch, 0.0, 0)[0]
    done(dispatch, given, 0.1, spent_s=10.0)
    slices = dealt(dispatch, 0.1, 0, 1)
    sizes = {each.duty.computation: each.end - each.start for each in slices.values()}
    assert sizes == {"bill": 1, "send": SLICE_RECORDS_FIRST}


def test_a_limit_of_one_makes_slices_of_one_record() -> None:
    dispatch = machine()
    dispatch.begin(duty(), TOKEN, 0, 10, 0.0, most=1)
    given = dealt(dispatch, 0.0, 0)[0]
    assert (given.start, given.end) == (0, 1)
    done(dispatch, given, 0.1)
    dispatch.limit(duty(), 0)
    assert dealt(dispatch, 0.1, 0)[0].end == 10


def test_a_batch_stays_whole_where_others_go_record_by_record() -> None:
    dispatch = machine(10, rules=Rules(capacity=5))
    dispatch.limit(duty(), 1)
    assert dealt(dispatch, 0.0, 0)[0].end == 5


def test_a_record_that_may_kill_its_process_is_handled_alone() -> None:
    dispatch = Dispatch({"bill": Rules()}, 3, alone=True)
    for shard in range(3):
        most = 1 if shard == 1 else 0
        dispatch.begin(duty(shard), TOKEN, 0, 100, float(shard), most=most)
    first = dealt(dispatch, 5.0, 0, 1, 2)
    assert [given.duty.shard.index for given in first.values()] == [0]  # shard 1 is next, alone
    done(dispatch, first[0], 6.0)
    second = dealt(dispatch, 6.0)
    assert [(g.duty.shard.index, g.start, g.end) for g in second.values()] == [(1, 0, 1)]
    dispatch.ask(0)
    assert not dispatch.deal(6.1)
    (given,) = second.values()
    done(dispatch, given, 6.2)
    dispatch.ask(given.lane)
    assert {each.duty.shard.index for each in dispatch.deal(6.2)} == {0, 2}


def test_a_record_does_not_wait_to_go_alone_behind_a_slice_that_hangs() -> None:
    dispatch = Dispatch({"bill": Rules()}, 3, alone=True)
    dispatch.begin(duty(1), TOKEN, 0, 100, 0.0)
    hung = dealt(dispatch, 0.0, 0)[0]
    assert hung.duty == duty(1)
    dispatch.begin(duty(0), TOKEN, 0, 100, 1.0, most=1)
    dispatch.begin(duty(2), TOKEN, 0, 100, 2.0)
    others = dealt(dispatch, 3.0, 1, 2)
    assert [given.duty for given in others.values()] == [duty(2)]
    late = dispatch.deal(40.0)
    assert [given.duty for given in late] == [duty(0)], "after long enough it goes all the same"


def test_other_slices_go_on_where_each_lane_has_its_own_process() -> None:
    dispatch = Dispatch({"bill": Rules()}, 2)
    dispatch.begin(duty(0), TOKEN, 0, 100, 0.0, most=1)
    dispatch.begin(duty(1), TOKEN, 0, 100, 0.0)
    assert len(dealt(dispatch, 1.0, 0, 1)) == 2


def test_a_sticky_shard_stays_with_its_lane_as_long_as_the_lane_lives() -> None:
    dispatch = Dispatch({"bill": Rules(sticky=True)}, 2)
    for shard in range(2):
        dispatch.begin(duty(shard), TOKEN, 0, 1_000, 0.0)
    first = dealt(dispatch, 0.0, 0, 1)
    assert {given.lane: given.duty.shard.index for given in first.values()} == {0: 0, 1: 1}
    done(dispatch, first[0], 0.1)
    dispatch.lane_lost(1)
    dispatch.lose(duty(1), TOKEN, 9.0)
    dispatch.begin(duty(1), b"next", 0, 1_000, 0.2)
    dispatch.ask(3)
    again = dispatch.deal(50.0)
    assert [(given.lane, given.duty.shard.index) for given in again] == [(3, 1)]
    assert not dispatch.deal(60.0), "shard 0 waits for lane 0, however long"
    dispatch.ask(0)
    assert [given.duty.shard.index for given in dispatch.deal(61.0)] == [0]


def test_sticky_shards_are_shared_evenly_among_lanes() -> None:
    dispatch = Dispatch({"bill": Rules(sticky=True)}, 2)
    for shard in range(6):
        dispatch.begin(duty(shard), TOKEN, 0, 1, 0.0)
    for turn in range(3):
        for given in dealt(dispatch, turn, 0, 1).values():
            done(dispatch, given, turn)
    lanes = [hold.last_lane for hold in dispatch.holds.values()]
    assert sorted(lanes, key=str) == [0, 0, 0, 1, 1, 1]
