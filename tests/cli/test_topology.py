"""``headrace topology`` as a person and a script use it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from headrace.cli import render
from headrace.cli.main import main

SHOP = """\
from headrace.core.computations.computation import computation
from headrace.core.computations.policy import Policy
from headrace.core.computations.topology import Topology

@computation(inputs="shop/orders", outputs="shop/invoices", policy=Policy(then="dead-letter"))
def bill(record, out): ...

@computation.batch(inputs="shop/invoices", capacity=10, threshold="200ms")
def index(records): ...

topology = Topology(bill, index, name="shop")
"""


class Shell:
    def __init__(self, patch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]) -> None:
        self._patch = patch
        self._captured = captured

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """What ``headrace topology …`` prints, on stdout if it works."""
        self._patch.setattr(sys, "argv", ["headrace", "topology", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = self._captured.readouterr()
        assert (end.value.code or 0) == code, out + err
        return out if code == 0 else err


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "120")
    Path("cli_shop.py").write_text(SHOP)
    return Shell(monkeypatch, capsys)


def test_a_topology_is_drawn(shell: Shell) -> None:
    assert shell("cli_shop.py").splitlines() == [
        "○  shop/orders",
        "▼  [bill]         then dead-letter",
        "○  shop/invoices",
        "▼  [index]        batch of 10 or 200ms",
    ]


def test_on_a_terminal_a_table_of_its_computations_follows(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "on_terminal", lambda: True)
    lines = [line.replace("│", " ").split() for line in shell("cli_shop.py").splitlines()]
    assert ["bill", "shop/orders", "shop/invoices", "record", "then", "dead-letter"] in lines
    assert ["index", "shop/invoices", "-", "batch", "usual"] in lines


def test_mermaid_text_is_printed(shell: Shell) -> None:
    lines = shell("cli_shop.py:topology", "--mermaid").splitlines()
    assert lines[0] == "flowchart LR"
    assert '    c0["bill<br/>then dead-letter"]' in lines
    assert "    c0 --> s1" in lines


def test_programs_get_all_of_it(shell: Shell) -> None:
    view = json.loads(shell("cli_shop.py", "--json"))
    assert view["reference"] == f"{Path('cli_shop.py').absolute()}:topology"
    assert (view["topology"], view["sources"], view["sinks"]) == ("shop", ["shop/orders"], [])
    assert view["streams"][1] == {
        "stream": "shop/invoices", "writers": ["bill"], "readers": ["index"], "settings": {},
    }  # fmt: skip
    bill, index = view["computations"]
    assert (bill["computation"], bill["inputs"], bill["outputs"]) == (
        "bill", ["shop/orders"], ["shop/invoices"],
    )  # fmt: skip
    assert (bill["policy"]["retries"], bill["policy"]["then"]) == (20, "dead-letter")
    assert (bill["kind"], bill["capacity"], bill["threshold_s"]) == ("record", None, None)
    assert (index["kind"], index["capacity"], index["threshold_s"]) == ("batch", 10, 0.2)
    assert (index["policy"]["then"], index["concurrency"]) == ("stop", None)
    assert bill["code"] == index["code"]


def test_what_the_settings_file_says_is_shown(
    shell: Shell, caplog: pytest.LogCaptureFixture
) -> None:
    Path("headrace.toml").write_text(
        "[policies.default]\nretries = 3\n[computations.bill]\nconcurrency = 1\n"
        '[streams."shop/orders"]\nshards = 8\n[policies.indx]\n'
    )
    assert shell("cli_shop.py").splitlines() == [
        "○  shop/orders    8 shards",
        "▼  [bill]         concurrency 1, then dead-letter",
        "○  shop/invoices",
        "▼  [index]        batch of 10 or 200ms, 3 retries",
    ]
    assert "[policies.indx]" in caplog.text
    Path("headrace.toml").write_text("[policies.bill]\nretries = 'many'\n")
    assert shell("cli_shop.py", code=2) == (
        "headrace: headrace.toml: [policies.bill]: retries = 'many': a whole number, 0 to 1000000\n"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing.py"], "headrace: nothing.py: no such file"),
        (["cli_shop.py:other"], "headrace: cli_shop.py: has no 'other'"),
        (["circle.py"], "headrace: circle.py: the computations go in a circle: "),
        (["cli_shop.py", "--json", "--mermaid"], "headrace: --mermaid and --json: say one"),
        ([], "headrace: Missing argument 'FILE[:NAME]'"),
    ],
)
def test_a_bad_topology_is_one_line(shell: Shell, arguments: list[str], says: str) -> None:
    Path("circle.py").write_text(
        "from headrace.core.computations.computation import computation\n"
        "@computation(inputs='a', outputs='b')\ndef there(record, out): ...\n"
        "@computation(inputs='b', outputs='a')\ndef back(record, out): ...\n"
    )
    err = shell(*arguments, code=2)
    assert err.startswith(says)
    assert err.count("\n") == 1
