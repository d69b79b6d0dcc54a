"""The connection between a dispatcher and its lanes: who may send, and what is received."""

from __future__ import annotations

import hmac
import random
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import msgspec
import pytest

from headrace.core.computations.verdict import Verdict
from headrace.core.errors import BadSetting, Refused
from headrace.engines import connection, handshake
from headrace.engines.connection import (
    FROM_LANE_DECODER,
    MESSAGE_BYTES_MAX,
    Connection,
    FromLane,
    ToLane,
    listen,
)
from headrace.engines.handshake import accept, dial, greet
from headrace.lanes.protocol import (
    Alive,
    Ask,
    CannotWork,
    Close,
    Cut,
    Failed,
    Judged,
    Logged,
    Progress,
    Report,
    Work,
)
from headrace.testing.children import dice

SECRET, OTHER = b"s" * 32, b"o" * 32
MUTANTS = 2_000

WORK = Work(
    number=7, computation="bill", stream="shop/orders", stream_id=3, shard=1, token=b"token",
    epoch=1, start=10, end=74, warm=True, attempts=b"attempts",
)  # fmt: skip
TO_LANE: list[ToLane] = [WORK, Judged(Verdict("retry", 1.5, "why")), Cut(7), Alive(), Close()]
FROM_LANE: list[FromLane] = [
    Ask(),
    Failed(7, 2, True),
    Report(number=7, next=74, outcome="done", records=64, reason="ä" * 100, attempts=b"x"),
    Progress(7, 12),
    CannotWork("no such file"),
    Logged(30, "a line"),
]


class Ends:
    """Of one connection, with what it takes to look at what passes."""

    def __init__(self) -> None:
        self.at_dispatcher, self.at_lane = socket.socketpair()

    def greet(self, secret: bytes = SECRET, lane: int = 5) -> tuple[Connection, Connection]:
        with ThreadPoolExecutor(1) as other:
            answer = other.submit(accept, self.at_dispatcher, SECRET)
            from_lane = greet(self.at_lane, secret, lane)
            number, to_lane = answer.result(10)
        assert number == lane
        return to_lane, from_lane

    def close(self) -> None:
        self.at_dispatcher.close()
        self.at_lane.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    with closing(Ends()) as ends:
        yield ends


def test_messages_arrive_as_they_were_sent(ends: Ends) -> None:
    to_lane, from_lane = ends.greet()
    for message in TO_LANE:
        to_lane.send(message)
        assert from_lane.receive() == message
    for answer in FROM_LANE:
        from_lane.send(answer)
        assert to_lane.receive() == answer
    from_lane.close()
    assert to_lane.receive() is None


def test_messages_of_many_threads_are_not_mixed(ends: Ends) -> None:
    to_lane, from_lane = ends.greet()
    with ThreadPoolExecutor(8) as threads:
        for number in range(200):
            threads.submit(from_lane.send, CannotWork(str(number) * 1_000))
        received = [to_lane.receive() for _ in range(200)]
    assert sorted(message.why for message in received) == sorted(str(n) * 1_000 for n in range(200))


# Who may send


def test_a_lane_that_does_not_know_the_secret_is_refused(ends: Ends) -> None:
    with ThreadPoolExecutor(1) as other:
        lane = other.submit(greet, ends.at_lane, OTHER, 5)
        with pytest.raises(Refused, match="does not know the secret"):
            accept(ends.at_dispatcher, SECRET)
        ends.at_dispatcher.close()
        with pytest.raises(Refused):
            lane.result(10)


def test_a_dispatcher_that_does_not_know_the_secret_is_refused(ends: Ends) -> None:
    ends.at_dispatcher.sendall(b"c" * 32)

    def claim() -> None:
        hello = ends.at_dispatcher.recv(72, socket.MSG_WAITALL)
        challenges = hello[8:40] + b"c" * 32
        ends.at_dispatcher.sendall(hmac.digest(OTHER, b"dispatcher:" + challenges, "sha256"))

    with ThreadPoolExecutor(1) as other:
        claimed = other.submit(claim)
        with pytest.raises(Refused, match="it is not the dispatcher"):
            greet(ends.at_lane, SECRET, 5)
        claimed.result(10)


def test_a_dispatcher_cannot_prove_itself_with_the_lanes_own_words(ends: Ends) -> None:
    ends.at_dispatcher.sendall(b"c" * 32)

    def reflect() -> None:
        ends.at_dispatcher.sendall(ends.at_dispatcher.recv(72, socket.MSG_WAITALL)[40:])

    with ThreadPoolExecutor(1) as other:
        reflected = other.submit(reflect)
        with pytest.raises(Refused, match="it is not the dispatcher"):
            greet(ends.at_lane, SECRET, 5)
        reflected.result(10)


def test_a_hello_that_was_overheard_opens_nothing() -> None:
    hello, answer = _overheard()
    with closing(Ends()) as again, ThreadPoolExecutor(1) as other:
        asked = other.submit(accept, again.at_dispatcher, SECRET)
        again.at_lane.sendall(hello)
        with pytest.raises(Refused, match="does not know the secret"):
            asked.result(10)
    with closing(Ends()) as again, ThreadPoolExecutor(1) as other:
        greeting = other.submit(greet, again.at_lane, SECRET, 5)
        again.at_dispatcher.sendall(answer)
        with pytest.raises(Refused, match="it is not the dispatcher"):
            greeting.result(10)


def _overheard() -> tuple[bytes, bytes]:
    """What both ends of a good handshake sent."""
    with closing(Ends()) as lane, closing(Ends()) as dispatcher, ThreadPoolExecutor(2) as others:
        answering = others.submit(accept, dispatcher.at_dispatcher, SECRET)
        greeting = others.submit(greet, lane.at_lane, SECRET, 5)
        challenge = dispatcher.at_lane.recv(32, socket.MSG_WAITALL)
        lane.at_dispatcher.sendall(challenge)
        hello = lane.at_dispatcher.recv(72, socket.MSG_WAITALL)
        dispatcher.at_lane.sendall(hello)
        proof = dispatcher.at_lane.recv(32, socket.MSG_WAITALL)
        lane.at_dispatcher.sendall(proof)
        assert answering.result(10)[0] == 5
        greeting.result(10)
    return hello, challenge + proof


def test_a_handshake_does_not_take_longer_than_the_limit(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE_S", 0.3)
    ended = threading.Event()

    def drip() -> None:
        while not ended.wait(0.05):
            ends.at_lane.send(b"x")

    with ThreadPoolExecutor(1) as other:
        other.submit(drip)
        began_s = time.monotonic()
        with pytest.raises(Refused, match="did not say who it is"):
            accept(ends.at_dispatcher, SECRET)
        ended.set()
    assert time.monotonic() - began_s < 1


# What is received


def test_a_message_that_was_overheard_is_not_received_again(ends: Ends) -> None:
    to_lane, from_lane = ends.greet()
    from_lane.send(Ask())
    frame = ends.at_dispatcher.recv(1_000, socket.MSG_PEEK)
    assert to_lane.receive() == Ask()
    ends.at_lane.sendall(frame)
    assert to_lane.receive() is None


def test_a_message_is_not_received_by_its_sender(ends: Ends) -> None:
    to_lane, from_lane = ends.greet()
    to_lane.send(Cut(7))
    ends.at_lane.sendall(ends.at_lane.recv(1_000, socket.MSG_PEEK))
    assert to_lane.receive() is None
    assert from_lane.receive() == Cut(7)


@pytest.mark.parametrize("sealed", [False, True], ids=["as it comes", "by one who has the key"])
def test_random_bytes_raise_nothing_and_take_little_memory(sealed: bool) -> None:
    random_ = dice(f"connection {sealed}")
    good = [msgspec.msgpack.encode(message) for message in (*FROM_LANE, *TO_LANE)]
    tracemalloc.start()
    try:
        for _ in range(MUTANTS):
            data = random_.choice(good)
            _received(_frame(_mutant(random_, data)) if sealed else _mutant(random_, _frame(data)))
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < 2 * MESSAGE_BYTES_MAX


KEY = b"k" * 32


def _frame(data: bytes, size: int | None = None) -> bytes:
    size = len(data) if size is None else size
    return connection._HEAD.pack(size, connection._seal(KEY, 0, data)) + data


def _received(frames: bytes) -> list[Any]:
    """Everything received until the end; it ends, and nothing is raised."""
    one, other = socket.socketpair()
    with ExitStack() as stack:
        receiver = Connection(stack.enter_context(one), FROM_LANE_DECODER, (KEY, KEY))
        stack.enter_context(other)
        other.sendall(frames)
        other.close()
        return list(iter(receiver.receive, None))


def _mutant(random_: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(random_.randint(1, 4)):
        at = random_.randrange(len(made) + 1)
        match random_.randrange(6):
            case 0:
                made[at : at + 1] = bytes([random_.randrange(256)])
            case 1:
                del made[at:]
            case 2:
                made[at:at] = random_.randbytes(random_.randint(1, 300))
            case 3:
                made[at:at] = random_.choice(_HEAVY)
            case 4:
                made[:4] = random_.choice((b"\xff" * 4, b"\x00\x10\x00\x01", b"\x00" * 4))
            case _:
                made *= 2
    return bytes(made[:100_000])


_HEAVY = [
    b"\xdd\xff\xff\xff\xff",  # an array of 2**32 - 1
    b"\xdf\xff\xff\xff\xff",  # a map
    b"\xdb\xff\xff\xff\xff",  # a text
    b"\xc6\xff\xff\xff\xff",  # bytes
    b"\x91" * 20_000,  # arrays in arrays
    b"\x81\xa1x" * 20_000,  # maps in maps
    b"\x81\xa4type\xa3ask",
    b"\xa2\xff\xfe",  # no UTF-8
]


def test_more_than_a_message_can_be_is_not_read(ends: Ends) -> None:
    to_lane, _ = ends.greet()
    ends.at_lane.sendall(_frame(b"x" * 50_000, size=MESSAGE_BYTES_MAX + 1))
    tracemalloc.start()
    assert to_lane.receive() is None
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most_bytes < 10_000
    assert len(ends.at_dispatcher.recv(100_000)) >= 45_000, "most are where they were"


def test_a_size_alone_takes_no_memory(ends: Ends) -> None:
    to_lane, _ = ends.greet()
    ends.at_lane.sendall(_frame(b"x", size=MESSAGE_BYTES_MAX))
    ends.at_lane.shutdown(socket.SHUT_WR)
    tracemalloc.start()
    assert to_lane.receive() is None
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most_bytes < 100_000


def test_a_message_that_is_too_long_to_be_received_is_not_sent(ends: Ends) -> None:
    to_lane, from_lane = ends.greet()
    with pytest.raises(ValueError, match="at most"):
        from_lane.send(CannotWork("x" * MESSAGE_BYTES_MAX))
    from_lane.send(Ask())
    assert to_lane.receive() == Ask()


def test_the_dispatcher_does_not_wait_for_ever_for_a_lane_that_does_not_read(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "SEND_S_MAX", 0.3)
    to_lane, _ = ends.greet()
    began_s = time.monotonic()

    def send_all() -> None:
        for _ in range(100):
            to_lane.send(Judged(Verdict("stop", why="x" * 100_000)))

    with pytest.raises(BlockingIOError):
        send_all()
    assert time.monotonic() - began_s < 5
    assert to_lane.receive() is None, "what is half sent is the end"


def test_hanging_up_ends_a_thread_that_receives(ends: Ends) -> None:
    to_lane, _ = ends.greet()
    with ThreadPoolExecutor(1) as other:
        received = other.submit(to_lane.receive)
        to_lane.hang_up()
        assert received.result(10) is None


# Addresses


@pytest.mark.parametrize("address", ["unix:", "tcp:127.0.0.1:0", "tcp:localhost:0"])
def test_a_lane_calls_where_the_dispatcher_listens(address: str) -> None:
    made, where = listen(address)
    with made, ThreadPoolExecutor(1) as other:
        calling = other.submit(dial, where, SECRET, 9)
        connected, _ = made.accept()
        lane, to_lane = accept(connected, SECRET)
        from_lane = calling.result(10)
        from_lane.send(Ask())
        assert (lane, to_lane.receive()) == (9, Ask())
        from_lane.close()
        to_lane.close()


@pytest.mark.parametrize("address", ["tcp:0.0.0.0:0", "tcp:[::]:0", "tcp:example.org:0"])
def test_other_machines_are_let_in_only_if_that_is_wanted(address: str) -> None:
    with pytest.raises(BadSetting, match="others than this machine"):
        listen(address)


def test_other_machines_are_let_in_if_that_is_wanted() -> None:
    made, where = listen("tcp:0.0.0.0:0", beyond_this_host=True)
    made.close()
    assert where.startswith("tcp:0.0.0.0:")
    assert not where.endswith(":0")


@pytest.mark.parametrize(
    "address", ["", "unix", "udp:127.0.0.1:1", "tcp:", "tcp:127.0.0.1", "tcp:127.0.0.1:x", "tcp::1"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(BadSetting, match="write it as"):
        listen(address)
    with pytest.raises(BadSetting, match="write it as"):
        dial(address, SECRET, 0)


@pytest.mark.parametrize("address", ["unix:@headrace-none", "unix:/" + "x" * 200, "tcp:[::1]:1"])
def test_a_lane_that_calls_where_no_dispatcher_listens_is_refused(address: str) -> None:
    with pytest.raises(Refused, match="does not answer"):
        dial(address, SECRET, 0)


def test_an_address_where_no_server_can_listen_is_refused() -> None:
    with pytest.raises(Refused, match="cannot listen"):
        listen("unix:/nowhere/at/all")
