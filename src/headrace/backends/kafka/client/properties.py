"""The properties that librdkafka knows, from the table that it can print: their names, and which
values they take. Only error messages need them."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from ctypes import c_char_p, c_int, c_void_p
from functools import cache

from confluent_kafka import cimpl

_TYPE = re.compile(r"\*Type: ([^*]+)\*")
_RANGE = re.compile(r"(-?[0-9]+) \.\. (-?[0-9]+)")
_COLUMNS = 6


@cache
def load_properties() -> Mapping[str, str]:
    """The values that each property takes, by its name; empty if librdkafka prints no table."""
    try:
        lines = _table().splitlines()
    except (OSError, AttributeError):
        return {}
    rows = [[cell.strip() for cell in line.split("|", _COLUMNS - 1)] for line in lines]
    return {
        name: _values(allowed, description)
        for name, _, allowed, _, _, description in (row for row in rows if len(row) == _COLUMNS)
        if name not in ("", "Property") and not name.startswith("-")
    }


def _values(allowed: str, description: str) -> str:
    found = _TYPE.search(description)
    kind = found[1] if found is not None else ""
    within = _RANGE.fullmatch(allowed)
    if within is not None:
        number = "a whole number" if kind == "integer" else "a number"
        return f"{number}, {within[1]} to {within[2]}"
    if kind == "boolean":
        return "true or false"
    if kind == "CSV flags" and allowed:
        return f"some of {allowed}, with commas between them"
    return f"one of {allowed}" if allowed else "text"


def _table() -> str:
    client, libc = ctypes.CDLL(cimpl.__file__), ctypes.CDLL(None)
    libc.fdopen.restype, libc.fdopen.argtypes = c_void_p, (c_int, c_char_p)
    libc.fclose.argtypes = (c_void_p,)
    client.rd_kafka_conf_properties_show.restype = None
    client.rd_kafka_conf_properties_show.argtypes = (c_void_p,)
    with os.fdopen(os.memfd_create("headrace-kafka-properties"), "r", encoding="utf-8") as file:
        printed = libc.fdopen(os.dup(file.fileno()), b"w")
        if not printed:
            return ""
        client.rd_kafka_conf_properties_show(printed)
        libc.fclose(printed)
        file.seek(0)
        return file.read()
