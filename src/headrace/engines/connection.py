"""Messages between a dispatcher and lanes in other processes: a socket, a length, MessagePack.

Both ends prove that they know the secret of this run before anything else is said, and every
message is sealed with it, so that nobody can put in, change or repeat one. It is not encrypted:
records do not pass here, but names, offsets and messages of errors do. Nothing that comes in is
executed, and nothing longer than a message can be is read.

An address is ``unix:@name`` (no file: it is gone with its process, whatever ends that), or
``tcp:host:port``.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from headrace.core.errors import BadSetting, Refused
from headrace.lanes.protocol import (
    Ask,
    Beat,
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
GREETING_S = 10.0
AGAIN_S = 0.02
SEND_S_MAX = 5.0
"""Who does not take what the dispatcher sends for so long, is lost."""
KEEPALIVE_S = 5
"""Another machine that says nothing is asked so often whether it is there; after three times it is
gone."""

_HEAD = struct.Struct(">I16s")
_NONCE_BYTES = 32
_LANE = struct.Struct(">Q")
_PART_BYTES = 65_536
_AHEAD_BYTES = 4_096
_TIMEVAL = struct.Struct("@ll")


class Unfit(msgspec.Struct, tag="unfit", frozen=True):
    """The lane cannot work, and why: said instead of its first ask."""

    why: str


FromLane = Ask | Failed | Report | Progress | Unfit | Logged
ToLane = Work | Judged | Cut | Beat | Close

_encode = msgspec.msgpack.Encoder().encode
_from_lane = msgspec.msgpack.Decoder(FromLane)
_to_lane = msgspec.msgpack.Decoder(ToLane)


class Connection:
    """One end of a connection; sends from any thread, receives from one."""

    def __init__(self, connected: socket.socket, decoder: Any, keys: tuple[bytes, bytes]) -> None:
        self._socket = connected
        self._decoder = decoder
        self._key_out, self._key_in = keys
        self._sent = self._received = 0
        self._sending = threading.Lock()
        self._ahead = bytearray()
        """Received, but not taken yet."""

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
        """The next message; None at the end, or for what is none."""
        head = self._taken(_HEAD.size)
        if head is None:
            return None
        size, seal = _HEAD.unpack(head)
        data = self._taken(size) if size <= MESSAGE_BYTES_MAX else None
        if data is None or not hmac.compare_digest(seal, _seal(self._key_in, self._received, data)):
            return None
        self._received += 1
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None

    def _taken(self, size: int) -> bytes | None:
        """So many bytes; None at the end. What came with them is kept: messages often come in
        pairs."""
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
        """Nothing more is sent or received; from any thread."""
        with suppress(OSError):  # the other end was quicker
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """By the thread that receives: another could be about to read from what has the same
        number next."""
        self.hang_up()
        with self._sending:
            self._socket.close()

    def expect_within(self, seconds: float) -> None:
        """What stays silent for longer is taken for gone."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))

    def detach(self) -> int:
        """The number of the open connection: it is the caller's from now on."""
        return self._socket.detach()

    def forget(self) -> None:
        """In a fork: the connection is its parent's, and so is whoever was about to send."""
        self._sending = threading.Lock()
        self._socket.close()


def listen(address: str, *, beyond_this_host: bool = False) -> tuple[socket.socket, str]:
    """A socket that listens, and the address to call it by. ``unix:`` makes up a name, port 0 takes
    a free one."""
    if address == "unix:":
        address = f"unix:@headrace-{secrets.token_hex(16)}"
    family, place = _place(address)
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


class Wordless(Refused):
    """A caller that hung up, or said nothing in time: perhaps a lane that was killed meanwhile."""


def dial(address: str, secret: bytes, lane: int) -> Connection:
    """The lane's end of a new connection; `Refused` if there is none to be had."""
    family, place = _place(address)
    connected = socket.socket(family, socket.SOCK_STREAM)
    try:
        connected.settimeout(GREETING_S)
        _connect(connected, place)
        return greeted(connected, secret, lane)
    except OSError as why:
        connected.close()
        raise Refused(f"{address}: the dispatcher does not answer: {why}") from None
    except Refused:
        connected.close()
        raise


def accept(
    connected: socket.socket,
    secret: bytes,
    admits: Callable[[int, Connection], bool] = lambda lane, wire: True,
) -> tuple[int, Connection]:
    """The dispatcher's end, and the number of the lane at the other; `Refused` if it does not know
    the secret, or is not admitted. Only then the other end hears that it may speak."""
    until_s = time.monotonic() + GREETING_S
    connected.settimeout(GREETING_S)
    challenge = secrets.token_bytes(_NONCE_BYTES)
    connected.sendall(challenge)
    hello = _exactly(connected, _LANE.size + _NONCE_BYTES + _NONCE_BYTES, until_s)
    if hello is None:
        raise Wordless("it did not say who it is")
    who, theirs, proof = hello[:8], hello[8 : 8 + _NONCE_BYTES], hello[8 + _NONCE_BYTES :]
    if not hmac.compare_digest(proof, _proof(secret, b"lane", challenge + who + theirs)):
        raise Refused("it does not know the secret of this run")
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(SEND_S_MAX))
    (lane,) = _LANE.unpack(who)
    wire = Connection(_alive(connected), _from_lane, _keys(secret, challenge + who + theirs))
    if not admits(lane, wire):
        raise Refused(f"nobody waits for a lane {lane}")
    connected.sendall(_proof(secret, b"dispatcher", theirs + challenge))
    connected.settimeout(None)
    return lane, wire


def greeted(connected: socket.socket, secret: bytes, lane: int) -> Connection:
    """The lane's end; `Refused` if the other one does not know the secret."""
    until_s = time.monotonic() + GREETING_S
    connected.settimeout(GREETING_S)
    challenge = _exactly(connected, _NONCE_BYTES, until_s)
    if challenge is None:
        raise Refused("the dispatcher ended before it said who it is")
    who, own = _LANE.pack(lane), secrets.token_bytes(_NONCE_BYTES)
    connected.sendall(who + own + _proof(secret, b"lane", challenge + who + own))
    proof = _exactly(connected, _NONCE_BYTES, until_s)
    if proof is None or not hmac.compare_digest(
        proof, _proof(secret, b"dispatcher", own + challenge)
    ):
        raise Refused("somebody who does not know the secret of this run said to be the dispatcher")
    connected.settimeout(None)
    to_lane, from_lane = _keys(secret, challenge + who + own)
    return Connection(_alive(connected), _to_lane, (from_lane, to_lane))


def _place(address: str) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    kind, _, rest = address.partition(":")
    if kind == "unix" and len(rest) > 1:
        return socket.AF_UNIX, "\0" + rest[1:] if rest[0] == "@" else rest
    host, colon, port = rest.rpartition(":")
    if kind == "tcp" and host and colon and port.isascii() and port.isdigit():
        bare = host.removeprefix("[").removesuffix("]")
        return socket.AF_INET6 if ":" in bare else socket.AF_INET, (bare, int(port))
    raise BadSetting(f"address {address!r}: write it as unix:@name or tcp:host:port")


def _connect(connected: socket.socket, place: str | tuple[str, int]) -> None:
    until_s = time.monotonic() + GREETING_S
    while True:
        try:
            return connected.connect(place)
        except BlockingIOError:  # many others call
            if time.monotonic() > until_s:
                raise
            time.sleep(AGAIN_S)


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _alive(connected: socket.socket) -> socket.socket:
    """Another machine that is switched off says no goodbye."""
    if connected.family != socket.AF_UNIX:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_NODELAY, 1),
            (socket.TCP_KEEPIDLE, KEEPALIVE_S),
            (socket.TCP_KEEPINTVL, KEEPALIVE_S),
            (socket.TCP_KEEPCNT, 3),
        ):
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
    return connected


def _timeval(seconds: float) -> bytes:
    return _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1_000_000))


def _keys(secret: bytes, said: bytes) -> tuple[bytes, bytes]:
    """Of this connection: for what goes to the lane, and for what comes from it."""
    return _proof(secret, b"to lane", said), _proof(secret, b"from lane", said)


def _proof(secret: bytes, role: bytes, said: bytes) -> bytes:
    return hmac.digest(secret, role + b":" + said, "sha256")


def _seal(key: bytes, number: int, data: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + data, "sha256")[:16]


def _exactly(connected: socket.socket, size: int, until_s: float | None = None) -> bytes | None:
    """So many bytes; None if it ends before, or they are not there by then."""
    parts = bytearray()
    while len(parts) < size:
        try:
            if until_s is not None:  # for all of them: who sends one byte at a time gains nothing
                connected.settimeout(max(until_s - time.monotonic(), 0.001))
            part = connected.recv(min(size - len(parts), _PART_BYTES))
        except OSError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)
