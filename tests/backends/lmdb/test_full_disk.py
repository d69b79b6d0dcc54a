"""A full disk refuses writes, keeps what it acknowledged, goes on reading, and takes writes again
when there is room."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import headrace
from headrace.backends.lmdb.backend import LmdbBackend
from headrace.backends.opening import in_one_place
from headrace.testing.children import Child, until

DISK_BYTES = 2 * 2**20


class Disk(NamedTuple):
    hub: Path
    fill: Callable[[], None]
    free: Callable[[], None]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A small disk of its own; where mounting is forbidden, a limit on the size of files."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode == 0:
        ballast = place / "ballast"
        try:
            yield Disk(place / "hub", lambda: _fill(ballast), ballast.unlink)
        finally:
            subprocess.run(["umount", "-l", str(place)], check=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit() -> None:
        size = (place / "hub" / "data.mdb").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    def lift() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    try:
        yield Disk(place / "hub", limit, lift)
    finally:
        lift()


def _fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        for nbytes in (2**16, 4096, 1):
            try:
                while file.write(b"\0" * nbytes) == nbytes:
                    pass
            except OSError:
                continue


def test_a_full_disk_loses_nothing_and_takes_writes_again_when_there_is_room(disk: Disk) -> None:
    with headrace.open(disk.hub) as hub:
        stream = hub.create_stream("a", shards=1)
        acknowledged = [stream.append(b"%d" % n * 100).offset for n in range(20)]
        disk.fill()
        refused = 0
        for number in range(40):
            try:
                acknowledged.append(stream.append(b"%d" % number * 2_000).offset)
            except (headrace.DiskFull, headrace.NotDurable):
                refused += 1
        assert refused > 0
        assert [record.offset for record in stream.read(0)] == acknowledged
        disk.free()
        acknowledged.append(stream.append(b"room again" * 1_000).offset)
        assert [record.offset for record in stream.read(0)] == acknowledged
    with headrace.open(disk.hub) as hub:
        assert [record.offset for record in hub.stream("a").read(0)] == acknowledged


def test_a_hub_on_a_full_disk_can_be_opened_and_read(disk: Disk) -> None:
    with headrace.open(disk.hub) as hub:
        hub.create_stream("a", shards=1).append(b"1")
    (disk.hub / "writer").unlink()
    disk.fill()
    with headrace.open(disk.hub) as hub:
        assert [record.data for record in hub.stream("a").read(0)] == [b"1"]
        stream = hub.stream("a")
        with pytest.raises((headrace.DiskFull, headrace.NotDurable)):
            stream.append_many([(b"x" * 100_000, None)] * 20, shard=0)
    disk.free()


@pytest.mark.parametrize(
    ("action", "error"), [("enospc", headrace.DiskFull), ("eio", headrace.NotDurable)]
)
def test_an_error_before_the_commit_writes_nothing_and_the_next_append_works(
    tmp_path: Path, arm: Callable[[str], None], action: str, error: type[Exception]
) -> None:
    with headrace.open(tmp_path / "hub") as hub:
        stream = hub.create_stream("a", shards=1)
        arm(f"write.before-commit:{action}@1")
        with pytest.raises(error, match="reading goes on"):
            stream.append(b"no")
        assert list(stream.read(0)) == []
        assert stream.append(b"yes").offset == 0


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
static int asked(const char *what) {
    char path[4096];
    const char *place = getenv("SHIM");
    if (!place) return 0;
    strcpy(path, place); strcat(path, "/"); strcat(path, what);
    return access(path, F_OK) == 0;
}
int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
    if (asked("sync")) { errno = EIO; return -1; }
    return real(fd);
}
static ssize_t put(const char *name, int fd, const void *buf, size_t n, off_t at) {
    ssize_t (*real)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, name);
    if (n < 512 && at < 8192 && asked("meta")) { errno = EIO; return -1; }
    return real(fd, buf, n, at);
}
ssize_t pwrite(int fd, const void *b, size_t n, off_t at) { return put("pwrite", fd, b, n, at); }
ssize_t pwrite64(int fd, const void *b, size_t n, off_t at) {
    return put("pwrite64", fd, b, n, at);
}
"""

FAILING = (
    "import headrace, sys\n"
    "from pathlib import Path\n"
    "hub = headrace.open(sys.argv[1])\n"
    "stream = hub.create_stream('a', shards=1)\n"
    "stream.append(b'0', producer='p', producer_seq=0)\n"
    "flag = Path(sys.argv[2]); flag.touch()\n"
    "try:\n"
    "    stream.append(b'1', producer='p', producer_seq=1)\n"
    "    print('acknowledged')\n"
    "except headrace.HeadraceError as why:\n"
    "    print(type(why).__name__)\n"
    "flag.unlink()\n"
    "read = lambda: ' '.join(record.data.decode() for record in stream.read(0))\n"
    "before = read()\n"
    "print(stream.append(b'1', producer='p', producer_seq=1).offset, flush=True)\n"
    "print(read())\n"
    "assert before in ('0', '0 1'), before\n"
)


@pytest.fixture
def shim(tmp_path: Path) -> Path | None:
    """A library that makes calls fail; None where nothing can be compiled."""
    source, library = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(SHIM)
    command = ["gcc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return library


@pytest.mark.parametrize(("call", "error"), [("sync", "NotDurable"), ("meta", "UnknownOutcome")])
def test_a_failed_flush_or_index_write_is_told_and_the_hub_goes_on_by_itself(
    tmp_path: Path, shim: Path | None, call: str, error: str
) -> None:
    extra = {"LD_PRELOAD": str(shim), "SHIM": str(tmp_path)} if shim else {}
    fail = "" if shim else "write.before-commit:eio@3"
    told = error if shim else "NotDurable"
    arguments = ["-c", FAILING, str(tmp_path / "hub"), str(tmp_path / call)]
    with Child(arguments, fail=fail, extra=extra) as child:
        assert child.output().split("\n")[:3] == [told, "1", "0 1"]


def test_an_environment_that_cannot_be_opened_again_at_once_is_by_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = LmdbBackend(tmp_path / "hub", maintain=False)
    hub = headrace.Hub(in_one_place(backend))
    stream = hub.create_stream("a", shards=1)
    stream.append(b"0")
    environment = backend._environment
    monkeypatch.setattr(environment, "_open_files", _failing)
    with pytest.raises(OSError, match="still broken"):
        environment.reopen()
    with pytest.raises(headrace.HeadraceError):
        list(stream.read(0))
    monkeypatch.undo()
    assert stream.append(b"1").offset == 1
    assert len(list(stream.read(0))) == 2
    hub.close()
    until(lambda: environment._closed, "the environment is closed")


def _failing() -> None:
    raise OSError("still broken")
