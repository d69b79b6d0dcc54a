"""The known name that is nearest to an unknown one: what a person probably meant."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown name; empty if no known name is near.

    >>> "unknown key 'lane'" + did_you_mean("lane", ["lanes", "session"])
    "unknown key 'lane'; did you mean 'lanes'?"
    """
    # Not at the top: difflib takes longer to load than the rest of the core's errors.
    from difflib import get_close_matches

    if not isinstance(name, str):
        return ""
    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), by_lower, 1)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""
