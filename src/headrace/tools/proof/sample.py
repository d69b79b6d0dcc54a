"""Generated records: like those of a sample from the user, else simple default ones."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headrace.core.errors import BadSetting, BadValue
from headrace.core.ports import Codec

KEYS = 50
"""Few enough that many records share a key, so that their order can be checked."""

_LINE_KEYS = ({"value"}, {"key", "value"})


class Example(NamedTuple):
    value: Any
    key: str | None = None
    """None: a key is generated."""
    is_text: bool = False
    """Whether the line was no JSON."""


Source = Callable[[int], tuple[Any, str]]
"""The value and key of the n-th record."""


def read_sample(path: str) -> list[Example]:
    """Read a sample: each line is JSON, ``{"key": …, "value": …}`` or a value, or text."""
    try:
        lines = [line for line in Path(path).read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as why:
        raise BadSetting(f"sample {path} cannot be read: {why}") from None
    if not lines:
        raise BadSetting(f"sample {path} is empty: write one record a line")
    return [_example(line) for line in lines]


def made_up(stream: str, codec: Codec, sample: Sequence[Example], seed: str) -> Source:
    """Records from the sample, again and again, each with another ``id``; without a sample, default
    records that the codec can encode."""
    dice = random.Random(f"{seed} prove load {stream}")
    for each in sample:
        if each.is_text and codec.name == "json":
            raise BadSetting(f"sample: {stream} has codec json, and {each.value[:80]!r} is no JSON")
    fit = [(_fitting(stream, codec, each.value), each.key) for each in sample]
    default = None if fit else _default(stream, codec)

    def record(n: int) -> tuple[Any, str]:
        made_key = f"k{dice.randrange(KEYS):02}"
        if default is not None:
            return default(n, made_key, dice), made_key
        value, key = fit[n % len(fit)]
        return _with_id(value, n), made_key if key is None else key

    return record


def _example(line: str) -> Example:
    try:
        value = json.loads(line)
    except ValueError:
        return Example(line, is_text=True)
    if isinstance(value, dict) and set(value) in _LINE_KEYS:
        key = value.get("key")
        return Example(value["value"], None if key is None else str(key))
    return Example(value)


def _with_id(value: Any, n: int) -> Any:
    given = value.get("id") if isinstance(value, dict) else None
    if isinstance(given, int) and not isinstance(given, bool):
        return {**value, "id": n}
    return {**value, "id": f"{given}-{n}"} if isinstance(given, str) else value


def _fitting(stream: str, codec: Codec, value: Any) -> Any:
    """The value, its text or its bytes: the first that the codec takes."""
    text = value if isinstance(value, str) else json.dumps(value)
    for form in (value, text, text.encode()):
        if _takes(codec, form):
            return form
    raise BadSetting(f"sample: {stream} with codec {codec.name} does not take {text[:80]!r}")


def _default(stream: str, codec: Codec) -> Callable[[int, str, random.Random], Any]:
    def value(n: int, key: str, dice: random.Random) -> Any:
        return {"id": n, "key": key, "amount": dice.randrange(1, 1000)}

    def text(n: int, key: str, dice: random.Random) -> str:
        return json.dumps(value(n, key, dice))

    def data(n: int, key: str, dice: random.Random) -> bytes:
        return text(n, key, dice).encode()

    for form in (value, text, data):
        if _takes(codec, form(0, "k00", random.Random(0))):
            return form
    raise BadSetting(
        f"{stream} has codec {codec.name}: there is no default for it, give --sample FILE"
    )


def _takes(codec: Codec, value: Any) -> bool:
    try:
        codec.encode(value)
    except BadValue:
        return False
    return True
