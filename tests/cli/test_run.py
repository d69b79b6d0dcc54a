"""``headrace run``: what a person sees, what a script gets, how it ends."""

from __future__ import annotations

import json
import logging
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace
from headrace.cli.run import _log_to_stderr
from headrace.testing.children import until
from tests.cli.shell import Shell

SHOP = """\
import time
from headrace import Policy, Topology, computation

@computation(inputs="shop/orders", outputs="shop/invoices", policy=Policy(retries=1, delay="10ms"))
def bill(record, out, ctx):
    if record.value.get("bad"):
        raise ValueError("a bad order")
    if "begins" in record.value:
        open(record.value["begins"], "w").close()
    time.sleep(record.value.get("sleep", 0))
    out.append("shop/invoices", {**record.value, **ctx.options}, key=record.key)

json_codec = {"shards": 2, "codec": "json"}
topology = Topology(bill, streams={"shop/orders": json_codec, "shop/invoices": json_codec})
"""


class Shop:
    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        (shell.cwd / "shop.py").write_text(SHOP)
        self.hub = headrace.open(shell.cwd / "headrace-data")
        for name in ("shop/orders", "shop/invoices"):
            self.hub.create_stream(name, shards=2, codec="json")

    def order(self, *orders: dict[str, Any]) -> None:
        self.hub.stream("shop/orders").append_many([(order, "ann") for order in orders])

    def invoices(self) -> list[Any]:
        stream = self.hub.stream("shop/invoices")
        return [record.value for shard in range(2) for record in stream.read(shard)]

    def run(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        return self.shell("run", "shop.py", "--engine", "local", *arguments, code=code)


@pytest.fixture
def shop(shell: Shell) -> Iterator[Shop]:
    found = Shop(shell)
    yield found
    found.hub.close()


def test_a_plan_advises_a_fifth_more_lanes_than_a_replica_has_shards(shop: Shop) -> None:
    shop.hub.create_stream("wide", shards=16)
    source = "from headrace import computation\n@computation(inputs='wide')\ndef f(record): pass\n"
    (shop.shell.cwd / "wide.py").write_text(source)
    out, _ = shop.shell("run", "wide.py", "--plan", "--replicas", "4")
    assert "--lanes 5" in out
    found = json.loads(shop.shell("run", "wide.py", "--plan", "--replicas", "4", "--json")[0])
    assert (found["lanes"], found["plan"][0]["shards"]) == (5, 16)
    assert "f" not in shop.hub.groups.names(), "nothing has run"
    assert "--plan" in shop.shell.fails("run", "wide.py", "--replicas", "4")


def test_it_ends_when_everything_is_consumed_and_sums_up(shop: Shop) -> None:
    shop.order(*({"id": n} for n in range(20)))
    out, err = shop.run("--until-caught-up")
    header, line = out.splitlines()
    assert header.split()[:2] == ["computation", "rec/s"]
    assert line.split()[0] == "bill"
    assert line.split()[3:] == ["20", "0", "0", "0", "0"]
    assert "running bill on ./headrace-data" in err
    assert [invoice["id"] for invoice in shop.invoices()] == list(range(20))


def test_a_script_gets_one_json_object(shop: Shop) -> None:
    shop.order({"id": 1}, {"id": 2})
    out, _ = shop.run("--until-caught-up", "--json")
    found = json.loads(out)
    assert found["healthy"] is True
    assert found["stopped"] == {}
    (row,) = found["computations"]
    assert (row["computation"], row["processed"], row["outputs"]) == ("bill", 2, 2)
    assert row["latency_p50_ms"] is not None


def test_options_reach_the_handler(shop: Shop) -> None:
    shop.order({"id": 1})
    shop.run("--until-caught-up", "--option", "currency=EUR", "--option", "rate=a=b")
    assert shop.invoices() == [{"id": 1, "currency": "EUR", "rate": "a=b"}]


def test_a_stopped_shard_is_shown_and_the_exit_code_is_1(shop: Shop) -> None:
    shop.order({"id": 1}, {"bad": True}, {"id": 2})
    _, err = shop.run("--until-caught-up", code=1)
    assert err.count("Terminate computation: bill due to previous failure\n") == 1
    assert "to go on: headrace group resume bill" in err
    shown, told = shop.shell("group", "show", "bill")
    assert "ValueError: a bad order" in shown + told
    out, err = shop.run("--until-caught-up", "--json", code=1)
    assert json.loads(out)["healthy"] is False
    assert [invoice["id"] for invoice in shop.invoices()] == [1]


def test_resume_goes_on_with_the_record_and_skip_leaves_it_out(shop: Shop) -> None:
    shop.order({"id": 1}, {"bad": True}, {"id": 2})
    shop.run("--until-caught-up", code=1)
    shop.shell("group", "resume", "bill")
    _, err = shop.run("--until-caught-up", code=1)
    assert err.count("attempt 1: ValueError") == 1
    (shard,) = (s for s in range(2) if shop.hub.stream("shop/orders").bounds(s).end)
    shop.shell("group", "skip", "bill", f"shop/orders:{shard}+1", "--yes")
    shop.run("--until-caught-up")
    assert [invoice["id"] for invoice in shop.invoices()] == [1, 2]


def test_other_code_goes_on_with_the_record_by_itself(shop: Shop) -> None:
    shop.order({"id": 1}, {"bad": True, "id": 7}, {"id": 2})
    shop.run("--until-caught-up", code=1)
    shop.run("--until-caught-up", code=1)  # the same code leaves it stopped
    fixed = SHOP.replace('raise ValueError("a bad order")', "pass")
    (shop.shell.cwd / "shop.py").write_text(fixed)
    shop.run("--until-caught-up")
    assert [invoice["id"] for invoice in shop.invoices()] == [1, 7, 2]


def test_first_failures_are_skipped_one_by_one_and_logged(shop: Shop) -> None:
    shop.order({"id": 1}, {"bad": True}, {"id": 2}, {"bad": True}, {"id": 3})
    _, err = shop.run("--until-caught-up", "--skip-first-failures", "1", code=1)
    (shard,) = (s for s in range(2) if shop.hub.stream("shop/orders").bounds(s).end)
    assert err.count(" is skipped") == 1
    assert f"bill: shop/orders:{shard}+1 is skipped: --skip-first-failures, 0 left" in err
    assert [invoice["id"] for invoice in shop.invoices()] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nope.py"], "nope.py"),
        (["run", "shop.py", "--option", "currency"], "write it as key=value"),
        (["run", "shop.py:nope"], "nope"),
        (["run", "shop.py", "--lanes", "0"], "0"),
        (["run", "shop.py", "--engine", "steam"], "steam"),
    ],
)
def test_a_wrong_call_is_one_line(shop: Shop, arguments: list[str], message: str) -> None:
    assert message in shop.shell.fails(*arguments)


def test_a_missing_source_is_refused_as_misspelt(shop: Shop) -> None:
    (shop.shell.cwd / "typo.py").write_text(
        SHOP.replace("shop/orders", "shop/odrers").replace('"shop/odrers": json_codec, ', "")
    )
    assert "no stream 'shop/odrers'" in shop.shell.fails("run", "typo.py")


def started(shop: Shop, *arguments: str) -> subprocess.Popen[bytes]:
    return shop.shell.start("run", "shop.py", "--engine", "local", *arguments)


def ended(process: subprocess.Popen[bytes], seconds: float = 20) -> tuple[int, bytes]:
    out, _ = process.communicate(timeout=seconds)
    return process.returncode, out


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_record_in_hand_end_and_commits(shop: Shop, how: signal.Signals) -> None:
    (shop.shell.cwd / "headrace.toml").write_text('run.max_wait_handler = "10s"\n')
    process = started(shop, "--json")
    begun = shop.shell.cwd / "begun"
    shop.order({"id": 1}, {"id": 2, "sleep": 1.0, "begins": str(begun)}, {"id": 3, "sleep": 30})
    until(begun.exists, "the second is in hand", 20)
    process.send_signal(how)
    code, out = ended(process)
    assert code == 0
    assert json.loads(out)["computations"][0]["processed"] == 2
    assert [invoice["id"] for invoice in shop.invoices()] == [1, 2]
    group = shop.hub.groups.load("bill")
    assert not group.members
    assert not any(standing.stopped for standing in group.shards.values())


@pytest.mark.slow
def test_two_replicas_share_the_shards_and_a_killed_one_is_replaced(shop: Shop) -> None:
    first, second = started(shop), started(shop)

    def owners() -> set[str | None]:
        return {standing.owner for standing in shop.hub.groups.load("bill").shards.values()}

    until(_no_error(lambda: len(owners()) == 2), "each has one", 20)
    first.kill()
    first.communicate()
    until(lambda: len(owners() - {None}) == 1, "the other has both", 20)
    shop.order(*({"id": n} for n in range(10)))
    until(lambda: len(shop.invoices()) == 10, "all are billed", 20)
    second.terminate()
    assert ended(second)[0] == 0


def _no_error(asked: Callable[[], bool]) -> Callable[[], bool]:
    def answer() -> bool:
        try:
            return asked()
        except headrace.UnknownGroup:
            return False

    return answer


def test_on_a_terminal_it_shows_a_line_for_each_computation(shop: Shop, tmp_path: Path) -> None:
    shop.order(*({"id": n, "sleep": 0.1} for n in range(12)), {"bad": True})
    environment = {**shop.shell.environment, "COLUMNS": "140", "LINES": "40", "TERM": "xterm"}
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(shop.shell.cwd)
        command = [sys.executable, "-m", "headrace", "run", "shop.py", "--engine", "local"]
        command += ["--until-caught-up"]
        os.execve(sys.executable, command, environment)
    shown = b""
    while True:
        try:
            part = os.read(terminal, 65_536)
        except OSError:  # the end of it
            break
        shown += part
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    text = shown.decode()
    assert "rec/s" in text
    assert "caught up" in text
    assert "bill" in text
    assert "Terminate computation: bill due to previous failure" in text


def test_a_dead_letter_that_cannot_be_decoded_is_shown_with_its_reason(shop: Shop) -> None:
    text = SHOP.replace('Policy(retries=1, delay="10ms")', 'Policy(retries=0, then="dead-letter")')
    (shop.shell.cwd / "shop.py").write_text(text)
    batch = pa.RecordBatch.from_pydict({"key": [b"ann"], "data": [b"{not json"]})
    shop.hub.stream("shop/orders").append_arrow(batch)
    shop.run("--until-caught-up")
    out, _ = shop.shell("tail", "bill.dead-letters", "--from", "earliest", "--json")
    letter = json.loads(out)
    assert letter["data"] == "{not json"
    assert "cannot decode" in letter["undecodable"]
    assert "BadValue" in {h["name"]: h["value"] for h in letter["headers"]}["dead-letter-reason"]


def test_a_shard_stopped_at_no_record_is_shown_so(shop: Shop) -> None:
    text = (
        SHOP
        + """
@computation(inputs="shop/orders", policy=Policy(retries=0))
class Audit:
    def init(self): raise OSError("no audit log")
    def process(self, record): ...

topology = Topology(Audit)
"""
    )
    (shop.shell.cwd / "shop.py").write_text(text)
    shop.order({"id": 1})
    shop.run("--until-caught-up", code=1)
    out, _ = shop.shell("group", "show", "Audit")
    assert "no record: 1 failed: OSError: no audit log" in out
    assert "because a call that is about no record (init, on_timer) failed once" in out
    assert "to leave it out" not in out
    found = json.loads(shop.shell("group", "show", "Audit", "--json")[0])
    (told,) = (row["attempts"] for row in found["shards"] if row["stopped"])
    assert (told["record"], told["failed"]) == (None, 1)


def test_errors_of_py4j_are_not_logged_with_a_trace(shell: Shell) -> None:
    _log_to_stderr()
    for module, is_shown in (("java_gateway", False), ("clientserver", False), ("shop", True)):
        assert bool(logging.root.filter(logging.makeLogRecord({"module": module}))) is is_shown
