"""Names of streams and groups, and their one-word form.

A name is ``name`` or ``namespace/name``. Its parts follow Kafka's rule for topics: letters, digits,
``.``, ``_`` and ``-``. The one-word form is used for topics, files and metric labels. It has ``--``
for the slash, and no part may contain ``--``. So each name has exactly one such form, and each such
form exactly one name.
"""

from __future__ import annotations

import re

from headrace.core.errors import BadName

NAME_CHARS_MAX = 249
_PART = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


def checked_name(name: str) -> str:
    """The name itself, if it is valid; else `BadName` says why."""
    if not isinstance(name, str):
        raise BadName(name, "a name is text")
    parts = name.split("/")
    if len(parts) > 2:
        raise BadName(name, "at most one slash, as in namespace/name")
    for part in parts:
        if not part:
            raise BadName(name, "empty" if name == "" else "empty before or after the slash")
        if not _PART.fullmatch(part):
            raise BadName(name, "only letters, digits, '.', '_' and '-', and one slash")
        if part in (".", ".."):
            raise BadName(name, "'.' and '..' are no names")
        if "--" in part:
            raise BadName(name, "'--' stands for the slash where a slash cannot be written")
    if len(parts) == 2 and (parts[0].endswith("-") or parts[1].startswith("-")):
        raise BadName(name, "no '-' next to the slash")
    if len(name) + len(parts) - 1 > NAME_CHARS_MAX:
        raise BadName(name[:40] + "…", f"longer than {NAME_CHARS_MAX} with the slash counted twice")
    return name


def one_word(name: str) -> str:
    """``shop/orders`` -> ``shop--orders``: injective, and legal as a Kafka topic."""
    return checked_name(name).replace("/", "--")


def from_one_word(word: str) -> str:
    """The name whose one-word form this is."""
    if "/" in word:
        raise BadName(word, "its one-word form has '--' where the name has a slash")
    return checked_name(word.replace("--", "/", 1))
