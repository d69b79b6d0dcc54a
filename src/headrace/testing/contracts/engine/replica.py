"""A replica in a process of its own: ``python -m headrace.testing.contracts.engine.replica JSON``.
It ends with exit code 0 when all records are handled."""

from __future__ import annotations

import json
import sys

from headrace.core.computations.settings import RunSettings
from headrace.hub.run import start
from headrace.lanes.loading import load_topology


def main(request: str) -> None:
    given = json.loads(request)
    loaded = load_topology(given["reference"])
    settings = RunSettings(
        policies={"default": given["policy"]},
        streams={"default": {"codec": "json", "shards": 1}},
    )
    running = start(
        loaded.topology,
        given["hub"],
        settings=settings,
        options=given["options"],
        reference=loaded.reference,
        lanes=2,
        session="1s",
        heartbeat="200ms",
        **given["engine"],
    )
    running.wait(until_caught_up=True)
    running.stop()


if __name__ == "__main__":
    main(sys.argv[1])
