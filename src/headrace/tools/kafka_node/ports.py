"""Free ports of loopback."""

from __future__ import annotations

import random
import socket
from itertools import islice

from headrace.core.errors import Refused

LOOPBACK = "127.0.0.1"
_FIRST, _LAST = 10_000, 32_000
"""The range from which ports are chosen. It lies below the ports that the kernel gives to outgoing
connections: a free port stays free, also while its broker is down."""


def free_ports(count: int) -> list[int]:
    tried = random.sample(range(_FIRST, _LAST), k=_LAST - _FIRST)
    found = list(islice(filter(_is_free, tried), count))
    if len(found) < count:
        raise Refused(f"{LOOPBACK} has no {count} free ports between {_FIRST} and {_LAST}")
    return found


def check_free(port: int) -> None:
    if not _is_free(port):
        raise Refused(f"port {port} of {LOOPBACK} is taken by another program: choose another port")


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        # As Java does: connections of a broker that has just ended do not block its port.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
