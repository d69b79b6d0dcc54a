"""Messages between a dispatcher and lanes in other processes: a socket, a length, MessagePack.

`handshake` makes a connection: both ends prove that they know the secret of the run. From then on
every message is sealed with a key of the connection, so that a message cannot be inserted, changed
or repeated. Messages are not encrypted: records do not pass here, but names, offsets and texts of
errors do. Nothing that arrives is executed, and nothing longer than `MESSAGE_BYTES_MAX` is read.

An address is ``unix:@name`` (it has no file, so it ends with its process, however that ends), or
``tcp:host:port``.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

import msgspec

from headrace.core.errors import BadSetting, Refused
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

MESSAGE_BYTES_MAX = 1024 * 1024

_HEAD = struct.Struct(">I16s")
_AHEAD_BYTES = 4_096
_TIMEVAL = struct.Struct("@ll")

FromLane = Ask | Failed | Report | Progress | CannotWork | Logged
ToLane = Work | Judged | Cut | Alive | Close

FROM_LANE_DECODER = msgspec.msgpack.Decoder(FromLane)
TO_LANE_DECODER = msgspec.msgpack.Decoder(ToLane)

_encode = msgspec.msgpack.Encoder().encode


class Connection:
    """One end of a connection. Any thread may send; one thread receives."""

    def __init__(self, connected: socket.socket, decoder: Any, keys: tuple[bytes, bytes]) -> None:
        """``keys`` seal the messages that leave here and those that arrive here."""
        self._socket = connected
        self._decoder = decoder
        self._key_out, self._key_in = keys
        self._sent = self._received = 0
        self._sending = threading.Lock()
        self._ahead = bytearray()
        """Bytes that are received and not taken yet."""

    def send(self, message: FromLane | ToLane) -> None:
        data = _encode(message)
        if len(data) > MESSAGE_BYTES_MAX:
            raise ValueError(f"a message of {len(data)} bytes: at most {MESSAGE_BYTES_MAX}")
        with self._sending:
            head = _HEAD.pack(len(data), _seal(self._key_out, self._sent, data))
            self._sent += 1
            try:
                self._socket.sendall(head + data)
            except OSError:
                self.hang_up()  # half of it may be sent: nothing behind it would make sense
                raise

    def receive(self) -> Any:
        """The next message; None at the end, or if what arrives is no message."""
        head = self._take(_HEAD.size)
        if head is None:
            return None
        size, seal = _HEAD.unpack(head)
        data = self._take(size) if size <= MESSAGE_BYTES_MAX else None
        if data is None or not hmac.compare_digest(seal, _seal(self._key_in, self._received, data)):
            return None
        self._received += 1
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None

    def _take(self, size: int) -> bytes | None:
        """The next ``size`` bytes; None at the end. Bytes that arrive with them are kept: messages
        often come in pairs."""
        while len(self._ahead) < size:
            try:
                part = self._socket.recv(_AHEAD_BYTES)
            except OSError:
                return None
            if not part:
                return None
            self._ahead += part
        taken = bytes(self._ahead[:size])
        del self._ahead[:size]
        return taken

    def hang_up(self) -> None:
        """End the connection: nothing more is sent or received. Any thread may call this."""
        with suppress(OSError):  # the other end was quicker
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """To be called by the thread that receives. From another thread, the receiver could read
        from a file that got the same number meanwhile."""
        self.hang_up()
        with self._sending:
            self._socket.close()

    def expect_within(self, seconds: float) -> None:
        """Take the other end for gone if nothing arrives for longer than this."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(seconds))

    def detach(self) -> int:
        """The file number of the open connection, which belongs to the caller from now on."""
        return self._socket.detach()

    def forget(self) -> None:
        """In a fork: the connection, and the thread that may hold its lock, are the parent's."""
        self._sending = threading.Lock()
        self._socket.close()


def listen(address: str, *, beyond_this_host: bool = False) -> tuple[socket.socket, str]:
    """A listening socket and its full address. ``unix:`` makes up a name; port 0 takes a free
    port."""
    if address == "unix:":
        address = f"unix:@headrace-{secrets.token_hex(16)}"
    family, place = parse_address(address)
    if isinstance(place, tuple) and not beyond_this_host and not _is_loopback(place[0]):
        raise BadSetting(
            f"{address}: others than this machine could call there; use tcp:127.0.0.1:0, or say "
            "that this is wanted"
        )
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.bind(place)
        made.listen(socket.SOMAXCONN)
    except OSError as why:
        made.close()
        raise Refused(f"{address}: cannot listen there: {why}") from None
    if isinstance(place, tuple):
        host = f"[{place[0]}]" if ":" in place[0] else place[0]
        address = f"tcp:{host}:{made.getsockname()[1]}"
    return made, address


def parse_address(address: str) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    """An address as `socket` takes it; `BadSetting` if it is none."""
    kind, _, rest = address.partition(":")
    if kind == "unix" and len(rest) > 1:
        return socket.AF_UNIX, "\0" + rest[1:] if rest[0] == "@" else rest
    host, colon, port = rest.rpartition(":")
    if kind == "tcp" and host and colon and port.isascii() and port.isdigit():
        bare = host.removeprefix("[").removesuffix("]")
        return socket.AF_INET6 if ":" in bare else socket.AF_INET, (bare, int(port))
    raise BadSetting(f"address {address!r}: write it as unix:@name or tcp:host:port")


def timeval(seconds: float) -> bytes:
    """A duration as socket options take it."""
    return _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1_000_000))


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _seal(key: bytes, number: int, data: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + data, "sha256")[:16]
