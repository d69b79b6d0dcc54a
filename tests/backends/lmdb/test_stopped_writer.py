"""A stopped process that holds the write lock: others are told, can read, and go on when it is
gone."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headrace
from headrace.backends.lmdb import writer
from headrace.testing.children import Child, until

APPEND = (
    "import headrace, sys\n"
    "headrace.open(sys.argv[1]).stream('a').append(b'child', producer='c', producer_seq=1)\n"
    "print('done', flush=True)\n"
)
WAIT = (
    "import headrace, signal, sys\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
    "stream = headrace.open(sys.argv[1]).stream('a')\n"
    "print('waiting', flush=True)\n"
    "stream.append(b'never')\n"
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with headrace.open(tmp_path / "hub") as hub:
        hub.create_stream("a", shards=1).append(b"first")
    return tmp_path / "hub"


@pytest.fixture
def holder(directory: Path) -> Iterator[Child]:
    """A process that was stopped while it held the write lock."""
    with Child(["-c", APPEND, str(directory)], fail="write.locked:stop@1") as child:
        until(child.stopped, "the holder is stopped")
        yield child


@pytest.mark.slow
def test_waiting_for_a_stopped_writer_is_told_after_five_seconds_and_given_up_after_the_timeout(
    directory: Path, holder: Child, caplog: pytest.LogCaptureFixture
) -> None:
    assert (writer.STUCK_WARN_S, writer.WRITE_TIMEOUT_S) == (5.0, 30.0)
    with headrace.open(directory, write_timeout="6s") as hub:
        began = time.monotonic()
        with (
            caplog.at_level(logging.WARNING),
            pytest.raises(headrace.UnknownOutcome, match=f"process {holder.pid} "),
        ):
            hub.stream("a").append(b"mine")
        assert 5.9 < time.monotonic() - began < 12
        assert f"since 5 s, the write lock is held by process {holder.pid} " in caplog.text
        holder.kill()


def test_reading_goes_on_and_a_retry_is_not_doubled_after_the_holder_was_killed(
    directory: Path, holder: Child
) -> None:
    with headrace.open(directory, write_timeout="300ms") as hub:
        stream = hub.stream("a")
        for _ in range(2):
            with pytest.raises(headrace.UnknownOutcome) as told:
                stream.append(b"mine", producer="p", producer_seq=1)
            assert told.value.withdrawn
        assert [record.data for record in stream.read(0)] == [b"first"]
        assert hub.describe()["write_lock"].startswith(f"process {holder.pid} ")
        holder.kill()
        appended = stream.append(b"mine", producer="p", producer_seq=1)
        assert appended == stream.append(b"mine", producer="p", producer_seq=1)
        assert [record.data for record in stream.read(0)] == [b"first", b"mine"]
        assert hub.describe()["write_lock"] is None


def test_a_holder_that_goes_on_finishes_its_own_write_first(directory: Path, holder: Child) -> None:
    with headrace.open(directory, write_timeout="300ms") as hub:
        stream = hub.stream("a")
        with pytest.raises(headrace.UnknownOutcome):
            stream.append(b"mine")
        holder.process.send_signal(signal.SIGCONT)
        assert holder.line() == "done"
        stream.append(b"mine")
        assert [record.data for record in stream.read(0)] == [b"first", b"child", b"mine"]


def test_a_write_that_was_begun_may_still_happen_and_its_retry_finds_it(
    directory: Path, arm: Callable[[str], None]
) -> None:
    with headrace.open(directory, write_timeout="200ms") as hub:
        stream = hub.stream("a")
        arm("write.before-commit:sleep=1@1")
        with pytest.raises(headrace.UnknownOutcome, match="may still happen") as told:
            stream.append(b"mine", producer="p", producer_seq=1)
        assert not told.value.withdrawn
    with headrace.open(directory) as hub:
        stream = hub.stream("a")
        assert stream.append(b"mine", producer="p", producer_seq=1).offset == 1
        assert [record.data for record in stream.read(0)] == [b"first", b"mine"]


def test_a_signal_reaches_its_handler_while_a_write_waits_for_the_lock(
    directory: Path, holder: Child
) -> None:
    with Child(["-c", WAIT, str(directory)]) as waiter:
        assert waiter.line() == "waiting"
        waiter.process.send_signal(signal.SIGTERM)
        assert waiter.ended(within_s=10) == 7
    holder.kill()


def test_a_hub_closes_although_its_writer_waits_for_a_stopped_process(
    directory: Path, holder: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "CLOSE_S", 0.2)
    hub = headrace.open(directory, write_timeout="200ms")
    with pytest.raises(headrace.UnknownOutcome):
        hub.stream("a").append(b"mine")
    began = time.monotonic()
    hub.close()
    assert time.monotonic() - began < 3
    with pytest.raises(headrace.HubBusy):
        headrace.open(directory)
    holder.kill()

    def reopened() -> bool:
        try:
            headrace.open(directory).close()
        except headrace.HubBusy:
            return False
        return True

    until(reopened, "the abandoned environment is closed and the hub opens again")


def test_many_threads_that_wait_are_all_answered_when_the_holder_is_gone(
    directory: Path, holder: Child
) -> None:
    with headrace.open(directory) as hub:
        stream = hub.stream("a")
        threads = [threading.Thread(target=stream.append, args=(b"t",)) for _ in range(8)]
        for thread in threads:
            thread.start()
        os.kill(holder.pid, signal.SIGKILL)
        for thread in threads:
            thread.join(20)
        assert len(list(stream.read(0))) == 9
