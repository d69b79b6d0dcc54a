"""The server that lanes of other processes call: who is let in, what is received, and what is left
behind."""

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
from headrace.core.computations.verdict import FailureJudge, Verdict
from headrace.core.errors import Refused
from headrace.core.model import ShardId
from headrace.core.ports import Grant
from headrace.engines import lane_server
from headrace.engines.connection import Connection, parse_address
from headrace.engines.handshake import dial, greet
from headrace.engines.lane_server import HANDSHAKES_MAX, LaneServer
from headrace.lanes.protocol import (
    Ask,
    CannotWork,
    Close,
    Cut,
    Failed,
    Judged,
    Progress,
    Report,
    Work,
)
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
def server(dispatcher: Dispatcher, request: pytest.FixtureRequest) -> Iterator[LaneServer]:
    open_files = files()
    server = LaneServer(dispatcher, request.param)
    server.open()
    yield server
    server.close()
    until(lambda: not threads(), "no thread is left", 10, threads)
    until(lambda: files() == open_files, "no file is left open", 10)


def begin(dispatcher: Dispatcher, end: int = 10) -> None:
    with headrace.open("memory:") as hub:
        stream = hub.create_stream("orders", shards=1).info
    record = DutyRecord(Grant("bill", stream, 0, b"1"), Attempts())
    dispatcher.begin(DUTY, record, 0, end)


def call(server: LaneServer, lane: int = 0) -> Connection:
    server.expect(lane)
    return dial(server.address, server.secret, lane)


def test_a_lane_gets_work_and_tells_how_it_goes(server: LaneServer, dispatcher: Dispatcher) -> None:
    lane = call(server)
    assert not server.has_asked(0)
    lane.send(Ask())
    until(lambda: server.has_asked(0), "it has asked")
    begin(dispatcher)
    work = lane.receive()
    assert isinstance(work, Work)
    assert (work.computation, work.stream, work.start, work.end) == ("bill", "orders", 0, 10)
    assert server.progress(0) is None
    lane.send(Progress(work.number, 4))
    until(lambda: server.progress(0) == Progress(work.number, 4), "how far it is")
    lane.send(Failed(work.number, 1, True))
    assert lane.receive() == Judged(Verdict("retry", 1.0))
    lane.send(Report(number=work.number, next=10, outcome="done", records=10))
    lane.send(Ask())
    until(lambda: dispatcher.at(DUTY, b"1") == 10, "it is done")
    until(lambda: server.progress(0) is None, "nothing is in hand")
    dispatcher.close()
    assert lane.receive() == Close()
    lane.close()


def test_the_progress_of_a_lane_that_is_silent_while_it_works_is_not_known(
    server: LaneServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = call(server)
    lane.send(Progress(1, 4))
    until(lambda: server.progress(0) == Progress(1, 4), "how far it is")
    monkeypatch.setattr(lane_server, "FRESH_S", 0.0)
    assert server.progress(0) is None
    lane.close()


def test_a_slice_is_told_to_end_once(server: LaneServer) -> None:
    lane = call(server)
    lane.send(Progress(1, 4))
    until(lambda: server.progress(0), "it is there")
    for _ in range(100_000):  # more than its socket would hold, and nobody reads
        server.cut(0, 1)
    server.cut(0, 2)
    assert (lane.receive(), lane.receive()) == (Cut(1), Cut(2))
    lane.close()
    server.cut(0, 3)
    server.cut(7, 1)


def test_what_a_lane_that_cannot_work_sent_before_its_end_is_received(server: LaneServer) -> None:
    lane = call(server)
    lane.send(CannotWork("no such file"))
    lane.close()
    server.receive_rest(0, 10)
    assert (server.cannot_work(0), server.has_asked(0)) == ("no such file", False)
    server.disconnect(0)
    assert server.cannot_work(0) is None


def test_only_an_expected_lane_is_let_in_and_only_once(server: LaneServer) -> None:
    lane = call(server, 3)
    lane.send(Ask())
    until(lambda: server.has_asked(3), "it is heard")
    for number in (3, 4, 2**64 - 1):
        with pytest.raises(Refused):
            dial(server.address, server.secret, number)
    assert not server.has_asked(4)
    server.disconnect(3)
    assert lane.receive() is None
    lane.close()


def test_a_lane_that_is_given_up_before_it_calls_is_turned_away(server: LaneServer) -> None:
    server.expect(1)
    server.disconnect(1)
    with pytest.raises(Refused):
        dial(server.address, server.secret, 1)


def test_a_caller_that_does_not_know_the_secret_learns_nothing(
    server: LaneServer, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        server.expect(0)
        with pytest.raises(Refused):
            dial(server.address, b"x" * 32, 0)
    until(lambda: "does not know the secret" in caplog.text, "it is said")
    lines = [line for line in caplog.messages if "turned away" in line]
    assert len(lines) == 1, "not one line for each of them"
    assert server.secret.hex() not in caplog.text
    lane = call(server)
    lane.close()


def test_a_caller_that_hangs_up_without_a_greeting_is_no_warning(
    server: LaneServer, caplog: pytest.LogCaptureFixture
) -> None:
    """So does a lane that is killed while it begins, as all are when one of them cannot."""
    caplog.set_level("INFO", logger="headrace")
    family, place = parse_address(server.address)
    with socket.socket(family) as caller:
        caller.connect(place)
    until(lambda: "hung up" in caplog.text, "it is noted")
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


def test_callers_that_send_nothing_keep_no_lane_out(server: LaneServer) -> None:
    family, place = parse_address(server.address)
    with ExitStack() as stack:
        for number in range(3 * HANDSHAKES_MAX):
            silent = stack.enter_context(socket.socket(family))
            silent.connect(place)
            if number % 3 == 0:
                silent.sendall(b"GET / HTTP/1.1\r\n")
        lane = call(server)
        lane.send(Ask())
        until(lambda: server.has_asked(0), "a lane is let in", 5)
        until(lambda: len(threads()) <= HANDSHAKES_MAX + 3, "not a thread for each", 5, threads)
        lane.close()


def test_a_lane_that_calls_while_no_file_can_be_opened_is_let_in_later(
    server: LaneServer, caplog: pytest.LogCaptureFixture
) -> None:
    family, place = parse_address(server.address)
    server.expect(0)
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
        greet(connected, server.secret, 0).send(Ask())
        until(lambda: server.has_asked(0), "it is let in", 5)


def test_a_lane_that_goes_while_it_waits_leaves_nothing(
    server: LaneServer, dispatcher: Dispatcher
) -> None:
    for number in range(20):
        lane = call(server, number)
        lane.send(Ask())
        until(lambda n=number: server.has_asked(n), "it waits for work")  # type: ignore[misc]
        lane.close()
        server.receive_rest(number, 10)
        server.disconnect(number)
        dispatcher.lane_lost(number)
    until(lambda: len(threads()) == 1, "only the server itself", 10, threads)


def test_a_lane_that_sends_what_cannot_be_is_lost_alone(
    server: LaneServer, dispatcher: Dispatcher
) -> None:
    good, bad, mad = call(server, 0), call(server, 1), call(server, 2)
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
    server = LaneServer(dispatcher)
    server.open()
    own = os.geteuid()
    server.expect(0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: own + 1)
        with pytest.raises(Refused):
            dial(server.address, server.secret, 0)
    dial(server.address, server.secret, 0).close()
    server.close()


def test_a_closed_server_lets_no_lane_in(dispatcher: Dispatcher) -> None:
    server = LaneServer(dispatcher)
    server.open()
    with ThreadPoolExecutor(1) as other, socket.socket(socket.AF_UNIX) as silent:
        silent.connect(parse_address(server.address)[1])
        lane = call(server)
        waiting = other.submit(lane.receive)
        server.close()
        assert waiting.result(10) is None
        assert not silent.recv(100)[32:]
        lane.close()
    until(lambda: not threads(), "no thread is left", 10, threads)
    with pytest.raises(Refused, match="does not answer"):
        dial(server.address, server.secret, 1)


def test_a_server_that_was_never_opened_can_be_closed(dispatcher: Dispatcher) -> None:
    LaneServer(dispatcher).close()
    assert not threads()
