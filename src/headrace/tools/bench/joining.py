"""Measures many members that join at once, and many shards that move to a new member."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import headrace
from headrace.testing.children import Child
from headrace.tools.bench.measure import Say
from headrace.tools.bench.processes import STREAM, ready_members

MEMBERS = 20
SHARDS = 40
MANY_SHARDS = 1_000
ROUNDS = 3


def joined(
    place: Path, say: Say, members: int = MEMBERS, shards: int = SHARDS, rounds: int = ROUNDS
) -> dict[str, Any]:
    """The time until all members have joined. Their processes run and have the hub open before."""
    directory = place / "joining"
    took = []
    with headrace.open(directory) as hub, ExitStack() as stack:
        hub.create_stream(STREAM, shards=shards)
        say(f"starting {members} processes")
        team = ready_members(stack, directory, members)
        for turn in range(rounds):
            say(f"{members} members join at once: round {turn + 1} of {rounds}")
            group = f"joining{turn}"
            shot_ns = time.monotonic_ns()
            for member in team:
                member.tell(f"sit {group}")
            took.append(max(int(member.line()) for member in team) - shot_ns)
            there = len(hub.groups.load(group).members)
            assert there == members, f"{there} of {members} are in the group"
            for member in team:
                member.tell("leave")
            for member in team:
                member.line()
    return {
        "join20_members": members,
        "join20_s": round(statistics.median(took) / 1e9, 3),
        "join20_s_max": round(max(took) / 1e9, 3),
    }


def converged(
    place: Path, say: Say, shards: int = MANY_SHARDS, rounds: int = ROUNDS
) -> dict[str, Any]:
    """The time from the third member's call of `Hub.consumer` until all three hold their share and
    have begun to read it; before, two members shared all shards."""
    directory = place / "converging"
    took = []
    with headrace.open(directory) as hub:
        hub.create_stream(STREAM, shards=shards)
        for turn in range(rounds):
            say(f"{shards} shards find three members: round {turn + 1} of {rounds}")
            with ExitStack() as stack:
                team = ready_members(stack, directory, 3)
                for number in (1, 2, 3):
                    began_ns = _start_work(team[number - 1], f"converging{turn}", place)
                    held_ns = _all_held_ns(team[:number], shards)
                    if number == 3:
                        took.append(held_ns - began_ns)
    return {
        "converge1000_shards": shards,
        "converge1000_s": round(statistics.median(took) / 1e9, 3),
        "converge1000_s_max": round(max(took) / 1e9, 3),
    }


def _start_work(member: Child, group: str, place: Path) -> int:
    """Let a member join and work; return when it called `Hub.consumer`."""
    member.tell(f"work {group} member{member.pid} {place / 'none.handled'}")
    return int(member.line())


def _all_held_ns(team: list[Child], shards: int) -> int:
    """When the last member had its share: then the shares add up to all shards."""
    low = shards // len(team)
    while True:
        for member in team:
            member.tell(f"holds {low} {low + 1}")
        answers = [member.line().split() for member in team]
        if sum(int(held) for held, _ in answers) == shards:
            return max(int(when_ns) for _, when_ns in answers)
