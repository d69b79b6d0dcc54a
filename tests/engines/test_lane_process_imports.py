"""What the process of a lane loads: its own work and its own backend, nothing of its replica."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import headrace
from headrace.lanes.loading import load_topology

CONNECTED_MAX = 60
"""How many modules of ours a lane loads before it opens its backend."""
AT_WORK_MAX = 100
"""How many it has loaded when it works on an embedded hub, with the modules of the backend."""

FOREIGN = (
    "headrace.cli", "headrace.tools", "headrace.testing", "headrace.ops", "headrace.hub",
    "headrace.spark", "headrace.consumers", "headrace.replica", "headrace.groups.membership",
    "headrace.groups.coordinator", "headrace.backends.memory", "headrace.backends.kafka",
    "headrace.core.computations.dispatch",
)  # fmt: skip

TOPOLOGY = """
import sys
from headrace import Topology, computation

@computation(inputs="orders", outputs="modules")
def look_around(record, out):
    for name in sorted(sys.modules):
        if name.partition(".")[0] == "headrace":
            out.append("modules", name)

made = {"shards": 1, "codec": "text"}
topology = Topology(look_around, streams={"orders": made, "modules": made})
"""


def test_a_lane_loads_few_modules_before_it_opens_its_backend() -> None:
    program = "import headrace.engines.lane_process, sys; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = [name for name in ran.stdout.split() if name.partition(".")[0] == "headrace"]
    assert "headrace.engines.remote_lane" in loaded
    assert len(loaded) <= CONNECTED_MAX, loaded
    assert [name for name in loaded if name.startswith(FOREIGN)] == []


def test_a_lane_at_work_has_loaded_its_own_backend_and_nothing_of_its_replica(
    tmp_path: Path,
) -> None:
    file = tmp_path / "shop.py"
    file.write_text(TOPOLOGY)
    found = load_topology(str(file))
    with headrace.open(tmp_path / "hub") as hub:
        hub.create_stream("orders", shards=1, codec="text").append("look around")
        headrace.run(
            found.topology, hub, processes=True, reference=found.reference, lanes=1,
            until_caught_up=True,
        )  # fmt: skip
        loaded = [record.value for record in hub.stream("modules").read(0)]
    assert "headrace.backends.lmdb.writer" in loaded
    assert len(loaded) <= AT_WORK_MAX, loaded
    assert [name for name in loaded if name.startswith(FOREIGN)] == []
