"""``headrace mirror`` as a person and a script use it."""

from __future__ import annotations

import json
import os
import signal

import pytest

import headrace
from headrace.cli import mirror as module
from headrace.hub import mirror as copied
from headrace.testing.children import Child, until
from tests.cli.shell import Shell

NAME = "shop/orders"


class Shop:
    """A directory with a hub in it, and the command."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.cwd = shell.cwd
        with headrace.open("here") as hub:
            hub.create_stream(NAME, shards=2)
        self.append(100)

    def append(self, count: int) -> None:
        with headrace.open("here") as hub:
            stream = hub.stream(NAME)
            for shard in range(2):
                stream.append_many([(b"%d" % i, "key") for i in range(count)], shard=shard)

    def __call__(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        return self.shell("mirror", *arguments, code=code)

    def copied(self, hub: str = "there", name: str = NAME) -> int:
        with headrace.open(hub) as opened:
            stream = opened.stream(name)
            return sum(len(list(stream.read(shard))) for shard in range(2))


@pytest.fixture
def shop(shell: Shell) -> Shop:
    return Shop(shell)


def test_the_sum_tells_what_was_copied_and_what_was_there(shop: Shop) -> None:
    out, err = shop("here", "there", NAME)
    assert [line.split() for line in out.splitlines()] == [
        ["shard", "already", "copied", "next", "end"],
        ["0", "0", "100", "100", "100"],
        ["1", "0", "100", "100", "100"],
    ]
    assert "shop/orders: 200 records copied to shop/orders in there, " in err
    shop.append(5)
    out, err = shop("here", "there", NAME)
    assert out.splitlines()[1].split() == ["0", "100", "5", "105", "105"]
    assert "10 records copied" in err
    assert shop.copied() == 210


def test_a_program_gets_json(shop: Shop) -> None:
    out, err = shop("here", "there", NAME, "--as", "shop/copy", "--json")
    found = json.loads(out)
    assert err == ""
    assert found.pop("seconds") >= 0
    shard = {"already": 0, "copied": 100, "missing": 0, "next": 100, "end": 100}
    assert found == {
        "stream": NAME,
        "source": "here",
        "target": "there",
        "as": "shop/copy",
        "records": 200,
        "complete": True,
        "shards": [{"shard": 0, **shard}, {"shard": 1, **shard}],
    }
    assert shop.copied(name="shop/copy") == 200


def test_in_a_pipe_progress_is_printed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAY_S", 0.0)
    monkeypatch.setattr(copied, "TURN_RECORDS", 50)
    _, err = shop("here", "there", NAME)
    assert err.splitlines()[:-1] == [
        f"shop/orders: {done} records copied, {200 - done} to go" for done in range(0, 201, 50)
    ]
    _, err = shop("here", "there", NAME, "--json")
    assert err == ""


def test_missing_records_are_an_error_and_skipped_on_request(shop: Shop) -> None:
    shop("here", "there", NAME)
    shop.append(20)
    with headrace.open("here") as hub:
        hub.stream(NAME).trim(1, 110)
    _, err = shop("here", "there", NAME, code=2)
    assert err.startswith("headrace: shop/orders:1: 10 offsets from 100 on are gone")
    assert err.count("\n") == 1
    out, _ = shop("here", "there", NAME, "--skip-missing")
    assert out.splitlines()[0].split() == ["shard", "already", "copied", "missing", "next", "end"]
    assert out.splitlines()[2].split() == ["1", "0", "10", "10", "120", "120"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere", "there", NAME], "no hub at"),
        (["here", "there", "shop/nothing"], "no stream 'shop/nothing'"),
        (["here", "here", NAME], "would be copied onto itself"),
        (["memory:", "there", NAME], "memory:: a memory hub would end with this command"),
        (["here", "memory:x", NAME], "memory:x: a memory hub"),
        (["here", "there", NAME, "--as", "a b"], "bad name"),
        (["here", "there"], "Missing argument 'STREAM'"),
    ],
)
def test_a_wrong_call_is_one_line(shop: Shop, arguments: list[str], says: str) -> None:
    out, err = shop(*arguments, code=2)
    assert out == ""
    assert says in err
    assert err.count("\n") == 1


def _running(*arguments: str) -> Child:
    interruptible = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{interruptible}; from headrace.cli.main import main; main()"
    return Child(["-c", code, "mirror", *arguments])


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_following_ends_with_a_sum(shop: Shop, ending: signal.Signals) -> None:
    with _running("here", "there", NAME, "--follow", "--json") as child:
        until(lambda: (shop.cwd / "there" / "data.mdb").exists(), "the target is made")
        with headrace.open("there") as there:
            until(lambda: there.streams(), "the stream is made")
            until(lambda: there.stream(NAME).bounds(1).end == 100, "it copies")
            shop.append(7)
            copied = there.stream(NAME)
            until(lambda: [copied.bounds(s).end for s in range(2)] == [107] * 2, "it follows")
        os.kill(child.pid, ending)
        found = json.loads(child.output(30))
    assert (found["records"], found["complete"]) == (214, True)


def test_an_interrupted_mirror_says_that_it_is_not_complete(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copied, "TURN_RECORDS", 10)
    real = copied._Mirroring.turn
    turns: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def turn(self: copied._Mirroring, *arguments: copied.ShardCopy) -> bool:
        turns.append(1)
        if len(turns) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(copied._Mirroring, "turn", turn)
    out, err = shop("here", "there", NAME, code=130)
    assert "50 records copied" in err
    assert err.endswith("not complete, run it again to go on\n")
    assert out.splitlines()[1].split() == ["0", "0", "30", "30", "100"]
    shop("here", "there", NAME)
    assert shop.copied() == 200
    assert signal.getsignal(signal.SIGINT) is before


def test_on_a_terminal_there_is_a_bar(shop: Shop) -> None:
    shown = shop.shell.on_terminal("mirror", "here", "there", NAME)
    assert "━" in shown
    assert "200 records" in shown
    assert "already" in shown
