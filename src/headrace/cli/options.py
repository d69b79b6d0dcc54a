"""Options like ``--option key=value``, given any number of times."""

from __future__ import annotations

from headrace.core.errors import BadSetting


def pairs(option: str, given: tuple[str, ...], form: str = "key=value") -> dict[str, str]:
    """Of several with one key the last."""
    found = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not (equals and key):
            raise BadSetting(f"{option} {one!r}: write it as {form}")
        found[key] = value
    return found
