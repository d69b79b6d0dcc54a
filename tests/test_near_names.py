"""A name that is not known is refused with the nearest known one, wherever names are given."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

import pytest

import headrace
from headrace import HeadraceError, Policy, Topology, computation
from headrace.core.capabilities import Capabilities
from headrace.core.computations.settings import RunSettings
from headrace.core.groups.allocators import named
from headrace.core.nearest import did_you_mean
from headrace.core.records.routing import router
from headrace.hub.run import make_streams
from headrace.lanes.outputs import _check_fields
from headrace.spark import SparkSettings
from tests.cli.shell import Shell, shell

__all__ = ["shell"]


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("lane", ["lanes", "session"], "; did you mean 'lanes'?"),
        ("Client.Id", ["client.id"], "; did you mean 'client.id'?"),
        ("murmur", ["md5-range", "Murmur2"], "; did you mean 'Murmur2'?"),
        ("nothing", ["lanes", "session"], ""),
        ("lane", [], ""),
        (None, ["None"], ""),
    ],
)
def test_the_nearest_known_name(name: object, known: list[str], meant: str) -> None:
    assert did_you_mean(name, known) == meant


@computation(inputs="shop/orders")
def bill(record: Any) -> None: ...


def _settings(text: str) -> Callable[[], object]:
    return lambda: RunSettings.of_sections(tomllib.loads(text), "headrace.toml")


def _source() -> None:
    with headrace.open("memory:") as hub:
        hub.create_stream("shop/order")
        make_streams(hub, Topology(bill), RunSettings())


def _capability() -> None:
    Capabilities("memory").require("comit")  # type: ignore[arg-type]


def _stream(**settings: Any) -> Callable[[], object]:
    def create() -> None:
        with headrace.open("memory:") as hub:
            hub.create_stream("orders", **settings)

    return create


PLACES: dict[str, tuple[Callable[[], object], str]] = {
    "section of the file": (_settings("[runs]"), "run"),
    "key of [run]": (_settings("[run]\nlane = 4"), "lanes"),
    "key of a stream": (_settings("[streams.orders]\nshard = 4"), "shards"),
    "key of a computation": (_settings("[computations.bill]\nconcurency = 1"), "concurrency"),
    "key of a policy": (_settings("[policies.bill]\nretry = 2"), "retries"),
    "key of [spark]": (_settings("[spark]\nmster = 'yarn'"), "master"),
    "key of [spark.conf]": (
        _settings("[spark.conf]\n'sprk.executor.memory' = '2g'"),
        "spark.executor.memory",
    ),
    "allocation in the file": (_settings("[run]\nallocation = 'statik'"), "static"),
    "routing in the file": (_settings("[streams.orders]\nrouting = 'murmur'"), "murmur2"),
    "then in the file": (_settings("[policies.bill]\nthen = 'dead-leter'"), "dead-letter"),
    "then of a policy": (lambda: Policy(then="skp"), "skip"),  # type: ignore[arg-type]
    "allocator": (lambda: named("balancd"), "balanced"),
    "codec": (_stream(codec="jsn"), "json"),
    "routing": (_stream(routing="md5range"), "md5-range"),
    "routing of a stored stream": (lambda: router("javahash", ()), "java-hash"),
    "capability": (_capability, "commit"),
    "kind of hub": (lambda: headrace.open("kakfa://host"), "kafka"),
    "computation of a topology": (lambda: Topology(bill)["bil"], "bill"),
    "stream of a topology": (lambda: Topology(bill, streams={"shop/order": {}}), "shop/orders"),
    "setting of a stream of a topology": (
        lambda: Topology(bill, streams={"shop/orders": {"shard": 1}}),
        "shards",
    ),
    "source of a topology": (_source, "shop/order"),
    "setting of Spark": (
        lambda: SparkSettings(conf={"executor.cores": "1"}),
        "spark.executor.cores",
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_unknown_name_is_refused_with_the_nearest_known_one(place: str) -> None:
    call, meant = PLACES[place]
    with pytest.raises(HeadraceError) as refused:
        call()
    assert f"did you mean '{meant}'?" in str(refused.value)


def test_an_unknown_field_of_an_output_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(TypeError, match="did you mean 'headers'"):
        _check_fields({"header": []})  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["streem", "list"], "stream"),
        (["stream", "list", "--jsn"], "--json"),
        (["run", "shop.py", "--engine", "sprk"], "spark"),
        (["run", "shop.py", "--allocation", "statik"], "static"),
        (["prove", "shop.py", "--engine", "locl"], "local"),
        (["demo", "--engine", "sparc"], "spark"),
        (["bench", "pipeline", "--engine", "sprk"], "spark"),
        (["append", "shop/orders", "--lines", "jsn"], "json"),
        (["stream", "create", "a", "--codec", "tex"], "text"),
        (["stream", "create", "a", "--routing", "murmur"], "murmur2"),
        (["stream", "show", "shop/order"], "shop/orders"),
        (["stream", "delete", "shop/order", "--yes"], "shop/orders"),
        (["append", "shop/order"], "shop/orders"),
        (["tail", "shop/order"], "shop/orders"),
        (["lag", "--stream", "shop/order"], "shop/orders"),
        (["mirror", "./headrace-data", "./other", "shop/order"], "shop/orders"),
        (["group", "show", "bilings"], "billing"),
        (["group", "history", "bilings"], "billing"),
        (["group", "explain", "bilings"], "billing"),
        (["group", "seek", "bilings", "--to", "latest", "--yes"], "billing"),
        (["group", "skip", "bilings", "shop/orders:0", "--yes"], "billing"),
        (["group", "resume", "bilings"], "billing"),
        (["group", "delete", "bilings", "--yes"], "billing"),
    ],
)
def test_the_command_line_says_the_nearest_name(
    shell: Shell, arguments: list[str], meant: str
) -> None:
    with headrace.open("headrace-data") as hub:
        hub.create_stream("shop/orders", shards=1)
        with hub.consumer("shop/orders", group="billing"):
            pass
    (shell.cwd / "shop.py").touch()
    line = shell.fails(*arguments).lower()
    assert f"did you mean '{meant}'?" in line
