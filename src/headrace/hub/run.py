"""``headrace.run`` and ``headrace.start``: run a topology as one replica."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, get_args

from headrace.core.computations.settings import LANES_MAX, Allocation, RunSettings
from headrace.core.computations.topology import Topology
from headrace.core.errors import BadSetting, BadTopology, UnknownStream
from headrace.core.groups.allocators import named
from headrace.core.groups.member_settings import MemberSettings
from headrace.core.groups.subscription import Subscription
from headrace.core.nearest import did_you_mean
from headrace.core.ports import Membership
from headrace.core.quantities import Duration, seconds
from headrace.engines.engine import Engine, LaneWork
from headrace.engines.processes import IN_PROCESSES
from headrace.engines.threads import IN_THREADS
from headrace.groups.admin import Groups
from headrace.groups.home import home_of
from headrace.groups.member_settings import default_name
from headrace.hub.hub import Hub
from headrace.hub.opening import open as open_hub
from headrace.hub.settings_file import read_settings
from headrace.lanes.bound import bound_computations
from headrace.process.shutdown import on_exit, on_sigterm
from headrace.replica.counters import Counters
from headrace.replica.replica import Replica

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("headrace")

CAUGHT_UP_S = 0.05
STOP_S = 30.0


class Running:
    """A topology that runs in the background; `headrace.start` makes it."""

    def __init__(self, topology: Topology, hub: Hub, replica: Replica, owns_hub: bool) -> None:
        self.topology = topology
        self.hub = hub
        self.replica = replica
        self._owns_hub = owns_hub
        self._is_closed = False
        on_exit(self)
        self._forget_sigterm = on_sigterm(replica.end)

    @property
    def name(self) -> str:
        """The name of this replica, which is its member name in the groups."""
        return self.replica.name

    @property
    def counters(self) -> Mapping[str, Counters]:
        """The counters of this replica, by computation."""
        return self.replica.dispatcher.counters

    @property
    def is_running(self) -> bool:
        return not self.replica.ended.is_set()

    def caught_up(self) -> bool:
        """Whether the replicas have consumed every input; stopped shards do not count.

        Upstream computations are checked first: what they have committed includes their outputs, so
        the check of a downstream computation sees those."""
        groups = Groups(self.hub.backend)
        for each in self.topology.computations:
            group = groups.load(each.name)
            for shard, position in groups.positions(group).items():
                standing = group.shards.get(shard)
                if position.lag and not (standing is not None and standing.stopped):
                    return False
        return True

    def stopped(self) -> dict[str, list[str]]:
        """The shards that are stopped, by computation."""
        groups = Groups(self.hub.backend)
        found = {
            each.name: sorted(
                str(shard) for shard, s in groups.load(each.name).shards.items() if s.stopped
            )
            for each in self.topology.computations
        }
        return {name: shards for name, shards in found.items() if shards}

    def wait(
        self,
        timeout: Duration | None = None,
        *,
        until_caught_up: bool = False,
        on_tick: Callable[[], object] | None = None,
    ) -> bool:
        """Wait until the run has ended, or until every input is consumed: True. After ``timeout``:
        False. An error that ended the run is raised."""
        until_s = None if timeout is None else time.monotonic() + seconds(timeout)
        while self.is_running:
            if until_caught_up and self.replica.dispatcher.is_idle and self.caught_up():
                return True
            if until_s is not None and time.monotonic() >= until_s:
                return False
            self.replica.ended.wait(CAUGHT_UP_S)
            if on_tick is not None:
                on_tick()
        self._raise_failure()
        return True

    def _raise_failure(self) -> None:
        """Raise the error that ended the replica, once: the first caller gets it."""
        failure, self.replica.failure = self.replica.failure, None
        if failure is not None:
            raise failure

    def stop(self, timeout: Duration = STOP_S) -> bool:
        """Finish the records in hand, commit, and leave the groups. True if all records in hand
        were finished in time, False if some were given up. Nothing is lost either way."""
        self._forget_sigterm()
        clean = self.replica.stop(seconds(timeout))
        self.close()
        self._raise_failure()
        return clean

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._forget_sigterm()
            if self.is_running:
                self.replica.stop(STOP_S)
            if self._owns_hub:
                self.hub.close()

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if error is None:
            self._raise_failure()


def start(
    topology: Topology,
    hub: Hub | str | os.PathLike[str],
    *,
    settings: RunSettings | str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    lanes: int | None = None,
    allocation: str | None = None,
    processes: bool = False,
    spark: SparkSession | None = None,
    reference: str | None = None,
    name: str | None = None,
    session: Duration | None = None,
    heartbeat: Duration | None = None,
    max_wait_handler: Duration | None = None,
    skip_first_failures: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> Running:
    """Run a topology in the background, as one replica of its groups. Its lanes are threads, or
    ``processes``, or tasks of a ``spark`` session.

    >>> import headrace
    >>> from headrace import Topology, computation
    >>> @computation(inputs="shop/orders", outputs="shop/invoices")
    ... def bill(record, out):
    ...     out.append("shop/invoices", {"total": 2 * record.value["amount"]}, key=record.key)
    >>> hub = headrace.open("memory:")
    >>> made = {"shards": 1, "codec": "json"}
    >>> topology = Topology(bill, streams={"shop/orders": made, "shop/invoices": made})
    >>> with headrace.start(topology, hub) as running:
    ...     record_id = hub.stream("shop/orders").append({"amount": 21}, key="ann")
    ...     running.wait("10s", until_caught_up=True)
    True
    >>> [record.value for record in hub.stream("shop/invoices").read(0)]
    [{'total': 42}]
    """
    if not isinstance(topology, Topology):
        raise BadTopology(f"{topology!r} is not a topology: write Topology(bill, index)")
    if not isinstance(settings, RunSettings):
        settings = read_settings(settings)
    settings = _changed(
        settings,
        options=options,
        lanes=lanes,
        allocation=allocation,
        session=session,
        heartbeat=heartbeat,
        max_wait_handler=max_wait_handler,
    )
    for line in settings.unknown_names(topology):
        log.warning("%s", line)
    engine = _engine(processes, spark)
    owns_hub = not isinstance(hub, Hub)
    opened = hub if isinstance(hub, Hub) else open_hub(hub)
    try:
        replica = _replica(
            topology, opened, settings, engine, reference, name, skip_first_failures, clock
        )
        replica.start()
    except BaseException:
        if owns_hub:
            opened.close()
        raise
    return Running(topology, opened, replica, owns_hub)


def run(
    topology: Topology,
    hub: Hub | str | os.PathLike[str],
    *,
    until_caught_up: bool = False,
    **settings: Any,
) -> Mapping[str, Counters]:
    """Run a topology until SIGTERM or Ctrl-C, or until every input is consumed, and return its
    counters. The settings are those of `start`."""
    running = start(topology, hub, **settings)
    try:
        running.wait(until_caught_up=until_caught_up)
    except KeyboardInterrupt:
        log.warning("ending; press Ctrl-C again to end at once")
    finally:
        running.stop()
    return running.counters


def _changed(
    settings: RunSettings, *, options: Mapping[str, Any] | None, **given: Any
) -> RunSettings:
    changes: dict[str, Any] = {}
    for key in ("lanes", "allocation"):
        if given[key] is not None:
            changes[key] = given[key]
    for key, field in (
        ("session", "session_s"),
        ("heartbeat", "heartbeat_s"),
        ("max_wait_handler", "handler_s_max"),
    ):
        if given[key] is not None:
            changes[field] = seconds(given[key], what=key)
    _check_lanes(changes.get("lanes", settings.lanes), changes.get("allocation", "pool"))
    changed = replace(settings, **changes)
    return changed.with_options(options or {})


def _check_lanes(lanes: object, allocation: object) -> None:
    if isinstance(lanes, bool) or not isinstance(lanes, int) or not 1 <= lanes <= LANES_MAX:
        raise BadSetting(f"lanes {lanes!r}: a whole number, 1 to {LANES_MAX}")
    if allocation not in get_args(Allocation):
        known = get_args(Allocation)
        raise BadSetting(
            f"allocation {allocation!r}: one of {', '.join(known)}{did_you_mean(allocation, known)}"
        )


def _replica(
    topology: Topology,
    hub: Hub,
    settings: RunSettings,
    engine: Engine,
    reference: str | None,
    name: str | None,
    skip_first_failures: int,
    clock: Callable[[], float],
) -> Replica:
    backend = hub.backend
    backend.capabilities.require("store", "commit")
    home = home_of(backend)
    make_streams(hub, topology, settings)
    found = bound_computations(backend.log, topology, settings)
    own_name = default_name() if name is None else name
    memberships: dict[str, Membership] = {
        each.name: home.membership(
            Subscription(each.inputs),
            MemberSettings(
                group=each.name,
                name=own_name,
                allocator=named("balanced"),
                session_s=settings.session_s,
                heartbeat_s=settings.heartbeat_s,
            ),
        )
        for each in topology.computations
    }
    lane_work = LaneWork(
        topology=topology,
        backend=backend,
        computations=found,
        settings=settings,
        replica=own_name,
        reference=reference,
    )
    return Replica(
        backend,
        found,
        memberships,
        engine.make(lane_work),
        name=own_name,
        lanes=settings.lanes,
        allocation=settings.allocation,
        shares_a_process=engine.shares_a_process,
        handler_s_max=settings.handler_s_max,
        skip_first_failures=skip_first_failures,
        clock=clock,
    )


def _engine(processes: bool, spark: SparkSession | None) -> Engine:
    if spark is None:
        return IN_PROCESSES if processes else IN_THREADS
    if processes:
        raise BadSetting(
            "processes=True and spark=…: lanes are processes or tasks of Spark, not both"
        )
    # Not at the top: `headrace.run` works without Spark.
    from headrace.spark.lanes.engine import on_spark

    return on_spark(spark)


def make_streams(hub: Hub, topology: Topology, settings: RunSettings) -> None:
    """Create the missing streams of a topology. A missing source without settings is refused,
    because its name is probably misspelt."""
    there = {info.name: info for info in hub.streams()}
    missing = {
        name: settings.stream(name, topology) for name in topology.streams if name not in there
    }
    for name, made in missing.items():
        if not made and name in topology.sources:
            raise UnknownStream(name, known=there)
    for name, made in missing.items():
        there[name] = hub.create_stream(name, **made, exist_ok=True).info
        log.info("stream=%s: made, %d shards", name, len(there[name].shards))
    for each in topology.computations:
        codecs = {there[name].codec for name in each.inputs}
        if settings.policy(each).then == "dead-letter" and each.dead_letters not in there:
            codec = codecs.pop() if len(codecs) == 1 else "bytes"
            hub.create_stream(each.dead_letters, shards=1, codec=codec, exist_ok=True)
