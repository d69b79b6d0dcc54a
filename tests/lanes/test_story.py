"""What the story of a commit remembers of its records."""

from __future__ import annotations

import pytest

from headrace.core.errors import BadStored
from headrace.lanes.story import (
    TRIED_MAX,
    RecordOutcome,
    Story,
    Tried,
    decoded,
    encoded,
    tried_runs,
)


def _story(*tried: Tried, skipped: int = 0, dead_letters: int = 0, together: bool = False) -> Story:
    return Story(0, 1_000, 4, "till", 1, 17, 0.5, 0, skipped, dead_letters, tuple(tried), together)


def test_a_story_reads_back() -> None:
    story = _story(Tried(3, 5, 2, "skipped"), Tried(7, 8, 1, "done"), skipped=2)
    assert decoded(encoded(story)) == story


def test_a_story_without_trouble_stays_small() -> None:
    assert len(encoded(Story(0, 1_000, 4, "till", 1, 1_769_846_400_120, 0.5))) < 90


def test_a_story_of_a_newer_writer_with_more_fields_is_read() -> None:
    import msgspec

    more = {**msgspec.to_builtins(_story()), "weather": "fine"}
    assert decoded(msgspec.msgpack.encode(more)) == _story()


@pytest.mark.parametrize("data", [b"told", b"", b"\x80"])
def test_what_is_no_story_is_refused(data: bytes) -> None:
    with pytest.raises(BadStored, match="a story that cannot be read"):
        decoded(data)


def test_neighbours_with_equal_tries_are_one_run() -> None:
    tries: dict[int, tuple[int, RecordOutcome]] = {
        2: (1, "skipped"),
        3: (1, "skipped"),
        4: (2, "skipped"),
        6: (2, "skipped"),
        7: (2, "done"),
    }
    assert tried_runs(tries, 0, 10) == (
        Tried(2, 4, 1, "skipped"),
        Tried(4, 5, 2, "skipped"),
        Tried(6, 7, 2, "skipped"),
        Tried(7, 8, 2, "done"),
    )


def test_only_what_the_commit_passed_is_told() -> None:
    tries: dict[int, tuple[int, RecordOutcome]] = dict.fromkeys(range(10), (1, "skipped"))
    assert tried_runs(tries, 3, 5) == (Tried(3, 5, 1, "skipped"),)


def test_a_story_has_room_for_so_many_runs_and_no_more() -> None:
    tries: dict[int, tuple[int, RecordOutcome]] = {2 * n: (1, "skipped") for n in range(999)}
    runs = tried_runs(tries, 0, 10_000)
    assert len(runs) == TRIED_MAX
    story = _story(*runs, skipped=999)
    assert story.outcome_of(0) == "skipped"
    assert story.outcome_of(1) is None
    assert story.outcome_of(2 * TRIED_MAX) is None


def test_the_outcome_of_a_record_is_known_by_its_offset() -> None:
    runs = Tried(3, 5, 2, "dead-letter"), Tried(7, 8, 1, "done")
    story = _story(*runs, dead_letters=2)
    assert [story.outcome_of(n) for n in (2, 3, 4, 5, 7)] == [
        "done", "dead-letter", "dead-letter", "done", "done",
    ]  # fmt: skip


def test_an_attempt_that_went_well_counts_too() -> None:
    story = _story(Tried(3, 5, 2, "dead-letter"), Tried(7, 8, 2, "done"), dead_letters=2)
    assert [story.attempts_in(n, n + 1) for n in (2, 3, 7)] == [1, 2, 3]
    assert story.attempts_in(0, 7) == 2
    assert story.attempts_in(0, 9) == 3


def test_records_that_were_handled_together_share_their_attempts() -> None:
    story = _story(Tried(0, 1, 1, "done"), together=True)
    assert story.attempts_in(5, 6) == 2
