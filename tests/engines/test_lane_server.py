"""Where lanes of other processes call: who is let in, what is heard, and what is left behind."""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

import headrace
from headrace.core.computations.attempts import Attempts
from headrace.core.computations.dispatch import Dispatch, Duty, Rules
from headrace.core.computations.policy import Policy
from headrace.core.computations.verdict import FailureJudge
from headrace.core.errors import Refused
from headrace.core.model import ShardId
from headrace.core.ports import Grant
from headrace.engines import connection, lane_server
from headrace.engines.connection import Connection, Unfit, dial, greeted
from headrace.engines.engine import Progress as Seen
from headrace.engines.lane_server import GREETINGS_MAX, LaneServer
from headrace.lanes.protocol import Ask, Close, Cut, Failed, Judged, Progress, Report, Work
from headrace.replica.dispatcher import Dispatcher
from headrace.replica.duty_record import DutyRecord
from headrace.testing.children import until

DUTY = Duty("bill", ShardId("orders", 0))


def threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if "headrace-" in thread.name)


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def dispatcher() -> Dispatcher:
    judge = FailureJudge(Policy(retries=3))
    return Dispatcher(Dispatch({"bill": Rules()}, 2, "pool"), {"bill": judge}, on_call=lambda: None)


@pytest.fixture(params=["unix:", "tcp:127.0.0.1:0"])
def board(dispatcher: Dispatcher, request: pytest.FixtureRequest) -> Iterator[LaneServer]:
    open_files = files()
    board = LaneServer(dispatcher, request.param)
    board.open()
    yield board
    board.close()
    until(lambda: not threads(), "no thread is left", 10, threads)
    until(lambda: files() == open_files, "no file is left open", 10)


def begin(dispatcher: Dispatcher, end: int = 10) -> None:
    with headrace.open("memory:") as hub:
        stream = hub.create_stream("orders", shards=1).info
    record = DutyRecord(Grant("bill", stream, 0, b"1"), Attempts())
    dispatcher.begin(DUTY, record, 0, end)


def call(board: LaneServer, lane: int = 0) -> Connection:
    board.expect(lane)
    return dial(board.address, board.secret, lane)


def test_a_lane_gets_work_and_tells_how_it_goes(board: LaneServer, dispatcher: Dispatcher) -> None:
    lane = call(board)
    assert not board.has_asked(0)
    lane.send(Ask())
    until(lambda: board.has_asked(0), "it has asked")
    begin(dispatcher)
    work = lane.receive()
    assert isinstance(work, Work)
    assert (work.computation, work.stream, work.start, work.end) == ("bill", "orders", 0, 10)
    assert board.progress(0) is None
    lane.send(Progress(work.number, 4))
    until(lambda: board.progress(0) == Seen(work.number, 4), "how far it is")
    lane.send(Failed(work.number, 1, True))
    assert lane.receive() == Judged("retry", 1.0)
    lane.send(Report(number=work.number, next=10, outcome="done", records=10))
    lane.send(Ask())
    until(lambda: dispatcher.at(DUTY, b"1") == 10, "it is done")
    until(lambda: board.progress(0) is None, "nothing is in hand")
    dispatcher.close()
    assert lane.receive() == Close()
    lane.close()


def test_a_lane_that_is_silent_while_it_works_is_not_known_to_be_anywhere(
    board: LaneServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = call(board)
    lane.send(Progress(1, 4))
    until(lambda: board.progress(0) == Seen(1, 4), "how far it is")
    monkeypatch.setattr(lane_server, "FRESH_S", 0.0)
    assert board.progress(0) is None
    lane.close()


def test_a_slice_is_told_to_end_once(board: LaneServer) -> None:
    lane = call(board)
    lane.send(Progress(1, 4))
    until(lambda: board.progress(0), "it is there")
    for _ in range(100_000):  # more than its socket would hold, and nobody reads
        board.cut(0, 1)
    board.cut(0, 2)
    assert (lane.receive(), lane.receive()) == (Cut(1), Cut(2))
    lane.close()
    board.cut(0, 3)
    board.cut(7, 1)


def test_a_lane_says_why_it_cannot_work_and_is_heard_out(board: LaneServer) -> None:
    lane = call(board)
    lane.send(Unfit("no such file"))
    lane.close()
    board.hear_out(0, 10)
    assert (board.unfit(0), board.has_asked(0)) == ("no such file", False)
    board.hang_up(0)
    assert board.unfit(0) is None


def test_only_a_lane_that_is_expected_is_heard_and_only_once(board: LaneServer) -> None:
    lane = call(board, 3)
    lane.send(Ask())
    until(lambda: board.has_asked(3), "it is heard")
    for number in (3, 4, 2**64 - 1):
        with pytest.raises(Refused):
            dial(board.address, board.secret, number)
    assert not board.has_asked(4)
    board.hang_up(3)
    assert lane.receive() is None
    lane.close()


def test_one_that_is_given_up_before_it_calls_is_turned_away(board: LaneServer) -> None:
    board.expect(1)
    board.hang_up(1)
    with pytest.raises(Refused):
        dial(board.address, board.secret, 1)


def test_who_does_not_know_the_secret_learns_nothing(
    board: LaneServer, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        board.expect(0)
        with pytest.raises(Refused):
            dial(board.address, b"x" * 32, 0)
    until(lambda: "does not know the secret" in caplog.text, "it is said")
    lines = [line for line in caplog.messages if "turned away" in line]
    assert len(lines) == 1, "not one line for each of them"
    assert board.secret.hex() not in caplog.text
    lane = call(board)
    lane.close()


def test_one_that_hangs_up_without_a_word_is_nothing_to_warn_of(
    board: LaneServer, caplog: pytest.LogCaptureFixture
) -> None:
    """So does a lane that is killed while it begins, as all are when one of them cannot."""
    caplog.set_level("INFO", logger="headrace")
    family, place = connection._place(board.address)
    with socket.socket(family) as caller:
        caller.connect(place)
    until(lambda: "hung up" in caplog.text, "it is noted")
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_callers_who_say_nothing_keep_nobody_out(board: LaneServer) -> None:
    family, place = connection._place(board.address)
    with ExitStack() as stack:
        for number in range(3 * GREETINGS_MAX):
            silent = stack.enter_context(socket.socket(family))
            silent.connect(place)
            if number % 3 == 0:
                silent.sendall(b"GET / HTTP/1.1\r\n")
        lane = call(board)
        lane.send(Ask())
        until(lambda: board.has_asked(0), "a lane is let in", 5)
        until(lambda: len(threads()) <= GREETINGS_MAX + 3, "not a thread for each", 5, threads)
        lane.close()


def test_who_calls_while_no_file_can_be_opened_is_let_in_later(
    board: LaneServer, caplog: pytest.LogCaptureFixture
) -> None:
    family, place = connection._place(board.address)
    board.expect(0)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack, socket.socket(family) as connected:
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, limits[1]))
        try:
            with suppress(OSError):
                while True:
                    stack.enter_context(open(os.devnull))
            connected.connect(place)
            until(lambda: "Too many open files" in caplog.text, "it cannot be let in", 5)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        greeted(connected, board.secret, 0).send(Ask())
        until(lambda: board.has_asked(0), "it is let in", 5)


def test_a_lane_that_goes_while_it_waits_leaves_nothing(
    board: LaneServer, dispatcher: Dispatcher
) -> None:
    for number in range(20):
        lane = call(board, number)
        lane.send(Ask())
        until(lambda n=number: board.has_asked(n), "it waits for work")  # type: ignore[misc]
        lane.close()
        board.hear_out(number, 10)
        board.hang_up(number)
        dispatcher.lane_lost(number)
    until(lambda: len(threads()) == 1, "only the switchboard itself", 10, threads)


def test_a_lane_that_says_what_cannot_be_is_lost_alone(
    board: LaneServer, dispatcher: Dispatcher
) -> None:
    good, bad, mad = call(board, 0), call(board, 1), call(board, 2)
    bad.send(Report(number=77, next=10, outcome="done"))
    assert bad.receive() is None
    mad._socket.sendall(b"\xff" * 100)
    assert mad.receive() is None
    good.send(Ask())
    begin(dispatcher)
    assert isinstance(good.receive(), Work)
    for lane in (good, bad, mad):
        lane.close()


def test_another_user_is_turned_away(
    dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = LaneServer(dispatcher)
    board.open()
    own = os.geteuid()
    board.expect(0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: own + 1)
        with pytest.raises(Refused):
            dial(board.address, board.secret, 0)
    dial(board.address, board.secret, 0).close()
    board.close()


def test_what_is_closed_lets_nobody_in(dispatcher: Dispatcher) -> None:
    board = LaneServer(dispatcher)
    board.open()
    with ThreadPoolExecutor(1) as other, socket.socket(socket.AF_UNIX) as silent:
        silent.connect(connection._place(board.address)[1])
        lane = call(board)
        waiting = other.submit(lane.receive)
        board.close()
        assert waiting.result(10) is None
        assert not silent.recv(100)[32:]
        lane.close()
    until(lambda: not threads(), "no thread is left", 10, threads)
    with pytest.raises(Refused, match="does not answer"):
        dial(board.address, board.secret, 1)


def test_one_that_was_never_opened_can_be_closed(dispatcher: Dispatcher) -> None:
    LaneServer(dispatcher).close()
    assert not threads()
