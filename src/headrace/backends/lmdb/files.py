"""The files of a hub directory, checked before LMDB maps them: a wrong file is refused, never
mapped."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from headrace.backends.lmdb.meta_pages import HEAD_BYTES, disagreement, metas, newest
from headrace.core.errors import (
    BadStored,
    ForeignStore,
    NetworkFilesystem,
    NoHub,
    TruncatedStore,
)
from headrace.core.quantities import shown_size

DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
"""Only LMDB may open this file: closing it would drop LMDB's own locks on it."""

HOLDER_FILE = "writer"
PACKER_FILE = "packer"
MEMBERS = "members"
"""The directory of signs of life."""

_OURS = {DATA_FILE, LOCK_FILE, HOLDER_FILE, PACKER_FILE, "staged", MEMBERS}

MOUNTS = Path("/proc/self/mountinfo")

_REMOTE = {
    "9p", "afs", "beegfs", "ceph", "cifs", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs",
    "nfs", "nfs4", "orangefs", "smb2", "smb3", "smbfs", "virtiofs",
}  # fmt: skip

_LOOKS = 10
_LOOK_AGAIN_S = 0.01
"""How long to wait before a file that looks wrong is looked at again: another process may be
writing its first pages."""

_OCTAL = re.compile(r"\\([0-7]{3})")


def prepare(directory: Path, *, create: bool, any_filesystem: bool) -> None:
    """Make sure that the directory is a hub or can become one. With ``create`` it is made."""
    try:
        _prepare(directory, create=create, any_filesystem=any_filesystem)
    except OSError as why:
        raise ForeignStore(f"{directory} cannot be used as a hub: {why}") from None


def _prepare(directory: Path, *, create: bool, any_filesystem: bool) -> None:
    if not directory.exists():
        if not create:
            raise NoHub(f"no hub at {directory}: create a stream there first, or check --hub")
        # Mode 0700 whatever the umask is: other users must not read the records.
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
                f"{directory} holds other files ({', '.join(foreign[:3])}) and no hub: name an "
                "empty or new directory"
            )
        if not create:
            raise NoHub(f"no hub at {directory}: create a stream there first, or check --hub")
        return
    check_data_file(data)


def check_data_file(data: Path) -> None:
    """Refuse a file that is not LMDB's, or that is shorter than its own index says: a mapped page
    behind its end would kill the process."""
    for looks in range(1, _LOOKS + 1):
        refusal = _refusal(data)
        if refusal is None:
            return
        if looks < _LOOKS:
            time.sleep(_LOOK_AGAIN_S)
        else:
            raise refusal


def _refusal(data: Path) -> ForeignStore | TruncatedStore | BadStored | None:
    with data.open("rb") as file:
        head = file.read(HEAD_BYTES)
        size = os.fstat(file.fileno()).st_size
    if size == 0:  # another process is about to write the first pages
        return None
    found = metas(head)
    meta = newest(found)
    if meta is None:
        return ForeignStore(
            f"{data} is not a file of this kind: it was overwritten, or is another program's"
        )
    if size < meta.needed_bytes:
        return TruncatedStore(
            f"{data} was cut short: {shown_size(size)} of {shown_size(meta.needed_bytes)}; "
            "restore it from a copy"
        )
    first, second = found
    if first is None or second is None:
        return BadStored(f"{data}: one of its two index pages is damaged; restore it from a copy")
    if why := disagreement(first, second):
        return BadStored(f"{data}: its two index pages disagree ({why}); restore it from a copy")
    return None


def _refuse_network(directory: Path) -> None:
    try:
        mounts = MOUNTS.read_text(errors="surrogateescape")
    except OSError:  # not Linux: the kind of the file system is unknown
        return
    kind = filesystem_of(os.path.realpath(directory), mounts)
    if is_remote(kind):
        raise NetworkFilesystem(
            f"{directory} is on a network file system ({kind}), where memory-mapped files lose "
            "data: use a local disk, or Kafka for several machines"
        )


def is_remote(kind: str) -> bool:
    return kind in _REMOTE or kind == "fuse" or kind.startswith("fuse.")


def filesystem_of(path: str, mounts: str) -> str:
    """The kind of the file system that holds a path, from the text of ``/proc/self/mountinfo``."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        at = _OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4])
        inside = path == at or path.startswith(at.rstrip("/") + "/")
        if inside and len(at) >= best:
            best, kind = len(at), right.split()[0]
    return kind
