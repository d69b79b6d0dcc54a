"""Files deleted or replaced under a running process: writes stop at once, reads within seconds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import headrace
from headrace.testing.children import Child, until

LATE = (
    "import headrace, sys\n"
    "stream = headrace.open(sys.argv[1]).stream('a')\n"
    "try:\n"
    "    stream.append(b'late')\n"
    "    print('written')\n"
    "except headrace.StoreGone:\n"
    "    print('gone')\n"
)


def _delete(directory: Path) -> None:
    shutil.rmtree(directory)


def _replace(directory: Path) -> None:
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    shutil.rmtree(directory)
    copy.rename(directory)


def _delete_lock_file(directory: Path) -> None:
    (directory / "lock.mdb").unlink()


@pytest.mark.slow
@pytest.mark.parametrize("vanish", [_delete, _replace, _delete_lock_file])
def test_a_hub_that_is_gone_refuses_writes_at_once_and_reads_soon(
    tmp_path: Path, vanish: Callable[[Path], None]
) -> None:
    hub = headrace.open(tmp_path / "hub")
    stream = hub.create_stream("a", shards=1)
    stream.append(b"1")
    vanish(tmp_path / "hub")
    with pytest.raises(headrace.StoreGone, match="deleted or replaced"):
        stream.append(b"2")

    def refused() -> bool:
        try:
            list(stream.read(0))
        except headrace.StoreGone:
            return True
        return False

    until(refused, "reading is refused", within_s=5)
    hub.close()


def test_a_replaced_hub_opens_again_in_the_same_process_beside_the_old_handle(
    tmp_path: Path,
) -> None:
    old = headrace.open(tmp_path / "hub")
    old.create_stream("a", shards=1).append(b"1")
    _replace(tmp_path / "hub")
    new = headrace.open(tmp_path / "hub")
    new.stream("a").append(b"2")
    with pytest.raises(headrace.HeadraceError):
        old.stream("a")
    old.close()
    third = headrace.open(tmp_path / "hub")
    third.stream("a").append(b"3")
    assert [record.data for record in new.stream("a").read(0)] == [b"1", b"2", b"3"]
    third.close()
    new.close()


def test_two_processes_with_different_lock_files_never_both_write(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "hub") as hub:
        hub.create_stream("a", shards=1)
    with Child(["-c", LATE, str(tmp_path / "hub")], fail="write.locked:stop@1") as late:
        until(late.stopped, "the first process holds the lock")
        _delete_lock_file(tmp_path / "hub")
        with headrace.open(tmp_path / "hub") as hub:
            hub.stream("a").append(b"mine")
            late.process.send_signal(18)
            assert late.line() == "gone"
            assert [record.data for record in hub.stream("a").read(0)] == [b"mine"]
