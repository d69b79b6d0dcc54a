"""The figures that follow from the evidence of members."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path

import pytest

from headrace.tools.bench import evidence
from headrace.tools.bench.evidence import ENTRY, Doubles, Handled, Window

MS = 1_000_000


def handled(*told: tuple[int, int, str], shard: int = 0) -> list[Handled]:
    """Entries from offset, milliseconds and member; each was appended a millisecond before."""
    return [Handled(shard, offset, (at - 1) * MS, at * MS, member) for offset, at, member in told]


def steady(start: int, offsets: Iterable[int], member: str, *, shard: int = 0) -> list[Handled]:
    """One entry every 5 ms from a time on."""
    told = ((offset, start + 5 * turn, member) for turn, offset in enumerate(offsets))
    return handled(*told, shard=shard)


def window(kind: str, start: int, end: int, member: str = "") -> Window:
    return Window(kind, start * MS, end * MS, member)  # type: ignore[arg-type]


def test_evidence_is_read_on_from_where_reading_ended(tmp_path: Path) -> None:
    file = tmp_path / "ann.handled"
    file.write_bytes(ENTRY.pack(3, 7, 10, 20))
    first, at = evidence.written(file, "ann")
    assert first == [Handled(3, 7, 10, 20, "ann")]
    with file.open("ab") as more:
        more.write(ENTRY.pack(3, 8, 11, 21) + ENTRY.pack(3, 9, 12, 22)[:-1])  # killed in between
    second, at = evidence.written(file, "ann", at)
    assert second == [Handled(3, 8, 11, 21, "ann")]
    assert at == 2 * ENTRY.size


def test_a_value_has_the_time_of_its_append() -> None:
    assert evidence.stamped_ns(evidence.stamp(123_456_789)) == 123_456_789
    assert len(evidence.stamp(1)) == evidence.VALUE_BYTES


def test_entries_are_grouped_by_shard_in_the_order_of_handling() -> None:
    mixed = [*handled((1, 9, "bob"), (0, 4, "ann")), *handled((0, 2, "ann"), shard=1)]
    assert evidence.by_shard(mixed) == {
        0: handled((0, 4, "ann"), (1, 9, "bob")),
        1: handled((0, 2, "ann"), shard=1),
    }


@pytest.mark.parametrize(
    ("start", "end", "pause"),
    [
        (0, 100, 40.0),
        (0, 35, 10.0),
        (20, 45, 40.0),  # it ends after the window
        (50, 60, 40.0),  # nothing was handled inside the window
        (80, 100, 20.0),  # it began before the window
        (101, 200, None),
    ],
)
def test_the_longest_pause_that_touches_a_window_counts(
    start: int, end: int, pause: float | None
) -> None:
    one = handled((0, 20, "ann"), (1, 30, "ann"), (2, 40, "ann"), (3, 80, "ann"), (4, 100, "ann"))
    assert evidence.pause_ms(one, window("calm", start, end), inf) == pause


def test_a_pause_counts_only_up_to_the_next_kill() -> None:
    moved = [*steady(0, range(20), "ann"), *steady(600, range(20, 60), "bob")]
    windows = [window("calm", 50, 97), window("kill", 98, 150, "ann")]
    found = evidence.figures(moved, windows, {0: 60})
    assert found["unmoved_gap_ms_p99_calm"] == 5.0
    assert found["kill_gap_ms_p99"] == 502.0


def test_a_record_handled_again_is_put_down_to_a_kill_only_after_its_first_handler_died() -> None:
    by_ann_then_bob = handled((0, 10, "ann"), (1, 20, "ann"), (1, 90, "bob"), (2, 91, "bob"))
    assert evidence.doubles(by_ann_then_bob, {"ann": 50 * MS}) == Doubles(0, 1)
    assert evidence.doubles(by_ann_then_bob, {"bob": 95 * MS}) == Doubles(1, 0)
    assert evidence.doubles(by_ann_then_bob, {"ann": 95 * MS}) == Doubles(1, 0)
    assert evidence.doubles(by_ann_then_bob, {}) == Doubles(1, 0)


@pytest.mark.parametrize(
    ("offsets", "wrong"),
    [
        ([0, 1, 2, 3], 0),
        ([0, 1, 2, 1, 2, 3], 0),
        ([0, 2, 1, 3], 3),
        ([1, 2], 1),
    ],
)
def test_new_records_out_of_order_are_counted(offsets: Sequence[int], wrong: int) -> None:
    one = handled(*((offset, at, "ann") for at, offset in enumerate(offsets)))
    assert evidence.out_of_order(one) == wrong


def test_a_whole_run_is_judged() -> None:
    moved = [
        *steady(0, range(206), "ann"),
        *steady(1060, range(206, 440), "bob"),
        *steady(2700, range(430, 600), "ann"),
    ]
    stayed = [one for one in steady(0, range(600), "cem", shard=1) if one.offset != 210]
    windows = [
        window("calm", 500, 900),
        window("join", 1000, 1400, "bob"),
        window("kill", 2226, 2626, "bob"),
    ]
    found = evidence.figures(moved + stayed, windows, {0: 600, 1: 600})
    assert (found["joins"], found["leaves"], found["kills"]) == (1, 0, 1)
    assert found["records"] == 1200
    assert found["unmoved_gap_ms_p99_calm"] == 5.0
    assert found["unmoved_gap_ms_p99"] == 10.0  # around the lost record
    assert found["join_gap_ms_p99"] == found["moved_gap_ms_p99"] == 35.0
    assert found["leave_gap_ms_p99"] is None
    assert found["kill_gap_ms_p99"] == 474.0
    assert found["wait_ms_p50_calm"] == 1.0
    assert found["doubles_on_clean_moves"] == 0
    assert found["doubles_after_kills"] == 10
    assert found["lost"] == 1
    assert found["out_of_order"] == 1


def test_a_shard_that_moved_counts_neither_as_calm_nor_as_unmoved() -> None:
    moved = [*steady(0, range(20), "ann"), *steady(150, range(30, 60), "bob")]
    found = evidence.figures(moved, [window("leave", 90, 120, "ann")], {0: 60})
    assert found["unmoved_gap_ms_p99"] is None
    assert found["leave_gap_ms_p99"] == 55.0
    assert found["lost"] == 10


def test_a_shard_that_a_kill_took_from_a_living_member_counts_as_a_clean_move() -> None:
    moved = [*steady(0, range(20), "ann"), *steady(120, range(20, 60), "bob")]
    found = evidence.figures(moved, [window("kill", 90, 150, "cem")], {0: 60})
    assert found["kill_gap_ms_p99"] is None
    assert found["moved_gap_ms_p99"] == 25.0
