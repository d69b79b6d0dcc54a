"""``headrace bench groups``: what groups and their consumers cost, on the embedded hub."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from headrace.core.errors import BadSetting
from headrace.tools.bench.consuming import consumed, waited
from headrace.tools.bench.handover import measured as handed_over
from headrace.tools.bench.joining import converged, joined
from headrace.tools.bench.machine import measured as machine
from headrace.tools.bench.measure import Say, workplace

PARTS: dict[str, Callable[[Path, Say], dict[str, Any]]] = {
    "machine": machine,
    "handover": handed_over,
    "join": joined,
    "converge": converged,
    "consume": consumed,
    "idle": waited,
}


def run(directory: Path | None, say: Say, only: Collection[str] = ()) -> dict[str, Any]:
    """All figures, or those of some parts; ``say`` gets a line about what is being measured."""
    for name in only:
        if name not in PARTS:
            raise BadSetting(f"no part {name!r} of this benchmark: one of {', '.join(PARTS)}")
    figures: dict[str, Any] = {}
    with workplace(directory) as place:
        for name, measured in PARTS.items():
            if not only or name in only:
                figures |= measured(place, say)
    return figures
