from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, count, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import BadAllocation, BadSetting, UnknownAllocator
from headrace.core.groups.allocators import (
    Allocator,
    balanced,
    capped,
    dealt,
    kiel,
    named,
    round_robin,
    single,
    weighted,
)
from headrace.core.groups.even_shares import Candidate
from headrace.core.model import ShardId

SHIPPED = [balanced, round_robin, single, weighted]

Owners = dict[ShardId, str]
Question = tuple[list[Candidate], list[ShardId], Owners]


def shards_of(stream: str, number: int) -> list[ShardId]:
    return [ShardId(stream, index) for index in range(number)]


def alike(*names: str, streams: str = "t") -> list[Candidate]:
    return [Candidate(name, frozenset(streams)) for name in names]


def counts(owners: Mapping[ShardId, str], members: Sequence[Candidate]) -> dict[str, int]:
    found = Counter(owners.values())
    return {member.name: found[member.name] for member in members}


def moves(before: Mapping[ShardId, str], after: Mapping[ShardId, str]) -> int:
    return sum(after.get(shard) != owner for shard, owner in before.items())


def weight(owners: Mapping[ShardId, str], members: Sequence[Candidate]) -> Fraction:
    held = Counter(owners.values())
    return sum((held[m.name] ** 2 / Fraction(m.capacity) for m in members), Fraction(0))


def takers_of(shard: ShardId, members: Sequence[Candidate]) -> list[str]:
    return [member.name for member in members if shard.stream in member.streams]


SUBSCRIPTIONS = [frozenset(streams) for streams in ("xyz", "xy", "xz", "yz", "x", "y", "z", "")]
SAME = st.sampled_from([(SUBSCRIPTIONS[0], capacity) for capacity in (1.0, 0.5, 2.0, 3.0)])
DIFFERING = st.sampled_from(list(product(SUBSCRIPTIONS, (1.0, 0.5, 2.0, 3.0))))
PLACES = st.sampled_from(
    [(ShardId(s, i), turn) for s in "xyz" for i in range(11) for turn in range(4)]
)


@st.composite
def questions(
    draw: st.DrawFn, *, same: bool = False, members_max: int = 6, shards_max: int = 16
) -> Question:
    drawn = draw(st.lists(SAME if same else DIFFERING, max_size=members_max))
    members = [Candidate(name, *facts) for name, facts in zip("bacdef", drawn, strict=False)]
    places = dict(draw(st.lists(PLACES, max_size=shards_max)))
    takers = {shard: takers_of(shard, members) for shard in places}
    current = {s: takers[s][turn] for s, turn in places.items() if turn < len(takers[s])}
    return members, list(places), current


every_allocator = st.sampled_from([*SHIPPED, capped(1), capped(2), capped(3)])


@settings(max_examples=70)
@given(questions(same=True))
def test_any_two_members_differ_by_at_most_one(question: Question) -> None:
    members, shards, current = question
    held = counts(dealt(balanced, members, shards, current), members).values()
    assert max(held, default=0) - min(held, default=0) <= 1


@settings(max_examples=70)
@given(questions())
def test_two_members_of_the_same_streams_differ_by_at_most_one(question: Question) -> None:
    members, shards, current = question
    held = counts(dealt(balanced, members, shards, current), members)
    for one, other in combinations(members, 2):
        if one.streams == other.streams:
            assert abs(held[one.name] - held[other.name]) <= 1


@settings(max_examples=70)
@given(questions(same=True))
def test_no_move_is_made_without_need(question: Question) -> None:
    members, shards, current = question
    if not members:
        return
    after = dealt(balanced, members, shards, current)
    low, richer = divmod(len(shards), len(members))
    held = counts(current, members)
    fewest = min(
        sum(max(0, held[name] - low - (name in lucky)) for name in held)
        for lucky in combinations(held, richer)
    )
    assert moves(current, after) == fewest


@settings(max_examples=70)
@given(questions(), every_allocator)
def test_a_deal_is_total(question: Question, allocator: Allocator) -> None:
    members, shards, current = question
    owners = dealt(allocator, members, shards, current)
    wanted = [shard for shard in shards if takers_of(shard, members)]
    cap = -(-len(wanted) // (allocator.replicas or 1))
    held = counts(owners, members)
    assert max(held.values(), default=0) <= cap
    for shard in wanted:
        if shard not in owners:
            assert all(held[name] == cap for name in takers_of(shard, members))


@settings(max_examples=70)
@given(questions(), every_allocator)
def test_members_get_only_what_they_subscribe_to(question: Question, allocator: Allocator) -> None:
    members, shards, current = question
    for shard, owner in dealt(allocator, members, shards, current).items():
        assert owner in takers_of(shard, members)


@settings(max_examples=70)
@given(questions(), every_allocator, st.randoms(use_true_random=False))
def test_the_same_question_gets_the_same_answer(
    question: Question, allocator: Allocator, random: Any
) -> None:
    members, shards, current = question
    first = dealt(allocator, members, shards, current)
    pairs = list(current.items())
    for order in (members, shards, pairs):
        random.shuffle(order)
    again = dealt(allocator, members, shards, dict(pairs))
    assert list(again.items()) == list(first.items())


@settings(max_examples=70)
@given(questions(), every_allocator)
def test_an_answer_once_carried_out_stays(question: Question, allocator: Allocator) -> None:
    members, shards, current = question
    after = dealt(allocator, members, shards, current)
    assert dealt(allocator, members, shards, after) == after


@settings(max_examples=70)
@given(questions(members_max=4, shards_max=6), st.sampled_from([balanced, weighted]))
def test_as_even_as_subscriptions_allow(question: Question, allocator: Allocator) -> None:
    members, shards, current = question
    shards = [shard for shard in shards if takers_of(shard, members)]
    if allocator is balanced:
        members = [replace(member, capacity=1.0) for member in members]
    elif len({tuple(takers_of(shard, members)) for shard in shards}) == 1:
        return  # Largest remainders are another measure.
    lightest = min(
        weight(dict(zip(shards, picked, strict=True)), members)
        for picked in product(*(takers_of(shard, members) for shard in shards))
    )
    assert weight(dealt(allocator, members, shards, current), members) == lightest


@settings(max_examples=70)
@given(questions(members_max=4, shards_max=6))
def test_an_assignment_that_is_as_even_as_possible_stays(question: Question) -> None:
    members, shards, current = question
    members = [replace(member, capacity=1.0) for member in members]
    fixed = [[current[s]] if s in current else takers_of(s, members) for s in shards]
    fixed, shards = (
        [names for names in fixed if names],
        [shard for shard, names in zip(shards, fixed, strict=True) if names],
    )

    def lightest(choices: list[list[str]]) -> Fraction:
        return min(
            weight(dict(zip(shards, picked, strict=True)), members) for picked in product(*choices)
        )

    if lightest(fixed) == lightest([takers_of(shard, members) for shard in shards]):
        assert moves(current, dealt(balanced, members, shards, current)) == 0


def test_when_members_come_and_go_only_the_necessary_shards_move() -> None:
    shards = shards_of("t", 10)
    three = dealt(balanced, alike("A", "B", "C"), shards, {})
    assert sorted(counts(three, alike("A", "B", "C")).values()) == [3, 3, 4]

    two = dealt(balanced, alike("B", "C"), shards, three)
    assert counts(two, alike("B", "C")) == {"B": 5, "C": 5}
    assert all(two[shard] == owner for shard, owner in three.items() if owner != "A")

    back = dealt(balanced, alike("A", "B", "C"), shards, two)
    assert sorted(counts(back, alike("A", "B", "C")).values()) == [3, 3, 4]
    assert moves(two, back) == 3
    assert all(back[shard] in (owner, "A") for shard, owner in two.items())

    five = dealt(balanced, alike(*"ABCDE"), shards, back)
    assert set(counts(five, alike(*"ABCDE")).values()) == {2}
    assert all(five[shard] in (owner, "D", "E") for shard, owner in back.items())


def test_every_member_gets_shards_of_every_stream() -> None:
    shards = shards_of("x", 4) + shards_of("y", 4)
    alone = dict.fromkeys(shards, "A")
    for current in ({}, alone):
        pair = dealt(balanced, alike("A", "B", streams="xy"), shards, current)
        found = Counter((owner, shard.stream) for shard, owner in pair.items())
        assert found == {(owner, stream): 2 for owner in "AB" for stream in "xy"}


def test_a_chain_of_members_evens_what_no_single_move_can() -> None:
    members = [Candidate(n, frozenset(s)) for n, s in (("A", "x"), ("B", "xy"), ("C", "y"))]
    shards = shards_of("x", 3) + shards_of("y", 2)
    current = dict.fromkeys(shards_of("x", 3), "A") | dict.fromkeys(shards_of("y", 2), "B")
    after = dealt(balanced, members, shards, current)
    assert sorted(counts(after, members).values()) == [1, 2, 2]


@pytest.mark.parametrize(
    ("streams", "current", "loose", "fewest"),
    [
        (
            {"m": "axy", "p": "xy", "q": "x"},
            {"m": ["x0"], "p": ["y0", "y1"], "q": ["x1", "x2", "x3", "x4"]},
            ["y2", "a0", "a1"],
            0,
        ),
        (
            {"m": "xyz", "p": "xy", "d": "z"},
            {"m": ["x0"], "p": ["x1", "x2"], "d": ["z0", "z1", "z2", "z3", "z4"]},
            ["y0"],
            2,
        ),
    ],
)
def test_shards_without_owner_go_before_those_with_one(
    streams: dict[str, str], current: dict[str, list[str]], loose: list[str], fewest: int
) -> None:
    members = [Candidate(name, frozenset(mine)) for name, mine in streams.items()]
    owners = {ShardId(s[0], int(s[1])): name for name, mine in current.items() for s in mine}
    shards = [*owners, *(ShardId(s[0], int(s[1])) for s in loose)]
    after = dealt(balanced, members, shards, owners)
    assert max(counts(after, members).values()) - min(counts(after, members).values()) <= 1
    assert moves(owners, after) == fewest


def test_owners_that_left_or_unsubscribed_are_forgotten() -> None:
    seen: list[dict[ShardId, str]] = []

    def deal(members: Any, shards: Any, current: Any) -> Any:
        seen.append(dict(current))
        return {"a": shards}

    x, y, z = ShardId("x", 0), ShardId("y", 0), ShardId("z", 0)
    members = [Candidate("a", frozenset("xyz")), Candidate("b", frozenset("x"))]
    dealt(Allocator("mine", deal=deal), members, [x, y, z], {x: "b", y: "b", z: "gone"})
    assert seen == [{x: "b"}] * 2


def test_an_allocator_does_not_see_shards_without_a_subscriber() -> None:
    asked: list[Any] = []

    def deal(members: Any, shards: Any, current: Any) -> Any:
        asked.append((members, shards))
        return {"a": [("t", 0), ("t", 1)]}

    nobodys = [ShardId("u", 0), *reversed(shards_of("t", 2))]
    members = [Candidate("b", frozenset()), Candidate("a", frozenset("t"))]
    owners = dealt(Allocator("mine", deal=deal), members, nobodys, {})
    assert owners == {ShardId("t", 0): "a", ShardId("t", 1): "a"}
    assert all(isinstance(shard, ShardId) for shard in owners)
    assert asked == [((members[1], members[0]), tuple(shards_of("t", 2)))] * 2


@pytest.mark.parametrize("allocator", [*SHIPPED, capped(3)], ids=lambda a: a.name)
def test_without_members_or_shards_nothing_is_dealt(allocator: Allocator) -> None:
    assert dealt(allocator, [], shards_of("t", 2), {ShardId("t", 0): "gone"}) == {}
    assert dealt(allocator, alike("a"), [], {}) == {}


def test_round_robin_deals_as_kiel_does() -> None:
    names = ["client1:1233", "client1:4444", "client2:5555"]
    topics = {"test.topic.1": [0, 1], "test.topic.2": [0, 3, 6, 7], "test.topic.4": [8]}
    shards = [ShardId(topic, index) for topic, ids in topics.items() for index in ids]
    members = [Candidate(name, frozenset(topics)) for name in names]
    owners = dealt(round_robin, members, shards, dict.fromkeys(shards, names[0]))
    assert {name: [s for s, owner in owners.items() if owner == name] for name in names} == {
        names[0]: [("test.topic.1", 0), ("test.topic.2", 3), ("test.topic.4", 8)],
        names[1]: [("test.topic.1", 1), ("test.topic.2", 6)],
        names[2]: [("test.topic.2", 0), ("test.topic.2", 7)],
    }


def test_round_robin_sorts_shards_as_text() -> None:
    owners = dealt(round_robin, alike("a", "b"), shards_of("t", 11), {})
    assert (owners["t", 1], owners["t", 10], owners["t", 2]) == ("b", "a", "b")  # type: ignore[index]


def test_round_robin_passes_over_members_that_do_not_subscribe() -> None:
    members = [Candidate(n, frozenset(s)) for n, s in (("a", "x"), ("b", "xy"), ("c", "x"))]
    owners = dealt(round_robin, members, shards_of("x", 2) + shards_of("y", 2), {})
    assert list(owners.values()) == ["a", "b", "b", "b"]


def test_a_lone_replica_of_three_takes_four_of_twelve() -> None:
    shards = shards_of("t", 12)
    lone = dealt(capped(3), alike("a"), shards, {})
    assert counts(lone, alike("a")) == {"a": 4}
    pair = dealt(capped(3), alike("a", "b"), shards, lone)
    assert counts(pair, alike("a", "b")) == {"a": 4, "b": 4}
    assert moves(lone, pair) == 0


def test_more_members_than_replicas_share_evenly() -> None:
    owners = dealt(capped(3), alike(*"abcde"), shards_of("t", 12), {})
    assert sorted(counts(owners, alike(*"abcde")).values()) == [2, 2, 2, 3, 3]


def test_more_replicas_than_shards_take_one_each() -> None:
    assert counts(dealt(capped(4), alike("a"), shards_of("t", 2), {}), alike("a")) == {"a": 1}


def test_a_member_above_a_new_cap_lets_go() -> None:
    shards = shards_of("x", 3) + shards_of("y", 3)
    members = [Candidate("a", frozenset("xy")), Candidate("b", frozenset("y"))]
    after = dealt(capped(3), members, shards, dict.fromkeys(shards, "a"))
    assert counts(after, members) == {"a": 2, "b": 2}


def test_one_is_active_and_the_others_stand_by() -> None:
    shards = shards_of("t", 4)
    assert set(dealt(single, alike("b", "a", "c"), shards, {}).values()) == {"a"}
    most = dict(zip(shards, "abcb", strict=True))
    assert set(dealt(single, alike("a", "b", "c"), shards, most).values()) == {"b"}
    tied = dict(zip(shards, "bccb", strict=True))
    assert set(dealt(single, alike("a", "b", "c"), shards, tied).values()) == {"b"}


def test_shards_that_the_active_member_does_not_subscribe_to_go_to_the_next_member() -> None:
    streams = {"a": "x", "b": "xy", "c": "xyz", "d": "xyz"}
    members = [Candidate(name, frozenset(mine)) for name, mine in streams.items()]
    x, y, z = (ShardId(stream, 0) for stream in "xyz")
    assert dealt(single, members, [x, y, z], {}) == {x: "a", y: "b", z: "c"}
    assert dealt(single, members, [x, y, z], {x: "b", z: "d"}) == {x: "b", y: "b", z: "d"}


def test_the_active_member_stays_active() -> None:
    members = [Candidate("a", frozenset("y")), Candidate("c", frozenset("yz"))]
    shards = [*shards_of("y", 1), *shards_of("z", 2)]
    after = dealt(single, members, shards, {shards[0]: "a", shards[1]: "c"})
    assert set(after.values()) == {"c"}
    assert dealt(single, members, shards, after) == after


def test_three_to_one_over_eight_is_six_and_two() -> None:
    members = [Candidate("a", frozenset("t"), 3.0), Candidate("b", frozenset("t"), 1.0)]
    shards = shards_of("t", 8)
    assert counts(dealt(weighted, members, shards, {}), members) == {"a": 6, "b": 2}
    all_of_b = dict.fromkeys(shards, "b")
    assert moves(all_of_b, dealt(weighted, members, shards, all_of_b)) == 6


def test_the_largest_remainder_gets_the_odd_shard() -> None:
    members = [Candidate("a", frozenset("t"), 1.0), Candidate("b", frozenset("t"), 2.0)]
    assert counts(dealt(weighted, members, shards_of("t", 4), {}), members) == {"a": 1, "b": 3}


@settings(max_examples=70)
@given(questions(same=True))
def test_weights_are_kept_within_one_shard(question: Question) -> None:
    members, shards, current = question
    held = counts(dealt(weighted, members, shards, current), members)
    whole = sum(member.capacity for member in members)
    for member in members:
        assert abs(held[member.name] - len(shards) * member.capacity / whole) < 1


@settings(max_examples=70)
@given(questions(), st.sampled_from([1.0, 0.1, 7.0]))
def test_equal_weights_deal_as_balanced_does(question: Question, capacity: float) -> None:
    members, shards, current = question
    equals = [replace(member, capacity=capacity) for member in members]
    assert dealt(weighted, equals, shards, current) == dealt(balanced, members, shards, current)


def test_weights_may_lie_far_apart() -> None:
    members = [
        Candidate("a", frozenset("xy"), 1e308),
        Candidate("b", frozenset("x"), 5e-324),
        Candidate("c", frozenset("z"), 5e-324),
    ]
    shards = shards_of("x", 3) + shards_of("y", 3) + shards_of("z", 3)
    held = counts(dealt(weighted, members, shards, {}), members)
    assert held == {"a": 6, "b": 0, "c": 3}


def test_a_kiel_function_is_asked_in_its_own_words() -> None:
    asked: list[tuple[list[str], list[str]]] = []

    def allocate(members: list[str], partitions: list[str]) -> dict[str, dict[str, list[int]]]:
        asked.append((members, partitions))
        return {"a": {"t": [0, 10], "u": [1]}, "b": {"t": [2]}, "c": {}}

    shards = [ShardId("u", 1), ShardId("t", 2), ShardId("t", 10), ShardId("t", 0)]
    allocator = kiel(allocate, "ours", "7")
    assert (allocator.name, allocator.version) == ("ours", "7")
    owners = dealt(allocator, alike("b", "c", "a", streams="tu"), shards, {})
    assert owners == {("t", 0): "a", ("t", 2): "b", ("t", 10): "a", ("u", 1): "a"}
    assert asked == [(["a", "b", "c"], ["t:0", "t:10", "t:2", "u:1"])] * 2


T = shards_of("t", 3)


class Lazy(Mapping[str, Any]):
    def __getitem__(self, name: str) -> Any:
        raise KeyError("too late")

    def __iter__(self) -> Iterator[str]:
        return iter("a")

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "gave None, not a mapping of members to shards"),
        ([], "gave [], not a mapping of members to shards"),
        ({"a": 3}, "gave a 3, not a collection of shards"),
        ({"a": "t:0"}, "gave a 't:0', not a collection of shards"),
        ({"a": b"t:0"}, "gave a b't:0', not a collection of shards"),
        ({"a": iter(T)}, "gave a <list_iterator object"),
        ({"a": ["t:0"]}, "gave a 't:0', not a shard"),
        ({"a": [["t", 0]]}, "gave a ['t', 0], not a shard"),
        ({"a": [("t",)]}, "gave a ('t',), not a shard"),
        ({"a": [("t", [0])]}, "gave a ('t', [0]), not a shard"),
        ({"a": [("t", "0")]}, "gave a ('t', '0'), not a shard"),
        ({"a": [ShardId("t", 9)]}, "gave a t:9, an unknown shard"),
        ({"z": T}, "gave shards to 'z', which is no member"),
        ({7: []}, "gave shards to 7, which is no member"),
        ({"a": [*T, T[0]]}, "gave t:0 twice, to a and to a"),
        ({"a": T, "b": T[1:2]}, "gave t:1 twice, to a and to b"),
        ({"a": T[:2], "c": T[2:]}, "gave t:2 to c, which does not subscribe to it"),
        ({"a": T[:1], "b": T[1:2]}, "gave t:2 to no member; b could take it"),
        ({}, "gave t:0 to no member; b could take it"),
        ({"a": [("x" * 500, 0)]}, "gave a xxx"),
        (Lazy(), "raised KeyError: 'too late'"),
    ],
)
def test_an_answer_that_cannot_be_carried_out_is_refused(answer: Any, why: str) -> None:
    members = [*alike("a", "b"), Candidate("c", frozenset("u"))]
    with pytest.raises(BadAllocation, match=f"^allocator mine: {re.escape(why)}") as caught:
        dealt(Allocator("mine", deal=lambda *_: answer), members, T, {})
    assert caught.value.allocator == "mine"
    assert len(str(caught.value)) <= len("allocator mine: ") + 200


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"a": T}, "gave a 3 shards, above its cap of 2"),
        ({"a": T[:2]}, "gave t:2 to no member; b could take it"),
    ],
)
def test_a_declared_cap_binds(answer: Any, why: str) -> None:
    with pytest.raises(BadAllocation, match=re.escape(why)):
        dealt(Allocator("mine", deal=lambda *_: answer, replicas=2), alike("a", "b"), T, {})


def test_a_declared_cap_leaves_shards_without_owner() -> None:
    mine = Allocator("mine", deal=lambda *_: {"a": T[:2]}, replicas=2)
    assert dealt(mine, alike("a"), T, {}) == {T[0]: "a", T[1]: "a"}


def test_an_answer_that_changes_is_refused() -> None:
    turns = count()
    fickle = Allocator("fickle", deal=lambda *_: {"ab"[next(turns) % 2]: T})
    with pytest.raises(BadAllocation, match="not stable: gave t:0 to a, asked again to b"):
        dealt(fickle, alike("a", "b"), T, {})


def test_an_allocator_cannot_change_its_arguments() -> None:
    current = {T[0]: "a"}

    def clearing(members: Any, shards: Any, owners: Any) -> Any:
        owners.clear()

    with pytest.raises(BadAllocation, match="raised AttributeError"):
        dealt(Allocator("rude", deal=clearing), alike("a"), T, current)
    assert current == {T[0]: "a"}


@pytest.mark.parametrize("text", ["no\nidea", "no \t idea"])
def test_an_allocator_that_raises_is_quoted_in_one_line(text: str) -> None:
    error = LookupError(text + "!" * 1000)

    def failing(*_: Any) -> Any:
        raise error

    with pytest.raises(BadAllocation, match="raised LookupError: no idea!!!") as caught:
        dealt(Allocator("failing", deal=failing), alike("a"), T, {})
    assert caught.value.__cause__ is error
    assert str(caught.value).endswith("!…")
    assert len(str(caught.value)) == len("allocator failing: ") + 200


def test_an_allocator_known_by_name_only_cannot_deal() -> None:
    with pytest.raises(BadAllocation, match=r"^allocator theirs: is not known in this process$"):
        dealt(Allocator("theirs"), alike("a"), T, {})


@pytest.mark.parametrize("allocator", [*SHIPPED, capped(1), capped(3)], ids=lambda a: a.name)
def test_a_shipped_allocator_comes_back_by_its_name(allocator: Allocator) -> None:
    back = named(allocator.name)
    assert (back, back.replicas) == (allocator, allocator.replicas)
    members, shards = alike("a", "b"), shards_of("t", 12)
    assert dealt(back, members, shards, {}) == dealt(allocator, members, shards, {})


@pytest.mark.parametrize(
    "name",
    ["", "Balanced", "capped", "capped()", "capped(0)", "capped(03)", "capped(3) ", "capped(٣)"],
)
def test_an_unknown_name_is_refused(name: str) -> None:
    known = "shipped are balanced, round_robin, single, weighted, capped(3)"
    with pytest.raises(UnknownAllocator, match=re.escape(f"unknown allocator {name!r}: {known}")):
        named(name)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"name": ""}, "bad allocator name '': 1 to 100 printable characters"),
        ({"name": "x" * 101}, "bad allocator name"),
        ({"name": "two\nlines"}, r"bad allocator name 'two\\nlines'"),
        ({"name": 7}, "bad allocator name 7"),
        ({"version": ""}, "bad allocator version ''"),
        ({"version": "v" * 101}, "bad allocator version"),
        ({"version": 2}, "bad allocator version 2: 1 to 100 printable characters"),
        ({"deal": "balanced"}, "allocator mine: deal is a function or None"),
        ({"replicas": 0}, "allocator mine: bad replicas 0: a whole number from 1"),
        ({"replicas": True}, "bad replicas True"),
        ({"replicas": 1.5}, "bad replicas 1.5"),
    ],
)
def test_an_allocator_outside_its_limits_is_refused(facts: dict[str, Any], why: str) -> None:
    with pytest.raises(BadSetting, match=why):
        Allocator(**{"name": "mine", **facts})


@pytest.mark.parametrize("replicas", [0, -1, True, False, "3", 3.0, None, 10**9, 10**30])
def test_a_cap_needs_a_whole_number_of_replicas(replicas: Any) -> None:
    why = f"capped({replicas!r}): a whole number from 1 to 999999999"
    with pytest.raises(BadSetting, match=f"^{re.escape(why)}$"):
        capped(replicas)


def test_the_largest_cap_comes_back_by_its_name() -> None:
    assert named("capped(999999999)") == capped(10**9 - 1)
    with pytest.raises(UnknownAllocator):
        named("capped(1000000000)")


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("name", [*(shipped.name for shipped in SHIPPED), "capped(3)", "capped(7)"])
def test_a_shipped_name_is_not_given_to_an_own_function(name: str, version: str) -> None:
    why = f"allocator {name} is shipped: give yours a name of its own"
    with pytest.raises(BadSetting, match=f"^{re.escape(why)}$"):
        Allocator(name, version, deal=lambda *_: {})
    with pytest.raises(BadSetting, match=f"^{re.escape(why)}$"):
        kiel(lambda members, partitions: {}, name, version)
    assert Allocator(name, version).deal is None
    assert Allocator(name, version, deal=named(name).deal) == Allocator(name, version)


@pytest.mark.parametrize(
    "name", ["Balanced", "capped", "capped(0)", "capped(03)", "capped(3) mine"]
)
def test_a_name_that_is_not_quite_a_shipped_one_is_free(name: str) -> None:
    assert Allocator(name, deal=lambda *_: {}).name == name


@pytest.mark.parametrize("capacity", [0.0, -1.0, float("inf"), float("nan")])
def test_a_capacity_is_finite_and_above_zero(capacity: float) -> None:
    with pytest.raises(BadSetting, match=r"bad capacity .* of a: finite, above 0"):
        Candidate("a", frozenset(), capacity)


def test_allocators_are_the_same_by_name_and_version() -> None:
    assert Allocator("x", "2", deal=lambda *_: {}) == Allocator("x", "2", replicas=3)
    assert Allocator("x", "2") != Allocator("x", "1")


@pytest.mark.parametrize(
    ("name", "deal"), [("balanced", single.deal), ("capped(5)", capped(3).deal)]
)
def test_a_shipped_name_means_its_own_function(name: str, deal: Any) -> None:
    with pytest.raises(BadSetting, match="is shipped: give yours a name of its own"):
        Allocator(name, deal=deal)


def test_a_fault_can_be_shown_and_stored_whatever_its_words() -> None:
    def failing(*_: object) -> Any:
        raise RuntimeError("\ud800\x07 no\nluck")

    with pytest.raises(BadAllocation, match=r"raised RuntimeError: \?\? no luck$"):
        dealt(
            Allocator("bad", deal=failing), [Candidate("A", frozenset("s"))], [ShardId("s", 0)], {}
        )
