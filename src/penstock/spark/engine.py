"""Spark as an engine: where its executors are, whether they reach the hub, and how they are
told."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from penstock.core.errors import BadSetting, BadTopology
from penstock.runtime.dispatcher import Dispatcher
from penstock.runtime.engine import Engine, MadeLanes, Wanted
from penstock.runtime.errand import errand_for
from penstock.runtime.lane_work import this_machine
from penstock.runtime.switchboard import Switchboard
from penstock.spark.lanes import SparkLanes, is_connect
from penstock.spark.needs import check_packages, check_slots, local_slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ON_THIS_MACHINE = "spark.penstock.executorsOnThisMachine"
"""Says that all executors run on the machine of the hub's directory."""
ADDRESS = "spark.penstock.address"
"""Where lanes of a cluster call their replica, as in ``tcp:10.0.0.5:0``."""
BEATS = 4
"""So many in the time after which a lane takes its replica for gone."""
REGISTERED_S = 30.0
"""So long executors may take to come."""
LOOK_S = 0.1
WORKS_FOR_CHARS_MAX = 200

log = logging.getLogger("penstock")


def on_spark(session: SparkSession) -> Engine:
    """Lanes as tasks of this session."""
    check_packages(connect=is_connect(session))

    def engine(wanted: Wanted) -> MadeLanes:
        return _made(session, wanted)

    return engine


def _made(session: SparkSession, wanted: Wanted) -> MadeLanes:
    wanted.backend.capabilities.require("processes")
    master = _conf(session, "spark.master") or ""
    is_here = local_slots(master) is not None and _is_server_here(session)
    hub = os.path.abspath(wanted.backend.describe()["directory"])
    if not is_here and not _says_yes(session, ON_THIS_MACHINE):
        raise BadSetting(
            f"executors of {master or 'that server'} may be on other machines, which cannot reach "
            f"the embedded hub {hub}: run on this machine (no --master), or, if all of them are "
            f"here, say so with --conf {ON_THIS_MACHINE}=true"
        )
    _check_slots(session, master, wanted.settings.lanes)
    pickled = _pickled(wanted)
    lease_s = wanted.settings.session_s
    errand = msgspec.structs.replace(
        errand_for(wanted, hub),
        machine=this_machine(),
        lease_s=lease_s,
        codes={} if pickled is None else {name: kit.code for name, kit in wanted.kits.items()},
    )
    address = _address(session, is_here)

    def made(dispatcher: Dispatcher, count: int) -> SparkLanes:
        board = Switchboard(dispatcher, address, beyond_this_host=True, beat_s=lease_s / BEATS)
        return SparkLanes(
            board, count, errand, session, pickled=pickled, works_for=_works_for(wanted)
        )

    return made


def _works_for(wanted: Wanted) -> str:
    names = ", ".join(wanted.kits)
    return names if len(names) <= WORKS_FOR_CHARS_MAX else f"{names[:WORKS_FOR_CHARS_MAX]}…"


def _pickled(wanted: Wanted) -> bytes | None:
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


def _address(session: SparkSession, is_here: bool) -> str:
    told = _conf(session, ADDRESS)
    if told:
        return told
    if is_here:
        return "unix:"
    host = _conf(session, "spark.driver.host")
    if host is None or is_connect(session):
        raise BadSetting(
            f"lanes of a cluster must reach this process: say where, as in "
            f"--conf {ADDRESS}=tcp:10.0.0.5:0"
        )
    return f"tcp:{host}:0"


def _is_server_here(session: SparkSession) -> bool:
    if not is_connect(session):
        return True
    host = session.client.host
    return host in ("localhost", "::1") or host.startswith("127.")


def _check_slots(session: SparkSession, master: str, lanes: int) -> None:
    slots = local_slots(master)
    if slots is None and not is_connect(session):
        slots = _cluster_slots(session, lanes)
    if slots is not None:
        check_slots(master, slots, lanes)


def _cluster_slots(session: SparkSession, lanes: int) -> int | None:
    """How many tasks run at once, as soon as that suffices; None: there may be more any time."""
    if _says_yes(session, "spark.dynamicAllocation.enabled"):
        return None
    scala = session.sparkContext._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    until_s = time.monotonic() + REGISTERED_S
    while (slots := int(scala.maxNumConcurrentTasks(profile))) < lanes:
        if time.monotonic() > until_s:
            break
        time.sleep(LOOK_S)
    return slots


def _says_yes(session: SparkSession, key: str) -> bool:
    return (_conf(session, key) or "").strip().lower() == "true"


def _conf(session: SparkSession, key: str) -> str | None:
    found: str | None = session.conf.get(key, None)
    return found
