"""The files of a hub directory, looked at before LMDB maps them: what is not right is refused,
never mapped."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

from penstock.core.errors import ForeignStore, NetworkFilesystem, NoHub, TruncatedStore
from penstock.core.quantities import shown_size

DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
"""Nobody but LMDB opens this file: closing it would drop LMDB's own locks on it."""

HOLDER_FILE = "writer"
PACKER_FILE = "packer"

_OURS = {DATA_FILE, LOCK_FILE, HOLDER_FILE, PACKER_FILE, "staged", "members"}

_REMOTE = {
    "9p", "afs", "beegfs", "ceph", "cifs", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "orangefs", "smb2", "smb3", "smbfs", "virtiofs",
}  # fmt: skip

_LMDB_MAGIC = 0xBEEFC0DE
_META = struct.Struct("<IIQQ48s48sQQ")
"""Of LMDB 0.9 on 64 bits: magic, version, address, map size, two tables, last page, transaction."""

_PAGE_HEADER = 16


class Meta(NamedTuple):
    page_bytes: int
    last_page: int
    transaction: int


def prepare(directory: Path, *, create: bool, any_filesystem: bool) -> None:
    """Make sure the directory is, or can become, a hub; make it if asked to."""
    if not directory.exists():
        if not create:
            raise NoHub(f"no hub at {directory}: create a stream there first, or check --hub")
        # mode 0700 whatever the umask: the records are nobody else's business
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not directory.is_dir():
        raise ForeignStore(f"{directory} is a file: a hub is a directory")
    if not any_filesystem:
        _refuse_network(directory)
    data = directory / DATA_FILE
    if not data.exists():
        foreign = sorted(
            p.name for p in directory.iterdir() if p.name not in _OURS and p.name[0] != "."
        )
        if foreign:
            raise ForeignStore(
                f"{directory} holds other things ({', '.join(foreign[:3])}) and no hub: name an "
                "empty or new directory"
            )
        if not create:
            raise NoHub(f"no hub at {directory}: create a stream there first, or check --hub")
        return
    check_data_file(data)


def check_data_file(data: Path) -> None:
    """Refuse a file that is not LMDB's, or shorter than its own index says: touching that would
    kill the process."""
    size = data.stat().st_size
    if size == 0:  # another process is about to write the first pages
        return
    meta = newest_meta(data)
    if meta is None:
        raise ForeignStore(
            f"{data} is not a file of this kind: it was overwritten, or is another program's"
        )
    needed = (meta.last_page + 1) * meta.page_bytes
    if size < needed:
        raise TruncatedStore(
            f"{data} was cut short: {shown_size(size)} of {shown_size(needed)}; restore it from "
            "a copy"
        )


def newest_meta(data: Path) -> Meta | None:
    """The newer of the two index pages; None if neither is one."""
    with data.open("rb") as file:
        head = file.read(_PAGE_HEADER + _META.size)
        first = _meta(head)
        page_bytes = first.page_bytes if first else 4096
        file.seek(page_bytes)
        second = _meta(file.read(_PAGE_HEADER + _META.size))
    found = [meta for meta in (first, second) if meta]
    return max(found, key=lambda meta: meta.transaction, default=None)


def _meta(page: bytes) -> Meta | None:
    if len(page) < _PAGE_HEADER + _META.size:
        return None
    magic, version, _, _, free_table, _, last_page, transaction = _META.unpack_from(
        page, _PAGE_HEADER
    )
    page_bytes = int.from_bytes(free_table[:4], "little")
    plausible = 512 <= page_bytes <= 65536 and page_bytes & (page_bytes - 1) == 0
    if magic != _LMDB_MAGIC or version != 1 or not plausible:
        return None
    return Meta(page_bytes, last_page, transaction)


def _refuse_network(directory: Path) -> None:
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:  # no Linux: nothing to go by
        return
    kind = filesystem_of(os.path.realpath(directory), mounts)
    if is_remote(kind):
        raise NetworkFilesystem(
            f"{directory} is on a network file system ({kind}), where memory-mapped files lose "
            "data: "
            "use a local disk, or Kafka for several machines"
        )


def is_remote(kind: str) -> bool:
    return kind in _REMOTE or kind == "fuse" or kind.startswith("fuse.")


def filesystem_of(path: str, mounts: str) -> str:
    """The kind of file system that holds a path, by the text of ``/proc/self/mountinfo``."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        at = fields[4].encode().decode("unicode_escape")
        inside = path == at or path.startswith(at.rstrip("/") + "/")
        if inside and len(at) >= best:
            best, kind = len(at), right.split()[0]
    return kind
