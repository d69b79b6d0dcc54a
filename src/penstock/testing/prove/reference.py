"""What one computation makes of exactly the input that it had in a proof, undisturbed: in one
process, in one lane, on a hub of its own.

``python -m penstock.testing.prove.reference FILE[:NAME] COMPUTATION PROOF_HUB OWN_HUB SECONDS``
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import penstock
from penstock.core.computation import Computation
from penstock.core.topology import Topology
from penstock.run.hub import Hub
from penstock.run.loading import load_topology
from penstock.run.settings import SETTINGS_FILE, RunSettings
from penstock.testing.prove.evidence import Log, log_of
from penstock.testing.prove.scratch import Scratch
from penstock.testing.prove.state import State, stored_state
from penstock.testing.prove.watch import Stopped, Watch

AT_ONCE = 2


class Reference(NamedTuple):
    outputs: dict[str, Log]
    letters: Log
    state: State
    stopped: list[Stopped]
    failure: str
    """Why there is none; empty if all went well."""


def references(
    scratch: Scratch, place: str, computations: Sequence[Computation], within_s: float, attempt: int
) -> dict[str, Reference]:
    """By computation; several are made at once."""
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
        sys.executable, "-m", "penstock.testing.prove.reference", place, computation.name,
        str(scratch.hub), str(own), f"{within_s:g}",
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=scratch.place, env=scratch.environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        said = done.stderr.strip().splitlines()
        why = said[-1] if said else f"it ended with {done.returncode}"
        return Reference({}, {}, {}, [], why)
    told = json.loads(done.stdout.splitlines()[-1])
    with penstock.open(own) as hub:
        return Reference(
            {name: log_of(hub.stream(name)) for name in computation.outputs},
            letters_of(hub, computation),
            stored_state(hub, computation.name, computation.inputs),
            [Stopped(**each) for each in told["stopped"]],
            "" if told["caught_up"] else f"not caught up within {within_s:g} s",
        )


def letters_of(hub: Hub, computation: Computation) -> Log:
    """Its dead letters, if there are any."""
    if computation.dead_letters not in [info.name for info in hub.streams()]:
        return {}
    return log_of(hub.stream(computation.dead_letters), letters=True)


def main(place: str, name: str, proof: str, own: str, within_s: str) -> None:
    topology = load_topology(place).topology
    # What was appended before it began was no load: it read everything.
    alone = Topology(replace(topology[name], start="earliest"))
    with penstock.open(own) as hub:
        with _read_only(proof) as source:
            for stream in alone.streams:
                _make_alike(source, hub, stream, copied=stream in alone.computations[0].inputs)
        settings = replace(RunSettings.read(SETTINGS_FILE), session_s=10.0, heartbeat_s=3.0)
        with penstock.start(alone, hub, settings=settings, lanes=1) as running:
            caught_up = running.wait(float(within_s), until_caught_up=True)
        watch = Watch(hub, alone)
        watch.look(0.0)
        stopped = [vars(each) for each in watch.stopped()]
    sys.stdout.write("\n" + json.dumps({"caught_up": caught_up, "stopped": stopped}) + "\n")


def _make_alike(source: Hub, hub: Hub, name: str, *, copied: bool) -> None:
    """The same stream on another hub; if copied, with the same records at the same offsets."""
    there = source.stream(name)
    info = there.info
    made = hub.create_stream(name, shards=len(info.shards), codec=info.codec, routing=info.routing)
    if copied:
        for shard in info.shards:
            for batch in there.read_arrow(shard.index):
                made.append_arrow(batch, shard=shard.index)


@contextmanager
def _read_only(place: str) -> Iterator[Hub]:
    with penstock.open(Path(place), create=False) as hub:
        yield hub


if __name__ == "__main__":
    main(*sys.argv[1:])
