"""``headrace prove`` as users run it: real replicas, killed and stopped, and a certificate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.core.computations.settings import RunSettings
from headrace.lanes.loading import load_topology
from headrace.testing.children import seed
from headrace.tools.proof.proof import Order, ProofRun
from tests.harness.proof.sabotage import broken

pytestmark = pytest.mark.slow

SHOP = """
from headrace import Topology, computation

@computation(inputs="shop/orders", outputs="shop/invoices")
def bill(record, out, state):
    count = state[record.key] = state.get(record.key, 0) + 1
    out.append("shop/invoices", {"id": record.value["id"], "count": count}, key=record.key)
    if count % 10 == 0:
        out.append("shop/invoices", {"every": count}, key=record.key)

@computation.batch(inputs="shop/invoices", outputs="shop/index", capacity=100, threshold="20ms")
def index(records, out):
    for record in records:
        out.append("shop/index", record.value, key=record.key)

JSON = {"shards": 4, "codec": "json"}
topology = Topology(bill, index, streams={"shop/orders": JSON, "shop/invoices": JSON,
                                          "shop/index": JSON})
"""


def prove(place: Path, *arguments: str, hub: str = "none") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", "--hub", hub, "prove", *arguments],
        cwd=place, capture_output=True, text=True, timeout=200, check=False, env={**os.environ},
    )  # fmt: skip


def certificate(place: Path, *arguments: str, hub: str = "none") -> dict[str, Any]:
    done = prove(place, *arguments, "--json", hub=hub)
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if found["clean"] else 1)
    return found


def test_a_topology_whose_replicas_are_killed_gets_a_clean_certificate(tmp_path: Path) -> None:
    """Streams are made as in the named hub, which is not touched."""
    (tmp_path / "shop.py").write_text(SHOP)
    with headrace.open(tmp_path / "real") as hub:
        hub.create_stream("shop/orders", shards=3, codec="json")
    found = certificate(
        tmp_path, "shop.py", "--kills", "6", "--seed", seed(), "--records", "3000", hub="real"
    )
    assert found["clean"], found
    assert found["kills"] + found["stops"] == 6
    assert found["seed"] == seed()
    orders, invoices, index = found["streams"]
    assert (orders["records_in"], orders["records_out"]) == (3000, 3000)
    assert (invoices["compared"], invoices["lost"], invoices["doubled"]) == ("origin", 0, 0)
    assert invoices["out_of_order"] == 0
    assert 3000 < invoices["records_out"] == index["records_out"]
    assert (index["compared"], index["lost"], index["out_of_order"]) == ("content", 0, None)
    assert found["state"] == [{"computation": "bill", "entries": 50, "equal": True, "notes": []}]
    with headrace.open(tmp_path / "real") as hub:
        assert [info.name for info in hub.streams()] == ["shop/orders"]
        assert hub.groups.names() == []


def test_a_handler_that_refuses_the_load_is_shown(tmp_path: Path) -> None:
    (tmp_path / "picky.py").write_text(SHOP.replace('record.value["id"]', 'record.value["city"]'))
    done = prove(tmp_path, "picky.py", "--kills", "1", "--records", "200", "--replicas", "2")
    assert done.returncode == 1, done.stderr
    assert "KeyError" in done.stdout
    assert "--sample" in done.stdout
    assert "NOT CLEAN" in done.stdout
    (tmp_path / "orders.jsonl").write_text('{"key": "ann", "value": {"city": "Rome"}}\n')
    arguments = ("--kills", "0", "--records", "200", "--replicas", "1", "--sample", "orders.jsonl")
    done = prove(tmp_path, "picky.py", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("clean")
    assert "shop/invoices" in done.stdout


def test_replicas_that_are_not_fenced_are_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "place"
    place.mkdir()
    order = Order(
        loaded=load_topology("shop.py"),
        settings=RunSettings(lanes=1),  # with more lanes it might be stopped with the write lock
        again="",
        seed=seed(),
        kills=0,
        records=3000,
        replicas=2,
        fails=["lane.before-commit:stop@6"],
        extra=broken(tmp_path / "broken", "fencing"),
    )
    found = ProofRun(order, place).certificate()
    assert not found.clean, found
    assert sum(each.doubled or 0 for each in found.streams) > 0, found
