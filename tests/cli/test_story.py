"""``headrace story``: what a person sees, what a program gets, how a wrong call ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

import headrace
from headrace import Policy, Topology, computation
from tests.cli.shell import Shell

ONE: dict[str, Any] = {"shards": 1, "codec": "json"}


@computation(
    inputs="shop/orders", outputs="shop/invoices", policy=Policy(retries=0, then="dead-letter")
)
def bill(record: Any, out: Any) -> None:
    if record.value == 2:
        raise ValueError("a bad order")
    out.append("shop/invoices", record.value)


@pytest.fixture
def shop(shell: Shell) -> Shell:
    """A hub with four billed orders, of which the one at offset 2 became a dead letter."""
    topology = Topology(bill, streams={"shop/orders": ONE, "shop/invoices": ONE})
    with headrace.open(shell.cwd / "headrace-data") as hub:
        hub.create_stream("shop/orders", **ONE).append_many([(n, None) for n in range(4)])
        with headrace.start(topology, hub, lanes=1, name="till") as running:
            assert running.wait("30s", until_caught_up=True)
    return shell


def test_a_pipe_gets_plain_indented_lines(shop: Shell) -> None:
    out, err = shop("story", "shop/orders:0+2")
    lines = out.splitlines()
    assert err == ""
    assert lines[0] == "shop/orders:0+2"
    assert lines[1].startswith("  read by bill from shop/orders:0+2 in shop/orders:0+")
    assert lines[2].startswith("    a dead letter after 1 attempt; replica till, lane 0, epoch 1; ")
    assert "    of these from it: bill.dead-letters:0+0" in lines
    assert "\x1b" not in out


def test_a_terminal_shows_colours(shop: Shell) -> None:
    shown = shop.on_terminal("story", "shop/invoices:0+1")
    assert "\x1b[36m\x1b[1mshop/invoices:0+1" in shown
    assert "\x1b[32mmade by bill from shop/orders:0+" in shown


def test_a_program_gets_one_json_value(shop: Shell) -> None:
    view = json.loads(shop("story", "shop/invoices:0+1", "--json")[0])
    assert view["record"] == "shop/invoices:0+1"
    (commit,) = view["made_by"]
    assert (commit["group"], commit["replica"], commit["lane"]) == ("bill", "till", 0)
    assert commit["outputs"] == ["shop/invoices:0+1"]


def test_the_depth_bounds_the_story(shop: Shell) -> None:
    out, _ = shop("story", "shop/invoices:0+1", "--depth", "1")
    assert "commits may lie further away: 1 in a row are followed" in out
    assert "--depth" in shop.fails("story", "shop/invoices:0+1", "--depth", "0")


def test_what_cannot_be_told_ends_with_one_line(shop: Shell) -> None:
    assert "bad record id 'shop/orders'" in shop.fails("story", "shop/orders")
    assert "no stream 'shop/nothing'" in shop.fails("story", "shop/nothing:0+0")
    assert "has no shard 7" in shop.fails("story", "shop/orders:7+0")
    assert "beyond the end" in shop.fails("story", "shop/orders:0+4")
    assert "no hub" in shop.fails("--hub", "elsewhere", "story", "shop/orders:0+0")


def test_control_characters_in_a_reason_reach_no_terminal(shop: Shell) -> None:
    @computation(inputs="shop/orders", name="audit", policy=Policy(retries=0, then="stop"))
    def audit(record: Any) -> None:
        raise ValueError("\x1b[31mred")

    topology = Topology(audit, streams={})
    with (
        headrace.open(shop.cwd / "headrace-data") as hub,
        headrace.start(topology, hub, lanes=1) as running,
    ):
        running.wait("30s", until_caught_up=True)
    out, _ = shop("story", "shop/orders:0+0")
    assert "not read yet by audit: its checkpoint is 0, 1 attempt failed: ValueError:" in out
    assert "\x1b" not in out
