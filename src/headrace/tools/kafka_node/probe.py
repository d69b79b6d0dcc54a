"""Asks a broker whether it serves, in Kafka's own protocol, so that no client is needed."""

from __future__ import annotations

import socket
import struct

ANSWER_S = 2.0
_METADATA, _VERSION, _NUMBER = 3, 1, 7
_NO_CLIENT, _NO_TOPICS = 0, 0
_REQUEST = struct.pack(">hhihi", _METADATA, _VERSION, _NUMBER, _NO_CLIENT, _NO_TOPICS)
_SIZE = struct.Struct(">i")
_ANSWER = struct.Struct(">ii")
"""The number of the request, and how many brokers there are. A broker that is not ready yet
listens, but does not count itself."""


def answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), ANSWER_S) as connection:
            connection.sendall(_SIZE.pack(len(_REQUEST)) + _REQUEST)
            with connection.makefile("rb") as answer:
                head = answer.read(_SIZE.size + _ANSWER.size)
    except OSError:
        return False
    if len(head) < _SIZE.size + _ANSWER.size:
        return False
    number, brokers = _ANSWER.unpack_from(head, _SIZE.size)
    return bool(number == _NUMBER and brokers > 0)
