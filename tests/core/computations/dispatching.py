"""Dispatch machines to test with, and what their lanes get."""

from __future__ import annotations

from headrace.core.computations.dispatch import (
    Assigned,
    Dispatch,
    Duty,
    DutyState,
    Rules,
    State,
)
from headrace.core.computations.settings import Allocation
from headrace.core.model import ShardId

TOKEN = b"1"
NEXT = b"2"


def duty(index: int = 0, computation: str = "bill") -> Duty:
    return Duty(computation, ShardId("orders", index))


def machine(
    *ends: int,
    lanes: int = 4,
    allocation: Allocation = "pool",
    rules: Rules | None = None,
) -> Dispatch:
    """Shards 0, 1, … with so many records each, granted at 0 s."""
    both = {"bill": rules or Rules(), "send": Rules()}
    dispatch = Dispatch(both, lanes, allocation)
    for index, end in enumerate(ends):
        dispatch.begin(duty(index), TOKEN, 0, end, 0.0)
    return dispatch


def dealt(dispatch: Dispatch, now_s: float, *lanes: int) -> dict[int, Assigned]:
    """These lanes ask; what each lane got."""
    for lane in lanes:
        dispatch.ask(lane)
    return {given.lane: given for given in dispatch.deal(now_s)}


def shards(given: dict[int, Assigned]) -> dict[int, int]:
    """Which shard each lane got."""
    return {lane: each.duty.shard.index for lane, each in given.items()}


def done(
    dispatch: Dispatch, given: Assigned, now_s: float, next: int | None = None, spent_s: float = 0.1
) -> DutyState | None:
    upto = given.end if next is None else next
    records = upto - given.start
    return dispatch.done(given.lane, given.number, upto, now_s, records=records, spent_s=spent_s)


def state(dispatch: Dispatch, now_s: float, index: int = 0) -> State:
    return dispatch.state(dispatch.holds[duty(index)], now_s)
