"""Parts of options: ``key=value`` given any number of times, and one of several words."""

from __future__ import annotations

from collections.abc import Sequence

import click

from headrace.core.errors import BadSetting
from headrace.core.nearest import did_you_mean


def pairs(option: str, given: tuple[str, ...], form: str = "key=value") -> dict[str, str]:
    """The pairs of an option; of several with one key, the last."""
    found = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not (equals and key):
            raise BadSetting(f"{option} {one!r}: write it as {form}")
        found[key] = value
    return found


class OneOf(click.ParamType[str]):
    """One of several words; another one is refused with the nearest of them."""

    name = "word"

    def __init__(self, known: Sequence[str]) -> None:
        self._known = known

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"[{'|'.join(self._known)}]"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self._known:
            shown = ", ".join(map(repr, self._known))
            near = did_you_mean(value, self._known)
            self.fail(f"{value!r} is not one of {shown}{near}", param, ctx)
        return value
