"""The script of the demonstration: three stages over ten shards, three replicas. One is killed, one
is stopped for longer than its session, and a fourth one is added."""

from __future__ import annotations

from headrace.core.computations.settings import RunSettings
from headrace.lanes.loading import load_topology
from headrace.tools.proof import stages
from headrace.tools.proof.engine_choice import EngineChoice
from headrace.tools.proof.plan import Deed
from headrace.tools.proof.proof import Order

PLACE = "headrace.tools.proof.stages:topology"
REPLICAS = 3
SHARDS = 10
LANES = 2
RECORDS = 30_000
SECONDS = 44.0
"""How long records come."""
KILL, STOP, START = 0.14, 0.32, 0.55
"""When each deed happens, as a share of that time."""
STOP_SESSIONS = 2.5


def script(seconds: float, session_s: float) -> list[Deed]:
    return [
        Deed(KILL * seconds, "kill", 1),
        Deed(STOP * seconds, "stop", 2, STOP_SESSIONS * session_s, locked=False),
        Deed(START * seconds, "start", REPLICAS),
    ]


def order(engine: EngineChoice, *, seed: str, records: int, seconds: float, again: str) -> Order:
    deeds = script(seconds, engine.session_s)
    return Order(
        loaded=load_topology(PLACE),
        settings=RunSettings(
            lanes=LANES,
            streams={name: {"shards": SHARDS, "codec": "json"} for name in stages.STREAMS},
        ),
        again=again,
        seed=seed,
        records=records,
        replicas=REPLICAS,
        engine=engine,
        script=deeds,
        rest_s=seconds - deeds[-1].at_s,
    )
