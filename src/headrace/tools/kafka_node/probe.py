"""Whether a broker serves: asked in Kafka's own protocol, so that no client is needed for it."""

from __future__ import annotations

import socket
import struct

ANSWER_S = 2.0
_METADATA, _VERSION, _NUMBER = 3, 1, 7
_NO_CLIENT, _NO_TOPICS = 0, 0
_ASKED = struct.pack(">hhihi", _METADATA, _VERSION, _NUMBER, _NO_CLIENT, _NO_TOPICS)
_SIZE = struct.Struct(">i")
_ANSWERED = struct.Struct(">ii")
"""The number of the request, and how many brokers there are: one that is not ready yet listens, but
does not count itself among them."""


def answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), ANSWER_S) as wire:
            wire.sendall(_SIZE.pack(len(_ASKED)) + _ASKED)
            with wire.makefile("rb") as answer:
                head = answer.read(_SIZE.size + _ANSWERED.size)
    except OSError:
        return False
    if len(head) < _SIZE.size + _ANSWERED.size:
        return False
    number, brokers = _ANSWERED.unpack_from(head, _SIZE.size)
    return bool(number == _NUMBER and brokers > 0)
