"""The mirror: copies a stream into another hub, goes on after an interruption, refuses bad
targets."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import headrace
from headrace.backends.memory import MemoryBackend
from headrace.backends.opening import in_one_place
from headrace.core.capabilities import Capabilities
from headrace.core.errors import (
    BadRecord,
    BadSetting,
    DiskFull,
    Fenced,
    Refused,
    StreamExists,
    UnknownStream,
    Unsupported,
)
from headrace.core.model import Bounds, StreamInfo
from headrace.core.ports import Append, Place, Producer, ReadResult
from headrace.core.records.batch import Batch
from headrace.core.records.row import COMMIT_BYTES_MAX, Row
from headrace.hub import mirror as module
from headrace.hub.hub import Hub
from headrace.hub.mirror import Mirrored, mirror
from headrace.testing.children import Child, dice, until
from headrace.testing.contracts.backend_under_test import read_rows, some_rows
from headrace.testing.contracts.records import ODD_ROWS

NAME = "shop/orders"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Hub]:
    with headrace.open(tmp_path / "here") as hub:
        yield hub


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Hub]:
    with headrace.open(tmp_path / "there") as hub:
        yield hub


class Sparse(MemoryBackend):
    """A log whose offsets have gaps: five before the first record, and one after each record."""

    FIRST = 5

    def bounds(self, stream: StreamInfo, shard: int) -> Bounds:
        start, end = super().bounds(stream, shard)
        return Bounds(self._offset(start) if start else 0, self._offset(end))

    def read(
        self,
        stream: StreamInfo,
        shard: int,
        start: int,
        end: int | None = None,
        *,
        max_records: int,
        max_bytes: int,
    ) -> ReadResult:
        stop = self.bounds(stream, shard).end if end is None else end
        first, behind = self._record(start), self._record(stop)
        if first >= behind:
            return ReadResult((), stop)
        dense = super().read(
            stream, shard, first, behind, max_records=max_records, max_bytes=max_bytes
        )
        batches = [
            Batch.of_rows(
                batch.rows,
                stream=batch.stream,
                shard=shard,
                offsets=[self._offset(record) for record in batch.offsets],
            )
            for batch in dense.batches
        ]
        return ReadResult(batches, stop if dense.next >= behind else self._offset(dense.next))

    def _offset(self, record: int) -> int:
        return self.FIRST + 2 * record

    def _record(self, offset: int) -> int:
        return max(offset - self.FIRST + 1, 0) // 2


def _filled(hub: Hub, shards: int = 2, each: int = 50, name: str = NAME) -> StreamInfo:
    stream = hub.create_stream(name, shards=shards).info
    for shard in range(shards):
        _append(hub, stream, shard, 0, each)
    return stream


def _append(hub: Hub, stream: StreamInfo, shard: int, start: int, end: int) -> None:
    rows = [Row(b"%d" % shard, b"%d" % i, 1_000 + i) for i in range(start, end)]
    half = len(rows) // 2
    for part in (rows[:half], rows[half:]):
        if part:
            hub.log.append([Append(stream, shard, Batch.of_rows(part))])


def _rows(hub: Hub, name: str = NAME) -> list[list[Row]]:
    stream = hub.log.stream(name)
    return [list(read_rows(hub.log, stream, s.index).values()) for s in stream.shards]


def _limited(monkeypatch: pytest.MonkeyPatch, records: int) -> None:
    monkeypatch.setattr(module, "TURN_RECORDS", records)


def test_a_stream_is_copied_with_every_field_and_setting(here: Hub, there: Hub) -> None:
    stream = here.create_stream(
        NAME, shards=3, codec="json", routing="java-hash", retention="9000d", retention_bytes="1GiB"
    ).info
    now = [row._replace(timestamp=row.timestamp + 1_700_000_000_000) for row in some_rows(40)]
    here.log.append([Append(stream, 0, Batch.of_rows([*ODD_ROWS[:1], *now]))])
    here.log.append([Append(stream, 2, Batch.of_rows(now))])
    wanted = _rows(here)
    found = mirror(here, there, NAME)
    assert _rows(there) == wanted
    assert (found.records, found.complete) == (81, True)
    copy = there.log.stream(NAME)
    same = ("name", "codec", "routing", "retention_s", "retention_bytes", "shards")
    assert [getattr(copy, field) for field in same] == [getattr(stream, field) for field in same]


def test_unusual_records_are_copied_between_all_kinds_of_hubs(here: Hub, there: Hub) -> None:
    stream = here.create_stream(NAME, shards=1).info
    here.log.append([Append(stream, 0, Batch.of_rows([*ODD_ROWS, *some_rows(40)]))])
    with headrace.open("memory:") as between, headrace.open("memory:") as last:
        mirror(here, between, NAME)
        mirror(between, last, NAME)
        mirror(last, there, NAME)
    assert _rows(there) == _rows(here) == [[*ODD_ROWS, *some_rows(40)]]


def test_a_second_mirror_copies_the_records_appended_since(here: Hub, there: Hub) -> None:
    stream = _filled(here, each=50)
    assert mirror(here, there, NAME).records == 100
    assert mirror(here, there, NAME).records == 0
    _append(here, stream, 1, 50, 60)
    found = mirror(here, there, NAME)
    assert [(s.already, s.copied, s.at) for s in found.shards] == [(50, 0, 50), (50, 10, 60)]
    assert _rows(there) == _rows(here)


def test_a_mirror_ends_where_the_source_ended_when_it_began(here: Hub, there: Hub) -> None:
    stream = _filled(here, each=10)
    found = mirror(here, there, NAME, progress=lambda found: _append(here, stream, 0, 10, 15))
    assert found.records == 20
    assert mirror(here, there, NAME).records > 0


def test_shards_are_copied_in_turns(here: Hub, there: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    _filled(here, shards=3, each=60)
    _limited(monkeypatch, 10)
    seen: list[list[int]] = []
    mirror(here, there, NAME, progress=lambda found: seen.append([s.at for s in found.shards]))
    assert seen[0] == [0, 0, 0]
    assert seen[-1] == [60, 60, 60]
    assert len(seen) == 19
    assert all(max(ats) - min(ats) <= 10 for ats in seen)


def test_a_stopped_mirror_goes_on_later(
    here: Hub, there: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    _filled(here, each=60)
    _limited(monkeypatch, 10)
    turns = iter([False] * 8 + [True] * 100)
    found = mirror(here, there, NAME, stopped=lambda: next(turns))
    assert not found.complete
    assert 0 < found.records < 120
    assert sum(map(len, _rows(there))) == found.records
    assert mirror(here, there, NAME).records == 120 - found.records
    assert _rows(there) == _rows(here)


@pytest.mark.parametrize("records", [1, 7, 1_000])
def test_gaps_of_the_source_are_passed_over_and_remembered(
    there: Hub, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    _limited(monkeypatch, records)
    with Hub(in_one_place(Sparse())) as source:
        stream = _filled(source, each=20)
        assert mirror(source, there, NAME).records == 40
        assert mirror(source, there, NAME).records == 0
        _append(source, stream, 0, 20, 23)
        found = mirror(source, there, NAME)
        assert [(s.copied, s.at, s.complete) for s in found.shards] == [
            (3, 51, True),
            (0, 45, True),
        ]
        assert _rows(there) == _rows(source)


def test_a_target_with_offsets_but_no_records_is_empty(here: Hub) -> None:
    _filled(here)
    with Hub(in_one_place(Sparse())) as target:
        assert mirror(here, target, NAME).records == 100
        assert mirror(here, target, NAME).records == 0
        assert _rows(target) == _rows(here)


def test_a_target_with_other_records_is_refused(here: Hub, there: Hub) -> None:
    _filled(here, each=3)
    theirs = there.create_stream(NAME, shards=2)
    theirs.append(b"theirs", shard=1)
    with pytest.raises(Refused, match=r"shop/orders:1 of the target holds records .* --as"):
        mirror(here, there, NAME)
    assert sum(map(len, _rows(there))) == 1
    assert mirror(here, there, NAME, as_name="shop/copy").target == "shop/copy"
    assert _rows(there, "shop/copy") == _rows(here)
    with headrace.open("memory:") as other:
        _filled(other, each=3)
        with pytest.raises(Refused, match="shop/copy:0 of the target holds records"):
            mirror(other, there, NAME, as_name="shop/copy")


def test_a_stream_created_again_is_another_source(here: Hub, there: Hub) -> None:
    _filled(here, each=3)
    mirror(here, there, NAME)
    here.delete_stream(NAME)
    _filled(here, each=3)
    with pytest.raises(Refused, match="not known to be copied from shop/orders"):
        mirror(here, there, NAME)
    there.delete_stream(NAME)
    assert mirror(here, there, NAME).records == 6


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"shards": 3}, "with shards 3, and its source has 2"),
        ({"shards": 2, "codec": "json"}, "with codec json, and its source has bytes"),
        ({"shards": 2, "routing": "murmur2"}, "with routing murmur2, and its source has md5-range"),
    ],
)
def test_a_target_that_differs_is_refused(
    here: Hub, there: Hub, settings: dict[str, int], says: str
) -> None:
    _filled(here)
    there.create_stream(NAME, **settings)  # type: ignore[arg-type]
    with pytest.raises(StreamExists, match=says):
        mirror(here, there, NAME)


def test_a_target_with_another_retention_is_accepted(here: Hub, there: Hub) -> None:
    _filled(here)
    there.create_stream(NAME, shards=2, retention_bytes="1GiB")
    assert mirror(here, there, NAME).complete


def test_records_trimmed_before_they_were_copied_are_reported(here: Hub, there: Hub) -> None:
    stream = _filled(here, shards=1, each=10)
    mirror(here, there, NAME)
    _append(here, stream, 0, 10, 30)
    here.stream(NAME).trim(0, 25)
    with pytest.raises(Refused, match=r"shop/orders:0: 15 offsets from 10 on .* --skip-missing"):
        mirror(here, there, NAME)
    found = mirror(here, there, NAME, skip_missing=True)
    assert [(s.copied, s.missing) for s in found.shards] == [(5, 15)]
    (rows,) = _rows(there)
    assert [int(row.data or b"") for row in rows] == [*range(10), *range(25, 30)]
    again = mirror(here, there, NAME)
    assert (again.records, again.complete, again.shards[0].missing) == (0, True, 0)


def test_a_source_that_was_trimmed_entirely_is_reported(here: Hub, there: Hub) -> None:
    stream = _filled(here, shards=1, each=10)
    mirror(here, there, NAME)
    _append(here, stream, 0, 10, 12)
    here.stream(NAME).trim(0, 12)
    with pytest.raises(Refused, match="2 offsets from 10 on"):
        mirror(here, there, NAME)
    assert mirror(here, there, NAME, skip_missing=True).shards[0].missing == 2


def test_records_trimmed_before_the_first_copy_are_not_missing(here: Hub, there: Hub) -> None:
    _filled(here, shards=1, each=10)
    here.stream(NAME).trim(0, 4)
    found = mirror(here, there, NAME)
    assert (found.records, found.shards[0].missing, found.shards[0].at) == (6, 0, 10)


def test_records_trimmed_after_they_were_copied_are_not_missing(here: Hub, there: Hub) -> None:
    stream = _filled(here, shards=1, each=10)
    mirror(here, there, NAME)
    here.stream(NAME).trim(0, 10)
    _append(here, stream, 0, 10, 12)
    found = mirror(here, there, NAME)
    assert [(s.already, s.copied, s.missing) for s in found.shards] == [(0, 2, 0)]


def test_a_source_that_went_back_is_refused(there: Hub) -> None:
    newer, older = MemoryBackend(), MemoryBackend()
    older.identity = newer.identity
    with Hub(in_one_place(newer)) as source, Hub(in_one_place(older)) as restored:
        _filled(source, shards=1, each=10)
        _filled(restored, shards=1, each=7)
        mirror(source, there, NAME)
        for follow in (False, True):
            with pytest.raises(Refused, match="copied up to offset 10 and ends at 7 now"):
                mirror(restored, there, NAME, follow=follow)


def test_a_following_mirror_copies_new_records(here: Hub, there: Hub) -> None:
    stream = _filled(here, each=10)
    end = threading.Event()
    told: list[int] = []

    def follow() -> Mirrored:
        return mirror(
            here,
            there,
            NAME,
            follow=True,
            stopped=end.is_set,
            progress=lambda found: told.append(found.records),
        )

    found: list[Mirrored] = []
    thread = threading.Thread(target=lambda: found.append(follow()))
    thread.start()
    until(lambda: told and told[-1] == 20, "the present records are copied", 20)
    _append(here, stream, 1, 10, 15)
    until(lambda: told[-1] == 25, "a new record is copied", 20)
    _append(here, stream, 1, 15, 40)
    until(lambda: told[-1] == 50, "a later record is copied too", 20)
    end.set()
    thread.join(20)
    assert found[0].complete
    assert _rows(there) == _rows(here)


def test_of_two_mirrors_at_once_one_is_fenced_and_nothing_is_doubled(
    here: Hub, there: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    _filled(here, each=60)
    _limited(monkeypatch, 10)

    def meanwhile(found: Mirrored) -> None:
        if found.records == 30:
            assert mirror(here, there, NAME).records == 90

    with pytest.raises(
        Fenced, match="another mirror copied the same stream there meanwhile"
    ) as fenced:
        mirror(here, there, NAME, progress=meanwhile)
    assert "grant" not in str(fenced.value)
    assert "group" not in str(fenced.value)
    assert mirror(here, there, NAME).records == 0
    assert _rows(there) == _rows(here)


def test_a_record_that_is_too_large_is_named(there: Hub) -> None:
    class Large(Sparse):
        def read(self, *arguments: object, **limits: object) -> ReadResult:
            reading = super().read(*arguments, **limits)  # type: ignore[arg-type]
            large = [row._replace(data=bytes(COMMIT_BYTES_MAX)) for row in reading.batches[0].rows]
            offsets = reading.batches[0].offsets
            batch = Batch.of_rows(large, stream=NAME, shard=0, offsets=offsets)
            return ReadResult([batch], reading.next)

    with Hub(in_one_place(Large())) as source:
        stream = source.create_stream(NAME, shards=1).info
        source.log.append([Append(stream, 0, Batch.of_rows(some_rows(1)))])
        with pytest.raises(BadRecord, match=r"the record shop/orders:0\+5 has 4.0 MiB"):
            mirror(source, there, NAME)
    assert _rows(there) == [[]]


def test_a_read_larger_than_one_commit_becomes_several(
    here: Hub, there: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = here.create_stream(NAME, shards=1).info
    for _ in range(4):
        rows = [Row(None, bytes([i]) * 900_000, 1) for i in range(4)]
        here.log.append([Append(stream, 0, Batch.of_rows(rows))])
    monkeypatch.setattr(module, "TURN_BYTES", 100 * COMMIT_BYTES_MAX)
    assert mirror(here, there, NAME).records == 16
    assert _rows(there) == _rows(here)


@pytest.mark.parametrize("kind", [MemoryBackend, Sparse])
def test_a_mirror_ended_between_commits_of_one_read_goes_on_there(
    kind: type[MemoryBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ending(MemoryBackend):
        left = 2

        def append(self, parts: Sequence[Append], producer: Producer | None = None) -> list[Place]:
            if not self.left:
                raise DiskFull("no room")
            self.left -= 1
            return super().append(parts, producer)

    monkeypatch.setattr(module, "TURN_BYTES", 100 * COMMIT_BYTES_MAX)
    with Hub(in_one_place(kind())) as source, Hub(in_one_place(Ending())) as target:
        stream = source.create_stream(NAME, shards=1).info
        for start in range(0, 16, 4):
            rows = [Row(None, bytes([i]) * 900_000, 1) for i in range(start, start + 4)]
            source.log.append([Append(stream, 0, Batch.of_rows(rows))])
        with pytest.raises(DiskFull):
            mirror(source, target, NAME)
        assert 0 < len(_rows(target)[0]) < 16
        target.log.left = 100  # type: ignore[attr-defined]
        mirror(source, target, NAME)
        assert _rows(target) == _rows(source)


def test_a_stream_is_not_copied_onto_itself(here: Hub, tmp_path: Path) -> None:
    _filled(here)
    with headrace.open(tmp_path / "here") as again:
        with pytest.raises(BadSetting, match="copied onto itself"):
            mirror(here, again, NAME)
        assert mirror(here, again, NAME, as_name="shop/copy").records == 100
    assert _rows(here, "shop/copy") == _rows(here)


def test_a_missing_source_stream_is_not_created_in_the_target(here: Hub, there: Hub) -> None:
    with pytest.raises(UnknownStream, match="shop/orders"):
        mirror(here, there, NAME)
    assert there.streams() == []


def test_a_target_without_copying_is_refused_before_a_stream_is_created(here: Hub) -> None:
    class Unmarked(MemoryBackend):
        capabilities = Capabilities("unmarked", {"copying": "it remembers nothing"})

    _filled(here)
    with Hub(in_one_place(Unmarked())) as target:
        with pytest.raises(Unsupported, match="offer 'copying': it remembers nothing"):
            mirror(here, target, NAME)
        assert target.streams() == []


# Killed

BIG = 12_000


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """A hub with records for a dozen commits."""
    with headrace.open(tmp_path / "source") as hub:
        stream = hub.create_stream(NAME, shards=2)
        for shard in range(2):
            for start in range(0, BIG, 2_000):
                pairs = [(b"%d " % i + bytes(1_000), None) for i in range(start, start + 2_000)]
                stream.append_many(pairs, shard=shard)
    return tmp_path / "source"


def _mirroring(source: Path, target: Path, fail: str = "") -> Child:
    return Child(["-m", "headrace", "mirror", str(source), str(target), NAME], fail=fail)


def _copied(target: Path) -> list[list[int]]:
    with headrace.open(target) as hub:
        return [[int((row.data or b"").split()[0]) for row in rows] for rows in _rows(hub)]


@pytest.mark.slow
def test_a_mirror_killed_at_a_fail_point_neither_doubles_nor_loses(
    big: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    chance = dice("killed mirrors")
    killed = 0
    for point in ("write.locked", "write.before-commit", "write.after-commit") * 3:
        fail = f"{point}:kill@{chance.randint(1, 4)}"
        with _mirroring(big, target, fail) as child:
            killed += child.ended() < 0
    assert killed >= 3
    with _mirroring(big, target) as child:
        child.output()
    assert _copied(target) == [list(range(BIG))] * 2


@pytest.mark.slow
def test_a_mirror_killed_at_any_time_neither_doubles_nor_loses(big: Path, tmp_path: Path) -> None:
    chance = dice("mirrors killed at any time")
    target = tmp_path / "target"

    with headrace.open(target) as hub:
        for _ in range(8):
            seen = hub.log.changes()
            with _mirroring(big, target) as child:
                until(lambda: hub.log.changes() != seen or child.process.poll() == 0, "it wrote")  # noqa: B023
                time.sleep(chance.uniform(0, 0.2))
                child.kill()
    with _mirroring(big, target) as child:
        child.output()
    assert _copied(target) == [list(range(BIG))] * 2


@pytest.mark.slow
def test_a_suspended_mirror_that_was_overtaken_is_fenced(big: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with _mirroring(big, target, "write.acknowledged:stop@4") as child:
        until(child.stopped, "the mirror has suspended itself")
        with _mirroring(big, target) as other:
            other.output()
        os.kill(child.pid, signal.SIGCONT)
        assert child.ended() == 2
        assert child.process.stderr is not None
        assert (
            "another mirror copied the same stream there meanwhile" in child.process.stderr.read()
        )
    assert _copied(target) == [list(range(BIG))] * 2
