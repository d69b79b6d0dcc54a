from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.computations.attempts import (
    CAREFUL_AFTER,
    CAREFUL_STEP,
    REASON_CHARS_MAX,
    VERSION,
    Attempts,
)
from headrace.core.errors import BadStored, NewerFormat

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
ATTEMPTS = st.builds(
    Attempts, U64, U32, U32, st.booleans(), st.booleans(), st.booleans(), U64, TEXT, TEXT
)

SMALL = Attempts(17, 3, 2, True, False, True, 1_700_000_000_000, "v1", "é")

GOLDEN = bytes.fromhex(
    # version, flags, offset, failed, deaths, at_ms
    "01 05 0000000000000011 00000003 00000002 0000018bcfe56800"
    # code, reason
    "0002 7631  0002 c3a9"
)


# Working


def test_the_note_says_where_work_began() -> None:
    assert Attempts().begun(40) == Attempts(40, working=True)


def test_a_lane_that_ended_leaves_no_death_behind() -> None:
    ended = Attempts().begun(40).ended()
    assert not ended.working
    assert ended.begun(40) == Attempts(40, working=True)
    assert ended.begun(55) == Attempts(55, working=True)


def test_a_lane_that_finds_the_note_of_another_counts_a_death() -> None:
    note = Attempts().begun(40)
    for deaths in (1, 2, 3):
        note = note.begun(40)
        assert note == Attempts(40, deaths=deaths, working=True)


def test_deaths_at_another_checkpoint_are_another_story() -> None:
    note = Attempts().begun(40).begun(40).begun(40)
    assert note.deaths == 2
    assert note.begun(41) == Attempts(41, deaths=1, working=True)
    assert note.ended().begun(41) == Attempts(41, working=True)


def test_failures_are_remembered_by_the_replica_that_takes_over() -> None:
    failed = Attempts().begun(40).failed_again(40, 1_000, "v1", "no")
    assert failed.begun(40) == failed._replace(deaths=1)
    assert failed.ended().begun(40) == failed


def test_a_failure_ahead_of_the_checkpoint_is_not_forgotten() -> None:
    failed = Attempts(45, failed=3, at_ms=9, code="v1", reason="no")
    assert failed.begun(40) == failed._replace(working=True)
    dead = Attempts(45, deaths=3, working=True, named=True)
    assert dead.begun(40) == dead._replace(deaths=4)


def test_a_mere_note_goes_back_with_the_checkpoint() -> None:
    assert Attempts().begun(45).ended().begun(40) == Attempts(40, working=True)
    assert Attempts().begun(45).begun(40) == Attempts(40, deaths=1, working=True)


# Failing


def test_attempts_at_one_record_are_counted() -> None:
    first = Attempts().begun(40).failed_again(42, 1_000, "v1", "one")
    assert first == Attempts(42, 1, working=True, at_ms=1_000, code="v1", reason="one")
    second = first.failed_again(42, 2_000, "v2", "two")
    assert second == Attempts(42, 2, working=True, at_ms=2_000, code="v2", reason="two")


def test_another_record_begins_at_one() -> None:
    failed = Attempts(42, 5, 3, True, True, True).failed_again(43, 1_000, "v1", "no")
    assert failed == Attempts(43, 1, working=True, at_ms=1_000, code="v1", reason="no")


def test_a_failure_keeps_the_deaths_at_that_record_and_ends_its_naming() -> None:
    failed = Attempts(42, 1, 3, True, True, True).failed_again(42, 1_000, "v1", "no")
    assert (failed.failed, failed.deaths) == (2, 3)
    assert not failed.named
    assert not failed.stopped


def test_a_long_reason_is_cut() -> None:
    failed = Attempts().failed_again(1, 0, "v1", "é" * 10_000)
    assert failed.reason == "é" * REASON_CHARS_MAX
    assert Attempts.decoded(failed.encoded()) == failed


@pytest.mark.parametrize("reason", ["\ud800", "a\udcffb", "\U0001f600" * 5_000, "\udcff" * 5_000])
def test_whatever_an_error_says_can_be_stored(reason: str) -> None:
    failed = Attempts().failed_again(1, 0, "v1", reason)
    assert Attempts.decoded(failed.encoded()) == failed
    assert len(failed.reason) <= REASON_CHARS_MAX


def test_a_reason_that_is_no_text_is_made_visible() -> None:
    assert Attempts().failed_again(1, 0, "v1", "a\udcffb").reason == "a\\udcffb"


# Being careful


@pytest.mark.parametrize(
    ("deaths_max", "steps"),
    [
        (1, [1, 1, 1, 1]),
        (2, [0, 1, 1, 1]),
        (3, [0, 0, 1, 1]),
        (4, [0, 0, CAREFUL_STEP, 1]),
        (1_000, [0, 0, CAREFUL_STEP, 1]),
    ],
)
def test_steps_get_smaller_before_the_last_death_that_is_allowed(
    deaths_max: int, steps: list[int]
) -> None:
    assert [Attempts(deaths=deaths).step(deaths_max) for deaths in range(4)] == steps


def test_a_step_is_noted_where_it_begins_and_keeps_the_care() -> None:
    note = Attempts(40, 2, 2, True, code="v1", reason="no")
    assert note.stepped(40) == note
    assert note.stepped(104) == Attempts(104, deaths=2, working=True)
    assert note._replace(deaths=4, named=True).stepped(104, deaths_max=5) == Attempts(
        104, deaths=CAREFUL_AFTER + 1, working=True
    )


def test_a_name_is_written_to_the_record_it_is_about() -> None:
    note = Attempts(40, 2, 3, True, at_ms=5, code="v1", reason="no")
    assert note._replace(deaths=2).named_next(40) == note._replace(deaths=2, named=True)
    named = note._replace(named=True)
    assert named.named_next(40) == named


def test_deaths_before_a_record_was_named_are_no_proof_against_it() -> None:
    """Its shard was idle while replicas died of something else."""
    idle = Attempts(40, deaths=9, working=True)
    assert idle.named_next(40, deaths_max=5).deaths == CAREFUL_AFTER + 1


def test_an_end_without_a_death_drops_suspected_deaths_but_not_proven_ones() -> None:
    assert Attempts(40, deaths=2, working=True).ended() == Attempts(40)
    proven = Attempts(40, deaths=4, working=True, named=True)
    assert proven.ended() == proven._replace(working=False)


def test_naming_another_record_keeps_the_care_but_not_the_failures_of_the_last() -> None:
    note = Attempts(40, 2, 4, True, True, at_ms=5, code="v1", reason="no")
    assert note.named_next(41) == Attempts(41, 0, CAREFUL_AFTER, True, True)
    assert note._replace(deaths=1).named_next(41).deaths == 1


@pytest.mark.parametrize("deaths_max", [1, 2, 3, 5, 8])
def test_the_record_that_kills_is_given_up_after_so_many_deaths_and_no_other(
    deaths_max: int,
) -> None:
    """Replica after replica works on 40 to 44, and record 42 kills each that handles it."""
    stored, checkpoint, deaths, given_up = Attempts(), 40, 0, []
    while checkpoint < 45:
        stored = stored.begun(checkpoint)
        if stored.step(deaths_max) != 1:
            deaths += 1  # in the middle of a slice or step: nothing of it was committed
            continue
        while checkpoint < 45:
            stored = stored.named_next(checkpoint, deaths_max)
            if stored.deaths >= deaths_max:
                given_up.append(checkpoint)
            elif checkpoint == 42:
                deaths += 1
                break
            checkpoint += 1
    assert given_up == [42]
    assert deaths == deaths_max


# Bytes


def test_the_bytes_are_as_they_were_when_this_was_written() -> None:
    assert SMALL.encoded() == GOLDEN
    assert Attempts.decoded(GOLDEN) == SMALL


@given(ATTEMPTS)
def test_stored_attempts_are_read_back(attempts: Attempts) -> None:
    assert Attempts.decoded(attempts.encoded()) == attempts


@pytest.mark.parametrize("kept", range(len(GOLDEN)))
def test_bytes_that_end_too_early_are_refused(kept: int) -> None:
    with pytest.raises(BadStored, match="damaged attempts"):
        Attempts.decoded(GOLDEN[:kept])


def test_bytes_that_go_on_are_refused() -> None:
    with pytest.raises(BadStored, match="1 bytes too many"):
        Attempts.decoded(GOLDEN + b"\0")


@pytest.mark.parametrize("version", [VERSION + 1, 255])
def test_bytes_of_a_newer_version_are_refused_as_such(version: int) -> None:
    with pytest.raises(NewerFormat, match="update this one"):
        Attempts.decoded(bytes([version]) + GOLDEN[1:])
    with pytest.raises(NewerFormat):
        Attempts.decoded(bytes([version]))


@pytest.mark.parametrize(("at", "value"), [(0, 0), (1, 8), (1, 128)])
def test_a_version_or_flag_that_never_was_is_refused(at: int, value: int) -> None:
    data = bytearray(GOLDEN)
    data[at] = value
    with pytest.raises(BadStored, match="version"):
        Attempts.decoded(bytes(data))


def test_a_text_that_is_none_is_refused() -> None:
    with pytest.raises(BadStored):
        Attempts.decoded(GOLDEN[:-2] + b"\xc3\x28")


@given(ATTEMPTS, st.data())
def test_changed_bytes_are_refused_or_decode_to_exactly_themselves(
    attempts: Attempts, data: st.DataObject
) -> None:
    stored = bytearray(attempts.encoded())
    stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = Attempts.decoded(bytes(stored))
    except (BadStored, NewerFormat):
        return
    assert read.encoded() == bytes(stored)


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(BadStored, NewerFormat):
        assert Attempts.decoded(data).encoded() == data


def test_deaths_before_a_record_was_named_are_only_suspected() -> None:
    """A lane beside it may have killed the process."""
    note = Attempts(40)
    for _ in range(9):
        note = note.begun(40)
    assert note.deaths == CAREFUL_AFTER + 1
    named = note.named_next(40, deaths_max=5)
    assert named.begun(40).begun(40).deaths == CAREFUL_AFTER + 3
