"""Damage at rest is detected or harmless: no wrong record, and no death."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

import headrace
from headrace.backends.lmdb import files, stored_value
from headrace.backends.lmdb.meta_pages import HEAD_BYTES, PAGE_HEADER, metas
from headrace.testing.children import Child, seed
from tests.harness.faults import damage

IMAGES = 500
OPEN = (
    "import headrace, sys\n"
    "from headrace.backends.lmdb import tree_pages\n"
    "if sys.argv[2] == 'trusting': tree_pages.check = lambda data, transaction: True\n"
    "hub = headrace.open(sys.argv[1])\n"
    "print(len([1 for name in ('faults/single', 'faults/many') for shard in (0, 1)\n"
    "          for record in hub.stream(name).read(shard)]))\n"
)
TRANSACTION_AT = PAGE_HEADER + 4 + 4 + 8 + 8 + 48 + 48 + 8


@pytest.fixture
def made(tmp_path: Path) -> Path:
    damage.make(tmp_path / "hub")
    return tmp_path / "hub"


def _leaf(data: bytearray) -> int:
    """Where a leaf page of the tree lies that holds records."""
    for at in range(2 * 4096, len(data), 4096):
        number, _, flags = struct.unpack_from("<QHH", data, at)
        if number * 4096 == at and flags == 2 and b"single 1" in data[at : at + 4096]:
            return at
    raise AssertionError("no leaf")


@pytest.mark.slow
def test_five_hundred_damaged_copies_deliver_no_wrong_record_and_kill_no_process() -> None:
    outcome = damage.survive(IMAGES)
    sys.stdout.write(
        f"seed {seed()}: {outcome.images} images in {outcome.seconds:.0f} s, {outcome.seen}"
    )
    assert outcome.bad == []
    assert outcome.images == IMAGES
    assert outcome.seen.keys() == {"detected", "harmless"}
    assert min(outcome.seen.values()) > IMAGES / 10


@pytest.mark.slow
def test_the_damage_checker_finds_wrong_records_when_no_checksum_is_compared() -> None:
    outcome = damage.survive(IMAGES, without="checksum")
    assert outcome.seen["wrong"] > 0


def test_a_damaged_tree_page_is_refused_where_it_would_kill_the_process(made: Path) -> None:
    data = bytearray((made / "data.mdb").read_bytes())
    at = _leaf(data)
    data[at + 10] = 0x01  # now it says that it is a branch
    (made / "data.mdb").write_bytes(data)
    with Child(["-c", OPEN, str(made), "trusting"]) as child:
        assert child.ended() < 0
    with pytest.raises(headrace.Damaged, match="restore the hub from a copy"):
        headrace.open(made)


@pytest.mark.slow
def test_every_flip_in_the_number_of_an_index_page_is_refused_lest_the_last_commit_be_lost(
    made: Path,
) -> None:
    whole = (made / "data.mdb").read_bytes()
    assert all(metas(whole[:HEAD_BYTES]))
    for page in (0, 4096):
        for bit in range(64):
            data = bytearray(whole)
            data[page + TRANSACTION_AT + bit // 8] ^= 1 << bit % 8
            (made / "data.mdb").write_bytes(data)
            with pytest.raises(headrace.Damaged, match="index page"):
                headrace.open(made)


def test_a_stream_whose_stored_name_is_damaged_is_not_taken_for_unknown(made: Path) -> None:
    data = bytearray((made / "data.mdb").read_bytes())
    key = stored_value.name_key(damage.SINGLE)
    at = data.find(key)
    changed = 0
    while at >= 0:
        data[at + len(key) - 1] ^= 0x01
        changed += 1
        at = data.find(key, at + 1)
    assert changed
    (made / "data.mdb").write_bytes(data)
    with pytest.raises(headrace.Damaged):
        headrace.open(made)


def test_any_cut_of_the_file_is_refused_before_it_is_mapped(made: Path) -> None:
    whole = (made / "data.mdb").read_bytes()
    for size in range(1, len(whole), max(len(whole) // 25, 1)):
        (made / "data.mdb").write_bytes(whole[:size])
        with pytest.raises((headrace.Damaged, headrace.Refused)):
            files.check_data_file(made / "data.mdb")
    (made / "data.mdb").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(headrace.TruncatedStore, match="cut short"):
        headrace.open(made)


def test_a_whole_hub_passes_the_check_after_all_kinds_of_use(made: Path) -> None:
    with headrace.open(made) as hub:
        stream = hub.stream(damage.MANY)
        for number in range(30):
            stream.append(b"x" * (number * 300), shard=0)
        stream.trim(0, 200)
        hub.delete_stream(damage.SINGLE)
    with headrace.open(made) as hub:
        assert [info.name for info in hub.streams()] == [damage.MANY]
