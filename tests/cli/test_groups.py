"""Groups on the command line: listed, shown, told, moved, deleted; and how far they are behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.core import store_keys
from headrace.core.computations.attempts import Attempts
from headrace.core.groups.allocators import Allocator, balanced
from headrace.core.groups.events import (
    Evict,
    Heartbeat,
    Join,
    Leave,
    Release,
    ShardFacts,
    ShardsChanged,
    Stop,
    StreamFacts,
)
from headrace.core.model import ShardId, Slice
from headrace.core.ports import Commit, Grant
from headrace.groups.coordinator import Coordinator
from tests.cli.shell import Shell


class Working:
    """A shell, and a group whose members live in this process."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.hub = headrace.open(shell.cwd / "headrace-data")
        store = self.hub.backend.store
        assert store is not None
        self.store = store
        self.orders = self.hub.create_stream("shop/orders", shards=4, codec="json")
        self.coordinator = Coordinator(self.store)
        for shard in range(4):
            for number in range(10):
                self.orders.append({"id": number}, key=f"k{number}", shard=shard)

    def join(
        self,
        name: str,
        incarnation: int = 1,
        group: str = "billing",
        allocator: Allocator = balanced,
    ) -> None:
        self.store.liveness.beat(group, name, incarnation, 1)
        info = self.orders.info
        rows = tuple(ShardFacts(shard.index) for shard in info.shards)
        facts = StreamFacts(info.name, info.id, rows)
        self.coordinator.apply(group, Join(name, incarnation, (facts,), allocator))

    def beat(self, name: str) -> None:
        """It lets go of what it should."""
        group = self.coordinator.load("billing")
        held = {s: own.epoch for s, own in group.owned(name).items() if own.state == "held"}
        beat = Heartbeat(name, group.members[name].incarnation, 1, group.version, held)
        self.coordinator.apply("billing", beat)

    def leave(self, name: str) -> None:
        incarnation = self.coordinator.load("billing").members[name].incarnation
        self.coordinator.apply("billing", Leave(name, incarnation))
        self.store.liveness.leave("billing", name, incarnation)

    def commit(self, shard: int, end: int) -> None:
        epoch = self.coordinator.load("billing").shards[ShardId("shop/orders", shard)].epoch
        info = self.orders.info
        grant = Grant("billing", info, shard, store_keys.epoch_token(epoch))
        stored = self.store.get(store_keys.checkpoint_key("billing", info.id, shard))
        assert stored is None, "once is enough here"
        self.store.commit(Commit(grant=grant, done=Slice(info.name, shard, 0, end)))

    def fail(self, shard: int, attempts: Attempts, stop: bool = True) -> None:
        """Attempts at a record have failed; its shard is stopped, and its owner lets go."""
        info, at = self.orders.info, ShardId("shop/orders", shard)
        standing = self.coordinator.load("billing").shards[at]
        grant = Grant("billing", info, shard, store_keys.epoch_token(standing.epoch))
        done = Slice(info.name, shard, attempts.offset, attempts.offset)
        self.store.commit(Commit(grant=grant, done=done, attempts=attempts.encoded()))
        if stop:
            assert standing.owner is not None
            self.coordinator.apply("billing", Stop(at, standing.epoch))
            self.coordinator.apply("billing", Release(standing.owner, 1, {at: standing.epoch}))

    def run(self, *arguments: str) -> list[list[str]]:
        """The lines it prints, word by word."""
        out, _ = self.shell(*arguments)
        return [line.split() for line in out.splitlines()]

    def json(self, *arguments: str) -> Any:
        return json.loads(self.shell(*arguments, "--json")[0])

    def lags(self) -> list[int]:
        return [row["lag"] for row in self.json("lag", "billing", "--verbose")]


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    return Shell(tmp_path, monkeypatch, capsys)


@pytest.fixture
def working(shell: Shell) -> Iterator[Working]:
    made = Working(shell)
    yield made
    made.hub.close()


@pytest.fixture
def billing(working: Working) -> Working:
    """Two members, two shards each."""
    working.join("ann")
    working.join("bob")
    working.beat("ann")
    working.commit(0, 4)
    working.commit(3, 10)
    return working


@pytest.fixture
def stopped(billing: Working) -> Working:
    for name in ("ann", "bob"):
        billing.leave(name)
    return billing


# Looking


def test_groups_are_listed(billing: Working) -> None:
    billing.join("zoe", group="audit")
    listed = billing.run("group", "list")
    assert [line[0] for line in listed] == ["group", "audit", "billing"]
    assert billing.json("group", "list")[1] == {
        "group": "billing",
        "streams": ["shop/orders"],
        "members": 2,
        "shards": 4,
        "held": 4,
        "allocator": "balanced",
        "version": 3,
    }


def test_an_empty_list_of_groups_says_so(working: Working) -> None:
    assert working.json("group", "list") == []
    assert working.json("lag") == []
    assert "no groups in" in working.shell("group", "list")[1]


def test_a_group_is_shown_with_members_shards_and_heartbeats(billing: Working) -> None:
    view = billing.json("group", "show", "billing")
    assert (view["allocator"], view["timeout"], view["order"]) == ("balanced", "10s", False)
    assert [(m["member_id"], m["shards"]) for m in view["members"]] == [
        ("ann", "shop/orders:0-1"),
        ("bob", "shop/orders:2-3"),
    ]
    assert all(0 <= member["last_heartbeat"] < 300 for member in view["members"])
    assert all(member["alive"] for member in view["members"])
    first = view["shards"][0]
    assert (first["shard"], first["state"], first["owner"]) == ("shop/orders:0", "held", "ann")
    assert (first["checkpoint"], first["end"], first["lag"], first["epoch"]) == (4, 10, 6, 1)
    assert first["since"].endswith("Z")
    assert first["lag_s"] >= 0
    assert [shard["lag"] for shard in view["shards"]] == [6, 10, 10, 0]
    text, _ = billing.shell("group", "show", "billing")
    assert "shop/orders:2-3" in text
    assert text.count("held") == 4


def test_members_and_checkpoints_are_still_shown_when_all_processes_have_ended(
    billing: Working,
) -> None:
    billing.hub.close()
    view = billing.json("group", "show", "billing")
    assert [(m["member_id"], m["shards"]) for m in view["members"]] == [
        ("ann", "shop/orders:0-1"),
        ("bob", "shop/orders:2-3"),
    ]
    assert [shard["checkpoint"] for shard in view["shards"]] == [4, None, None, 10]


def test_lag_is_shown_in_records_and_in_seconds(billing: Working) -> None:
    (line,) = billing.json("lag")
    assert line.pop("lag_s") > 0
    assert line == {
        "stream": "shop/orders",
        "group": "billing",
        "shard": "all",
        "lag": 26,
        "pos": 14,
        "end": 40,
    }
    assert [line[:6] for line in billing.run("lag")] == [
        ["stream", "group", "shard", "lag", "pos", "end"],
        ["shop/orders", "billing", "all", "26", "14", "40"],
    ]
    assert billing.lags() == [6, 10, 10, 0]
    assert [row["shard"] for row in billing.json("lag", "-v", "-q")] == [0, 1, 2]
    assert len(billing.json("lag", "--stream", "shop/orders")) == 1
    assert "no stream 'other'" in billing.shell.fails("lag", "--stream", "other")


def test_latency_is_shown_with_the_key_of_the_record_just_read(billing: Working) -> None:
    rows = billing.json("latency", "billing", "--verbose")
    assert [row["key"] for row in rows] == ["k3", None, None, None]
    assert rows[0]["latency_s"] > 0
    assert [row["latency_s"] for row in rows[1:]] == [None, None, 0.0]
    assert billing.json("latency")[0]["key"] == "k3"


def test_the_history_shows_what_happened_and_what_moved(billing: Working) -> None:
    billing.coordinator.apply("billing", Evict("ann", 1, "dead"))
    rows = billing.json("group", "history", "billing")
    assert [(row["what"], row["moved"]) for row in rows] == [
        ("ann joined and made the group", ["shop/orders:0-3 held by ann under epoch 1"]),
        ("bob joined", ["shop/orders:2-3 moving from ann to bob"]),
        ("ann let go of shop/orders:2-3", ["shop/orders:2-3 held by bob under epoch 2"]),
        ("ann was evicted: its process is dead", ["shop/orders:0-1 held by bob under epoch 2"]),
    ]
    assert [row["version"] for row in billing.json("group", "history", "billing", "-n", "2")] == [
        3,
        4,
    ]
    assert "bob joined" in billing.shell("group", "history", "billing")[0]


def test_explain_says_why_a_shard_is_where_it_is(billing: Working) -> None:
    billing.join("eve")
    why = {
        row["shard"]: row["why"] for row in billing.json("group", "explain", "billing")["shards"]
    }
    assert why["shop/orders:0"] == "held by ann since version 1: ann joined and made the group"
    assert why["shop/orders:2"] == "held by bob since version 3: ann let go of shop/orders:2-3"
    assert why["shop/orders:3"] == (
        "promised to eve, waits for bob to let go since version 4 (eve joined)"
    )
    text, _ = billing.shell("group", "explain", "billing", "shop/orders:2")
    assert "moving from ann to bob" in text
    assert "shop/orders:0" not in text
    one = billing.json("group", "explain", "billing", "shop/orders:2")
    assert [turn["became"] for turn in one["shards"][0]["story"]] == [
        "held by ann under epoch 1",
        "moving from ann to bob",
        "held by bob under epoch 2",
    ]


def test_moves_of_an_unknown_allocator_are_not_explained(working: Working) -> None:
    own = Allocator("own", "3", deal=balanced.deal)
    working.coordinator = Coordinator(working.store, [own])
    working.join("ann", allocator=own)
    view = working.json("group", "explain", "billing")
    assert "allocator 'own' version '3' is not known" in view["note"]
    assert [row["story"] for row in view["shards"]] == [[]] * 4
    assert view["shards"][0]["why"] == "held by ann since version 1"
    assert "is not known" in working.shell("group", "history", "billing")[1]


# Moving


def test_a_stopped_group_seeks_after_a_preview(stopped: Working) -> None:
    out, err = stopped.shell("group", "seek", "billing", "--to", "earliest", code=2)
    assert [line.split() for line in out.splitlines()] == [
        ["shard", "from", "to", "skipped", "repeated"],
        ["shop/orders:0", "4", "0", "0", "4"],
        ["shop/orders:1", "-", "0", "0", "0"],
        ["shop/orders:2", "-", "0", "0", "0"],
        ["shop/orders:3", "10", "0", "0", "10"],
    ]
    assert err == (
        "headrace: billing: 0 records skipped, 14 repeated: say --yes to move the checkpoints\n"
    )
    assert stopped.lags() == [6, 10, 10, 0]
    out, _ = stopped.shell("group", "seek", "billing", "--to", "earliest", "--yes")
    assert "4 checkpoints moved" in out
    assert stopped.lags() == [10, 10, 10, 10]


@pytest.mark.parametrize(
    ("to", "lags"),
    [
        ("latest", [0, 0, 0, 0]),
        ("7", [3, 3, 3, 3]),
        ("2020-01-31T08:00:00Z", [10, 10, 10, 10]),
        ("2999-01-31T08:00:00+01:00", [0, 0, 0, 0]),
        ("1h", [10, 10, 10, 10]),
        ("0s", [0, 0, 0, 0]),
    ],
)
def test_a_group_seeks_to_an_offset_or_a_time(stopped: Working, to: str, lags: list[int]) -> None:
    stopped.shell("group", "seek", "billing", "--to", to, "--yes")
    assert stopped.lags() == lags


def test_some_shards_seek_and_the_others_stay(stopped: Working) -> None:
    asked = ["--stream", "shop/orders", "--shard", "1", "--shard", "2", "--to", "latest", "--yes"]
    moved = stopped.json("group", "seek", "billing", *asked)
    assert [row["shard"] for row in moved["moved"]] == ["shop/orders:1", "shop/orders:2"]
    assert [row["skipped"] for row in moved["moved"]] == [10, 10]
    assert stopped.lags() == [6, 0, 0, 0]


def test_a_group_whose_members_live_is_moved_by_force_only(billing: Working) -> None:
    for command in (["seek", "billing", "--to", "0"], ["skip", "billing", "shop/orders:0"]):
        _, err = billing.shell("group", *command, "--yes", code=2)
        assert "has living members: ann, bob; stop them first, or use --force" in err
    assert "--force" in billing.shell.fails("group", "delete", "billing", "--yes")
    assert billing.lags() == [6, 10, 10, 0]
    billing.shell("group", "seek", "billing", "--to", "2", "--shard", "0", "--yes", "--force")
    assert billing.lags() == [8, 10, 10, 0]
    group = billing.coordinator.load("billing")
    assert group.shards[ShardId("shop/orders", 0)].epoch == 2
    assert group.shards[ShardId("shop/orders", 0)].owner == "ann"


def test_records_are_skipped(stopped: Working) -> None:
    stopped.shell("group", "skip", "billing", "shop/orders:0", "--yes")
    stopped.shell("group", "skip", "billing", "shop/orders:1", "--records", "3", "--yes")
    assert stopped.lags() == [5, 7, 10, 0]
    _, err = stopped.shell("group", "skip", "billing", "shop/orders:3", "--yes", code=2)
    assert "beyond the end" in err


def test_a_deleted_group_is_gone_and_its_history_is_not(stopped: Working) -> None:
    assert "26 records behind" in stopped.shell.fails("group", "delete", "billing")
    assert stopped.json("group", "delete", "billing", "--yes") == {
        "group": "billing",
        "deleted": True,
    }
    assert stopped.json("group", "list") == []
    assert "no group 'billing'" in stopped.shell.fails("group", "show", "billing")
    told = [row["what"] for row in stopped.json("group", "history", "billing")]
    assert told[-2:] == [
        "the group was deleted",
        "what the deleted group left was swept away",
    ]


def test_on_a_terminal_it_asks(stopped: Working) -> None:
    seek = "group", "seek", "billing", "--to", "latest"
    shown = stopped.shell.on_terminal(*seek, typed=b"y\n")
    assert "Move the checkpoints? [y/N]" in shown
    assert stopped.lags() == [0, 0, 0, 0]


# Stopped shards

EVIL = "ValueError: \x1b[31mno\x07 price\nin line 7"


@pytest.fixture
def troubled(billing: Working) -> Working:
    """Members live; shard 0 was stopped because of its record 4, shard 2 is tried again."""
    at_ms = 1_700_000_000_000
    billing.fail(0, Attempts(4, failed=21, stopped=True, at_ms=at_ms, reason=EVIL))
    billing.fail(2, Attempts(0, failed=3, at_ms=at_ms, reason="no stock"), stop=False)
    return billing


def test_why_a_shard_is_stopped_is_shown_and_what_to_do(troubled: Working) -> None:
    first, second, third, _ = troubled.json("group", "show", "billing")["shards"]
    assert (first["stopped"], second["stopped"], third["stopped"]) == (True, False, False)
    assert first["attempts"] == {
        "record": "shop/orders:0+4",
        "failed": 21,
        "deaths": 0,
        "at": "2023-11-14T22:13:20.000Z",
        "reason": EVIL,
    }
    assert second["attempts"] is None
    assert (third["attempts"]["failed"], third["attempts"]["reason"]) == (3, "no stock")
    text, _ = troubled.shell("group", "show", "billing")
    lines = text.splitlines()
    said = next(at for at, line in enumerate(lines) if "is stopped since" in line)
    assert lines[said].startswith("shop/orders:0 is stopped since ")
    assert lines[said].endswith(
        r"Z because shop/orders:0+4 failed 21 times (ValueError: \x1b[31mno\x07 price)"
    )
    assert [line.strip() for line in lines[said + 1 :]] == [
        "to go on:        headrace group resume billing shop/orders:0",
        "to leave it out: headrace group skip billing shop/orders:0+4",
    ]
    assert r"+4: 21 failed: ValueError: \x1b[31mno\x07 price" in text
    assert "+0: 3 failed: no stock" in text
    assert all(char.isprintable() for char in text.replace("\n", ""))


def test_without_trouble_its_column_is_left_out(billing: Working) -> None:
    text, _ = billing.shell("group", "show", "billing")
    assert "trouble" not in text
    assert "stopped" not in text


def test_a_record_that_is_not_next_is_not_offered_to_be_left_out(troubled: Working) -> None:
    troubled.shell("group", "seek", "billing", "--to", "1", "--shard", "0", "--yes", "--force")
    text, _ = troubled.shell("group", "show", "billing")
    assert "headrace group resume billing shop/orders:0" in text
    assert "group skip" not in text


def test_explain_says_why_a_shard_is_stopped(troubled: Working) -> None:
    rows = troubled.json("group", "explain", "billing")["shards"]
    why = {row["shard"]: row["why"] for row in rows}
    assert "it was stopped at 20" in why["shop/orders:0"]
    assert why["shop/orders:0"].endswith(
        "because shop/orders:0+4 failed 21 times (ValueError: \x1b[31mno\x07 price), "
        "and is given to no member until it is resumed"
    )
    assert why["shop/orders:2"].endswith(
        "; it is tried again because shop/orders:2+0 failed 3 times (no stock)"
    )
    assert "\x1b" not in troubled.shell("group", "explain", "billing", "shop/orders:0")[0]


def test_a_stopped_shard_is_resumed_while_members_live(troubled: Working) -> None:
    says = troubled.shell.fails("group", "resume", "billing", "shop/orders:1")
    assert "shop/orders:1 is not stopped in group 'billing'" in says
    assert "stopped are shop/orders:0" in says
    out, _ = troubled.shell("group", "resume", "billing", "shop/orders:0")
    assert out == "billing: shop/orders:0 resumed\n"
    first = troubled.json("group", "show", "billing")["shards"][0]
    assert (first["stopped"], first["attempts"], first["checkpoint"]) == (False, None, 4)
    assert first["owner"] is not None
    assert "no shard of group 'billing' is stopped" in troubled.shell.fails(
        "group", "resume", "billing"
    )
    troubled.fail(1, Attempts(0, failed=1, stopped=True))
    assert troubled.json("group", "resume", "billing") == {
        "group": "billing",
        "resumed": ["shop/orders:1"],
    }


def test_the_record_that_stopped_a_shard_is_skipped_while_members_live(troubled: Working) -> None:
    says = troubled.shell.fails("group", "skip", "billing", "shop/orders:0+5", "--yes")
    assert "reads next there, that is shop/orders:0+4: nothing was skipped" in says
    out, err = troubled.shell("group", "skip", "billing", "shop/orders:0+4", code=2)
    assert [line.split() for line in out.splitlines()] == [
        ["shard", "from", "to", "skipped", "repeated", "resumes"],
        ["shop/orders:0", "4", "5", "1", "0", "yes"],
    ]
    assert "shop/orders:0 resumed: say --yes" in err
    assert troubled.lags() == [6, 10, 10, 0]
    moved = troubled.json("group", "skip", "billing", "shop/orders:0+4", "--yes")
    assert [(row["to"], row["resumes"]) for row in moved["moved"]] == [(5, True)]
    first = troubled.json("group", "show", "billing")["shards"][0]
    assert (first["stopped"], first["attempts"], first["checkpoint"]) == (False, None, 5)
    _, err = troubled.shell("group", "skip", "billing", "shop/orders:2+0", "--yes", code=2)
    assert "has living members" in err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["group", "show", "nope"], "no group 'nope' in this hub"),
        (["group", "show", "no way"], "bad name"),
        (["group", "history", "nope"], "no group 'nope'"),
        (["group", "explain", "nope"], "no group 'nope'"),
        (["group", "explain", "billing", "orders"], "write stream:shard"),
        (["group", "explain", "billing", "x:0"], "does not read 'x'"),
        (["group", "explain", "billing", "shop/orders:9"], "no such shard"),
        (["group", "seek", "billing", "--to", "noon", "--yes"], "earliest, latest, an offset"),
        (["group", "seek", "billing", "--to", "2026-01-01T00:00:00", "--yes"], "time zone"),
        (["group", "seek", "billing", "--to", "99", "--yes"], "beyond the end"),
        (["group", "seek", "billing", "--yes"], "--to"),
        (["group", "seek", "billing", "--to", "1", "--shard", "9", "--yes"], "it has 0 to 3"),
        (["group", "skip", "billing", "shop/orders:0", "--records", "0"], "from 1"),
        (["group", "skip", "billing", "shop/orders:9"], "it has 0 to 3"),
        (["group", "skip", "billing", "shop/orders:0+x"], "write stream:shard+offset"),
        (["group", "skip", "billing", "shop/orders:0+3", "--yes"], "that is shop/orders:0+4"),
        (["group", "skip", "billing", "shop/orders:0+4", "--records", "2"], "is one record"),
        (["group", "resume", "nope"], "no group 'nope'"),
        (["group", "resume", "billing"], "no shard of group 'billing' is stopped"),
        (["group", "resume", "billing", "orders"], "write stream:shard"),
        (["group", "resume", "billing", "shop/orders:9"], "it has 0 to 3"),
        (["group", "delete", "nope", "--yes"], "no group 'nope'"),
        (["lag", "nope"], "no group 'nope'"),
        (["latency", "nope"], "no group 'nope'"),
        (["--hub", "empty", "lag"], "no hub at"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    stopped: Working, arguments: list[str], says: str
) -> None:
    assert says in stopped.shell.fails(*arguments)


def test_a_stream_that_is_gone_is_shown_without_positions(stopped: Working) -> None:
    stopped.hub.delete_stream("shop/orders")
    view = stopped.json("group", "show", "billing")
    assert [(row["state"], row["end"], row["lag"]) for row in view["shards"]] == [
        ("free", None, None)
    ] * 4
    assert stopped.json("lag") == []
    gone = ShardsChanged(StreamFacts("shop/orders", stopped.orders.info.id, (), 9))
    stopped.coordinator.apply("billing", gone)
    told = stopped.json("group", "history", "billing")
    assert told[-1]["what"] == "shop/orders is gone"
    assert stopped.json("group", "show", "billing")["shards"] == []
