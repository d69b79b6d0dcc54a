"""``headrace demo``: its screen, its output in a pipe, and its exit code."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from headrace.cli import demo as demos
from headrace.cli import prove as proves
from headrace.cli.demo_view import drawn_svg, plain
from headrace.cli.main import cli
from headrace.core.errors import Refused
from headrace.testing.children import seed
from headrace.tools.demo.narrator import StoryLine
from headrace.tools.demo.scene import ReplicaRow, Scene, StageRow
from headrace.tools.demo.script import order
from headrace.tools.proof.certificate import Certificate, StreamLine
from headrace.tools.proof.engine_choice import LOCAL, PROCESSES, SPARK
from headrace.tools.proof.load import Load
from headrace.tools.proof.plan import Deed
from headrace.tools.proof.proof import Order, ProofRun, Tell
from headrace.tools.proof.replicas import ReplicaProcess, Replicas

CLEAN = Certificate(
    seed="7",
    again="headrace demo --seed 7",
    records=10,
    replicas=4,
    kills=1,
    stops=1,
    seconds=1.0,
    caught_up=True,
    streams=[
        StreamLine(
            stream="shop/priced",
            kind="output",
            records_in=10,
            records_out=10,
            lost=0,
            doubled=0,
            out_of_order=0,
            unexpected=0,
            longest_gap_ms=100,
            longest_shard_gap_ms=3300,
            compared="origin",
        )
    ],
    state=[],
    stopped=[],
    ended=[],
    failures=[],
    notes=[],
)
LOST = replace(CLEAN, streams=[replace(CLEAN.streams[0], records_out=9, lost=1)])

SCENE = Scene(
    12.0,
    "disturbing",
    500,
    1000,
    [
        ReplicaRow("r1", "at work", {"price": "0-4", "bill": "0-9"}, 120.0),
        ReplicaRow("r2", "killed", {"price": "", "bill": ""}, 0.0),
        ReplicaRow("r3", "stopped", {"price": "5-9", "bill": ""}, 0.0),
    ],
    [StageRow("price", 100.0, 17), StageRow("bill", 20.0, 0)],
    [StoryLine(9.0, "kill -9 r2: it held 3 shards")],
)

Run = Callable[..., Any]


@pytest.fixture
def ends_with(monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command with a proof that returns a certificate at once."""

    def run(certificate: Certificate, *arguments: str) -> Any:
        def proved(order: Order, tell: Tell) -> tuple[Certificate, str | None]:
            return certificate, None

        monkeypatch.setattr(demos, "run_proof", proved)
        return CliRunner().invoke(cli, ["demo", "--engine", "local", *arguments])

    return run


def test_a_clean_certificate_ends_with_0(ends_with: Run) -> None:
    done = ends_with(CLEAN)
    assert done.exit_code == 0, done.output
    verdict = done.output.splitlines()[-1]
    assert verdict.startswith("clean: lost 0, doubled 0, out of order 0; 1 kill and 1 stop of 4")


@pytest.mark.parametrize(
    "certificate", [LOST, replace(CLEAN, caught_up=False)], ids=["lost", "not caught up"]
)
@pytest.mark.parametrize("arguments", [[], ["--json"]], ids=["shown", "json"])
def test_a_certificate_that_is_not_clean_ends_with_1(
    ends_with: Run, certificate: Certificate, arguments: list[str]
) -> None:
    done = ends_with(certificate, *arguments)
    assert done.exit_code == 1, done.output
    if arguments:
        assert json.loads(done.stdout)["clean"] is False
    else:
        assert "NOT CLEAN" in done.output


def test_a_line_tells_who_holds_what_how_fast_and_how_far_behind() -> None:
    assert plain(SCENE) == (
        "r1 price:0-4 bill:0-9; r2 killed; r3 stopped price:5-9 | "
        "price 100/s lag 17, bill 20/s lag 0 | 500 of 1000 records"
    )


def test_the_picture_holds_screen_and_certificate_and_fetches_nothing(tmp_path: Path) -> None:
    found = drawn_svg("three stages", SCENE, CLEAN)
    shown = re.sub(r"<[^>]+>", "", found).replace("&#160;", " ")
    for text in ("killed", "5-9", "kill -9 r2: it held 3 shards", "lost 0, doubled 0"):
        assert text in shown
    assert "@font-face" not in found
    assert "url(http" not in found
    assert os.uname().nodename not in found


@pytest.mark.parametrize("command", [["demo"], ["prove", "shop.py", "--engine", "spark"]])
def test_missing_java_is_reported_at_once(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = CliRunner().invoke(cli, command)
    assert isinstance(done.exception, Refused)
    assert "Java" in str(done.exception)
    assert done.output == ""


@pytest.mark.parametrize(
    ("options", "engine", "again"),
    [
        ([], LOCAL, "--replicas 3"),
        (["--processes"], PROCESSES, "--processes"),
        (["--engine", "spark"], SPARK, "--engine spark"),
    ],
)
def test_prove_runs_the_replicas_on_the_engine_that_is_named(
    options: list[str], engine: object, again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[Order] = []

    def proved(order: Order, tell: Tell) -> tuple[Certificate, str | None]:
        orders.append(order)
        return CLEAN, None

    monkeypatch.setattr(proves, "run_proof", proved)
    place = "headrace.tools.proof.stages:topology"
    done = CliRunner().invoke(cli, ["prove", place, *options])
    assert done.exit_code == 0, done.output
    assert orders[0].engine is engine
    assert orders[0].again.endswith(again)


def test_processes_are_not_for_spark() -> None:
    done = CliRunner().invoke(cli, ["prove", "x.py", "--engine", "spark", "--processes"])
    assert "--processes is for lanes without Spark" in str(done.exception)


def test_a_replica_stopped_with_the_write_lock_is_resumed_and_stopped_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else no replica could take its shards, and there would be nothing to see."""
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "place"
    place.mkdir()
    proof = ProofRun(order(LOCAL, seed="7", records=10, seconds=5, again=""), place)
    done: list[str] = []
    replicas = SimpleNamespace(
        stop=lambda replica, for_s: done.append("stop"),
        resume=lambda replica: done.append("resume"),
    )
    load = SimpleNamespace(total=0, is_held=False, is_over=False)

    def until(replicas: object, watch: object, load: Any, condition: Any, within_s: float) -> bool:
        load.total += done[-1] == "resume" or done.count("stop") == 3
        return bool(condition())

    monkeypatch.setattr(proof, "_until", until)
    monkeypatch.setattr(proof, "_progress", SimpleNamespace(watch=None), raising=False)
    deed = Deed(1.0, "stop", 2, 2.5, locked=False)
    proof._stop(cast(ReplicaProcess, None), deed, cast(Replicas, replicas), cast(Load, load))
    assert done == ["stop", "resume", "stop", "resume", "stop"]


# The real command


def arguments(*more: str) -> list[str]:
    return [sys.executable, "-m", "headrace", "demo", "--seed", seed(), *more]


@pytest.mark.slow
def test_a_terminal_shows_who_holds_which_shards_meanwhile(tmp_path: Path) -> None:
    screen, terminal = pty.openpty()
    environment = {**os.environ, "COLUMNS": "110", "LINES": "40", "TERM": "xterm"}
    svg = tmp_path / "demo.svg"
    command = arguments(
        "--engine", "local", "--records", "1500", "--seconds", "3", "--svg", str(svg)
    )
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=terminal, stderr=terminal
    ) as process:
        os.close(terminal)
        shown = "".join(iter(lambda: _read(screen), ""))
        os.close(screen)
        assert process.wait(60) == 0, shown
    assert "\x1b[" in shown
    for text in ("shards of price", "at work", "kill -9 r2", "SIGSTOP r3", "r4", "lag", "clean"):
        assert text in shown, text
    assert "clean" in svg.read_text()
    assert str(tmp_path) not in svg.read_text()


@pytest.mark.slow
def test_replicas_on_spark_that_are_killed_stopped_and_added_share_ten_shards_and_lose_nothing(
    tmp_path: Path,
) -> None:
    """In a pipe: plain lines, and one JSON value at the end."""
    command = arguments("--records", "2500", "--seconds", "5", "--json")
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["clean"], found
    assert found["complete"], found
    assert (found["kills"], found["stops"], found["replicas"]) == (1, 1, 4)
    assert found["notes"] == []  # no Java and no lane of the killed replica is left
    for line in found["streams"]:
        assert (line["lost"], line["doubled"], line["out_of_order"]) == (0, 0, 0), line
        assert line["records_out"] == 2500
    story = {event["what"]: event["shards"] for event in found["story"]}
    shards = next(held for what, held in story.items() if re.match(r"r4 has \d+ shards", what))
    assert len(shards) == 3
    for computation in ("price", "bill", "total"):
        taken = [index for held in shards.values() for index in _indexes(held[computation])]
        assert sorted(taken) == list(range(10)), shards
    told = done.stderr + done.stdout
    assert all(char.isprintable() or char == "\n" for char in told), told
    for text in ("kill -9 r2", "SIGSTOP r3", "r3 goes on", "a further replica is started: r4"):
        assert text in done.stderr


def _read(screen: int) -> str:
    try:
        return os.read(screen, 65536).decode(errors="replace")
    except OSError:  # the other end is closed
        return ""


def _indexes(ranges: str) -> list[int]:
    found: list[int] = []
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
