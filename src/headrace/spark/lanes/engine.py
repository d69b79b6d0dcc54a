"""Spark as an engine: where its executors are, whether they reach the hub, and how they are
told."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from headrace.core.errors import BadSetting, BadTopology
from headrace.engines.engine import Engine, LaneFactory, LaneWork
from headrace.engines.lane_server import LaneServer
from headrace.engines.lane_spec import lane_spec_for
from headrace.engines.remote_lane import this_machine
from headrace.lanes.protocol import DispatcherPort
from headrace.spark.lanes.lanes import SparkLanes, is_connect
from headrace.spark.lanes.reach import address, check_reach, is_this_host, says_yes
from headrace.spark.session.needs import check_packages, check_python, check_slots, local_slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEATS = 4
"""So many in the time after which a lane takes its replica for gone."""
REGISTERED_S = 60.0
"""So long executors may take to come, from the start of their session on."""
REGISTERED_S_MIN = 2.0
LOOK_S = 0.1
WORKS_FOR_CHARS_MAX = 200

log = logging.getLogger("headrace")


def on_spark(session: SparkSession) -> Engine:
    """Lanes as tasks of this session."""
    check_packages(connect=is_connect(session))

    def engine(wanted: LaneWork) -> LaneFactory:
        return _made(session, wanted)

    return engine


def _made(session: SparkSession, wanted: LaneWork) -> LaneFactory:
    def conf(key: str) -> str | None:
        found: str | None = session.conf.get(key, None)
        return found

    if not is_connect(session) and session.sparkContext._jsc is None:
        raise BadSetting("this Spark session was stopped: make another")
    master = conf("spark.master") or "that server"
    is_here = _is_here(session, master)
    hub = check_reach(wanted.backend, master, is_here=is_here, conf=conf)
    if is_here and not is_connect(session):
        check_python(session.sparkContext.pythonExec)
    _check_slots(session, master, wanted.settings.lanes)
    pickled = _pickled(wanted)
    lease_s = wanted.settings.session_s
    errand = msgspec.structs.replace(
        lane_spec_for(wanted, hub),
        machine=this_machine(),
        lease_s=lease_s,
    )
    place = address(is_here=is_here, is_connect=is_connect(session), conf=conf)

    def made(dispatcher: DispatcherPort, count: int) -> SparkLanes:
        board = LaneServer(dispatcher, place, beyond_this_host=True, beat_s=lease_s / BEATS)
        return SparkLanes(
            board, count, errand, session, pickled=pickled, works_for=_works_for(wanted)
        )

    return made


def _works_for(wanted: LaneWork) -> str:
    names = ", ".join(wanted.kits)
    return names if len(names) <= WORKS_FOR_CHARS_MAX else f"{names[:WORKS_FOR_CHARS_MAX]}…"


def _pickled(wanted: LaneWork) -> bytes | None:
    """The topology itself, where nothing names it: from a prompt or a notebook."""
    if wanted.reference is not None:
        return None
    from pyspark import cloudpickle

    dumps: Callable[[object], bytes] = cloudpickle.dumps
    try:
        return dumps(wanted.topology)
    except Exception as why:
        raise BadTopology(
            f"the topology cannot be sent to Spark: {type(why).__name__}: {why}; put it into a "
            "file and name that, as in reference='shop.py'"
        ) from why


def _is_here(session: SparkSession, master: str) -> bool:
    """Whether all lanes live on this machine, by what is known."""
    if local_slots(master) is None:
        return False
    return not is_connect(session) or is_this_host(session.client.host)


def _check_slots(session: SparkSession, master: str, lanes: int) -> None:
    slots = local_slots(master)
    if slots is None and not is_connect(session):
        slots = _cluster_slots(session, lanes)
    if slots is not None:
        check_slots(master, slots, lanes)


def _cluster_slots(session: SparkSession, lanes: int) -> int | None:
    """How many tasks run at once, as soon as that suffices; None: there may be more any time."""
    if says_yes(session.conf.get("spark.dynamicAllocation.enabled", None)):
        return None
    scala = session.sparkContext._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    began_s = session.sparkContext.startTime / 1000
    until_s = max(began_s + REGISTERED_S, time.time() + REGISTERED_S_MIN)
    while (slots := int(scala.maxNumConcurrentTasks(profile))) < lanes:
        if time.time() > until_s:
            break
        time.sleep(LOOK_S)
    return slots
