"""A reference: what one computation makes, undisturbed, of exactly the input that it had in a
proof. It runs in one process, in one lane, on a hub of its own.

``python -m headrace.tools.proof.reference FILE[:NAME] COMPUTATION PROOF_HUB OWN_HUB SECONDS``
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import headrace
from headrace.core.computations.computation import Computation
from headrace.core.computations.settings import RunSettings
from headrace.core.computations.topology import Topology
from headrace.hub.hub import Hub
from headrace.hub.settings_file import SETTINGS_FILE, read_settings
from headrace.lanes.loading import load_topology
from headrace.tools.proof.evidence import Log, log_of
from headrace.tools.proof.progress import ProgressWatch, Stopped
from headrace.tools.proof.scratch import Scratch
from headrace.tools.proof.state import StoredState, stored_state

AT_ONCE = 2


class Reference(NamedTuple):
    outputs: dict[str, Log]
    letters: Log
    state: StoredState
    stopped: list[Stopped]
    failure: str
    """Why there is no reference; empty if there is one."""


def references(
    scratch: Scratch, place: str, computations: Sequence[Computation], within_s: float, attempt: int
) -> dict[str, Reference]:
    """Make the references of some computations, several at once."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        made = pool.map(
            lambda each: _reference(scratch, place, each, within_s, attempt), computations
        )
        return {each.name: found for each, found in zip(computations, made, strict=True)}


def _reference(
    scratch: Scratch, place: str, computation: Computation, within_s: float, attempt: int
) -> Reference:
    own = scratch.own / f"reference-{attempt}-{computation.name.replace('/', '.')}"
    command = [
        sys.executable, "-m", "headrace.tools.proof.reference", place, computation.name,
        str(scratch.hub), str(own), f"{within_s:g}",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=scratch.place, env=scratch.environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        said = done.stderr.strip().splitlines()
        why = said[-1] if said else f"its process ended with {done.returncode}"
        return Reference({}, {}, {}, [], why)
    told = json.loads(done.stdout.splitlines()[-1])
    with headrace.open(own) as hub:
        return gathered(hub, computation, caught_up=told["caught_up"], within_s=within_s)


def gathered(hub: Hub, computation: Computation, *, caught_up: bool, within_s: float) -> Reference:
    """What the computation has made on that hub."""
    watch = ProgressWatch(hub, Topology(computation))
    watch.look(0.0)
    return Reference(
        {name: log_of(hub.stream(name)) for name in computation.outputs},
        letters_of(hub, computation),
        stored_state(hub, computation.name, computation.inputs),
        watch.stopped(),
        "" if caught_up else f"not caught up within {within_s:g} s",
    )


def letters_of(hub: Hub, computation: Computation) -> Log:
    """The dead letters of a computation; empty if it has none."""
    if computation.dead_letters not in [info.name for info in hub.streams()]:
        return {}
    return log_of(hub.stream(computation.dead_letters), letters=True)


def made_alone(
    source: Hub, hub: Hub, computation: Computation, settings: RunSettings, within_s: float
) -> bool:
    """Run the computation on a copy of its input; return whether it consumed all of it."""
    # From the earliest record on: in the proof, all records came after it had begun.
    alone = Topology(replace(computation, start="earliest"))
    for stream in alone.streams:
        _make_alike(source, hub, stream, copied=stream in computation.inputs)
    with headrace.start(alone, hub, settings=settings, lanes=1) as running:
        return running.wait(within_s, until_caught_up=True)


def main(place: str, name: str, proof: str, own: str, within_s: str) -> None:
    computation = load_topology(place).topology[name]
    settings = replace(read_settings(SETTINGS_FILE), session_s=10.0, heartbeat_s=3.0)
    with headrace.open(proof, create=False) as source, headrace.open(own) as hub:
        caught_up = made_alone(source, hub, computation, settings, float(within_s))
    sys.stdout.write("\n" + json.dumps({"caught_up": caught_up}) + "\n")


def _make_alike(source: Hub, hub: Hub, name: str, *, copied: bool) -> None:
    """Make the same stream on another hub; if copied, with the same records at the same offsets."""
    there = source.stream(name)
    info = there.info
    made = hub.create_stream(name, shards=len(info.shards), codec=info.codec, routing=info.routing)
    if copied:
        for shard in info.shards:
            for batch in there.read_arrow(shard.index):
                made.append_arrow(batch, shard=shard.index)


if __name__ == "__main__":
    main(*sys.argv[1:])
