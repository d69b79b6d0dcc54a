"""How a lane and its dispatcher begin a connection: both prove that they know the secret of the
run, without sending it.

The dispatcher sends a challenge. The lane answers with its number, a challenge of its own, and a
proof over both. The dispatcher looks whether it expects that lane, and sends its own proof. The
keys that seal the messages of this connection are made from the secret and both challenges.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable

from headrace.core.errors import Refused
from headrace.engines.connection import (
    FROM_LANE_DECODER,
    TO_LANE_DECODER,
    Connection,
    parse_address,
    timeval,
)

HANDSHAKE_S = 10.0
"""How long a handshake may take."""
AGAIN_S = 0.02
SEND_S_MAX = 5.0
"""How long the dispatcher waits for a lane to take a message, before the lane is lost."""
KEEPALIVE_S = 5
"""How often another machine that sends nothing is asked whether it is there; after three times
without an answer it is gone."""

_NONCE_BYTES = 32
_LANE = struct.Struct(">Q")
_PART_BYTES = 65_536


class NoGreeting(Refused):
    """A caller that hung up or sent nothing in time: perhaps a lane that was killed meanwhile."""


def dial(address: str, secret: bytes, lane: int) -> Connection:
    """Connect to the dispatcher; `Refused` if it does not answer or does not know the secret."""
    family, place = parse_address(address)
    connected = socket.socket(family, socket.SOCK_STREAM)
    try:
        connected.settimeout(HANDSHAKE_S)
        _connect(connected, place)
        return greet(connected, secret, lane)
    except OSError as why:
        connected.close()
        raise Refused(f"{address}: the dispatcher does not answer: {why}") from None
    except Refused:
        connected.close()
        raise


def greet(connected: socket.socket, secret: bytes, lane: int) -> Connection:
    """The lane's part of the handshake; `Refused` if the other end does not know the secret."""
    until_s = time.monotonic() + HANDSHAKE_S
    connected.settimeout(HANDSHAKE_S)
    challenge = _receive(connected, _NONCE_BYTES, until_s)
    if challenge is None:
        raise Refused("the dispatcher ended before it said who it is")
    number, own = _LANE.pack(lane), secrets.token_bytes(_NONCE_BYTES)
    connected.sendall(number + own + _proof(secret, b"lane", challenge + number + own))
    proof = _receive(connected, _NONCE_BYTES, until_s)
    if proof is None or not hmac.compare_digest(
        proof, _proof(secret, b"dispatcher", own + challenge)
    ):
        raise Refused(
            "the other end does not know the secret of this run: it is not the dispatcher"
        )
    connected.settimeout(None)
    to_lane, from_lane = _keys(secret, challenge + number + own)
    return Connection(_keep_alive(connected), TO_LANE_DECODER, (from_lane, to_lane))


def accept(
    connected: socket.socket,
    secret: bytes,
    admits: Callable[[int, Connection], bool] = lambda lane, connection: True,
) -> tuple[int, Connection]:
    """The dispatcher's part of the handshake: the lane's number and the connection. `Refused` if
    the lane does not know the secret or is not admitted. Only an admitted lane gets the proof, and
    may send."""
    until_s = time.monotonic() + HANDSHAKE_S
    connected.settimeout(HANDSHAKE_S)
    challenge = secrets.token_bytes(_NONCE_BYTES)
    connected.sendall(challenge)
    hello = _receive(connected, _LANE.size + _NONCE_BYTES + _NONCE_BYTES, until_s)
    if hello is None:
        raise NoGreeting("it did not say who it is")
    number, theirs, proof = hello[:8], hello[8 : 8 + _NONCE_BYTES], hello[8 + _NONCE_BYTES :]
    if not hmac.compare_digest(proof, _proof(secret, b"lane", challenge + number + theirs)):
        raise Refused("it does not know the secret of this run")
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval(SEND_S_MAX))
    (lane,) = _LANE.unpack(number)
    keys = _keys(secret, challenge + number + theirs)
    connection = Connection(_keep_alive(connected), FROM_LANE_DECODER, keys)
    if not admits(lane, connection):
        raise Refused(f"no lane {lane} is expected")
    connected.sendall(_proof(secret, b"dispatcher", theirs + challenge))
    connected.settimeout(None)
    return lane, connection


def _connect(connected: socket.socket, place: str | tuple[str, int]) -> None:
    until_s = time.monotonic() + HANDSHAKE_S
    while True:
        try:
            return connected.connect(place)
        except BlockingIOError:  # many others call at the same time
            if time.monotonic() > until_s:
                raise
            time.sleep(AGAIN_S)


def _keep_alive(connected: socket.socket) -> socket.socket:
    """Have the kernel find out that another machine is gone: switched off, it sends no goodbye."""
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


def _keys(secret: bytes, challenges: bytes) -> tuple[bytes, bytes]:
    """The keys of this connection: for messages to the lane, and for messages from it."""
    return _proof(secret, b"to lane", challenges), _proof(secret, b"from lane", challenges)


def _proof(secret: bytes, role: bytes, challenges: bytes) -> bytes:
    return hmac.digest(secret, role + b":" + challenges, "sha256")


def _receive(connected: socket.socket, size: int, until_s: float) -> bytes | None:
    """``size`` bytes; None if the other end hangs up before, or they do not arrive in time."""
    parts = bytearray()
    while len(parts) < size:
        try:
            # One deadline for all bytes: a caller that sends them one by one gains no time.
            connected.settimeout(max(until_s - time.monotonic(), 0.001))
            part = connected.recv(min(size - len(parts), _PART_BYTES))
        except OSError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)
