"""Spark as an engine: where its executors are, whether they reach the hub, and what their lanes are
given."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headrace.core.errors import BadSetting, BadTopology
from headrace.engines.engine import Engine, LaneFactory, LaneWork
from headrace.engines.lane_server import LaneServer
from headrace.engines.lane_spec import this_machine
from headrace.engines.remote_lanes import lane_spec_for
from headrace.lanes.protocol import DispatcherPort
from headrace.spark.lanes.lanes import SparkLanes, is_connect
from headrace.spark.lanes.reach import address, check_reach, is_this_host, says_yes
from headrace.spark.session.needs import check_packages, check_python, check_slots, local_slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIGNS_OF_LIFE = 4
"""How many signs of life a lane gets in the time after which it takes its replica for gone."""
REGISTERED_S = 60.0
"""How long executors may take to register, from the start of their session on."""
REGISTERED_S_MIN = 2.0
LOOK_S = 0.1
NAMES_CHARS_MAX = 200

log = logging.getLogger("headrace")


def on_spark(session: SparkSession) -> Engine:
    """Lanes live in tasks of this session."""
    check_packages(connect=is_connect(session))
    return Engine("spark", partial(_spark_lanes, session), shares_a_process=False)


def _spark_lanes(session: SparkSession, work: LaneWork) -> LaneFactory:
    def conf(key: str) -> str | None:
        found: str | None = session.conf.get(key, None)
        return found

    if not is_connect(session) and session.sparkContext._jsc is None:
        raise BadSetting("this Spark session was stopped: make another")
    master = conf("spark.master") or "that server"
    is_here = _is_here(session, master)
    hub = check_reach(work.backend, master, is_here=is_here, conf=conf)
    if is_here and not is_connect(session):
        check_python(session.sparkContext.pythonExec)
    _check_slots(session, master, work.settings.lanes)
    pickled = _pickled(work)
    lease_s = work.settings.session_s
    spec = msgspec.structs.replace(
        lane_spec_for(work, hub),
        machine=this_machine(),
        lease_s=lease_s,
    )
    place = address(is_here=is_here, is_connect=is_connect(session), conf=conf)

    def make(dispatcher: DispatcherPort, count: int) -> SparkLanes:
        alive_s = lease_s / SIGNS_OF_LIFE
        server = LaneServer(dispatcher, place, beyond_this_host=True, alive_s=alive_s)
        return SparkLanes(server, count, spec, session, pickled=pickled, computations=_names(work))

    return make


def _names(work: LaneWork) -> str:
    names = ", ".join(work.computations)
    return names if len(names) <= NAMES_CHARS_MAX else f"{names[:NAMES_CHARS_MAX]}…"


def _pickled(work: LaneWork) -> bytes | None:
    """The topology itself, where no text names it: at a prompt or in a notebook."""
    if work.reference is not None:
        return None
    from pyspark import cloudpickle

    dumps: Callable[[object], bytes] = cloudpickle.dumps
    try:
        return dumps(work.topology)
    except Exception as why:
        raise BadTopology(
            f"the topology cannot be sent to Spark: {type(why).__name__}: {why}; put it into a "
            "file and name that, as in reference='shop.py'"
        ) from why


def _is_here(session: SparkSession, master: str) -> bool:
    """Whether all lanes will live on this machine, as far as this process knows."""
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
    """How many tasks can run at once; waits until they suffice for the lanes, or no more executors
    come. None: Spark adds executors when it needs them."""
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
