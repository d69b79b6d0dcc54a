"""The topologies that are measured on several engines: lanes in other processes load them from
here.

`copying` makes one output of each record, with its value and key. `working` does the same after
about 10 µs of work that holds Python's lock. `chain` passes each record through five computations
with two lanes each.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any

import headrace
from headrace import Topology, computation
from headrace.core.computations.computation import Computation
from headrace.core.errors import UnknownGroup
from headrace.hub.hub import Hub
from headrace.hub.run import Running
from headrace.tools.bench.processes import STREAM

SOURCE, TARGET = "source", "target"
VISIBLE = "visible"
HASHES = 20
LINKS = 5
LINK_LANES = 2


@computation(name="copy", inputs=SOURCE, outputs=TARGET, version="1")
def copy(record: Any, out: Any) -> None:
    out.append(TARGET, record.value, key=record.key)


@computation(name="work", inputs=SOURCE, outputs=TARGET, version="1")
def work(record: Any, out: Any) -> None:
    digest = record.value
    for _ in range(HASHES):
        digest = sha256(digest).digest()
    out.append(TARGET, record.value, key=record.key)


@computation(name="once", inputs=STREAM, outputs=VISIBLE, version="1", start="latest")
def once(record: Any, out: Any) -> None:
    out.append(VISIBLE, record.value, key=record.key)


def _link(number: int) -> Computation:
    inputs = STREAM if number == 0 else f"link{number}"
    outputs = VISIBLE if number == LINKS - 1 else f"link{number + 1}"

    @computation(
        name=f"pass{number}",
        inputs=inputs,
        outputs=outputs,
        version="1",
        start="latest",
        concurrency=LINK_LANES,
    )
    def pass_on(record: Any, out: Any) -> None:
        out.append(outputs, record.value, key=record.key)

    return pass_on


copying = Topology(copy)
working = Topology(work)
passing = Topology(once)
chain = Topology(*map(_link, range(LINKS)))

_ALL: Mapping[str, Topology] = {
    "copying": copying,
    "working": working,
    "passing": passing,
    "chain": chain,
}


def start(name: str, hub: Hub, **how: Any) -> Running:
    """Start one of these topologies, by its name in this module."""
    return headrace.start(_ALL[name], hub, reference=f"{__name__}:{name}", **how)


def forget(hub: Hub, name: str) -> None:
    """Delete the groups of a topology, so that its next run begins anew."""
    for each in _ALL[name].computations:
        with suppress(UnknownGroup):
            hub.groups.delete(each.name)
