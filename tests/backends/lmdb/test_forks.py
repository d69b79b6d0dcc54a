"""A handle never crosses a fork."""

from __future__ import annotations

from pathlib import Path

from headrace.testing.children import Child, until

FORK = """
import os, sys, warnings
import headrace
warnings.simplefilter("ignore", DeprecationWarning)
hub = headrace.open(sys.argv[1])
stream = hub.create_stream("a", shards=1)
stream.append(b"parent")
child = os.fork()
if child == 0:
    for use in (lambda: stream.append(b"lost"), lambda: list(stream.read(0)), hub.describe,
                hub.streams, lambda: hub.create_stream("b")):
        try:
            use()
            os._exit(1)
        except headrace.ForkedHandle as why:
            assert str(os.getppid()) in str(why), why
    again = headrace.open(sys.argv[1])
    again.stream("a").append(b"child")
    assert b"child" in [record.data for record in again.stream("a").read(0)]
    hub.close()
    again.stream("a").append(b"child again")
    again.close()
    os._exit(42)
for number in range(50):
    stream.append(b"meanwhile")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
stream.append(b"after")
read = [record.data for record in stream.read(0)]
assert read.count(b"meanwhile") == 50, read
assert read.count(b"child") == read.count(b"child again") == read.count(b"after") == 1, read
print(len(read))
"""

HOLD = """
import os, sys, time, warnings
from pathlib import Path
import headrace
from headrace.backends.lmdb.backend import LmdbBackend
warnings.simplefilter("ignore", DeprecationWarning)
backend = LmdbBackend(Path(sys.argv[1]))
assert backend._shared._maintenance._chosen()
if os.fork():
    os._exit(0)
print("alive", flush=True)
sys.stdin.readline()
"""


def test_an_inherited_hub_is_refused_and_the_path_opens_again_in_the_child(tmp_path: Path) -> None:
    with Child(["-c", FORK, str(tmp_path / "hub")]) as child:
        assert child.output().strip() == "54"


def test_a_forked_child_does_not_keep_the_packers_lock_of_its_dead_parent(tmp_path: Path) -> None:
    from headrace.backends.lmdb.backend import LmdbBackend

    with Child(["-c", HOLD, str(tmp_path / "hub")]) as child:
        assert child.line() == "alive"
        backend = LmdbBackend(tmp_path / "hub")
        maintenance = backend._shared._maintenance
        assert maintenance is not None
        until(maintenance._chosen, "the lock of the dead parent is free", 10)
        backend.close()
        child.tell()
