"""Whether the lanes of a session reach what they need: the hub, and their replica."""

from __future__ import annotations

from collections.abc import Callable

from headrace.core.errors import BadSetting
from headrace.core.ports import Backend
from headrace.spark.session.needs import local_slots, place_of
from headrace.spark.session.session import SparkSettings

ON_THIS_MACHINE = "spark.headrace.executorsOnThisMachine"
"""The setting by which a user says that all executors run on the machine of the hub's directory."""
ADDRESS = "spark.headrace.address"
"""The setting for the address at which lanes of a cluster call their replica, as in
``tcp:10.0.0.5:0``."""

Conf = Callable[[str], str | None]
"""Looks up a setting of a Spark session by its key."""


def check_reach(backend: Backend, where: str, *, is_here: bool, conf: Conf) -> str:
    """The address at which lanes find the hub; `BadSetting` if they may run on other machines.
    ``where`` they would run is for the message; ``is_here`` says that it is this machine."""
    backend.capabilities.require("processes")
    hub = backend.log.address
    assert hub is not None, "a log that processes share has one"
    if not is_here and not says_yes(conf(ON_THIS_MACHINE)):
        raise BadSetting(
            f"executors of {where} may be on other machines, which cannot reach the embedded hub "
            f"{hub}: run on this machine, without --master and --remote, or, if all of them are "
            f"here, say so with --conf {ON_THIS_MACHINE}=true"
        )
    return hub


def check_before(backend: Backend, settings: SparkSettings) -> None:
    """The same check, as far as it can be made before a session is started."""
    conf = settings.conf.get
    if settings.remote is not None:
        is_here = is_this_host(_host(settings.remote))
        check_reach(backend, place_of(settings.remote), is_here=is_here, conf=conf)
    else:
        master = settings.master or settings.conf.get("spark.master", "local")
        is_here = local_slots(master) is not None
        check_reach(backend, master, is_here=is_here, conf=conf)


def address(*, is_here: bool, is_connect: bool, conf: Conf) -> str:
    """The address at which lanes call their replica."""
    chosen = conf(ADDRESS)
    if chosen:
        return chosen
    if is_here:
        return "unix:"
    host = conf("spark.driver.host")
    if host is None or is_connect:  # with Connect it is the host of the server
        raise BadSetting(
            "lanes of a cluster must reach this process: say where, as in "
            f"--conf {ADDRESS}=tcp:10.0.0.5:0"
        )
    return f"tcp:{host}:0"


def is_this_host(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def says_yes(text: str | None) -> bool:
    return (text or "").strip().lower() == "true"


def _host(remote: str) -> str:
    """The host of ``sc://host:15002/;token=…``. Without ``://`` a server is started for the
    session, on this machine."""
    if "://" not in remote:
        return "localhost"
    place = remote.partition("://")[2].partition("/")[0]
    return place.rpartition(":")[0].strip("[]") if ":" in place else place
