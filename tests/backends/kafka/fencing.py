"""A way to a broker on which it looks fenced: it answers that there is none, and hangs up."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

METADATA = 3
FLEXIBLE = 9
"""From this version on of that request, sizes are written as ours are read below."""

Change = Callable[[bytes], tuple[bytes, bool]]
"""What is sent instead, and whether the way goes on behind it."""


class Way:
    """Between clients, which know its port only, and a broker."""

    def __init__(self, broker_port: int) -> None:
        self._broker_port = broker_port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.is_fenced = False
        self.fenced = 0
        """How many answers were changed."""
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Way:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _end(self._server)
        self._server.close()
        self.hang_up()

    def hang_up(self) -> None:
        for each in self._open:
            _end(each)
        self._open.clear()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self._broker_port))
            except OSError:
                client.close()
                continue
            self._open += [client, broker]
            asked: dict[int, tuple[int, int]] = {}
            for way in (
                (client, broker, lambda sent, a=asked: self._asked(sent, a)),
                (broker, client, lambda sent, a=asked: self._answered(sent, a)),
            ):
                threading.Thread(target=_forward, args=way, daemon=True).start()

    def _asked(self, sent: bytes, asked: dict[int, tuple[int, int]]) -> tuple[bytes, bool]:
        kind, version, number = struct.unpack_from(">hhi", sent)
        asked[number] = kind, version
        return sent, True

    def _answered(self, sent: bytes, asked: dict[int, tuple[int, int]]) -> tuple[bytes, bool]:
        (number,) = struct.unpack_from(">i", sent)
        kind, version = asked.pop(number)
        if kind != METADATA or not self.is_fenced:
            return sent, True
        assert version >= FLEXIBLE
        self.fenced += 1
        return _without_brokers(sent), False


def _without_brokers(answer: bytes) -> bytes:
    """An answer to `METADATA`: number, tags, delay, brokers, cluster, controller, topics."""
    start = end = 4 + 1 + 4
    count = answer[start] - 1
    end += 1
    for _ in range(count):
        end += 4  # its id
        end += answer[end]  # its host, behind its length + 1
        end += 4  # its port
        end += max(answer[end], 1)  # its rack, perhaps none
        end += 1  # tags
    rest = bytearray(answer[end:])
    struct.pack_into(">i", rest, max(rest[0], 1), -1)
    return answer[:start] + b"\x01" + bytes(rest)


def _forward(start: socket.socket, end: socket.socket, change: Change) -> None:
    goes_on = True
    with suppress(OSError), start.makefile("rb") as frames:
        while goes_on and len(head := frames.read(4)) == 4:
            (size,) = struct.unpack(">i", head)
            if len(sent := frames.read(size)) < size:
                break
            sent, goes_on = change(sent)
            end.sendall(struct.pack(">i", len(sent)) + sent)
    _end(end)
    _end(start)
    start.close()  # the other one is read from the other side


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
