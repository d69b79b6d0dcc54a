"""Durations, sizes and times as people write them, turned into seconds, bytes and milliseconds."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from headrace.core.errors import BadQuantity

Duration = str | timedelta | float | int
Size = str | int
Instant = datetime | int

TIMESTAMP_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999, so that every timestamp is also a datetime."""

DURATION_S_MAX = 100 * 366 * 86_400.0
"""The longest duration: 100 years."""

_GO_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # micro sign
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_DAY_NS = 86_400_000_000_000
_NS_MAX = 2**63 - 1
_TERM = re.compile(r"([0-9]*)(?:(\.)([0-9]*))?([^0-9.]*)", re.ASCII)
_CHARS_MAX = 64

_SIZE_UNITS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?) ?([A-Za-z]{0,3})", re.ASCII)


def go_duration_ns(text: str) -> int:
    """The nanoseconds of a duration, read like Go's ``time.ParseDuration``, with Go's messages."""
    return _duration_ns(text, _GO_UNITS_NS)


def seconds(duration: Duration, *, what: str = "duration") -> float:
    """The seconds of ``"5ms"``, ``"1.5h"``, ``"7d"``, a timedelta, or a number of seconds; never
    negative."""
    if isinstance(duration, timedelta):
        value = duration.total_seconds()
    elif isinstance(duration, bool):
        raise BadQuantity(f"bad {what} {duration!r}: write '5s', '200ms', a timedelta or seconds")
    elif isinstance(duration, int | float):
        value = float(duration) if abs(duration) < 2**63 else math.inf
    elif isinstance(duration, str):
        try:
            value = _duration_ns(duration, {**_GO_UNITS_NS, "d": _DAY_NS}) / 1e9
        except BadQuantity as wrong:
            raise BadQuantity(
                f"bad {what}: {wrong}; write '200ms', '5s', '1h30m' or '7d'"
            ) from None
    else:
        raise BadQuantity(f"bad {what} {duration!r}: write '5s', '200ms', a timedelta or seconds")
    if not 0 <= value <= DURATION_S_MAX:
        raise BadQuantity(f"bad {what} {duration!r}: it must lie between 0 and 100 years")
    return value


def size_bytes(size: Size, *, what: str = "size") -> int:
    """The bytes of ``"16MiB"``, ``"1.5GB"``, ``"4k"`` or a whole number."""
    if isinstance(size, int) and not isinstance(size, bool):
        value = size
    elif isinstance(size, str) and (found := _SIZE.fullmatch(size.strip())):
        number, unit = found.groups()
        scale = _SIZE_UNITS.get(unit.lower())
        if scale is None:
            raise BadQuantity(
                f"bad {what} {size!r}: unknown unit {unit!r}; use B, KiB, MiB, GiB, TiB"
            )
        value = round(float(number) * scale) if "." in number else int(number) * scale
    else:
        raise BadQuantity(f"bad {what} {size!r}: write '16MiB', '1GB' or a number of bytes")
    if not 0 <= value < 2**63:
        raise BadQuantity(f"bad {what} {size!r}: it must lie between 0 and 2**63 bytes")
    return value


def instant_ms(instant: Instant, *, what: str = "timestamp") -> int:
    """The milliseconds since 1970 of an aware datetime; a whole number is taken as milliseconds."""
    if isinstance(instant, datetime):
        if instant.tzinfo is None:
            raise BadQuantity(f"bad {what} {instant!r}: give the datetime a time zone")
        value = (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    elif isinstance(instant, int) and not isinstance(instant, bool):
        value = instant
    else:
        raise BadQuantity(f"bad {what} {instant!r}: an aware datetime, or milliseconds since 1970")
    if not 0 <= value <= TIMESTAMP_MS_MAX:
        raise BadQuantity(f"bad {what} {instant!r}: it must lie between 1970 and 9999")
    return value


def shown_duration(value_s: float) -> str:
    """``90061.5`` -> ``1d1h1m1.5s``. `seconds` reads it back to the same millisecond."""
    left_ms = round(value_s * 1000)
    if left_ms == 0:
        return "0s"
    out = ""
    for unit, scale_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        count, left_ms = divmod(left_ms, scale_ms)
        out += f"{count}{unit}" if count else ""
    if left_ms == 0:
        return out
    if not out and left_ms < 1000:
        return f"{left_ms}ms"
    return f"{out}{left_ms / 1000:g}s" if left_ms % 1000 else f"{out}{left_ms // 1000}s"


def shown_size(value: int) -> str:
    """``1536`` -> ``1.5 KiB``, for people."""
    scaled, unit = float(value), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if scaled < 1024 or unit == "TiB":
            break
        scaled /= 1024
    return f"{scaled:.0f} {unit}" if unit == "B" else f"{scaled:.1f} {unit}"


def shown_apart(value: int, limit: int) -> tuple[str, str]:
    """Two sizes, for people: in bytes if they would look the same otherwise."""
    shown = shown_size(value), shown_size(limit)
    return shown if shown[0] != shown[1] else (f"{value:,} bytes", f"{limit:,}")


def _duration_ns(text: str, units_ns: dict[str, int]) -> int:
    quoted = _quoted(text[:_CHARS_MAX])
    invalid = BadQuantity(f"time: invalid duration {quoted}")
    sign, rest = (-1, text[1:]) if text[:1] == "-" else (1, text[1:] if text[:1] == "+" else text)
    if rest == "0":
        return 0
    if not rest or len(text) > _CHARS_MAX:
        raise invalid
    total = 0
    while rest:
        found = _TERM.match(rest)
        if found is None or not (found[1] or found[3]):
            raise invalid
        whole, _, fraction, unit = found.groups()
        if not unit:
            raise BadQuantity(f"time: missing unit in duration {quoted}")
        if unit not in units_ns:
            raise BadQuantity(f"time: unknown unit {_quoted(unit)} in duration {quoted}")
        scale = units_ns[unit]
        total += int(whole or "0") * scale
        total += _fraction_ns(fraction or "", scale)
        if total > _NS_MAX + (sign < 0):
            raise invalid
        rest = rest[found.end() :]
    return sign * total


def _fraction_ns(digits: str, unit_ns: int) -> int:
    """A fraction as Go computes it: in floating point, of the digits that fit into 63 bits."""
    kept = digits[: len(digits) if int(digits or "0") <= _NS_MAX else 18]
    return int(int(kept or "0") * (unit_ns / 10 ** len(kept)))


def _quoted(text: str) -> str:
    """The text as Go quotes it: always one line of ASCII."""
    return '"' + "".join(map(_quoted_char, text)) + '"'


def _quoted_char(char: str) -> str:
    if " " <= char <= "\x7f":
        return "\\" + char if char in '"\\' else char
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", "surrogatepass"))
