"""Messages between a dispatcher and lanes in other processes: a socket, a length, MessagePack.

Both ends prove that they know the secret of this run before anything else is said. Nothing that
comes in is executed, and nothing longer than a message can be is read.
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

from penstock.core.errors import Refused
from penstock.run.protocol import Ask, Close, Cut, Failed, Progress, Report, Verdict, Work

MESSAGE_BYTES_MAX = 1024 * 1024
GREETING_S = 10.0

_LENGTH = struct.Struct(">I")
_NONCE_BYTES = 32
_LANE = struct.Struct(">Q")

FromLane = Ask | Failed | Report | Progress
ToLane = Work | Verdict | Cut | Close

_encode = msgspec.msgpack.Encoder().encode
_from_lane = msgspec.msgpack.Decoder(FromLane)
_to_lane = msgspec.msgpack.Decoder(ToLane)


class Wire:
    """One end of a connection; sends from any thread, receives from one."""

    def __init__(self, connected: socket.socket, decoder: Any) -> None:
        self._socket = connected
        self._decoder = decoder
        self._sending = threading.Lock()

    def send(self, message: FromLane | ToLane) -> None:
        data = _encode(message)
        with self._sending:
            self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self) -> Any:
        """The next message; None at the end, or for what is none."""
        head = _exactly(self._socket, _LENGTH.size)
        if head is None:
            return None
        (size,) = _LENGTH.unpack(head)
        data = _exactly(self._socket, size) if size <= MESSAGE_BYTES_MAX else None
        if data is None:
            return None
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError:
            return None

    def close(self) -> None:
        with suppress(OSError):  # the other end was quicker
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def answered(connected: socket.socket, secret: bytes) -> tuple[int, Wire]:
    """The dispatcher's end, and the number of the lane at the other; `Refused` if it does not know
    the secret."""
    connected.settimeout(GREETING_S)
    challenge = secrets.token_bytes(_NONCE_BYTES)
    connected.sendall(challenge)
    hello = _exactly(connected, _LANE.size + _NONCE_BYTES + _NONCE_BYTES)
    if hello is None:
        raise Refused("a lane ended before it said who it is")
    who, theirs, proof = hello[:8], hello[8 : 8 + _NONCE_BYTES], hello[8 + _NONCE_BYTES :]
    if not hmac.compare_digest(proof, _proof(secret, b"lane", challenge + who + theirs)):
        raise Refused("somebody who does not know the secret of this run said to be a lane")
    connected.sendall(_proof(secret, b"dispatcher", theirs + challenge))
    connected.settimeout(None)
    return _LANE.unpack(who)[0], Wire(connected, _from_lane)


def greeted(connected: socket.socket, secret: bytes, lane: int) -> Wire:
    """The lane's end; `Refused` if the other one does not know the secret."""
    connected.settimeout(GREETING_S)
    challenge = _exactly(connected, _NONCE_BYTES)
    if challenge is None:
        raise Refused("the dispatcher ended before it said who it is")
    who, own = _LANE.pack(lane), secrets.token_bytes(_NONCE_BYTES)
    connected.sendall(who + own + _proof(secret, b"lane", challenge + who + own))
    proof = _exactly(connected, _NONCE_BYTES)
    if proof is None or not hmac.compare_digest(
        proof, _proof(secret, b"dispatcher", own + challenge)
    ):
        raise Refused("somebody who does not know the secret of this run said to be the dispatcher")
    connected.settimeout(None)
    return Wire(connected, _to_lane)


def _proof(secret: bytes, role: bytes, said: bytes) -> bytes:
    return hmac.digest(secret, role + b":" + said, "sha256")


def _exactly(connected: socket.socket, size: int) -> bytes | None:
    """So many bytes; None if it ends before."""
    parts = bytearray()
    while len(parts) < size:
        try:
            part = connected.recv(min(size - len(parts), 65_536))
        except OSError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)
