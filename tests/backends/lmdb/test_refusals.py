"""What is not a hub, or not safe as one, is refused with a clear line."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb
import msgspec
import pytest

import headrace
from headrace.backends.lmdb import files, stored_value
from headrace.backends.lmdb.environment import STORE_FORMAT, Identity
from tests.harness.faults import raw_store

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /srv/data rw - nfs4 server:/export rw
31 30 0:27 / /srv/data/local rw - xfs /dev/vdb rw
32 22 0:28 / /mnt/my\\040share rw - cifs //server/share rw
33 22 0:29 / /mnt/caf\u00e9 rw - nfs server:/export rw
34 22 0:30 / /mnt/fuse rw - fuse.sshfs host:/ rw
35 22 0:31 / /mnt/twice rw - ext4 /dev/vdc rw
36 22 0:32 / /mnt/twice rw - nfs server:/b rw
37 22 0:33 / /mnt/ntfs rw - fuseblk /dev/vdd rw
38 22 0:34 / /mnt/back\\134slash rw - 9p host rw
too short
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ann/hub", "ext4"),
        ("/srv/data", "nfs4"),
        ("/srv/data/hub", "nfs4"),
        ("/srv/database", "ext4"),
        ("/srv/data/local/hub", "xfs"),
        ("/mnt/my share/hub", "cifs"),
        ("/mnt/my", "ext4"),
        ("/mnt/caf\u00e9/hub", "nfs"),
        ("/mnt/fuse/hub", "fuse.sshfs"),
        ("/mnt/twice/hub", "nfs"),
        ("/mnt/ntfs/hub", "fuseblk"),
        ("/mnt/back\\slash/hub", "9p"),
    ],
)
def test_the_innermost_and_latest_mount_tells_the_file_system_of_a_path(
    path: str, kind: str
) -> None:
    assert files.filesystem_of(path, MOUNTS) == kind


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse", "fuse.sshfs"])
def test_a_network_file_system_is_refused_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"22 1 254:0 / / rw - ext4 /dev/vda rw\n30 22 0:26 / {tmp_path} rw - {kind} x"
    )
    monkeypatch.setattr(files, "MOUNTS", mounts)
    with pytest.raises(headrace.NetworkFilesystem, match=kind):
        headrace.open(tmp_path / "hub")
    with headrace.open(tmp_path / "hub", any_filesystem=True) as hub:
        assert hub.streams() == []


def test_a_local_fuse_disk_is_not_taken_for_a_network() -> None:
    assert not files.is_remote("fuseblk")
    assert not files.is_remote("ext4")


def test_a_directory_without_a_hub_is_refused_where_none_may_be_made(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(headrace.NoHub, match="no hub at"):
            headrace.open(place, create=False)
    assert not (tmp_path / "nowhere").exists()


def test_a_file_is_refused_as_a_hub(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    with pytest.raises(headrace.ForeignStore, match="is a file"):
        headrace.open(tmp_path / "file")
    with pytest.raises(headrace.ForeignStore):
        headrace.open(tmp_path / "file" / "below")


def test_a_directory_with_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"x")
    with pytest.raises(headrace.ForeignStore, match=r"photo\.jpg"):
        headrace.open(tmp_path)
    assert os.listdir(tmp_path) == ["photo.jpg"]


@pytest.mark.parametrize("content", [b"hello", b"\0" * 8192, b"PK\3\4" * 4000])
def test_a_foreign_data_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(content)
    with pytest.raises(headrace.ForeignStore, match="not a file of this kind"):
        headrace.open(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes() == content


def test_a_data_file_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").mkdir()
    with pytest.raises(headrace.ForeignStore):
        headrace.open(tmp_path)


def test_another_programs_lmdb_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    with raw_store.store(tmp_path) as txn:
        txn.put(b"mine", b"value")
    with pytest.raises(headrace.ForeignStore, match="not a hub's"):
        headrace.open(tmp_path)
    with raw_store.store(tmp_path) as txn:
        assert [(bytes(k), bytes(v)) for k, v in txn.cursor()] == [(b"mine", b"value")]


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "hub") as hub:
        hub.create_stream("a", shards=1)
    with raw_store.store(tmp_path / "hub") as txn:
        newer = Identity(STORE_FORMAT + 1, b"x" * 16, 0)
        packed = msgspec.msgpack.encode(newer)
        txn.put(b"headrace", stored_value.sealed(b"headrace", packed, 1))
    with pytest.raises(headrace.NewerFormat, match=f"format {STORE_FORMAT + 1}"):
        headrace.open(tmp_path / "hub")


def test_a_damaged_identity_is_refused(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "hub"):
        pass
    with raw_store.store(tmp_path / "hub") as txn:
        txn.put(b"headrace", b"\xc1 nonsense")
    with pytest.raises(headrace.BadStored, match="identity"):
        headrace.open(tmp_path / "hub")


def test_a_store_in_use_by_another_library_of_this_process_is_refused(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "hub"):
        pass
    env = lmdb.open(str(tmp_path / "hub"))
    try:
        with pytest.raises(headrace.HubBusy):
            headrace.open(tmp_path / "hub")
    finally:
        env.close()
